"""Record batches and arrays in pieces of bounded size, without a copy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

_LARGE = frozenset({pa.large_string(), pa.large_binary()})


def halves(rows: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows in record batches of at most so many bytes; a single row may have more.

    Args:
        rows: The rows.
        most_bytes: Of one record batch. A string array of Arrow ends at 2 GiB.
    """
    if rows.nbytes <= most_bytes or rows.num_rows < 2:
        yield rows
        return
    half = rows.num_rows // 2
    yield from halves(rows.slice(0, half), most_bytes)
    yield from halves(rows.slice(half), most_bytes)


def offsets_of(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.integer]]:
    """Returns where each value of an array of strings or binaries begins in its buffer, and where the last one ends."""
    if values.buffers()[1] is None:
        return np.zeros(1, np.int64)
    kind = np.int64 if values.type in _LARGE else np.int32
    return np.frombuffer(values.buffers()[1], kind, len(values) + 1, values.offset * np.dtype(kind).itemsize)


def bytes_of(values: pa.Array) -> memoryview:
    """Returns the bytes of all values of an array of strings or binaries, one after the other."""
    data = values.buffers()[2]
    if data is None or not len(values):
        return memoryview(b"")
    offsets = offsets_of(values)
    return memoryview(data)[offsets[0] : offsets[-1]]


def cut(values: pa.Array, most_bytes: int, *, without_last: int = 0) -> Iterator[memoryview]:
    """Yields the bytes of an array in pieces of at most so many; a single value may have more.

    Args:
        values: Strings or binaries.
        most_bytes: Of one piece.
        without_last: How many bytes are left out at the end of each piece, such as a comma.
    """
    if not len(values) or values.buffers()[2] is None:
        return
    data, offsets = memoryview(values.buffers()[2]), offsets_of(values)
    row = 0
    while row < len(values):
        end = max(row + 1, int(np.searchsorted(offsets, offsets[row] + most_bytes, side="right")) - 1)
        yield data[offsets[row] : offsets[end] - without_last]
        row = end
