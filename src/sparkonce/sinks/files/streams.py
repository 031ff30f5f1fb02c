"""The stream that pyarrow writes to: computes size and checksum, and names its file when the disk does not take it."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparkonce.errors import OutageError, PrepareError
from sparkonce.storage.files import may_pass

_SPACE = "Free some space, or raise the quota"
_GONE = "See what became of the folder: it was deleted or moved, or its disk is not mounted on this host"
_RIGHT = "Let this user write to the folder"
_LOOK = "See the kernel's log about this disk"
_STEPS = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.ENOENT: _GONE,
    errno.ENOTDIR: _GONE,
    errno.ESTALE: _GONE,
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
    errno.EROFS: "Mount the file system for writing",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.EFBIG: "Raise the limit of a file's size (ulimit -f)",
    errno.ENAMETOOLONG: "Choose a shorter path",
}


class ChecksumStream:
    """A file object for pyarrow that computes size and checksum.

    Args:
        file: The file that it writes to.
        path: The file's path, for messages.
    """

    closed = False

    def __init__(self, file: Any, path: object) -> None:
        self.file = file
        self.size = 0
        self._crc = 0
        self._path = path

    @property
    def checksum(self) -> str:
        """The checksum of all bytes so far."""
        return f"crc32:{self._crc:08x}"

    def write(self, data: Any) -> int:
        """Writes all bytes.

        Raises:
            PrepareError: if the file system does not take it.
        """
        with preparing(self._path):
            self.file.write(data)
        length = memoryview(data).nbytes
        self._crc = zlib.crc32(data, self._crc)
        self.size += length
        return length

    def tell(self) -> int:
        """Returns the number of bytes so far."""
        return self.size

    def flush(self) -> None:
        """Does nothing: `StagedFile.seal` flushes."""

    def close(self) -> None:
        """Does nothing: `StagedFile.seal` closes."""

    def writable(self) -> bool:
        """Returns True."""
        return True

    def readable(self) -> bool:
        """Returns False."""
        return False

    def seekable(self) -> bool:
        """Returns False."""
        return False


@contextmanager
def preparing(path: object) -> Iterator[None]:
    """Turns the file system's errors into a `PrepareError` that names the path."""
    try:
        yield
    except OSError as error:
        raise (OutageError if may_pass(error) else PrepareError)(
            f"{path} could not be written: {error.strerror or error}.",
            next_step=f"{_STEPS.get(error.errno or 0, _LOOK)}; nothing of the batch became visible.",
            path=str(path),
        ) from error
