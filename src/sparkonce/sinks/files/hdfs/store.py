"""The folder as a `FileStore`; see the package for how a file is published."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from sparkonce.arguments import missing_package
from sparkonce.errors import ConfigurationError, PreflightError, UnknownOutcomeError
from sparkonce.sinks.files.hdfs import preflight
from sparkonce.sinks.files.hdfs.finish import Finisher
from sparkonce.sinks.files.hdfs.outcomes import first_line, prepare_error
from sparkonce.sinks.files.hdfs.writing import HdfsStagedFile
from sparkonce.sinks.files.names import HIDDEN, check_lengths, name_in
from sparkonce.sinks.files.store import Fields, FileState, FileStore, Staged, StagedFile
from sparkonce.storage.files import within
from sparkonce.storage.hdfs import create

if TYPE_CHECKING:
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
        url: ``hdfs://host:port/path``, or with a name service of the configuration in place of host and port.
        config: Hadoop's settings; missing ones are read from ``HADOOP_CONF_DIR``.
        config_dir: The folder of Hadoop's XML files, in place of ``HADOOP_CONF_DIR``.
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
        (done,) = within(
            self._deadline_s, [partial(preflight.check, self._client, self._root, self._held, self._options)]
        )
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

    def look(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """See `FileStore.look`."""
        return self._finisher().look(files)

    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.publish`."""
        return self._finisher().publish(files)

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.discard`."""
        return self._finisher().discard(files)

    def _finisher(self) -> Finisher:
        return Finisher(self._client, self.location, self._root, self._held, self._deadline_s, self._known)

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
            preflight.write_durably(self._client, temporary, content, self._options)
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
