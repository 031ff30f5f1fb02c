"""Logs rows that arrive too late. Spark drops them without a message, and only counts them in its progress."""

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
    """Logs ``numRowsDroppedByWatermark`` of each batch in which it is not zero.

    For an aggregation, Spark counts after each task has combined its rows: dropped rows with the same key and window
    count once.
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
