"""Closes a query's connections when it ends.

If a program does not wait for its query, and ends while the query is still running, a line on standard error says so.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - its exit hook must be registered before ours: see _close_ended
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sparkonce.jvm import execution_of

logger = logging.getLogger("sparkonce")

_CLOSED_WITHIN_S = 30.0

_CLOSED_AT_EXIT_S = 10.0

_ends: dict[str, tuple[StreamingQuery, threading.Thread]] = {}
"""The runs that are not closed yet, by id, with the threads that wait for them to end."""

_follows = threading.Lock()


def running(spark: SparkSession, query: str) -> StreamingQuery | None:
    """Returns a running query by its id; None if Spark does not know it."""
    try:
        found = execution_of(spark, query)
        return None if found is None else StreamingQuery(found)
    except Exception as error:  # noqa: BLE001 - Spark's internal classes may change; then the user closes the query
        logger.debug("Query %s cannot be followed: %s", query, error)
        return None


def close_at_end(query: StreamingQuery, close: Callable[[str, str], None]) -> None:
    """Starts a thread that waits for the end of the query's run, since ``foreachBatch`` is called only for batches.

    Args:
        query: The query.
        close: Called at the end with the run's id and Spark's error, or an empty string.
    """
    run = query.runId

    def wait() -> None:
        failure = ""
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - the query has failed, which Spark reports, or the JVM is gone
            failure = str(error) or type(error).__name__
            logger.debug("Run %s ended: %s", run, failure)
        try:
            close(run, failure)
        finally:
            _ends.pop(run, None)

    end = threading.Thread(target=wait, name="sparkonce-end", daemon=True)
    with _follows:
        if run not in _ends:
            _ends[run] = query, end
            end.start()


def wait_until_closed(run: str) -> None:
    """Waits a few seconds at most until the connections of an ended run are closed."""
    if (end := _ends.get(run)) is not None:
        end[1].join(_CLOSED_WITHIN_S)


def _close_ended() -> None:
    """Waits a few seconds at most for ended runs to close, since a process may exit right after its last query."""
    give_up_at = time.monotonic() + _CLOSED_AT_EXIT_S
    try:
        for query, end in list(_ends.values()):
            if not query.isActive:
                end.join(max(0.0, give_up_at - time.monotonic()))
    except Exception as error:  # noqa: BLE001 - the JVM is gone, and with it all queries
        logger.debug("The ends of queries are not known: %s", error)


# Committers use thread pools for sweeps. Pools shut down before atexit hooks run, so close runs even earlier.
getattr(threading, "_register_atexit", atexit.register)(_close_ended)
atexit.register(_close_ended)  # for queries that another of the program's threads has waited for


_started: list[StreamingQuery] = []


def is_interactive() -> bool:
    """Returns True in an interactive session (a notebook, IPython, ``python -i``), which SystemExit would end."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or (ipython is not None and bool(ipython.get_ipython()))


def warn_if_running_at_exit(query: StreamingQuery) -> None:
    """Remembers a started query. If it is still running when the program ends, a line on standard error says so."""
    _started.append(query)


@atexit.register
def _say() -> None:
    if is_interactive():
        return
    for query in _started:
        with suppress(Exception):  # Spark's JVM may be gone
            if query.isActive:
                sys.stderr.write(
                    f"sparkonce: The program ends while its query {query.name or query.id} runs, which stops the query "
                    "in the middle of a batch. No row is lost: the next start resumes it. Next: End the program with "
                    "await_end(query).\n"
                )
