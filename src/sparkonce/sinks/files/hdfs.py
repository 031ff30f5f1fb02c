"""A folder in HDFS as a store, through the client ``hdfs-native``, which needs no Java.

A file is staged under ``.sparkonce/held`` and published by a rename that fails if its target exists: one step in the
name node's own log. So a sealed file always has exactly one of its two names.

The client repeats requests for minutes on its own. Each request is waited for up to a deadline. A request without an
answer may still be applied later, which does no harm: it does what was decided, or nothing.
"""

from __future__ import annotations

import secrets
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast
from urllib.parse import unquote, urlsplit

from sparkonce.arguments import missing_package
from sparkonce.errors import (
    ConfigurationError,
    OutageError,
    PreflightError,
    PrepareError,
    UnknownOutcomeError,
    one_line,
)
from sparkonce.protocol.handles import COMMITTED, Finished, Outcome
from sparkonce.sinks._shared.error_table import ErrorTable, Meaning
from sparkonce.sinks.files.names import HIDDEN, ID, STALE_S, TEMPORARY, check_lengths, name_in
from sparkonce.sinks.files.store import (
    DAMAGED,
    FOLDER_GONE,
    FOREIGN,
    MISSING,
    ChecksumStream,
    Fields,
    FileState,
    FileStore,
    Staged,
    StagedFile,
)
from sparkonce.storage.files import within
from sparkonce.storage.hdfs import create

if TYPE_CHECKING:
    from hdfs_native import Client, WriteOptions

    from sparkonce.protocol.handles import Finished
    from sparkonce.protocol.ownership import TransactionName


DEADLINE_S = 20.0
LONGEST_NAME_BYTES = 255
"""The default of ``dfs.namenode.fs-limits.max-component-length``, which a client is not told."""
LONGEST_PATH = 8000
"""The name node's fixed limit in characters, which are never more than bytes."""

_HELD = ".held"

Answer = TypeVar("Answer")


class HdfsStore(FileStore):
    """See `FileStore`.

    Args:
        url: ``hdfs://host:port/path``, or with a name service of the configuration instead of host and port.
        config: Hadoop's settings; missing ones are read from ``HADOOP_CONF_DIR``.
        config_dir: The folder of Hadoop's XML files, instead of ``HADOOP_CONF_DIR``.
        deadline_s: How long the cluster may be silent; a seal, which sends the last megabytes, has six times that.
        replication: The replication of new files; None for the cluster's default.
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
        folder = "/" + unquote(parts.path).strip("/")
        self.location = f"hdfs://{parts.netloc}{folder}".rstrip("/")
        self._root = folder.rstrip("/")
        self._held = f"{self._root}/{HIDDEN}/held"
        self._deadline_s = deadline_s
        self._known: set[tuple[str, str]] = set()
        self._options = WriteOptions(replication=replication, overwrite=False, create_parent=False)
        try:
            self._client = Client(f"hdfs://{parts.netloc}", dict(config or {}), config_dir, **kerberos)
        except (ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"path={url!r} cannot be used: {error}.", next_step="Correct the address or store_options."
            ) from error

    # --- at a start -------------------------------------------------------------------------------------------------

    def check(self) -> Mapping[str, str]:
        """See `FileStore.check`. Makes the folder if it is missing, and renames a file there."""
        (done,) = within(self._deadline_s, [partial(check_folder, self._client, self._root, self._held, self._options)])
        if isinstance(done, BaseException):
            raise PreflightError(
                f"path={self.location!r} cannot be written to: {first_line(done)}",
                next_step="See whether the name node runs, the address is right, and this user may write there.",
                setting="path",
            ) from done
        return {"folder": done}

    # --- files ------------------------------------------------------------------------------------------------------

    def stage(self, name: TransactionName, path: str) -> StagedFile:  # noqa: ARG002 - the path holds it
        """See `FileStore.stage`."""
        held = f"{self._held}/{path.rpartition('/')[2]}{_HELD}"
        check_lengths((self._path(path), held), LONGEST_NAME_BYTES, LONGEST_PATH)
        (file,) = within(self._deadline_s, [partial(create, self._client, held, self._options)])
        if isinstance(file, BaseException):
            raise prepare_error(file, held)
        return HdfsStagedFile(self._client, held, file, path, self._deadline_s * 6)

    def states(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """See `FileStore.states`."""
        return self._finisher().states(files)

    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.publish`."""
        return self._finisher().publish(files)

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.discard`."""
        return self._finisher().discard(files)

    def _finisher(self) -> HdfsFinisher:
        return HdfsFinisher(self._client, self.location, self._root, self._held, self._deadline_s, self._known)

    def list_staged(self) -> Iterable[Staged]:
        """See `FileStore.list_staged`."""
        for base in self._list(self._held):
            name = name_in(base.removesuffix(_HELD))
            if name is not None and base.endswith(_HELD):
                yield Staged(name=name, fields={"held": base})

    # --- small files ------------------------------------------------------------------------------------------------

    def put(self, path: str, content: bytes) -> None:
        """See `FileStore.put`."""
        self._put(path, content, replace=True)

    def _create(self, path: str, content: bytes) -> None:
        with suppress(FileExistsError):
            self._put(path, content, replace=False)

    def _put(self, path: str, content: bytes, *, replace: bool) -> None:
        final, temporary = self._path(path), self._path(f"{HIDDEN}/put-{secrets.token_hex(6)}")

        def attempt() -> None:
            self._client.mkdirs(final.rpartition("/")[0], 0o755, True)
            write_durably(self._client, temporary, content, self._options)
            try:
                self._client.rename(temporary, final, replace)
            except FileExistsError:
                self._client.delete(temporary)
                raise

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
            self._ask(f"deleting {path}", partial(self._client.delete, self._path(path)))

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _ask(self, what: str, call: Callable[[], Answer]) -> Answer:
        """Waits up to the deadline for one answer.

        Raises:
            UnknownOutcomeError: if none came, or one that tells nothing about the file.
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


_BUFFER_BYTES = 1 << 20


class HdfsStagedFile(StagedFile):
    """A file under ``.sparkonce/held``."""

    def __init__(self, client: Client, held: str, file: Any, path: str, deadline_s: float) -> None:
        self._client = client
        self._held = held
        self._path = path
        self._deadline_s = deadline_s
        self._buffer = _Buffered(file, held, deadline_s)
        self._stream = ChecksumStream(self._buffer, held)

    @property
    def stream(self) -> BinaryIO:
        """See `StagedFile.stream`."""
        return cast("BinaryIO", self._stream)

    def size(self) -> int:
        """See `StagedFile.size`."""
        return self._stream.size

    def seal(self) -> Fields:
        """See `StagedFile.seal`. Brings the last block to its replicas' disks (hsync), and completes the file (close).

        Earlier blocks are on disk only if ``dfs.datanode.synconclose`` is set: see `FilesSink.conditions`.
        """
        # A sweep may have deleted the file while its copy slept: both calls then raise FileNotFoundError.

        def attempt() -> int:
            self._buffer.flush()
            self._buffer.file.hsync()
            self._buffer.file.close()
            return int(self._client.get_file_info(self._held).length)

        (length,) = within(self._deadline_s, [attempt])
        if isinstance(length, BaseException):
            raise prepare_error(length, self._held)
        if length != self._stream.size:
            raise PrepareError(f"{self._held} has {length} of the {self._stream.size} bytes that were written.")
        return {
            "path": self._path,
            "held": self._held.rpartition("/")[2],
            "size": length,
            "checksum": self._stream.checksum,
        }

    def discard(self) -> None:
        """See `StagedFile.discard`."""

        def attempt() -> None:
            with suppress(Exception):
                self._buffer.file.close()
            self._client.delete(self._held)

        within(self._deadline_s / 6, [attempt])


class _Buffered:
    """A buffer that passes on a megabyte at a time: each call of the client leaves Python."""

    def __init__(self, file: Any, path: str, deadline_s: float) -> None:
        self.file = file
        self._path = path
        self._deadline_s = deadline_s
        self._waiting = bytearray()

    def write(self, data: Any) -> None:
        self._waiting += data
        if len(self._waiting) >= _BUFFER_BYTES:
            (done,) = within(self._deadline_s, [self.flush])
            if isinstance(done, BaseException):
                raise prepare_error(done, self._path)

    def flush(self) -> None:
        full, self._waiting = self._waiting, bytearray()
        self.file.write(bytes(full))


class HdfsFinisher:
    """Publishes, looks for and discards files of one folder.

    Args:
        client: The client.
        location: The sink's folder with its cluster, for messages.
        root: The sink's folder, without a slash at its end.
        held: The folder of staged files within it.
        deadline_s: How long the cluster may be silent.
        known: Paths and checksums of files that need not be read again, shared by all finishers of a store.
    """

    def __init__(
        self, client: Client, location: str, root: str, held: str, deadline_s: float, known: set[tuple[str, str]]
    ) -> None:
        self._client = client
        self._location = location
        self._root = root
        self._held = held
        self._deadline_s = deadline_s
        self._known = known

    def states(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """See `FileStore.states`."""
        found = within(self._deadline_s, [partial(self._state, one) for one in files])
        lost = [one for one in found if isinstance(one, BaseException)]
        if lost:
            raise UnknownOutcomeError(f"{self._location}: {first_line(lost[0])}")
        return [one for one in found if not isinstance(one, BaseException)]

    def _state(self, fields: Fields) -> FileState:
        length = self._length(f"{self._held}/{fields['held']}")
        if length == fields["size"]:
            return FileState.STAGED
        final = self._final(fields)
        if self._length(final) is None:
            if length is not None:
                return FileState.DAMAGED
            self._client.get_file_info(self._held)  # raises if all are missing
            return FileState.GONE
        return FileState.PUBLISHED if self._matches(final, fields) else FileState.UNKNOWN

    # --- publish ----------------------------------------------------------------------------------------------------

    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.publish`. Files without an answer are left to the next call, which need not read the rest."""
        folders = sorted({_folder(one) for one in files} - {""})
        made = dict(zip(folders, self._each(self._make, folders), strict=True))
        going = [one for one in files if _folder(one) not in made or made[_folder(one)].outcome is Outcome.COMMITTED]
        answers = dict(zip(map(id, going), self._each(self._rename, going), strict=True))
        found = [answers.get(id(one)) or made[_folder(one)] for one in files]
        if all(one.outcome in COMMITTED for one in found):
            self._known.clear()  # nothing of them is asked again
        return found

    def _make(self, folder: str) -> Finished:
        self._client.mkdirs(f"{self._root}/{folder}", 0o755, True)
        return Finished(outcome=Outcome.COMMITTED)

    def _rename(self, fields: Fields) -> Finished:
        held, final = f"{self._held}/{fields['held']}", self._final(fields)
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
        # Looked for first: a file that another driver renames after this is asked for again, and not taken for lost.
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

    # --- discard ----------------------------------------------------------------------------------------------------

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.discard`. A writer that still writes to a deleted file can no longer close it."""
        return self._each(self._discard, files)

    def _discard(self, fields: Fields) -> Finished:
        deleted = self._client.delete(f"{self._held}/{fields['held']}")
        if not deleted and "path" in fields and self._matches(self._final(fields), fields):
            return Finished(outcome=Outcome.ALREADY_COMMITTED)
        return Finished(outcome=Outcome.ABORTED)

    # --- asking -----------------------------------------------------------------------------------------------------

    def _final(self, fields: Fields) -> str:
        return f"{self._root}/{fields['path']}"

    def _each(self, call: Callable[[Any], Finished], items: Sequence[Any]) -> list[Finished]:
        found = within(self._deadline_s, [partial(call, one) for one in items])
        return [
            of_error(one, _named(item)) if isinstance(one, BaseException) else one
            for one, item in zip(found, items, strict=True)
        ]

    def _length(self, path: str) -> int | None:
        try:
            found = self._client.get_file_info(path)
        except FileNotFoundError:
            return None
        return -1 if found.isdir else int(found.length)

    def _matches(self, path: str, fields: Fields) -> bool:
        """Returns True if a file has its size and its checksum."""
        if self._length(path) != fields["size"]:
            return False
        # Read once only: within a deadline some of many large files may be read, and the others at the next call.
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
    """Returns the name of a folder, or of a file by its fields."""
    return item if isinstance(item, str) else str(item.get("path") or item["held"])


def _folder(fields: Fields) -> str:
    return str(fields["path"]).rpartition("/")[0]


_RETRY, _UNKNOWN = Outcome.RETRY, Outcome.UNKNOWN
_NO_FOLDER = "A file is where a folder has to be: move it away."

_MEANINGS = {
    "AccessControlException": Meaning(
        _UNKNOWN, "Permission denied: let this user write to the folder. Nothing is lost."
    ),
    "NSQuotaExceededException": Meaning(_RETRY, "The folder's quota of names is used up: raise it."),
    "DSQuotaExceededException": Meaning(_RETRY, "The folder's quota of bytes is used up: raise it."),
    "could only be written to": Meaning(_RETRY, "No data node takes a block: they are away, or full."),
    "SafeModeException": Meaning(_RETRY, "The name node is in safe mode."),
    "StandbyException": Meaning(_RETRY, "Another name node is the active one now."),
    "RetriableException": Meaning(_RETRY, "The name node asks for patience."),
    "ParentNotDirectoryException": Meaning(_UNKNOWN, _NO_FOLDER),
    "FileAlreadyExistsException": Meaning(_UNKNOWN, _NO_FOLDER),
}
_TABLE = ErrorTable[str]({}, phrases=tuple(_MEANINGS.items()))

_OF_ONE_FILE = (FileNotFoundError, FileExistsError, PermissionError)
"""Errors that come again however long one waits."""


def of_error(error: BaseException, path: str) -> Finished:
    """Returns the outcome of one file upon an error of the client, which names the name node's Java exception."""
    text = one_line(str(error).split("\\n")[0].split("\n")[0])
    if isinstance(error, TimeoutError):
        return Finished(outcome=_RETRY, reason=f"{path}: {text}")
    if isinstance(error, OSError):
        return Finished(outcome=_RETRY, reason=f"{path}: {type(error).__name__}: {text}")
    return _TABLE.finished("", text, shown=f"{path}: {text}")


def prepare_error(error: BaseException, path: str) -> PrepareError:
    """Returns the error of a failed write, upon which nothing of the batch became visible."""
    later = of_error(error, path).outcome is Outcome.RETRY and not isinstance(error, _OF_ONE_FILE)
    return (OutageError if later else PrepareError)(
        f"{path} could not be written: {first_line(error)}",
        next_step="See whether the cluster runs and has room; nothing of the batch became visible.",
        path=path,
    )


def first_line(error: BaseException) -> str:
    """Returns an error's text without the stack that the client appends."""
    return one_line(f"{type(error).__name__}: {str(error).split(chr(10))[0]}")


def check_folder(client: Client, root: str, held: str, options: WriteOptions) -> str:
    """Makes the folder if it is missing, renames a file there, and returns the folder's id.

    Args:
        client: The client.
        root: The sink's folder, without a slash at its end.
        held: The folder of staged files within it.
        options: The options of a new file.
    """
    client.mkdirs(held, 0o755, True)
    identity = _identity(client, f"{root}/{ID}", options)
    _delete_stale(client, held, f"{root}/{HIDDEN}")
    probe, second = f"{held}/probe-{secrets.token_hex(6)}", f"{root}/.probe-{secrets.token_hex(6)}"
    create(client, probe, options).close()
    client.rename(probe, second, False)
    client.delete(second)
    return identity


def _identity(client: Client, path: str, options: WriteOptions) -> str:
    """Returns the id that tells this folder from another at the same path. The first start makes it."""
    with suppress(FileNotFoundError):
        return str(bytes(client.read(path).read()), "ascii").strip()
    temporary = f"{path}-{secrets.token_hex(6)}"
    write_durably(client, temporary, uuid.uuid4().hex.encode(), options)
    try:
        client.rename(temporary, path, False)
    except FileExistsError:
        client.delete(temporary)
    return str(bytes(client.read(path).read()), "ascii")


def _delete_stale(client: Client, *folders: str) -> None:
    with suppress(Exception):  # it may be another user's, and a start can do without
        for folder in folders:
            for one in client.list_status(folder):
                age_s = time.time() - one.modification_time / 1000
                if TEMPORARY.fullmatch(one.path.rpartition("/")[2]) and age_s > STALE_S:
                    client.delete(one.path)


def write_durably(client: Client, path: str, content: bytes, options: WriteOptions) -> None:
    """Writes a new file whose content is on the data nodes' disks."""
    file = create(client, path, options)
    file.write(content)
    file.hsync()
    file.close()
