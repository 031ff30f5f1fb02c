"""One file in HDFS that is being written, and held back until the decision."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from sparkonce.errors import OutageError, PrepareError
from sparkonce.protocol.outcomes import Outcome
from sparkonce.sinks.files.hdfs.deadlines import within
from sparkonce.sinks.files.outcomes import of_hdfs_error
from sparkonce.sinks.files.store import Fields, StagedFile
from sparkonce.sinks.files.streams import ChecksumStream
from sparkonce.words import one_line

if TYPE_CHECKING:
    from hdfs_native import Client, WriteOptions

_BUFFER_BYTES = 1 << 20
_OF_ONE_FILE = (FileNotFoundError, FileExistsError, PermissionError)
"""Errors that come again however long one waits."""


def create(client: Client, path: str, options: WriteOptions) -> Any:
    """A new file, as the object that the client's own wraps.

    The client's is an ``io.RawIOBase``, which Python closes when it is collected: a call without a deadline, in
    whatever thread the collection happens to run, for each file that could not be closed.
    """
    wrapper = client.create(path, options)
    file, wrapper.inner = wrapper.inner, _Closed()
    return file


class _Closed:
    """What is left in the client's object once its file was taken out."""

    def close(self) -> None:
        pass


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
        """See `StagedFile.seal`. The last block is on its replicas' disks (hsync), and the file is whole (close).

        Blocks before the last one are on disk where ``dfs.datanode.synconclose`` is set: see `FilesSink.conditions`.

        A sweep may have deleted it under a copy that slept: then both say that there is no such file.
        """

        def attempt() -> int:
            self._buffer.flush()
            self._buffer.file.hsync()
            self._buffer.file.close()
            return int(self._client.get_file_info(self._held).length)

        (length,) = within(self._deadline_s, [attempt])
        if isinstance(length, BaseException):
            raise unwritten(self._held, length)
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
    """Gives the client a megabyte at a time: each call costs a journey out of Python."""

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
                raise unwritten(self._path, done)

    def flush(self) -> None:
        full, self._waiting = self._waiting, bytearray()
        self.file.write(bytes(full))


def unwritten(path: str, error: BaseException) -> PrepareError:
    """What a failed write is raised as: nothing of the batch became visible."""
    later = of_hdfs_error(error, path).outcome is Outcome.RETRY and not isinstance(error, _OF_ONE_FILE)
    return (OutageError if later else PrepareError)(
        f"{path} could not be written: {first_line(error)}",
        next_step="See whether the cluster runs and has room; nothing of the batch became visible.",
        path=path,
    )


def first_line(error: BaseException) -> str:
    """An error without the stack that the client appends."""
    return one_line(f"{type(error).__name__}: {str(error).split(chr(10))[0]}")
