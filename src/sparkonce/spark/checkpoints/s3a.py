"""A checkpoint's files in S3, through Hadoop's S3A of version 3.4.2 or newer, with its settings and credentials.

A put is one request with ``If-None-Match: *``, which S3 refuses if the name is taken. Older versions of S3A ask whether
the name is free, and put then: of two at once, both land.
"""

from __future__ import annotations

import time
from typing import Any

from sparkonce.errors import ConfigurationError
from sparkonce.spark.checkpoints.hadoop import CONFLICT, Decisive, FileSystemFiles, StoreError, bounded, called, in_time
from sparkonce.storage.files import PAUSE_S, CheckpointFiles, Landed, PutUnknownError, Taken
from sparkonce.storage.opening import LISTED, NEWER_SPARK, object_files

CONDITIONAL = "fs.option.create.conditional.overwrite"
"""The name of S3A's option, and of the capability by which it says that it knows it."""
_SETTINGS = {
    # A put that is sent twice inside the client hides how the first one ended: we send it again, and know.
    "fs.s3a.attempts.maximum": "0",
    "fs.s3a.retry.limit": "0",
    "fs.s3a.retry.throttle.limit": "0",
    # The least that S3A takes: it reads less as this.
    "fs.s3a.connection.establish.timeout": "15s",
    "fs.s3a.connection.request.timeout": "15s",
    "fs.s3a.connection.timeout": "15s",
    # No objects that stand for folders. Version 3.4.2 puts one all the same where a folder's last file is deleted.
    "fs.s3a.performance.flags": "create,delete,mkdir",
    # Each put allocates as much of the driver's heap, also for a small object: by default 64 MB.
    "fs.s3a.fast.upload.buffer": "array",
    "fs.s3a.multipart.size": "16M",
}
TRIES_S = 20.0
"""The time for which a put in doubt is tried again: longer than that for one answer, so that it is sent once more."""
_TAKEN = 412
_NEVER_SENT = frozenset({"ConnectException", "UnknownHostException"})


class S3AFiles(FileSystemFiles):
    """See `CheckpointFiles`.

    Args:
        jvm: The JVM of the session.
        filesystem: A ``FileSystem`` of our own.
        folder: The folder's URL.
        settings: Hadoop's, from which a client for Python workers gets its credentials.
    """

    def __init__(self, jvm: Any, filesystem: Any, folder: str, settings: Any) -> None:
        super().__init__(jvm, filesystem, folder)
        self._settings = settings

    @classmethod
    def opened(cls, jvm: Any, settings: Any, folder: str) -> S3AFiles | None:
        """Opens a client of our own. Returns None if its version has no conditional put, or the bucket must not use it.

        Raises:
            StoreError: if there are no credentials, or the connector is not there.
        """
        fs = jvm.org.apache.hadoop.fs
        path = called(lambda: fs.Path(folder))
        # A setting of the bucket goes before one of all buckets.
        bucket = f"fs.s3a.bucket.{path.toUri().getAuthority()}."
        own = bounded(jvm, settings, {name.replace("fs.s3a.", bucket, 1): value for name, value in _SETTINGS.items()})
        filesystem = called(lambda: fs.FileSystem.newInstance(path.toUri(), own))
        if not called(lambda: filesystem.hasPathCapability(path, CONDITIONAL)):
            called(filesystem.close)
            return None
        return cls(jvm, filesystem, folder, settings)

    @property
    def endpoint(self) -> str | None:
        """The store's address, or "s3" for Amazon's own: many stores speak S3, and not all know the condition."""
        bucket = f"fs.s3a.bucket.{self._fs.getUri().getHost()}.endpoint"
        return str(self._settings.get(bucket) or self._settings.get("fs.s3a.endpoint") or "s3")

    def put(self, path: str, data: bytes) -> Landed | Taken:
        """See `CheckpointFiles.put`."""
        decisive = Decisive()
        return in_time(lambda: self._put(path, data, decisive), decisive)

    def replace(self, path: str, data: bytes) -> None:
        """See `CheckpointFiles.replace`."""
        in_time(lambda: self._write(self._fs.createFile(self._path(path)).overwrite(True), data))

    def inside(self, folder: str) -> S3AFiles:
        """See `CheckpointFiles.inside`."""
        return S3AFiles(self._jvm, self._fs, f"{self._folder}/{folder}", self._settings)

    def for_workers(self) -> CheckpointFiles:
        """See `CheckpointFiles.for_workers`."""
        try:
            return object_files(self._folder, self._settings).for_workers()
        except ConfigurationError as error:
            raise ConfigurationError(
                f"checkpoint={self.location!r}: Python workers put a sink's rows there without Spark's connector. "
                + error.message,
                next_step=f"{error.next_step.replace(NEWER_SPARK, LISTED)} Or give that sink folder=, the path of a "
                "mounted disk for its rows.",
                **error.details,
            ) from None

    def _put(self, path: str, data: bytes, decisive: Decisive) -> Landed | Taken:
        decisive.begin()
        until, doubt = time.monotonic() + TRIES_S, ""
        while True:
            answer = self._tried(path, data)
            if not isinstance(answer, StoreError):
                return answer
            # With 409 the store says that another put is under way: this one has not landed.
            if answer.status != CONFLICT and _NEVER_SENT.isdisjoint(answer.kinds[:1]) and answer.may_pass:
                doubt = str(answer.strerror)
            if not answer.may_pass or time.monotonic() > until:
                if doubt:  # a refusal says nothing of the puts before it
                    raise PutUnknownError(f"{self._folder}/{path}: {doubt}") from answer
                raise answer
            time.sleep(PAUSE_S)

    def _tried(self, path: str, data: bytes) -> Landed | Taken | StoreError:
        try:
            self._write(called(lambda: self._fs.createFile(self._path(path)).must(CONDITIONAL, "true")), data)
        except StoreError as error:
            if error.status != _TAKEN and not {"RemoteFileChangedException", "FileAlreadyExistsException"} & {
                *error.kinds
            }:
                return error
        else:
            return Landed()
        return self._standing(path)

    def _standing(self, path: str) -> Taken:
        """Returns the object under a name that is taken. It may be this very put's, from a try without an answer.

        Raises:
            PutUnknownError: if it cannot be read.
        """
        try:
            standing = self._read(path)
        except StoreError as error:
            raise PutUnknownError(f"{self._folder}/{path} is taken, and could not be read: {error.strerror}") from error
        if standing is None:
            raise PutUnknownError(f"{self._folder}/{path} was taken, and nothing stands there now")
        return Taken(standing=standing)

    @staticmethod
    def _write(builder: Any, data: bytes) -> None:
        stream = called(lambda: builder.opt("fs.s3a.create.performance", True).recursive().build())
        try:
            called(lambda: stream.write(data))
        except StoreError:
            called(stream.abort)  # closing it would put what it has
            raise
        called(stream.close)

    def _try_out(self) -> None:
        name = ".sparkonce-tried"
        try:
            self._put(name, b"", Decisive())
        finally:
            self._delete(name)
