"""Closes a query's connections when it ends, and shows its progress until then."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from sparkonce.spark.show.display import ProgressDisplay

logger = logging.getLogger("sparkonce")

_SHOWN_EVERY_S = 1.0
_CLOSED_WITHIN_S = 30.0

_ends: dict[str, threading.Thread] = {}
"""The threads that wait for the runs that are not closed yet, by the run's id."""


def close_at_end(query: StreamingQuery, display: ProgressDisplay, close: Callable[[str, str], None]) -> None:
    """Starts a thread that waits for the query's end: ``foreachBatch`` learns of batches only.

    Args:
        query: The query.
        display: Shows its progress until then.
        close: Called at the end with the run's id, and Spark's error or an empty text.
    """
    run = query.runId

    def wait() -> None:
        failure = ""
        try:
            while not _has_ended(query, display):
                _show_status(query, display)
        except Exception as error:  # noqa: BLE001 - the query's own, which Spark shows; or the JVM is gone
            failure = str(error) or type(error).__name__
            logger.debug("Run %s ended: %s", run, failure)
        display.end()
        try:
            close(run, failure)
        finally:
            _ends.pop(run, None)

    _ends[run] = threading.Thread(target=wait, name="sparkonce-end", daemon=True)
    _ends[run].start()


def wait_until_closed(run: str) -> None:
    """Waits some seconds at most until the connections of an ended run are closed; not for runs of other writers."""
    if (end := _ends.get(run)) is not None:
        end.join(_CLOSED_WITHIN_S)


def _show_status(query: StreamingQuery, display: ProgressDisplay) -> None:
    """Shows the query's status and progress. The status is read first, so that the progress is never older."""
    try:
        status = query.status["message"]
        newest = query._jsq.lastProgress()
        display.show_query(status, newest and json.loads(newest.json()))
    except Exception as error:  # noqa: BLE001 - of any kind: a display must not end the query
        logger.debug("The progress of run %s cannot be shown: %s", query.runId, error)


def _has_ended(query: StreamingQuery, display: ProgressDisplay) -> bool:
    """Waits for the query's end; if its progress is shown, only until the next update is due."""
    return bool(query.awaitTermination(_SHOWN_EVERY_S)) if display.is_live else query.awaitTermination() is None
