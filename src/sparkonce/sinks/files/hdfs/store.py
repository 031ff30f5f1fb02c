"""A folder in HDFS, through the client ``hdfs-native``, which needs no Java.

A file is held back under ``.sparkonce/held`` and published by a rename that fails if its target exists: the name node
does that in one step of its own log. So a sealed file always has exactly one of its two names.

The client repeats requests for minutes on its own. Each request here is waited for up to a deadline; what has not
answered by then may still be done later, which is as good: it does what was decided, or nothing.
"""

from __future__ import annotations

import secrets
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from sparkonce.arguments import missing_package
from sparkonce.errors import ConfigurationError, PreflightError, UnknownOutcomeError
from sparkonce.protocol.outcomes import COMMITTED, Finished, Outcome
from sparkonce.sinks.files.hdfs.deadlines import within
from sparkonce.sinks.files.hdfs.writing import HdfsStagedFile, create, first_line, unwritten
from sparkonce.sinks.files.names import HIDDEN, ID, STALE_S, TEMPORARY, check_lengths, name_in
from sparkonce.sinks.files.outcomes import DAMAGED, FOLDER_GONE, FOREIGN, MISSING, of_hdfs_error
from sparkonce.sinks.files.store import Fields, FileState, FileStore, Staged, StagedFile

if TYPE_CHECKING:
    from sparkonce.protocol.ownership import TransactionName

DEADLINE_S = 20.0
LONGEST_NAME_BYTES = 255
"""``dfs.namenode.fs-limits.max-component-length``, which a client is not told: its default."""
LONGEST_PATH = 8000
"""Fixed in the name node: characters, which are never more than bytes."""

_HELD = ".held"

Answer = TypeVar("Answer")


class HdfsStore(FileStore):
    """See `FileStore`.

    Args:
        url: ``hdfs://host:port/path``, or with a name service that the configuration knows instead of host and port.
        config: Hadoop's settings; what is not among them is read from ``HADOOP_CONF_DIR``.
        config_dir: Where Hadoop's XML files are, instead of ``HADOOP_CONF_DIR``.
        deadline_s: How long the cluster may be silent; in a seal, which sends the last megabytes, six times that.
        replication: Of new files; None for the cluster's default.
        kerberos: ``kerberos_principal``, ``kerberos_keytab`` and ``kerberos_cache`` of the client.

    Raises:
        ConfigurationError: if the client is not installed, or does not accept the settings.
    """

    def __init__(
        self,
        url: str,
        *,
        config: Mapping[str, str] | None = None,
        config_dir: str | None = None,
        deadline_s: float = DEADLINE_S,
        replication: int | None = None,
        **kerberos: str,
    ) -> None:
        try:
            from hdfs_native import Client, WriteOptions
        except ImportError as error:
            raise missing_package(f"path={url!r}", "hdfs-native", "hdfs") from error
        parts = urlsplit(url)
        self._root = "/" + unquote(parts.path).strip("/")
        self.location = f"hdfs://{parts.netloc}{self._root}".rstrip("/")
        self._held = f"{self._root.rstrip('/')}/{HIDDEN}/held"
        self._deadline_s = deadline_s
        self._known: set[tuple[str, str]] = set()
        self._options = WriteOptions(replication=replication, overwrite=False, create_parent=False)
        try:
            self._client = Client(f"hdfs://{parts.netloc}", dict(config or {}), config_dir, **kerberos)
        except (ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"path={url!r} cannot be used: {error}.", next_step="Correct the address or store_options."
            ) from error

    # --- asking -----------------------------------------------------------------------------------------------------

    def _ask(self, what: str, call: Callable[[], Answer]) -> Answer:
        """Waits up to the deadline for one answer.

        Raises:
            UnknownOutcomeError: if none came, or one that says nothing of the file.
        """
        (done,) = within(self._deadline_s, [call])
        if isinstance(done, BaseException):
            if isinstance(done, FileNotFoundError | FileExistsError):
                raise done
            raise UnknownOutcomeError(
                f"{self.location}: {what} failed: {first_line(done)}",
                next_step="See whether the name node runs and can be reached.",
            ) from done
        return done

    def _path(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def check(self) -> Mapping[str, str]:
        """See `FileStore.check`. Makes the folder if it is missing, and renames a file there."""
        probe, second = f"{self._held}/probe-{secrets.token_hex(6)}", self._path(f".probe-{secrets.token_hex(6)}")

        def attempt() -> str:
            self._client.mkdirs(self._held, 0o755, True)
            identity = self._identity()
            self._delete_stale()
            create(self._client, probe, self._options).close()
            self._client.rename(probe, second, False)
            self._client.delete(second)
            return identity

        (done,) = within(self._deadline_s, [attempt])
        if isinstance(done, BaseException):
            raise PreflightError(
                f"path={self.location!r} cannot be written to: {first_line(done)}",
                next_step="See whether the name node runs, the address is right, and this user may write there.",
                setting="path",
            ) from done
        return {"folder": done}

    def _identity(self) -> str:
        path = self._path(ID)
        with suppress(FileNotFoundError):
            return str(bytes(self._client.read(path).read()), "ascii").strip()
        temporary = f"{path}-{secrets.token_hex(6)}"
        file = create(self._client, temporary, self._options)
        file.write(uuid.uuid4().hex.encode())
        file.hsync()
        file.close()
        try:
            self._client.rename(temporary, path, False)
        except FileExistsError:
            self._client.delete(temporary)
        return str(bytes(self._client.read(path).read()), "ascii")

    def _delete_stale(self) -> None:
        with suppress(Exception):  # it may be another user's, and a start can do without
            for folder in (self._held, self._path(HIDDEN)):
                for one in self._client.list_status(folder):
                    age_s = time.time() - one.modification_time / 1000
                    if TEMPORARY.fullmatch(one.path.rpartition("/")[2]) and age_s > STALE_S:
                        self._client.delete(one.path)

    # --- files ------------------------------------------------------------------------------------------------------

    def stage(self, name: TransactionName, path: str) -> StagedFile:  # noqa: ARG002 - the path holds it
        """See `FileStore.stage`."""
        held = f"{self._held}/{path.rpartition('/')[2]}{_HELD}"
        check_lengths((self._path(path), held), LONGEST_NAME_BYTES, LONGEST_PATH)
        (file,) = within(self._deadline_s, [lambda: create(self._client, held, self._options)])
        if isinstance(file, BaseException):
            raise unwritten(held, file)
        return HdfsStagedFile(self._client, held, file, path, self._deadline_s * 6)

    def look(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """See `FileStore.look`."""
        found = within(self._deadline_s, [lambda one=one: self._look(one) for one in files])  # type: ignore[misc]
        lost = [one for one in found if isinstance(one, BaseException)]
        if lost:
            raise UnknownOutcomeError(f"{self.location}: {first_line(lost[0])}")
        return [one for one in found if not isinstance(one, BaseException)]

    def _look(self, fields: Fields) -> FileState:
        length = self._length(f"{self._held}/{fields['held']}")
        if length == fields["size"]:
            return FileState.STAGED
        final = self._path(str(fields["path"]))
        if self._length(final) is None:
            if length is not None:
                return FileState.DAMAGED
            self._client.get_file_info(self._held)  # or else all are missing: `look` says so
            return FileState.GONE
        return FileState.PUBLISHED if self._matches(final, fields) else FileState.UNKNOWN

    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.publish`. What has no answer is left to the next call, which need not read the others."""
        folders = sorted({str(one["path"]).rpartition("/")[0] for one in files} - {""})
        made = dict(zip(folders, self._each(self._make, folders), strict=True))
        going = [one for one in files if str(one["path"]).rpartition("/")[0] not in made or _is_made(made, one)]
        answers = dict(zip(map(id, going), self._each(self._rename, going), strict=True))
        found = [answers.get(id(one)) or made[str(one["path"]).rpartition("/")[0]] for one in files]
        if all(one.outcome in COMMITTED for one in found):
            self._known.clear()  # nothing of them is asked again
        return found

    def _make(self, folder: str) -> Finished:
        self._client.mkdirs(self._path(folder), 0o755, True)
        return Finished(outcome=Outcome.COMMITTED)

    def _rename(self, fields: Fields) -> Finished:
        held, final = f"{self._held}/{fields['held']}", self._path(str(fields["path"]))
        if self._length(held) not in (None, fields["size"]):
            return self._of_damaged(final)
        try:
            self._client.rename(held, final, False)
        except FileExistsError:
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        except FileNotFoundError:
            return self._without_held(fields, held, final)
        self._known.add((final, str(fields["checksum"])))
        return Finished(outcome=Outcome.COMMITTED)

    def _of_damaged(self, final: str) -> Finished:
        if self._length(final) is not None:
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        return Finished(outcome=Outcome.LOST, reason=f"{final}: {DAMAGED}")

    def _without_held(self, fields: Fields, held: str, final: str) -> Finished:
        # Looked for first: what another driver renames after this is asked again, and not taken for lost.
        if self._length(held) is not None:
            return Finished(outcome=Outcome.RETRY, reason=f"{final}: {FOLDER_GONE}")
        if self._length(final) is not None:
            if self._matches(final, fields):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        try:
            self._client.get_file_info(self._held)
        except FileNotFoundError:
            # Not one file is missing but all: it is another cluster, or the whole folder is gone.
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{self._held} is not there: is this the right cluster?")
        return Finished(outcome=Outcome.LOST, reason=f"{final}: {MISSING}")

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.discard`. A writer that still writes to a deleted file cannot close it any more."""
        return self._each(self._discard, files)

    def _discard(self, fields: Fields) -> Finished:
        deleted = self._client.delete(f"{self._held}/{fields['held']}")
        if not deleted and "path" in fields and self._matches(self._path(str(fields["path"])), fields):
            return Finished(outcome=Outcome.ALREADY_COMMITTED)
        return Finished(outcome=Outcome.ABORTED)

    def list_staged(self) -> Iterable[Staged]:
        """See `FileStore.list_staged`."""
        for base in self._list(self._held):
            name = name_in(base.removesuffix(_HELD))
            if name is not None and base.endswith(_HELD):
                yield Staged(name=name, fields={"held": base})

    def put(self, path: str, content: bytes) -> None:
        """See `FileStore.put`."""
        final, temporary = self._path(path), self._path(f"{HIDDEN}/put-{secrets.token_hex(6)}")

        def attempt() -> None:
            self._client.mkdirs(final.rpartition("/")[0], 0o755, True)
            file = create(self._client, temporary, self._options)
            file.write(content)
            file.hsync()
            file.close()
            self._client.rename(temporary, final, True)

        self._ask(f"writing {path}", attempt)

    def get(self, path: str) -> bytes | None:
        """See `FileStore.get`."""
        try:
            return self._ask(f"reading {path}", lambda: bytes(self._client.read(self._path(path)).read()))
        except FileNotFoundError:
            return None

    def list_names(self, folder: str) -> Sequence[str]:
        """See `FileStore.list_names`."""
        return self._list(self._path(folder))

    def _list(self, folder: str) -> list[str]:
        def attempt() -> list[str]:
            return [one.path.rpartition("/")[2] for one in self._client.list_status(folder) if not one.isdir]

        try:
            return self._ask(f"listing {folder}", attempt)
        except FileNotFoundError:
            return []

    def delete(self, paths: Sequence[str]) -> None:
        """See `FileStore.delete`."""
        for path in paths:
            self._ask(f"deleting {path}", lambda path=path: self._client.delete(self._path(path)))  # type: ignore[misc]

    def _each(self, call: Callable[[Any], Finished], items: Sequence[Any]) -> list[Finished]:
        found = within(self._deadline_s, [lambda one=one: call(one) for one in items])  # type: ignore[misc]
        return [
            of_hdfs_error(one, _named(item)) if isinstance(one, BaseException) else one
            for one, item in zip(found, items, strict=True)
        ]

    def _length(self, path: str) -> int | None:
        try:
            found = self._client.get_file_info(path)
        except FileNotFoundError:
            return None
        return -1 if found.isdir else int(found.length)

    def _matches(self, path: str, fields: Fields) -> bool:
        """Whether a file has the size and checksum that it must have.

        What this store has published, or read once with the right checksum, is not read again: of many large files a
        deadline may suffice for some, and the next time for others.
        """
        if self._length(path) != fields["size"]:
            return False
        if (path, str(fields["checksum"])) in self._known:
            return True
        crc = 0
        for chunk in self._client.read(path).read_range_stream(0, int(fields["size"])):
            crc = zlib.crc32(chunk, crc)
        if f"crc32:{crc:08x}" != fields["checksum"]:
            return False
        self._known.add((path, str(fields["checksum"])))
        return True


def _named(item: Any) -> str:
    """A folder, or what is known of a file."""
    return item if isinstance(item, str) else str(item.get("path") or item["held"])


def _is_made(made: Mapping[str, Finished], fields: Fields) -> bool:
    return made[str(fields["path"]).rpartition("/")[0]].outcome is Outcome.COMMITTED
