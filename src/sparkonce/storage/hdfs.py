"""The files of a folder in HDFS, through a client without a JVM, for Python workers and the command line.

HDFS has no put that fails if the name is taken, but it has an atomic rename that does. A put therefore writes a
temporary file next to the final one, and renames the temporary file. If the reply is lost, the rename is repeated, and
the existence of the two names shows whether it has succeeded. `RenamingFiles` implements this for every HDFS client.
"""

from __future__ import annotations

import abc
import errno
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

from sparkonce.arguments import missing_package
from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import (
    PART_BYTES,
    PAUSE_S,
    TRIES_S,
    CheckpointFiles,
    Landed,
    PutUnknownError,
    Taken,
    opened,
    within,
)

DEADLINE_S = 30.0
_NO_HOSTS = "No NameNode hosts found"
_PORT = 8020
"""Hadoop's default port of a name node."""
_ERRNO = {
    "AccessControlException": errno.EACCES,
    "AuthorizationException": errno.EACCES,
    "SASLError(": errno.EACCES,
    "NoSASLMechanism": errno.EACCES,
    "GSSAPIError(": errno.EACCES,
    "NSQuotaExceededException": errno.EDQUOT,
    "DSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "could only be written to": errno.ENOSPC,
    "SafeModeException": errno.EBUSY,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "InvalidPathException": errno.EINVAL,
    "InvalidArgument(": errno.EINVAL,
    "NotImplementedError": errno.ENOTSUP,
}
"""The nearest POSIX errors.

An error that is not listed is not an answer from the name node, and the call is retried.
"""
Answer = TypeVar("Answer")
_STALE_S = 3600
_MAY_PASS = (errno.EHOSTDOWN, errno.ETIMEDOUT)
"""Errors without an answer from the store. All others are error responses, after which a quick retry is useless."""


class RenamingFiles(CheckpointFiles):
    """Puts and replaces files by renaming. Each abstract method raises OSError if the store is unreachable."""

    @abc.abstractmethod
    def _write(self, path: str, pieces: Iterable[bytes]) -> None:
        """Writes a new file durably, and creates missing folders."""

    @abc.abstractmethod
    def _rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Renames a file durably. Without `overwrite`, errno EEXIST means that the target exists."""

    @abc.abstractmethod
    def _delete(self, path: str) -> bool:
        """Deletes a file durably. Returns True if it existed."""

    @abc.abstractmethod
    def _read(self, path: str) -> bytes | None:
        """Returns a file's bytes; None if the file definitely does not exist."""

    @abc.abstractmethod
    def _exists(self, path: str) -> bool:
        """Returns True if the file or folder exists."""

    @abc.abstractmethod
    def _sync(self, folder: str) -> None:
        """Makes every name that a reader sees in a subfolder durable."""

    def _put(self, path: str, data: bytes, begin: Callable[[], object] = lambda: None) -> Landed | Taken:
        """Puts a file. Calls ``begin`` before the first rename; ``begin`` may raise OSError to prevent the put."""
        with self._written(path, [data]) as temporary:
            begin()
        until = time.monotonic() + TRIES_S
        while True:
            try:
                self._rename(temporary, path)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return self._standing(path, "its temporary file is gone")
                if error.errno == errno.EEXIST:
                    taken = self._standing(path, "its name is taken")
                    self._discard(temporary)
                    return taken
                if error.errno not in _MAY_PASS or time.monotonic() > until:
                    return self._settled(temporary, path, error)
            else:
                return Landed()
            time.sleep(PAUSE_S)

    def _replace(self, path: str, pieces: Iterable[bytes]) -> None:
        """Puts a file, and replaces an existing one."""
        with self._written(path, pieces) as temporary:
            try:
                self._rename(temporary, path, overwrite=True)
            except OSError as error:
                # The store's client repeats a rename whose answer was lost, and then finds no source to rename.
                if error.errno != errno.ENOENT or not self._exists(path):
                    raise

    @contextmanager
    def _written(self, path: str, pieces: Iterable[bytes]) -> Iterator[str]:
        """Writes a temporary file next to another one, and deletes it if an error occurs. Yields its path."""
        temporary = f"{_folder(path)}/.{uuid.uuid4().hex}.tmp".lstrip("/")
        try:
            self._write(temporary, pieces)
            yield temporary
        except OSError as error:
            if error.errno != errno.ETIMEDOUT:  # Another request would only time out again.
                self._discard(temporary)
            raise

    def _settled(self, temporary: str, path: str, failed: OSError) -> Taken:
        """Determines whether a rename has happened, by deleting its source. Raises ``failed`` if it never can.

        Raises:
            PutUnknownError: If the outcome cannot be determined.
        """
        try:
            deleted = self._delete(temporary)
        except OSError as error:
            raise PutUnknownError(
                f"rename to {self.location}/{path}: {failed.strerror}; then {error.strerror}"
            ) from failed
        if deleted:
            raise failed
        return self._standing(path, "its temporary file is gone")

    def _standing(self, path: str, why: str) -> Taken:
        """Makes the file that has the name durable, and returns its content, which this put itself may have written."""
        try:
            standing = self._read(path)
            if standing is not None:
                self._sync(_folder(path))
                return Taken(standing=standing)
            reason = "nothing is there"
        except OSError as error:
            reason = str(error.strerror)
        raise PutUnknownError(f"{self.location}/{path}: {why}, and it could not be read: {reason}")

    def _discard(self, temporary: str) -> None:
        with suppress(OSError):  # If this fails, `tidy` deletes the file later.
            self._delete(temporary)


def is_stale(name: str, modified_ms: int) -> bool:
    """Returns True for a temporary file of a writer that was killed."""
    return name.startswith(".") and name.endswith(".tmp") and time.time() - modified_ms / 1000 > _STALE_S


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """Yields the rest of an open file."""
    while piece := file.read(PART_BYTES):
        yield piece


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


class HdfsFiles(RenamingFiles):
    """The files of a folder in HDFS, in a form that can be pickled and creates a client in each process.

    Args:
        location: The folder's URL, ``hdfs://…``, as Hadoop qualifies it.
        settings: Hadoop's settings; any that are missing are read from ``HADOOP_CONF_DIR``.
        user: The user in a process whose environment has no ``HADOOP_USER_NAME``; by default, the process's own user.
        client: Additional arguments for the client.
        opened: A client that is already open.
        replication: The replication factor of new files; None for the cluster's default.
        deadline_s: How long to wait for a response, in seconds; None for `DEADLINE_S`.
    """

    modules = ("hdfs_native",)

    def __init__(
        self,
        location: str,
        settings: Mapping[str, str] | None = None,
        user: str = "",
        *,
        client: Mapping[str, str | None] | None = None,
        opened: Any = None,
        replication: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self._more: dict[str, Any] = {"client": client, "replication": replication, "deadline_s": deadline_s}
        self._location = location.rstrip("/")
        self._settings = dict(settings or {})
        self._user = user
        self._scheme, self._authority = urlsplit(location)[:2]
        self._root = self._location.removeprefix(f"{self._scheme}://{self._authority}")
        self._clients: dict[int, Any] = {} if opened is None else {os.getpid(): opened}

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self._location, "settings": self._settings, "user": self._user, **self._more}

    def __setstate__(self, state: dict[str, Any]) -> None:
        HdfsFiles.__init__(self, **state)

    @property
    def location(self) -> str:
        return self._location

    def read(self, path: str) -> bytes | None:
        return self._read(path)

    def exists(self, path: str) -> bool:
        return self._exists(path)

    def open(self, path: str) -> BinaryIO | None:
        """Opens a file, which is read a part at a time."""
        size = self._size(path)
        return None if size is None else opened(partial(self._part, path), size)

    def names(self, folder: str) -> Sequence[str]:
        return [name for name, _ in self._listed(folder) if not name.startswith(".")]

    def put(self, path: str, data: bytes) -> Landed | Taken:
        return self._put(path, data)

    def put_large(self, path: str, file: BinaryIO) -> None:
        """Writes a large file. Hadoop's settings decide whether the blocks before the last one are durable."""
        self._replace(path, pieces_of(file))

    def replace(self, path: str, data: bytes) -> None:
        self._replace(path, [data])

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._delete(path)

    def sync(self, folder: str) -> None:
        self._sync(folder)

    def tidy(self, folder: str) -> None:
        for name, modified_ms in self._listed(folder):
            if is_stale(name, modified_ms):
                self._delete(f"{folder}/{name}")

    def check(self) -> None:
        one, two = (f".{uuid.uuid4().hex}.tmp" for _ in range(2))
        try:
            existed = self._exists("")
            self._write(one, [b""])
            self._rename(one, two)
            self._delete(two)
            if not existed:
                self._delete("")
        except OSError as error:
            raise ConfigurationError(
                f"checkpoint={self.location!r} cannot be written to: {error.strerror}.",
                next_step=(
                    "Check whether the name node runs, the address and HADOOP_CONF_DIR are right, and this user "
                    "may write there."
                ),
                setting="checkpoint",
            ) from error

    def inside(self, folder: str) -> HdfsFiles:
        found = HdfsFiles(self._shown(folder), self._settings, self._user, **self._more)
        found._clients = self._clients
        return found

    def for_workers(self) -> HdfsFiles:
        """Rejects Kerberos, because a worker has no Kerberos ticket."""
        if (authentication := self._settings.get(AUTHENTICATION, "simple")).lower() != "simple":
            raise without_jvm(self._location, AUTHENTICATION, authentication)
        return self

    def _read(self, path: str) -> bytes | None:
        return self._unless_missing(path, lambda client, full: bytes(client.read(full).read()))

    def _size(self, path: str) -> int | None:
        found = self._unless_missing(path, lambda client, full: client.get_file_info(full))
        return None if found is None else int(found.length)

    def _exists(self, path: str) -> bool:
        return self._size(path) is not None

    def _part(self, path: str, start: int, length: int) -> bytes:
        return self._ask(path, lambda client, full: bytes(client.read(full).read_range(start, length)))

    def _write(self, path: str, pieces: Iterable[bytes]) -> None:
        from hdfs_native import WriteOptions

        options = WriteOptions(replication=self._more["replication"], overwrite=False, create_parent=True)

        def finish(_client: Any, _full: str) -> None:
            file.hsync()
            file.close()

        file = self._ask(path, lambda client, full: create(client, full, options))
        for piece in pieces:
            self._ask(path, lambda _client, _full, piece=piece: file.write(piece))  # type: ignore[misc]
        self._ask(path, finish)

    def _rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        self._ask(source, lambda client, full: client.rename(full, self._full(target), overwrite))

    def _delete(self, path: str) -> bool:
        return bool(self._unless_missing(path, lambda client, full: client.delete(full)))

    def _sync(self, folder: str) -> None:
        # The name node shows a rename before the rename is in the journal. However, the name node acknowledges a change
        # only once that change and all earlier ones are in the journal.
        now_ms = time.time_ns() // 1_000_000
        with suppress(PermissionError):  # A user without write permission cannot write decisions.
            self._unless_missing(folder, lambda client, full: client.set_times(full, now_ms, now_ms))

    def _listed(self, folder: str) -> list[tuple[str, int]]:
        """Returns the name and modification time of each file in a subfolder."""
        found = self._unless_missing(folder, lambda client, full: list(client.list_status(full))) or []
        # The listing of a file consists of the file itself.
        files = [one for one in found if not one.isdir and not self._full(folder).endswith(one.path)]
        return [(one.path.rpartition("/")[2], int(one.modification_time)) for one in files]

    def _unless_missing(self, path: str, request: Callable[[Any, str], Answer]) -> Answer | None:
        """Returns the answer to a request; None if the file definitely does not exist."""
        try:
            return self._ask(path, request)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _ask(self, path: str, request: Callable[[Any, str], Answer]) -> Answer:
        """Sends a request, and waits for its answer until the deadline."""
        client = self._client()
        deadline_s = self._more["deadline_s"] or DEADLINE_S
        (answer,) = within(deadline_s, [lambda: request(client, self._full(path))])
        if isinstance(answer, TimeoutError) and answer.errno is None:
            # Drop the client: it would send the next request to the same name node, which may hang.
            self._clients.pop(os.getpid(), None)
            raise OSError(errno.ETIMEDOUT, f"no answer within {deadline_s:g} s", self._shown(path))
        if isinstance(answer, BaseException):
            raise self._error(answer, path) from None
        return answer

    def _error(self, error: BaseException, path: str) -> OSError:
        text = str(error).split("\\n")[0].split("\n")[0]
        if isinstance(error, FileNotFoundError | FileExistsError):
            number = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EEXIST
            return OSError(number, text, self._shown(path))
        text_of_error = f"{type(error).__name__}: {text}"
        number = next((known for words, known in _ERRNO.items() if words in text_of_error), errno.EHOSTDOWN)
        return OSError(number, text_of_error, self._shown(path))

    def _client(self) -> Any:
        """Returns this process's client. A forked process gets a new one."""
        if os.getpid() not in self._clients:
            try:
                from hdfs_native import Client
            except ImportError as error:
                raise missing_package(f"checkpoint={self._location!r}", "hdfs-native", "hdfs") from error
            if self._user:
                os.environ.setdefault("HADOOP_USER_NAME", self._user)
            # Let each new client start with a random name node, so that a name node that does not answer delays only
            # some clients.
            settings = {f"dfs.client.failover.random.order.{self._authority}": "true", **self._settings}
            cluster = f"{self._scheme}://{self._authority}"
            try:
                try:
                    client = Client(cluster, settings, **(self._more["client"] or {}))
                except RuntimeError as error:
                    if _NO_HOSTS not in str(error) or ":" in self._authority:
                        raise
                    self._resolve()
                    client = Client(f"{cluster}:{_PORT}", settings, **(self._more["client"] or {}))
            except (ValueError, RuntimeError) as error:
                raise ConfigurationError(
                    f"checkpoint={self._location!r} cannot be used: {error}.",
                    next_step="Correct the address, or HADOOP_CONF_DIR, the folder of Hadoop's XML files.",
                    setting="checkpoint",
                ) from error
            self._clients[os.getpid()] = client
        return self._clients[os.getpid()]

    def _resolve(self) -> None:
        """Raises OSError if the name is neither a name service nor a host. The client would look it up for minutes."""
        try:
            socket.getaddrinfo(self._authority, _PORT)
        except socket.gaierror as error:
            raise OSError(
                errno.EHOSTDOWN,
                f"{self._authority!r} is no name service, for dfs.ha.namenodes.{self._authority} is not set with "
                f"addresses, and no host: {error.strerror}",
                self._location,
            ) from None

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/") or "/"

    def _shown(self, path: str) -> str:
        return f"{self._location}/{path}" if path else self._location


AUTHENTICATION = "hadoop.security.authentication"
_SETTINGS = ("dfs.", "fs.viewfs.", "fs.defaultFS", "hadoop.security.")
"""Prefixes of the settings that the client reads. Settings of other stores may be secrets."""
_PROVIDER = "dfs.client.failover.proxy.provider"
_PROVIDERS = tuple(
    f"org.apache.hadoop.hdfs.server.namenode.ha.{name}"
    for name in ("ConfiguredFailoverProxyProvider", "RequestHedgingProxyProvider")
)
"""The classes that find the active name node, which only differ in which name node they try first."""


def checked_settings(location: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the Hadoop settings that the client reads; raises ConfigurationError for one without a counterpart."""
    for name in (f"{_PROVIDER}.{urlsplit(location).netloc}", _PROVIDER):
        if provider := settings.get(name):
            if provider not in _PROVIDERS:
                raise without_jvm(location, name, provider)
            break
    return {name: value for name, value in settings.items() if name.startswith(_SETTINGS)}


def without_jvm(location: str, setting: str, value: str) -> ConfigurationError:
    """Returns the error for a setting that only Hadoop's own client supports."""
    return ConfigurationError(
        f"checkpoint={location!r} has {setting}={value!r}, which only Hadoop's own client has. Python workers, Spark "
        "Connect and the command line reach HDFS without Spark's JVM.",
        next_step="Give a sink whose workers write rows there folder=, the path of a mounted disk or the s3a: URL of a "
        "folder for its rows. With Spark Connect, put the checkpoint on such a disk or store, too.",
        setting=setting,
    )


def create(client: Any, path: str, options: Any) -> Any:
    """Creates a file, and returns the object inside the client's wrapper."""
    # Garbage collection closes the client's wrapper, which is an io.RawIOBase. If closing the file failed before, the
    # wrapper would then send a request without a deadline, in an arbitrary thread.
    wrapper = client.create(path, options)
    file, wrapper.inner = wrapper.inner, _Closed()
    return file


class _Closed:
    """Takes the place of the file inside the client's wrapper."""

    def close(self) -> None:
        pass
