"""A checkpoint's files on HDFS, through Spark's JVM: with Hadoop's settings, credentials and clients.

A put writes a temporary file, and gives it its name by a rename that fails if the name is taken. The name node carries
that out in one step, and answers when its journal has it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from sparkonce.errors import ConfigurationError
from sparkonce.spark.checkpoints.calls import Decisive, StoreError, called, each_in_time, in_time
from sparkonce.spark.checkpoints.workers import hdfs_files
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken
from sparkonce.storage.hdfs import RenamingFiles, is_stale

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
"""The settings of our client only: by default it may ask a name node that is away for many minutes."""


class FileSystemFiles(CheckpointFiles):
    """The calls that every file system of Hadoop answers in the same way.

    Args:
        jvm: The JVM of the session.
        filesystem: A ``FileSystem`` of our own.
        folder: The folder's URL, as Hadoop qualifies it.
    """

    def __init__(self, jvm: Any, filesystem: Any, folder: str) -> None:
        self._jvm = jvm
        self._fs = filesystem
        self._folder = folder.rstrip("/")

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
        each_in_time([partial(self._delete, path) for path in paths])

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

    def _try_out(self) -> None:
        raise NotImplementedError

    def _path(self, path: str) -> Any:
        return called(lambda: self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{path}" if path else self._folder))

    def _exists(self, path: str) -> bool:
        return bool(called(lambda: self._fs.exists(self._path(path))))

    def _delete(self, path: str) -> bool:
        """Returns True if there was such a file."""
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
        """Returns name and status of each file in a subfolder."""
        path = self._path(folder)
        try:
            found = called(lambda: list(self._fs.listStatus(path)))
        except StoreError as error:
            if "FileNotFoundException" in error.kinds:
                return []
            raise
        named = called(lambda: [(str(one.getPath().getName()), one) for one in found if one.isFile()])
        # Hadoop lists a file as the only one in itself.
        if len(named) == 1 and named[0][0] == folder.rpartition("/")[2]:
            return [] if called(lambda: self._fs.getFileStatus(path).isFile()) else named
        return named


class HadoopFiles(FileSystemFiles, RenamingFiles):
    """See `CheckpointFiles`.

    Args:
        jvm: The JVM of the session.
        filesystem: A ``FileSystem`` of our own.
        context: A ``FileContext`` of the same store, whose rename is the only one that refuses to overwrite.
        folder: The folder's URL, as Hadoop qualifies it.
        settings: Hadoop's, from which a client for Python workers gets its own.
    """

    def __init__(self, jvm: Any, filesystem: Any, context: Any, folder: str, settings: Any) -> None:
        super().__init__(jvm, filesystem, folder)
        self._context = context
        self._settings = settings

    @classmethod
    def opened(cls, jvm: Any, settings: Any, folder: str) -> HadoopFiles:
        """Opens clients of our own: Spark's are shared, and have other settings.

        Raises:
            StoreError: if the store's name cannot be resolved.
        """
        own = bounded(jvm, settings, _SETTINGS)
        hadoop = jvm.org.apache.hadoop.fs
        uri = called(lambda: hadoop.Path(folder).toUri())
        filesystem = called(lambda: hadoop.FileSystem.newInstance(uri, own))
        context = called(lambda: hadoop.FileContext.getFileContext(uri, own))
        return cls(jvm, filesystem, context, folder, settings)

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

    def _sync(self, folder: str) -> None:
        # The name node shows a rename before its journal has it. It answers a change when the journal has that change
        # and all before it: this is the cheapest one (1.5 ms) that is always journalled, even if it changes nothing.
        try:
            called(lambda: self._fs.setTimes(self._path(folder), time.time_ns() // 1_000_000, -1))
        except StoreError as error:
            # Who may not write here decides nothing by what it reads.
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
        # The flag makes `close` flush block and folder to the data nodes' disks, and is four times faster than `hsync`,
        # after which `close` waits for the data node's next report.
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


def bounded(jvm: Any, settings: Any, bounds: dict[str, str]) -> Any:
    """Returns a copy of Hadoop's settings, with ours."""
    own = jvm.org.apache.hadoop.conf.Configuration(settings)
    for name, value in bounds.items():
        own.set(name, value)
    return own


def _array(jvm: Any, kind: Any, one: Any) -> Any:
    """Returns a Java array of one element, as a method with a variable number of arguments takes it."""
    made = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName(kind._fqn), 1)
    jvm.java.lang.reflect.Array.set(made, 0, one)
    return made
