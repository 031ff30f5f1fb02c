"""Looks for several rows of a batch with one key: a merge takes one of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkonce.sinks._shared.arrow_text import python_value
from sparkonce.spark.jvm import quoted
from sparkonce.spark.tables.merging import has_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MOST_IN_DRIVER = 1_000_000
"""The most rows whose keys the driver compares by itself: in less time than Spark starts its jobs in."""

_COUNT = "__sparkonce_count"


def repeated(on: Sequence[str], files: Sequence[BinaryIO], rows: Callable[[], DataFrame]) -> str:
    """Returns the reason to refuse rows of which several have one key; empty if none have.

    Args:
        on: The key columns.
        files: The files of the rows, in Parquet.
        rows: Reads these files by Spark, which counts where there are many rows or keys of rare types.
    """
    read = [pq.ParquetFile(file) for file in files]
    few = sum(one.metadata.num_rows for one in read) <= _MOST_IN_DRIVER
    columns = _columns(on, read[0].schema_arrow)
    if few and all(_is_plain(read[0].schema_arrow.field(name).type) for name in columns):
        found = _in_driver(pa.concat_tables(one.read(columns=columns) for one in read))
    else:
        found = _by_spark(on, rows())
    if found is None:
        return ""
    *key, count = found
    told = ", ".join(f"{name}={value}" for name, value in zip(on, key, strict=True))
    return (
        f"{count} rows of the batch have the key {told}, and merge_on={list(on)} takes one of each: aggregate in the "
        "query, or give order_by=, for the last one to count"
    )


def _columns(on: Sequence[str], schema: pa.Schema) -> list[str]:
    """Returns the names of the key columns as the rows have them: Spark makes no difference of case."""
    names = {name.lower(): name for name in schema.names}
    return [names[name.lower()] for name in on]


def _is_plain(kind: pa.DataType) -> bool:
    """Tells if Arrow and Spark agree on which values of a type are equal: they do not on zeros of two signs."""
    return not pa.types.is_nested(kind) and not pa.types.is_floating(kind)


def _in_driver(keys: pa.Table) -> list[str] | None:
    """Returns the values of a key that several rows have, and their number, all as text."""
    names = [str(number) for number in range(keys.num_columns)]
    counted = keys.rename_columns(names).drop_null().group_by(names).aggregate([([], "count_all")])
    found = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1)
    return [repr(python_value(column[0])) for column in found.columns] if found.num_rows else None


def _by_spark(on: Sequence[str], rows: DataFrame) -> list[str] | None:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    counted = rows.where(has_key(on)).groupBy(*map(quoted, on)).agg(F.count("*").alias(_COUNT))
    # As text: Python has no date after the year 9999.
    texts = [F.col(one).cast("string") for one in (*map(quoted, on), _COUNT)]
    found = counted.where(F.col(_COUNT) > 1).limit(1).select(*texts).collect()
    return [str(value) for value in found[0]] if found else None
