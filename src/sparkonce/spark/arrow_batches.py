"""Limits the Arrow batches that Spark sends to the writers, without measuring every row where rows are small.

By default, an Arrow batch has up to 10,000 rows of any size. Spark can also limit its bytes
(``spark.sql.execution.arrow.maxBytesPerBatch``). It then adds up the sizes of all columns before each row
(``ArrowWriter.sizeInBytes``), which took a quarter of the time for rows of 100 bytes. So after a large batch of small
rows, the next batch is limited by rows, and its plan raises an error at any row that is much larger. The driver then
aborts the batch and writes it again, limited by bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
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

from sparkonce.jvm import quoted

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
WANTED_BYTES = 1 << 20
_MOST_BYTES = 64 << 20
_NO_LIMIT = 2**31 - 1
_WORTH_IT_ROWS = 100_000
_FEWEST_RECORDS = 100
"""If fewer rows than this fit into a batch, they are so large that counting their bytes costs nothing."""
_FIXED = (BooleanType, DateType, NumericType, TimestampType, TimestampNTZType)
_VARIABLE = (BinaryType, StringType)
_SENT_TO_PYTHON = re.compile("Arrow|Pandas|Python")
_TOO_LARGE = "sparkonce expected smaller rows"


class ArrowBatches:
    """Chooses each batch's limit from the previous batch. One object serves one query.

    Attributes:
        row_bytes: The average row size in the run's latest batch with rows; None before that.
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
        """Sets the limit of the Arrow batches of these frames. Returns the frames, with checks of their rows.

        A byte limit that the user has set stays in effect. A row limit that the user has set is an upper bound.

        Args:
            frames: All frames that one batch sends to Python, in one session.
            may_fail: True if the batch can be written again if a row is larger than expected.
        """
        self._is_checked = False
        if not frames or not self._is_ours(conf := frames[0].sparkSession.conf):
            return frames
        chosen = min(self._most_records, WANTED_BYTES * self._rows // max(1, self._bytes))
        small = self._rows >= _WORTH_IT_ROWS and chosen >= _FEWEST_RECORDS and not self._has_large_rows
        if may_fail and small and all(map(_can_be_counted, frames)):
            self._is_checked = True
            self._put(conf, _NO_LIMIT, chosen)
            return [_checked(rows, chosen) for rows in frames]
        self._put(conf, WANTED_BYTES, self._most_records)
        return frames

    def release(self, session: SparkSession) -> None:
        """Restores the byte limit for all else that the session sends to Python, such as the query's own functions."""
        if self._is_checked and self._is_ours(session.conf):
            self._put(session.conf, WANTED_BYTES, self._most_records)

    def learn(self, sent: Sequence[tuple[int, int]]) -> None:
        """Records what a batch has sent to Python: the number of rows and bytes of each frame."""
        self._rows = sum(rows for rows, _ in sent)
        self._bytes = max((self._rows * size // rows for rows, size in sent if rows), default=0)
        if self._rows:
            self.row_bytes = self._bytes // self._rows

    def met_large_rows(self, error: Exception) -> bool:
        """Returns True if a job failed because of an unexpectedly large row.

        Later batches are then limited by bytes.
        """
        if not self._is_checked or _TOO_LARGE not in str(error):
            return False
        self._has_large_rows = True
        return True

    def _is_ours(self, conf: RuntimeConfig) -> bool:
        """Returns True if the user has not set a byte limit. Also records the user's row limit."""
        self._found = {BYTES: conf.get(BYTES, None), _RECORDS: str(conf.get(_RECORDS))}
        if self._found[BYTES] not in (None, self._set.get(BYTES)):
            return False
        if (records := str(self._found[_RECORDS])) != self._set.get(_RECORDS):
            self._most_records = int(records) if int(records) > 0 else _NO_LIMIT
        return True

    def _put(self, conf: RuntimeConfig, size_bytes: int, records: int) -> None:
        self._set = {BYTES: str(size_bytes), _RECORDS: str(records)}
        for name, value in self._set.items():
            if value != self._found[name]:
                conf.set(name, value)


def _can_be_counted(rows: DataFrame) -> bool:
    """Returns True if row sizes can be checked and nothing else in the plan is sent to Python in these batches."""
    return all(isinstance(field.dataType, (*_FIXED, *_VARIABLE)) for field in rows.schema.fields) and not (
        _SENT_TO_PYTHON.search(rows._jdf.queryExecution().optimizedPlan().toString())
    )


def _checked(rows: DataFrame, records: int) -> DataFrame:
    """Returns the rows with a check that raises an error at rows so large that a batch could exceed `_MOST_BYTES`."""
    variable = {field.name for field in rows.schema.fields if isinstance(field.dataType, _VARIABLE)}
    never_null = {field.name for field in rows.schema.fields if not field.nullable}
    most = _MOST_BYTES // records // max(1, len(variable))
    columns = []
    for name in rows.columns:
        value = F.col(quoted(name))
        too_large = F.raise_error(F.lit(f"{_TOO_LARGE}: {name} has more than {most} bytes"))
        if name in variable:
            value = F.when(F.octet_length(value) > most, too_large).otherwise(value)
            if name in never_null:  # files must keep the same schema
                value = F.coalesce(value, F.lit("").cast(rows.schema[name].dataType))
        columns.append(value)
    return rows.select(*[column.alias(name) for column, name in zip(columns, rows.columns, strict=True)])
