"""One file in HDFS while it is being staged."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from sparkonce.errors import PrepareError
from sparkonce.sinks.files.hdfs.outcomes import prepare_error
from sparkonce.sinks.files.store import Fields, StagedFile
from sparkonce.sinks.files.streams import ChecksumStream
from sparkonce.storage.files import within

if TYPE_CHECKING:
    from hdfs_native import Client

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
