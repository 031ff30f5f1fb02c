"""The files of a folder in HDFS, by a client without a JVM: for Python workers and the command line.

A put writes a temporary file, and gives it its name by a rename that fails if the name is taken. The name node carries
that out in one step.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sparkonce.arguments import missing_package
from sparkonce.checkpoint.files import CheckpointFiles, Landed, PutUnknownError, Taken
from sparkonce.errors import ConfigurationError

DEADLINE_S = 30.0
_STALE_S = 3600
_ERRNO = {
    "AccessControlException": errno.EACCES,
    "NSQuotaExceededException": errno.EDQUOT,
    "DSQuotaExceededException": errno.EDQUOT,
    "could only be written to": errno.ENOSPC,
    "SafeModeException": errno.EBUSY,
    "StandbyException": errno.EHOSTDOWN,
    "RetriableException": errno.EAGAIN,
    "ParentNotDirectoryException": errno.ENOTDIR,
}
"""The nearest errors of a POSIX disk. What is not listed is no answer of the name node, and is waited for."""

Answer = TypeVar("Answer")


class HdfsFiles(CheckpointFiles):
    """See `CheckpointFiles`. It can be pickled, and makes a client in each process.

    Args:
        location: The folder's URL, ``hdfs://…``, as Hadoop qualifies it.
        settings: Hadoop's settings; missing ones are read from ``HADOOP_CONF_DIR``.
    """

    def __init__(self, location: str, settings: Mapping[str, str] | None = None) -> None:
        self._location = location.rstrip("/")
        self._settings = dict(settings or {})
        scheme, authority = urlsplit(location)[:2]
        self._root = self._location.removeprefix(f"{scheme}://{authority}")
        self._cluster = f"{scheme}://{authority}"
        self._clients: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self._location, "settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        HdfsFiles.__init__(self, **state)

    @property
    def location(self) -> str:
        """The folder's URL."""
        return self._location

    def read(self, path: str) -> bytes | None:
        """See `CheckpointFiles.read`."""
        try:
            return self._ask(path, lambda client, full: bytes(client.read(full).read()))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> Sequence[str]:
        """See `CheckpointFiles.names`."""
        return [name for name, _ in self._listed(folder) if not name.startswith(".")]

    def put(self, path: str, data: bytes) -> Landed | Taken:
        """See `CheckpointFiles.put`."""
        temporary = self._written(path, data)
        try:
            self._ask(temporary, lambda client, full: client.rename(full, self._full(path), False))
        except FileExistsError:
            with suppress(OSError):  # `tidy` deletes it later
                self._delete(temporary)
            return self._standing(path)
        except OSError as error:
            return self._settled(path, temporary, error)
        return Landed()

    def replace(self, path: str, data: bytes) -> None:
        """See `CheckpointFiles.replace`."""
        temporary = self._written(path, data)
        self._ask(temporary, lambda client, full: client.rename(full, self._full(path), True))

    def delete(self, paths: Iterable[str]) -> None:
        """See `CheckpointFiles.delete`."""
        for path in paths:
            self._delete(path)

    def sync(self, folder: str) -> None:
        """See `CheckpointFiles.sync`."""
        # The name node shows a rename before its journal has it, and answers a change when the journal has all before.
        now_ms = time.time_ns() // 1_000_000
        with suppress(FileNotFoundError, PermissionError):  # who may not write here decides nothing
            self._ask(folder, lambda client, full: client.set_times(full, now_ms, now_ms))

    def tidy(self, folder: str) -> None:
        """See `CheckpointFiles.tidy`."""
        for name, modified_ms in self._listed(folder):
            if name.startswith(".") and name.endswith(".tmp") and time.time() - modified_ms / 1000 > _STALE_S:
                self._delete(f"{folder}/{name}")

    def check(self) -> None:
        """See `CheckpointFiles.check`."""
        one, two = (f".{uuid.uuid4().hex}.tmp" for _ in range(2))
        existed = self._exists("")
        try:
            self._write(one, b"")
            self._ask(one, lambda client, full: client.rename(full, self._full(two), False))
            self._delete(two)
            if not existed:
                self._delete("")
        except OSError as error:
            raise ConfigurationError(
                f"checkpoint={self.location!r} cannot be written to: {error.strerror}.",
                next_step="See whether the name node runs, the address is right, and this user may write there.",
                setting="checkpoint",
            ) from error

    def inside(self, folder: str) -> HdfsFiles:
        """See `CheckpointFiles.inside`."""
        found = HdfsFiles(f"{self._location}/{folder}" if folder else self._location, self._settings)
        found._clients = self._clients
        return found

    def _exists(self, path: str) -> bool:
        try:
            self._ask(path, lambda client, full: client.get_file_info(full))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _written(self, path: str, data: bytes) -> str:
        """Writes a temporary file beside another one. Returns its path."""
        temporary = f"{path.rpartition('/')[0]}/.{uuid.uuid4().hex}.tmp".lstrip("/")
        try:
            self._write(temporary, data)
        except OSError:
            with suppress(OSError):  # `tidy` deletes it later
                self._delete(temporary)
            raise
        return temporary

    def _write(self, path: str, data: bytes) -> None:
        """Writes a new file whose content is on the data nodes' disks."""
        from hdfs_native import WriteOptions

        def attempt(client: Any, full: str) -> None:
            file = client.create(full, WriteOptions(overwrite=False, create_parent=True))
            file.write(data)
            file.hsync()
            file.close()

        self._ask(path, attempt)

    def _settled(self, path: str, temporary: str, failed: OSError) -> Taken:
        """Makes sure of a rename that may have been carried out, by deleting what it would rename.

        Raises:
            OSError: `failed`, if the rename was not carried out; it cannot be any more.
            PutUnknownError: if that cannot be learned.
        """
        try:
            deleted = self._delete(temporary)
        except OSError as error:
            raise PutUnknownError(
                f"rename to {self._shown(path)}: {failed.strerror}; then {error.strerror}"
            ) from failed
        if deleted:
            raise failed
        return self._standing(path)

    def _standing(self, path: str) -> Taken:
        """Returns the file under a name that is taken, once it is durable. It may be this very put's.

        Raises:
            PutUnknownError: if it cannot be read.
        """
        try:
            standing = self.read(path)
            self.sync(path.rpartition("/")[0])
        except OSError as error:
            raise PutUnknownError(f"{self._shown(path)} is taken, and could not be read: {error}") from error
        if standing is None:
            raise PutUnknownError(f"{self._shown(path)} was taken, and nothing stands there now")
        return Taken(standing=standing)

    def _delete(self, path: str) -> bool:
        """Returns True if there was such a file."""
        try:
            return bool(self._ask(path, lambda client, full: client.delete(full)))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _listed(self, folder: str) -> list[tuple[str, int]]:
        """Returns the name, and the time of change, of each file in a subfolder."""
        try:
            found = self._ask(folder, lambda client, full: list(client.list_status(full)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        # A file is listed as the only one in itself.
        files = [one for one in found if not one.isdir and not self._full(folder).endswith(one.path)]
        return [(one.path.rpartition("/")[2], int(one.modification_time)) for one in files]

    def _ask(self, path: str, request: Callable[[Any, str], Answer]) -> Answer:
        """Waits up to the deadline for one answer.

        Raises:
            OSError: if none came, or a refusal.
        """
        client = self._client()
        answered: queue.SimpleQueue[tuple[Answer | None, BaseException | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                answered.put((request(client, self._full(path)), None))
            except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
                answered.put((None, error))

        # A thread that does not keep the process alive, since a call of the client may hang.
        threading.Thread(target=work, name="hdfs", daemon=True).start()
        try:
            answer, error = answered.get(timeout=DEADLINE_S)
        except queue.Empty:
            raise OSError(errno.ETIMEDOUT, f"No answer within {DEADLINE_S:g} s", self._shown(path)) from None
        if error is not None:
            raise self._error(error, path) from None
        return answer  # type: ignore[return-value]

    def _error(self, error: BaseException, path: str) -> OSError:
        text = str(error).split("\\n")[0].split("\n")[0]
        if isinstance(error, FileNotFoundError | FileExistsError):
            number = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EEXIST
            return OSError(number, text, self._shown(path))
        number = next((known for words, known in _ERRNO.items() if words in text), errno.EHOSTDOWN)
        return OSError(number, f"{type(error).__name__}: {text}", self._shown(path))

    def _client(self) -> Any:
        """Returns this process's client, which is never shared over a fork."""
        if os.getpid() not in self._clients:
            try:
                from hdfs_native import Client
            except ImportError as error:
                raise missing_package(f"checkpoint={self._location!r}", "hdfs-native", "hdfs") from error
            try:
                self._clients[os.getpid()] = Client(self._cluster, self._settings)
            except (ValueError, RuntimeError) as error:
                raise ConfigurationError(
                    f"checkpoint={self._location!r} cannot be used: {error}.",
                    next_step="Correct the address, or HADOOP_CONF_DIR, the folder of Hadoop's XML files.",
                    setting="checkpoint",
                ) from error
        return self._clients[os.getpid()]

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/") or "/"

    def _shown(self, path: str) -> str:
        return f"{self._location}/{path}" if path else self._location
