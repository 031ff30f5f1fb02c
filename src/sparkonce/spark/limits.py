"""The limit of a batch of a source in Python, which Spark itself keeps since 4.2."""

from __future__ import annotations

from typing import Any

try:  # since Spark 4.2
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    ReadAllAvailable = ReadMaxRows = None
    SupportsTriggerAvailableNow = object

IS_LIMITED_BY_SPARK = ReadMaxRows is not None
"""Tells if Spark itself limits batches of Python sources, so that a trigger that ends by itself reads all."""


class Limited(SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A reader whose batches have at most so many rows.

    Args:
        most: The most rows; None for no limit.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's
        """Returns the limit of a batch, for Spark 4.2 and newer."""
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def most_rows(self, limit: Any) -> int | None:
        """Returns the most rows of a batch; None for no limit.

        Args:
            limit: Spark's limit. Spark before 4.2 does not give one: it is our own.
        """
        return self._most if limit is None else getattr(limit, "max_rows", None)
