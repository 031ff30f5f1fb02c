"""Stores one slot's rows in a file: compressed Parquet, with a checksum that is computed while writing."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from sparkonce.sinks._shared.parquet import ParquetOutput

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_BYTES = 16 * 2**20
"""The size at which a writer ends a row group, in bytes of rows. Readers load about one row group at a time."""

READ_ROWS = 65_536
_CHUNK_BYTES = 2**20


def is_taken(column: pa.Field) -> bool:
    """Returns True if Parquet supports a column's type, according to a test with an empty file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.write_table(pa.schema([column]).empty_table(), io.BytesIO())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
    return True


class CorruptRowsError(Exception):
    """Raised for a file that differs from what was written to it."""


class RowsFile:
    """Writes rows to a new, empty file. Every method raises OSError if a write fails."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self._hashing = _Hashing(file)
        self._parquet: ParquetOutput | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self.rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Adds rows, which may not be on disk yet when the method returns."""
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self.rows += rows.num_rows
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_down()

    def seal(self) -> tuple[int, str]:
        """Writes the rest, and returns the file's size in bytes and its checksum. The file stays open."""
        self._write_down()
        if self._parquet is not None:
            self._parquet.close()
        self.file.flush()
        return self._hashing.size, self._hashing.checksum()

    def close(self) -> None:
        """Closes the file as it is. Ignores disk errors, which no longer matter."""
        parquet, self._parquet = self._parquet, None
        for one in (parquet, self.file):
            try:
                if one is not None:
                    one.close()
            except OSError:  # noqa: PERF203 - close the second file even if the first fails
                continue

    def _write_down(self) -> None:
        import pyarrow as pa

        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if self._parquet is None:
            self._parquet = ParquetOutput(self._hashing, table.schema, compression="zstd", compression_level=1)
        self._parquet.write(table)


class _Hashing(io.RawIOBase):
    """A file that computes the checksum of all that is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._hash = _new_hash()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        self._file.write(view)
        self._hash.update(view)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def checksum(self) -> str:
        return self._hash.hexdigest()


def check(file: BinaryIO, size: int, checksum: str) -> None:
    """Reads an open file to its end; raises CorruptRowsError if it is not the file that was sealed."""
    found, seen = _new_hash(), 0
    file.seek(0)
    while chunk := file.read(_CHUNK_BYTES):
        found.update(chunk)
        seen += len(chunk)
    file.seek(0)
    if (seen, found.hexdigest()) != (size, checksum):
        raise CorruptRowsError(
            f"It has {seen} bytes with checksum {found.hexdigest()}, and {size} with {checksum} were written."
        )


def read(files: Sequence[BinaryIO], taken: list[int]) -> pa.RecordBatchReader:
    """Returns a reader that yields the rows of checked files in order, in parts of a row group.

    The reader adds the number of rows of each part to ``taken``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    readers = [pq.ParquetFile(file) for file in files]
    schema = readers[0].schema_arrow

    def batches() -> Iterator[pa.RecordBatch]:
        for reader in readers:
            for batch in reader.iter_batches(batch_size=READ_ROWS):
                taken.append(batch.num_rows)
                yield batch

    return pa.RecordBatchReader.from_batches(schema, batches())


def _new_hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)
