"""A folder in HDFS as a store, through the client ``hdfs-native``, which needs no Java.

A file is published by a rename that fails if its target exists: a single step in the name node's log. A sealed file
therefore always has exactly one of its two names.

The client retries requests for minutes on its own, but callers only wait until a deadline. The name node may still
apply an unanswered request later, which is harmless: the request does what was decided, or nothing.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from sparkonce.arguments import missing_package
from sparkonce.errors import ConfigurationError, OutageError, PreflightError, PrepareError, one_line
from sparkonce.protocol.handles import COMMITTED, Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks._shared.error_table import ErrorTable, Meaning
from sparkonce.sinks.files.names import check_lengths
from sparkonce.sinks.files.renaming import HELD, HELD_FOLDER, Answer, RenamingStore
from sparkonce.sinks.files.store import ChecksumStream, Fields, StagedFile
from sparkonce.storage.files import within
from sparkonce.storage.hdfs import HdfsFiles, create

if TYPE_CHECKING:
    from hdfs_native import Client

DEADLINE_S = 20.0
LONGEST_NAME_BYTES = 255
"""The default of ``dfs.namenode.fs-limits.max-component-length``. Clients cannot query the actual value."""
LONGEST_PATH = 8000
"""The name node's fixed limit, in characters. A string never has more characters than bytes."""


class HdfsStore(RenamingStore):
    """A folder in HDFS as a store, see `FileStore`.

    Args:
        url: ``hdfs://host:port/path``, or with a configured name service instead of host and port.
        config: Hadoop's settings; any that are missing are read from ``HADOOP_CONF_DIR``.
        config_dir: The folder of Hadoop's XML files, instead of ``HADOOP_CONF_DIR``.
        deadline_s: How long to wait for a response. A seal, which sends the last megabytes, waits six times as long.
        replication: The replication factor of new files; None for the cluster's default.
        kerberos: ``kerberos_principal``, ``kerberos_keytab`` and ``kerberos_cache`` of the client.

    Raises:
        ConfigurationError: If the client is not installed, or does not accept the settings.
    """

    absent = "is this the right cluster?"
    next_step = "Check whether the name node runs and can be reached."

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
        self._held = f"{self._root}/{HELD_FOLDER}"
        self._deadline_s = deadline_s
        self._known: set[tuple[str, str]] = set()
        """Paths and checksums of files that have already been verified."""
        self._options = WriteOptions(replication=replication, overwrite=False, create_parent=False)
        more = {"config_dir": config_dir, **kerberos}
        try:
            self._client = Client(f"hdfs://{parts.netloc}", dict(config or {}), **more)
        except (ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"path={url!r} cannot be used: {error}.", next_step="Correct the address or store_options."
            ) from error
        self.small = HdfsFiles(
            self.location, config, client=more, opened=self._client, replication=replication, deadline_s=deadline_s
        )

    # --- at a start -------------------------------------------------------------------------------------------------

    def check(self) -> Mapping[str, str]:
        """See `FileStore.check`. Creates the folder if it is missing, and tries to rename a file in it."""
        name = f".{secrets.token_hex(6)}.tmp"
        probe, second = self._path(f"{HELD_FOLDER}/{name}"), self._path(name)

        def attempt() -> None:
            self._client.mkdirs(self._held, 0o755, True)
            create(self._client, probe, self._options).close()
            self._client.rename(probe, second, False)
            self._client.delete(second)

        (done,) = within(self._deadline_s, [attempt])
        try:
            if isinstance(done, BaseException):
                raise done
            self._tidy()
            return {"folder": self._identity()}
        except Exception as error:  # The client's errors have no common base class.
            raise PreflightError(
                f"path={self.location!r} cannot be written to: {first_line(error)}",
                next_step="Check whether the name node runs, the address is right, and this user may write there.",
                setting="path",
            ) from error

    # --- files ------------------------------------------------------------------------------------------------------

    def stage(self, name: TransactionName, path: str) -> StagedFile:  # noqa: ARG002 - the path holds it
        held = f"{self._held}/{path.rpartition('/')[2]}{HELD}"
        check_lengths((self._path(path), held), LONGEST_NAME_BYTES, LONGEST_PATH)
        (file,) = within(self._deadline_s, [partial(create, self._client, held, self._options)])
        if isinstance(file, BaseException):
            raise prepare_error(file, held)
        return HdfsStagedFile(self._client, held, file, path, self._deadline_s * 6)

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _call_each(self, call: Callable[[Any], Answer], items: Sequence[Any]) -> list[Answer | BaseException]:
        """See `RenamingStore`. The next call continues with files that time out, and does not read the others again."""
        return within(self._deadline_s, [partial(call, one) for one in items])

    def _of_error(self, error: BaseException, name: str) -> Finished:
        return of_error(error, name)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _length(self, path: str) -> int | None:
        try:
            found = self._client.get_file_info(path)
        except FileNotFoundError:
            return None
        return -1 if found.isdir else int(found.length)

    def _is_there(self, path: str) -> bool:
        return self._length(path) is not None

    def _is_whole(self, held: str, fields: Fields) -> bool:
        if (length := self._length(held)) is None:
            raise FileNotFoundError(held)
        return length == fields["size"]

    def _matches(self, path: str, fields: Fields) -> bool:
        if self._length(path) != fields["size"]:
            return False
        # Read each file only once. If the files are too large to be read within one deadline, the next call continues
        # with the rest.
        if (path, str(fields["checksum"])) in self._known:
            return True
        crc = 0
        for chunk in self._client.read(path).read_range_stream(0, int(fields["size"])):
            crc = zlib.crc32(chunk, crc)
        if f"crc32:{crc:08x}" != fields["checksum"]:
            return False
        self._known.add((path, str(fields["checksum"])))
        return True

    def _has_held_folder(self) -> bool:
        return self._is_there(self._held)

    def _make(self, folder: str) -> Finished:
        self._client.mkdirs(self._path(folder), 0o755, True)
        return Finished(outcome=Outcome.COMMITTED)

    def _give_name(self, held: str, final: str, fields: Fields) -> None:
        self._client.rename(held, final, False)
        self._known.add((final, str(fields["checksum"])))

    def _settle(self, files: Sequence[Fields], answers: list[Finished]) -> list[Finished]:  # noqa: ARG002
        if all(one.outcome in COMMITTED for one in answers):
            self._known.clear()  # Earlier checks do not cover these files.
        return answers

    def _discard(self, fields: Fields) -> Finished:
        """See `RenamingStore`. A writer that still writes to a deleted file can no longer close it."""
        deleted = self._client.delete(self._held_path(fields))
        if not deleted and "path" in fields and self._matches(self._path(str(fields["path"])), fields):
            return Finished(outcome=Outcome.ALREADY_COMMITTED)
        return Finished(outcome=Outcome.ABORTED)


_BUFFER_BYTES = 1 << 20


class HdfsStagedFile(StagedFile):
    """A file under ``.sparkonce/held`` that is being written to HDFS."""

    def __init__(self, client: Client, held: str, file: Any, path: str, deadline_s: float) -> None:
        self._client = client
        self._held = held
        self._path = path
        self._deadline_s = deadline_s
        self._buffer = _Buffered(file, held, deadline_s)
        self._stream = ChecksumStream(self._buffer, held)

    @property
    def stream(self) -> BinaryIO:
        return cast("BinaryIO", self._stream)

    def size(self) -> int:
        return self._stream.size

    def seal(self) -> Fields:
        """Forces the last block to its replicas' disks (hsync), and completes the file (close).

        Earlier blocks are on disk only if ``dfs.datanode.synconclose`` is set: see `FilesSink.conditions`.
        """
        # A sweep may have deleted the file while its task attempt was paused. In that case, hsync and close raise
        # FileNotFoundError.

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
        def attempt() -> None:
            with suppress(Exception):
                self._buffer.file.close()
            self._client.delete(self._held)

        within(self._deadline_s / 6, [attempt])


class _Buffered:
    """Passes data on in chunks of a megabyte, since each call of the client leaves Python."""

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


_RETRY, _UNKNOWN = Outcome.RETRY, Outcome.UNKNOWN
_NO_FOLDER = "There is a file where a folder has to be: move it away."

_MEANINGS = {
    "AccessControlException": Meaning(
        _UNKNOWN, "Permission denied: let this user write to the folder. Nothing is lost."
    ),
    "NSQuotaExceededException": Meaning(_RETRY, "The folder's quota of names is used up: raise it."),
    "DSQuotaExceededException": Meaning(_RETRY, "The folder's quota of bytes is used up: raise it."),
    "could only be written to": Meaning(_RETRY, "No data node accepts a block: they are unreachable or full."),
    "SafeModeException": Meaning(_RETRY, "The name node is in safe mode."),
    "StandbyException": Meaning(_RETRY, "Another name node is active now."),
    "RetriableException": Meaning(_RETRY, "The name node asks to try again later."),
    "ParentNotDirectoryException": Meaning(_UNKNOWN, _NO_FOLDER),
    "FileAlreadyExistsException": Meaning(_UNKNOWN, _NO_FOLDER),
}
_TABLE = ErrorTable[str]({}, phrases=tuple(_MEANINGS.items()))

_OF_ONE_FILE = (FileNotFoundError, FileExistsError, PermissionError)
"""Errors about one file that waiting does not resolve."""


def of_error(error: BaseException, path: str) -> Finished:
    """Returns the outcome for one file after a client error, whose text names the name node's Java exception."""
    text = one_line(str(error).split("\\n")[0].split("\n")[0])
    if isinstance(error, TimeoutError):
        return Finished(outcome=_RETRY, reason=f"{path}: {text}")
    if isinstance(error, OSError):
        return Finished(outcome=_RETRY, reason=f"{path}: {type(error).__name__}: {text}")
    return _TABLE.finished("", text, shown=f"{path}: {text}")


def prepare_error(error: BaseException, path: str) -> PrepareError:
    """Returns the error for a failed write, after which none of the batch has become visible."""
    later = of_error(error, path).outcome is Outcome.RETRY and not isinstance(error, _OF_ONE_FILE)
    return (OutageError if later else PrepareError)(
        f"{path} could not be written: {first_line(error)}",
        next_step="Check whether the cluster runs and has room; none of the batch became visible.",
        path=path,
    )


def first_line(error: BaseException) -> str:
    """Returns an error's text without the stack trace that the client appends."""
    return one_line(f"{type(error).__name__}: {str(error).split(chr(10))[0]}")
