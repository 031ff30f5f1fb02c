"""Tools for authors of sources and sinks that use the driver's Spark session: for checks, checkpoints, and staged rows.

- `check_session`, `require_class`: reject an invalid session, or one that lacks a class's jar
- `driver_session`: the session of this process, for a sink that writes with it
- `read_rows`: reads rows that are staged in files
- `checked_location`, `open_checkpoint`: the folder of a query's checkpoint, for a source that stores something there
- `Limited`: a reader for Spark's Python data sources that limits the number of rows per batch
- `error_message`: puts an error from Spark or Java on one line
"""

from __future__ import annotations

from typing import Any

from sparkonce.jvm import require_class
from sparkonce.sinks.tables.committer import read_rows
from sparkonce.sinks.tables.errors import error_message
from sparkonce.sinks.tables.sink import SEEN_BY_ALL, driver_session
from sparkonce.spark.checkpoints.opening import open_checkpoint
from sparkonce.spark.start.arguments import check_session
from sparkonce.storage.location import checked_location

__all__ = [
    "IS_LIMITED_BY_SPARK",
    "SEEN_BY_ALL",
    "Limited",
    "check_session",
    "checked_location",
    "driver_session",
    "error_message",
    "open_checkpoint",
    "read_rows",
    "require_class",
]


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
