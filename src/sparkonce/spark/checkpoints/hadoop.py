"""Reads and writes a checkpoint's files on HDFS through Spark's JVM, with Hadoop's settings, credentials and clients.

A put writes a temporary file and then renames it, which fails if the name is taken. The name node performs the rename
atomically, and responds once the rename is in its journal.

Each call of a Hadoop client has a deadline, and Java exceptions become ``OSError``. Python workers, which have no JVM,
use `HdfsFiles` with the same settings, or are rejected.
"""

from __future__ import annotations

import errno
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError

from sparkonce.arguments import missing_package
from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken, within
from sparkonce.storage.hdfs import AUTHENTICATION, HdfsFiles, RenamingFiles, checked_settings, is_stale

DEADLINE_S = 30.0
"""The time after which a call is abandoned. Hadoop's own clients may retry for many minutes."""

_ERRNOS = {
    "AccessControlException": errno.EACCES,
    "AccessDeniedException": errno.EACCES,
    "AuthorizationException": errno.EACCES,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "SafeModeException": errno.EAGAIN,
    "FileNotFoundException": errno.ENOENT,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "IllegalArgumentException": errno.EINVAL,
    "InvalidPathException": errno.EINVAL,
    "NotInMountpointException": errno.EINVAL,
    "PathIOException": errno.EINVAL,
    "UnsupportedOperationException": errno.EINVAL,
    "PathExistsException": errno.EEXIST,
    "FileAlreadyExistsException": errno.EEXIST,
}
"""Maps the short name of a Java exception to an errno.

Any other exception may be temporary: no connection, a failover, or no space.
"""

_MOST_CAUSES = 20

Answer = TypeVar("Answer")


class StoreError(OSError):
    """A call that Hadoop's client rejected, or that failed.

    Attributes:
        kinds: The short names of the Java exception and its causes.
    """

    def __init__(self, error: Py4JError) -> None:
        self.kinds, text = _told(error)
        codes = [_ERRNOS[kind] for kind in self.kinds if kind in _ERRNOS]
        super().__init__(codes[0] if codes else errno.EHOSTDOWN, text)


class Decisive:
    """Marks the point in a call after which its outcome is unknown until it is answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._given_up = False

    def begin(self) -> None:
        """Records that the decisive request is about to be sent.

        Raises:
            TimeoutError: If the caller has already given up, so that the request must not be sent anymore.
        """
        with self._lock:
            if self._given_up:
                raise TimeoutError(errno.ETIMEDOUT, "the call was given up")
            self._begun = True

    def give_up(self) -> bool:
        """Prevents the request from being sent later. Returns True if it may have been sent already."""
        with self._lock:
            self._given_up = True
            return self._begun


def called(call: Callable[[], Answer]) -> Answer:
    """Returns the result of a JVM call.

    Raises:
        StoreError: If it raises a Java exception.
    """
    try:
        return call()
    except Py4JError as error:
        raise StoreError(error) from error


def in_time(call: Callable[[], Answer], decisive: Decisive | None = None) -> Answer:
    """Makes a call in a separate thread, and waits for its result until a deadline.

    The call then runs in a separate thread of the JVM, too. Spark interrupts the query's own thread when the query is
    stopped, and an interrupt in the middle of a put would leave its outcome unknown.

    Raises:
        PutUnknownError: If a decisive request was not answered in time.
        TimeoutError: If any other request was not answered in time.
    """
    (answer,) = within(DEADLINE_S, [call])
    if isinstance(answer, TimeoutError) and answer.errno is None:
        late = f"no answer within {DEADLINE_S:g} s"
        if decisive is not None and decisive.give_up():
            raise PutUnknownError(late)
        raise TimeoutError(errno.ETIMEDOUT, late)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _told(error: Py4JError) -> tuple[tuple[str, ...], str]:
    """Returns the short names of an exception and its causes, and the first line of its message."""
    if not isinstance(error, Py4JJavaError):
        return (), f"the JVM does not answer: {error}"
    thrown: Any = error.java_exception
    text = str(thrown.toString()).partition("\n")[0]
    kinds: list[str] = []
    while thrown is not None and len(kinds) < _MOST_CAUSES:
        kind = str(thrown.getClass().getName())
        kinds.append(_short(kind))
        if kind.endswith(".RemoteException"):
            kinds.append(_short(str(thrown.getClassName())))
        thrown = thrown.getCause()
    return tuple(kinds), text


def _short(kind: str) -> str:
    return kind.rpartition(".")[2].rpartition("$")[2]


_SETTINGS = {
    "ipc.client.connect.max.retries": "2",
    "ipc.client.connect.max.retries.on.timeouts": "1",
    "ipc.client.connect.timeout": "5000",
    "ipc.client.rpc-timeout.ms": "10000",
    "dfs.client.failover.max.attempts": "8",
    "dfs.client.failover.sleep.max.millis": "2000",
    "dfs.client.retry.policy.enabled": "false",
    "dfs.client.socket-timeout": "10000",
    "dfs.datanode.socket.write.timeout": "10000",
}
"""Settings for our client only: by default it may retry an unreachable name node for many minutes."""


class HadoopFiles(RenamingFiles):
    """The files of a checkpoint on HDFS. See `CheckpointFiles`.

    Args:
        jvm: The JVM of the session.
        filesystem: A ``FileSystem`` that is not shared with Spark.
        context: A ``FileContext`` of the same store, whose rename is the only one that refuses to overwrite.
        folder: The folder's URL, as Hadoop qualifies it.
        settings: Hadoop's settings, from which a client for Python workers gets its own.
    """

    def __init__(self, jvm: Any, filesystem: Any, context: Any, folder: str, settings: Any) -> None:
        self._jvm = jvm
        self._fs = filesystem
        self._context = context
        self._folder = folder.rstrip("/")
        self._settings = settings

    @classmethod
    def opened(cls, jvm: Any, settings: Any, folder: str) -> HadoopFiles:
        """Opens separate clients, because Spark's are shared and have different settings.

        Raises:
            StoreError: If the store's name cannot be resolved.
        """
        own = jvm.org.apache.hadoop.conf.Configuration(settings)
        for name, value in _SETTINGS.items():
            own.set(name, value)
        hadoop = jvm.org.apache.hadoop.fs
        uri = called(lambda: hadoop.Path(folder).toUri())
        filesystem = called(lambda: hadoop.FileSystem.newInstance(uri, own))
        context = called(lambda: hadoop.FileContext.getFileContext(uri, own))
        return cls(jvm, filesystem, context, folder, settings)

    @property
    def location(self) -> str:
        """The folder's URL."""
        return self._folder

    def read(self, path: str) -> bytes | None:
        """See `CheckpointFiles.read`."""
        return in_time(lambda: self._read(path))

    def names(self, folder: str) -> Sequence[str]:
        """See `CheckpointFiles.names`."""
        return [name for name, _ in in_time(lambda: self._listed(folder)) if not name.startswith(".")]

    def delete(self, paths: Iterable[str]) -> None:
        """See `CheckpointFiles.delete`."""
        for answer in within(DEADLINE_S, [partial(self._delete, path) for path in paths]):
            if isinstance(answer, BaseException):
                raise TimeoutError(errno.ETIMEDOUT, str(answer)) if isinstance(answer, TimeoutError) else answer

    def check(self) -> None:
        """See `CheckpointFiles.check`."""
        try:
            in_time(self._try_out)
        except (OSError, PutUnknownError) as error:
            raise ConfigurationError(
                f"checkpoint={self.location!r} cannot be written to: {getattr(error, 'strerror', None) or error}.",
                next_step="Give a folder that the user of this process may write to, on a store that can be reached; "
                "see docs/operations.md#which-disks-carry-a-checkpoint.",
                setting="checkpoint",
            ) from error

    def exists(self, path: str) -> bool:
        """See `CheckpointFiles.exists`."""
        return in_time(lambda: self._exists(path))

    def put(self, path: str, data: bytes) -> Landed | Taken:
        """See `CheckpointFiles.put`."""
        decisive = Decisive()
        return in_time(lambda: self._put(path, data, decisive.begin), decisive)

    def replace(self, path: str, data: bytes) -> None:
        """See `CheckpointFiles.replace`."""
        in_time(lambda: self._replace(path, [data]))

    def sync(self, folder: str) -> None:
        """See `CheckpointFiles.sync`."""
        in_time(lambda: self._sync(folder))

    def tidy(self, folder: str) -> None:
        """See `CheckpointFiles.tidy`."""
        in_time(lambda: self._tidy(folder))

    def inside(self, folder: str) -> HadoopFiles:
        """See `CheckpointFiles.inside`."""
        return HadoopFiles(self._jvm, self._fs, self._context, f"{self._folder}/{folder}", self._settings)

    def for_workers(self) -> CheckpointFiles:
        """See `CheckpointFiles.for_workers`."""
        return hdfs_files(self._jvm, self._settings, self._folder)

    def _path(self, path: str) -> Any:
        return called(lambda: self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{path}" if path else self._folder))

    def _exists(self, path: str) -> bool:
        return bool(called(lambda: self._fs.exists(self._path(path))))

    def _delete(self, path: str) -> bool:
        """Deletes a file. Returns True if it existed."""
        return bool(called(lambda: self._fs.delete(self._path(path), False)))

    def _read(self, path: str) -> bytes | None:
        try:
            stream = called(lambda: self._fs.open(self._path(path)))
            try:
                return bytes(called(stream.readAllBytes))
            finally:
                called(stream.close)
        except StoreError as error:
            if "FileNotFoundException" in error.kinds:
                return None
            raise

    def _listed(self, folder: str) -> list[tuple[str, Any]]:
        """Returns the name and status of each file in a subfolder."""
        path = self._path(folder)
        try:
            found = called(lambda: list(self._fs.listStatus(path)))
        except StoreError as error:
            if "FileNotFoundException" in error.kinds:
                return []
            raise
        named = called(lambda: [(str(one.getPath().getName()), one) for one in found if one.isFile()])
        # The listing of a file consists of the file itself.
        if len(named) == 1 and named[0][0] == folder.rpartition("/")[2]:
            return [] if called(lambda: self._fs.getFileStatus(path).isFile()) else named
        return named

    def _sync(self, folder: str) -> None:
        # The name node shows a rename before the rename is in the journal, but it acknowledges a change only once that
        # change and all earlier ones are in the journal. This change is the cheapest (1.5 ms) that is always journaled,
        # even if it has no effect.
        try:
            called(lambda: self._fs.setTimes(self._path(folder), time.time_ns() // 1_000_000, -1))
        except StoreError as error:
            # A user without write permission cannot base a decision on this read, so nothing needs to be durable.
            if "AccessControlException" not in error.kinds:
                raise

    def _tidy(self, folder: str) -> None:
        for name, status in self._listed(folder):
            if name.startswith(".") and is_stale(name, int(called(status.getModificationTime))):
                self._delete(f"{folder}/{name}")

    def _try_out(self) -> None:
        there = self._path("")
        while not called(partial(self._fs.exists, there)):
            there = called(there.getParent)
        nearest = HadoopFiles(self._jvm, self._fs, self._context, str(there.toString()), self._settings)
        one, two = (f".{uuid.uuid4().hex}.tmp" for _ in range(2))
        try:
            nearest._write(one, [b""])
            nearest._rename(one, two)
        finally:
            nearest._discard(one)
            nearest._discard(two)

    def _write(self, path: str, pieces: Iterable[bytes]) -> None:
        fs = self._jvm.org.apache.hadoop.fs
        # With this flag, `close` flushes block and folder to the data nodes' disks. It is four times faster than
        # `hsync`, after which `close` waits for the data node's next report.
        flags = self._jvm.java.util.EnumSet.of(fs.CreateFlag.CREATE, fs.CreateFlag.SYNC_BLOCK)
        parents = _array(self._jvm, fs.Options.CreateOpts, fs.Options.CreateOpts.createParent())
        stream = called(lambda: self._context.create(self._path(path), flags, parents))
        try:
            for piece in pieces:
                called(partial(stream.write, piece))
        finally:
            called(stream.close)

    def _rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        kinds = self._jvm.org.apache.hadoop.fs.Options.Rename
        options = _array(self._jvm, kinds, kinds.OVERWRITE if overwrite else kinds.NONE)
        called(lambda: self._context.rename(self._path(source), self._path(target), options))


def _array(jvm: Any, kind: Any, one: Any) -> Any:
    """Returns a Java array with one element, as varargs methods require."""
    made = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName(kind._fqn), 1)
    jvm.java.lang.reflect.Array.set(made, 0, one)
    return made


def hdfs_files(jvm: Any, settings: Any, folder: str) -> HdfsFiles:
    """Returns the files of a folder, through a client that works in any process.

    Raises:
        ConfigurationError: If a setting has no counterpart, or the client is not installed.
    """
    if find_spec("hdfs_native") is None:
        raise missing_package(
            f"checkpoint={folder!r}, with a sink whose workers write rows there,", "hdfs-native", "hdfs"
        )
    writer = jvm.java.io.StringWriter()
    called(lambda: jvm.org.apache.hadoop.conf.Configuration.dumpConfiguration(settings, writer))
    configured = {
        one["key"]: one["value"]
        for one in json.loads(str(writer.toString()))["properties"]
        if one["key"].startswith(("dfs.", "fs.viewfs.", AUTHENTICATION))
        and not one["resource"].endswith("-default.xml")
    }
    users = jvm.org.apache.hadoop.security.UserGroupInformation
    user = str(called(lambda: users.getCurrentUser().getShortUserName()))
    return HdfsFiles(folder, checked_settings(folder, configured), user).for_workers()
