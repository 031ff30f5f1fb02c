"""Limits the batches of a Python source. Spark 4.2 and newer does this itself."""

from __future__ import annotations

from typing import Any

try:  # since Spark 4.2
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    ReadAllAvailable = ReadMaxRows = None
    SupportsTriggerAvailableNow = object

IS_LIMITED_BY_SPARK = ReadMaxRows is not None
"""True if Spark limits the batches of Python sources itself, so that ``availableNow`` reads all rows."""


class Limited(SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A reader with a limited number of rows per batch.

    Args:
        most: The maximum number of rows per batch; None for no limit.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's
        """Returns the limit of a batch, for Spark 4.2 and newer."""
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def most_rows(self, limit: Any) -> int | None:
        """Returns the maximum number of rows in a batch; None for no limit. Before Spark 4.2, Spark passes no limit."""
        return self._most if limit is None else getattr(limit, "max_rows", None)
