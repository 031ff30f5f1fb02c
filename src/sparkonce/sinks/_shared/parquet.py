"""Writes Parquet the way Spark does: with Spark's key for the calendar, and with nullable fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_CALENDAR = {b"org.apache.spark.version": b"4.0.0"}
"""Metadata that makes Spark read dates in the calendar of Arrow and ISO 8601, in which Spark writes them since 3.1.

For a file that names no version of Spark, ``spark.sql.parquet.datetimeRebaseModeInRead`` decides: LEGACY would shift
dates before 1582, and EXCEPTION would reject them.
"""


class ParquetOutput:
    """Writes tables of the same columns to an open stream. The options are those of pyarrow's writer."""

    def __init__(self, stream: Any, schema: pa.Schema, **options: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = pa.schema([field.with_type(may_be_null(field.type)) for field in schema])
        self._writer = pq.ParquetWriter(
            stream, self._schema.with_metadata({**(schema.metadata or {}), **_CALENDAR}), **options
        )

    def write(self, rows: pa.Table, **options: Any) -> None:
        self._writer.write_table(rows.cast(self._schema), **options)

    def close(self) -> None:
        """Writes the end of the file, but does not close the stream."""
        self._writer.close()


def may_be_null(kind: pa.DataType) -> pa.DataType:
    """Makes all fields and elements of a type nullable, because Spark sends nulls for the fields of a null struct."""
    from pyarrow import large_list, list_, map_, struct, types

    if types.is_struct(kind):
        fields = (kind.field(number) for number in range(kind.num_fields))
        return struct([one.with_type(may_be_null(one.type)).with_nullable(True) for one in fields])
    if types.is_list(kind) or types.is_large_list(kind):
        element = kind.value_field.with_type(may_be_null(kind.value_type)).with_nullable(True)
        return list_(element) if types.is_list(kind) else large_list(element)
    if types.is_map(kind):
        return map_(kind.key_type, kind.item_field.with_type(may_be_null(kind.item_type)).with_nullable(True))
    return kind
