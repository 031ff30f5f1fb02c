"""A file of a store, which is read by its parts and can be sought in."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, BinaryIO, cast

PART_BYTES = 8 * 2**20


def opened(read_part: Callable[[int, int], bytes], size: int) -> BinaryIO:
    """Opens a file.

    Args:
        read_part: Returns the bytes from a position on, so many of them.
        size: The file's size.
    """
    return cast("BinaryIO", io.BufferedReader(_Parts(read_part, size), PART_BYTES))


class _Parts(io.RawIOBase):
    def __init__(self, read_part: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._read_part = read_part
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        part = self._read_part(self._at, length)
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)
