"""Says when rows came too late: Spark drops them without a word, and counts them in its progress only."""

from __future__ import annotations

import logging

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

logger = logging.getLogger("late_rows")


class LateRows(StreamingQueryListener):
    """Logs ``numRowsDroppedByWatermark`` of each batch that has any.

    For an aggregation, Spark counts after it has added up the rows of a task: rows of one key and window that are
    dropped together count once.
    """

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        dropped = sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
        if dropped:
            watermark = progress.eventTime.get("watermark")
            logger.warning("batch=%d dropped %d rows older than watermark %s", progress.batchId, dropped, watermark)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass
