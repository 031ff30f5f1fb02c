"""Bounds the Arrow batches that Spark sends to the writers, without a count of bytes for each row where rows are small.

Spark sends 10,000 rows of any size, or stops at a number of bytes (``spark.sql.execution.arrow.maxBytesPerBatch``). It
then adds up all columns again before each row, which took a quarter of its time for rows of 100 bytes
(``ArrowWriter.sizeInBytes``). So after a large batch of small rows, the next one gets a number of rows in its place,
and its plan raises an error at a row that is much larger. The driver then undoes what was written, and has the batch
written once more, with a number of bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.conf import RuntimeConfig
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from sparkonce.spark.jvm import quoted

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_WANTED_BYTES = 1 << 20
_MOST_BYTES = 64 << 20
_NO_LIMIT = 2**31 - 1
_WORTH_IT_ROWS = 100_000
_FEWEST_RECORDS = 100
"""Rows of which fewer fit into a batch are so large that counting their bytes costs nothing."""
_FIXED = (BooleanType, DateType, NumericType, TimestampType, TimestampNTZType)
_VARIABLE = (BinaryType, StringType)
_SENT_TO_PYTHON = re.compile("Arrow|Pandas|Python")
_TOO_LARGE = "sparkonce expected smaller rows"


class ArrowBatches:
    """Chooses the bound of each batch from the batch before. One object serves one query.

    Attributes:
        row_bytes: The size of a row in the run's newest batch that had rows, on average; None before.
    """

    def __init__(self) -> None:
        self._rows = self._bytes = 0
        self.row_bytes: int | None = None
        self._has_large_rows = False
        self._set: dict[str, str] = {}
        self._found: dict[str, str | None] = {}
        self._most_records = _NO_LIMIT
        self._is_checked = False

    def bind(self, frames: Sequence[DataFrame], *, may_fail: bool) -> Sequence[DataFrame]:
        """Sets the bound of the Arrow batches of these frames, and returns the frames, with checks of their rows.

        A number of bytes that the user has set stays. So does the user's number of rows, as the highest.

        Args:
            frames: What one batch sends to Python, of one session.
            may_fail: Whether the batch can be written once more, if a row is larger than expected.
        """
        self._is_checked = False
        if not frames or not self._is_ours(conf := frames[0].sparkSession.conf):
            return frames
        chosen = min(self._most_records, _WANTED_BYTES * self._rows // max(1, self._bytes))
        small = self._rows >= _WORTH_IT_ROWS and chosen >= _FEWEST_RECORDS and not self._has_large_rows
        if may_fail and small and all(map(_can_be_counted, frames)):
            self._is_checked = True
            self._put(conf, _NO_LIMIT, chosen)
            return [_checked(rows, chosen) for rows in frames]
        self._put(conf, _WANTED_BYTES, self._most_records)
        return frames

    def release(self, session: SparkSession) -> None:
        """Bounds what else the session sends to Python by bytes: the query's own functions of the next batch."""
        if self._is_checked and self._is_ours(session.conf):
            self._put(session.conf, _WANTED_BYTES, self._most_records)

    def learn(self, sent: Sequence[tuple[int, int]]) -> None:
        """Takes note of what a batch has sent to Python: the rows of each frame, and their bytes."""
        self._rows = sum(rows for rows, _ in sent)
        self._bytes = max((self._rows * size // rows for rows, size in sent if rows), default=0)
        if self._rows:
            self.row_bytes = self._bytes // self._rows

    def met_large_rows(self, error: Exception) -> bool:
        """Tells if a job failed at a row that is larger than expected. Later batches are then bound by bytes."""
        if not self._is_checked or _TOO_LARGE not in str(error):
            return False
        self._has_large_rows = True
        return True

    def _is_ours(self, conf: RuntimeConfig) -> bool:
        """Tells if the bound of bytes is not the user's, and takes note of the user's number of rows."""
        self._found = {_BYTES: conf.get(_BYTES, None), _RECORDS: str(conf.get(_RECORDS))}
        if self._found[_BYTES] not in (None, self._set.get(_BYTES)):
            return False
        if (records := str(self._found[_RECORDS])) != self._set.get(_RECORDS):
            self._most_records = int(records) if int(records) > 0 else _NO_LIMIT
        return True

    def _put(self, conf: RuntimeConfig, size_bytes: int, records: int) -> None:
        self._set = {_BYTES: str(size_bytes), _RECORDS: str(records)}
        for name, value in self._set.items():
            if value != self._found[name]:
                conf.set(name, value)


def _can_be_counted(rows: DataFrame) -> bool:
    """Tells if the size of rows can be checked, and nothing else of their plan is sent to Python in such batches."""
    return all(isinstance(field.dataType, (*_FIXED, *_VARIABLE)) for field in rows.schema.fields) and not (
        _SENT_TO_PYTHON.search(rows._jdf.queryExecution().optimizedPlan().toString())
    )


def _checked(rows: DataFrame, records: int) -> DataFrame:
    """Returns rows that raise an error where so many of them could be more than `_MOST_BYTES`."""
    variable = {field.name for field in rows.schema.fields if isinstance(field.dataType, _VARIABLE)}
    never_null = {field.name for field in rows.schema.fields if not field.nullable}
    most = _MOST_BYTES // records // max(1, len(variable))
    columns = []
    for name in rows.columns:
        value = F.col(quoted(name))
        too_large = F.raise_error(F.lit(f"{_TOO_LARGE}: {name} has more than {most} bytes"))
        if name in variable:
            value = F.when(F.octet_length(value) > most, too_large).otherwise(value)
            if name in never_null:  # files are to have the same schema
                value = F.coalesce(value, F.lit("").cast(rows.schema[name].dataType))
        columns.append(value)
    return rows.select(*[column.alias(name) for column, name in zip(columns, rows.columns, strict=True)])
