"""Reads rows that wait in files for the decision into the session of the driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_OF_PATTERNS, _ESCAPED = r"([\\*?\[\]{}])", r"\\\1"


def schema_in(file: BinaryIO) -> StructType:
    """Returns the columns of a file of rows, without the job that Spark would run to learn them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pq.read_schema(file), prefer_timestamp_ntz=True)


def read_rows(spark: SparkSession, urls: Sequence[str], schema: StructType | str) -> DataFrame:
    """Returns the rows in these files."""
    # No file may be skipped, whatever the session's settings for files that are missing or damaged.
    reader = spark.read.option("ignoreMissingFiles", False).option("ignoreCorruptFiles", False)
    # Nor may a date be shifted, whatever the settings for files of Spark 2: these rows never had its calendar.
    reader = reader.option("datetimeRebaseMode", "CORRECTED").option("int96RebaseMode", "CORRECTED")
    # Spark takes paths for patterns.
    return reader.schema(schema).parquet(*(re.sub(_OF_PATTERNS, _ESCAPED, url) for url in urls))
