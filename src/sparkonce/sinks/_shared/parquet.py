"""The one way to write Parquet: with the key by which Spark knows the calendar of a file's dates and timestamps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_CALENDAR = {b"org.apache.spark.version": b"4.0.0"}
"""Spark reads a file by the calendar of the version that wrote it: since 3.1, the one that Arrow and ISO 8601 have.

It takes a file without a version for whatever ``spark.sql.parquet.datetimeRebaseModeInRead`` says: with LEGACY it would
shift dates before 1582, and with EXCEPTION it would refuse them.
"""


def parquet_writer(stream: Any, schema: pa.Schema, **options: Any) -> Any:
    """Returns pyarrow's writer of a file with these columns."""
    import pyarrow.parquet as pq

    return pq.ParquetWriter(stream, schema.with_metadata({**(schema.metadata or {}), **_CALENDAR}), **options)
