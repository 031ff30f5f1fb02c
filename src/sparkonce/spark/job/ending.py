"""Waits until queries end, stops them gracefully on a signal, and prints a short message if one has failed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback as traces
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

from pyspark.sql.streaming.query import StreamingQuery

from sparkonce.errors import ConfigurationError, QueryFailedError, SparkonceError
from sparkonce.spark.query_end import is_interactive, wait_until_closed
from sparkonce.spark.show.failures import message_and_next

_SENT_TWICE_S = 0.5
_SIGNALS_EVERY_S = 1.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def await_end(*queries: StreamingQuery, traceback: bool = False) -> None:
    """Waits until the queries have ended. Make it the last line of a job.

    SIGTERM or SIGINT (Ctrl-C, a notebook's interrupt) stops them gracefully. A decided batch is committed first; an
    undecided one is aborted, and written again by the next start. A second signal ends the process immediately, with
    exit code 128 plus the signal's number, and loses no rows either. If one of several queries fails, the others are
    stopped.

    Returns when all queries have ended or were stopped, and their connections are closed. If one has failed, its
    message and its next step are written to standard error, and the process exits with code 1. In a notebook, an
    interactive Python session, or a thread other than the main one, the error is raised instead, and a second signal
    only ends the wait. Only the main thread receives signals.

    Args:
        queries: The queries returned by `ExactlyOnce.start` or ``writeStream.start``.
        traceback: True also writes the whole error, with Spark's stack traces.

    Raises:
        ConfigurationError: If no query is given, or an argument is not a query.
        SystemExit: If a query has failed, in the main thread of a script. The exit code is 1, or 128 plus the signal's
            number if this process received a signal that also ended Spark's JVM.
        QueryFailedError: If a query has failed, anywhere else.
    """
    if not queries:
        raise ConfigurationError("await_end() was given no query.", next_step="Give it what start() returned.")
    for query in queries:
        if not hasattr(query, "awaitTermination"):
            raise ConfigurationError(
                f"await_end({query!r}): that is not a query. await_end waits for queries, without a limit.",
                next_step="Give it what start() returned, one after the other: await_end(first, second).",
            )
    with stopped_by_signals(lambda: queries) as stopping:
        failed = wait(queries)
    if failed:
        end_process(failed, stopping.signal, traceback=traceback)


def wait(queries: Sequence[StreamingQuery]) -> list[QueryFailedError]:
    """Waits until all queries have ended and their connections are closed; stops the others when one fails.

    Returns the errors of those that have failed.
    """
    known = {query: (_name(query), _run(query)) for query in queries}  # the JVM may be gone later
    ended: SimpleQueue[tuple[StreamingQuery, BaseException | None]] = SimpleQueue()

    def wait_for(query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - the query has failed, or the JVM is gone; both are reported
            ended.put((query, error))
        else:
            ended.put((query, None))

    for query in known:
        threading.Thread(target=wait_for, args=(query,), name="sparkonce-await", daemon=True).start()
    failed, running = [], len(known)
    while running:
        try:  # A signal that arrives just before the wait does not interrupt it.
            query, error = ended.get(timeout=_SIGNALS_EVERY_S)
        except Empty:
            continue
        running -= 1
        if error is not None:
            stop(other for other in known if other is not query)
            failed.append(_failure(known[query][0], error))
    for _, run in known.values():
        wait_until_closed(run)
    return failed


def end_process(failed: Sequence[QueryFailedError], by_signal: int | None, *, traceback: bool) -> NoReturn:
    """Writes the errors of failed queries and ends the process.

    In an interactive session, raises the first one instead.
    """
    if is_interactive() or threading.current_thread() is not threading.main_thread():
        raise failed[0] from (failed[0].__cause__ if traceback else None)
    for error in failed:
        if traceback and error.__cause__ is not None:
            sys.stderr.write("".join(traces.format_exception(error.__cause__)))
        write_error(error)
    if by_signal is not None and all(error.spark_is_gone for error in failed):
        raise SystemExit(128 + by_signal)
    raise SystemExit(1)


def _failure(name: str, cause: BaseException) -> QueryFailedError:
    if gone := spark_is_gone():
        message = f"Spark was stopped under the query {name}: its JVM has ended, or its context was stopped."
        next_step = (
            "Start it again: it finishes its last batch if that was decided, else undoes it, and no row is lost. If a "
            "signal to all processes of the job, or to spark-submit's JVM, was the cause, send it to its Python only."
        )
    else:
        message, next_step = message_and_next(cause)
        message = f"The query {name} has failed. {message}"
    error = QueryFailedError(message, next_step=next_step)
    error.__cause__, error.spark_is_gone = cause, gone
    return error


def spark_is_gone() -> bool:
    """Returns True if Spark's context was stopped, or its JVM no longer answers."""
    try:
        from pyspark import SparkContext  # a Spark Connect client does not have it
    except ImportError:
        return False
    context = SparkContext._active_spark_context
    try:
        return context is not None and bool(context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - no answer
        return True


def write_error(error: SparkonceError) -> None:
    """Writes the message and next step to standard error."""
    sys.stderr.write("".join(f"{line}\n" for line in error.lines()))


class Stopping:
    """Stops queries when a signal arrives, in a separate thread, because the main thread may be inside a Spark call.

    A handler interrupts the main thread at any point, possibly in a request to the JVM. So the handler must not call
    Spark, and only passes the signal to the thread.
    """

    def __init__(self, queries: Callable[[], Iterable[StreamingQuery]]) -> None:
        self._queries = queries
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._before: dict[int, Any] = {}
        self._process = os.getpid()
        self.signal: int | None = None
        self._signalled_s = 0.0
        self._thread = threading.Thread(target=self._wait_for_signal, name="sparkonce-stop", daemon=True)
        self._thread.start()

    def listen(self) -> None:
        """Installs the handlers, even if others have replaced them before. Does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            before = signal.signal(number, self._on_signal)
            if before != self._on_signal:
                self._before[number] = before

    def end(self) -> None:
        """Restores the previous handlers."""
        self._asked.put(None)
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def _on_signal(self, number: int, _frame: object) -> None:
        if os.getpid() != self._process:  # a forked child inherits the handler, but not the thread
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.signal is not None and time.monotonic() - self._signalled_s < _SENT_TWICE_S:
            return  # The terminal sent the signal, and the parent process passed it on.
        if self.signal is not None and is_interactive():
            raise KeyboardInterrupt
        if self.signal is not None:
            # Do not raise SystemExit: a Spark call could catch it, and Python would wait for a batch's threads.
            with suppress(Exception):
                sys.stdout.flush()
            os._exit(128 + number)
        self.signal, self._signalled_s = number, time.monotonic()
        self._asked.put(number)

    def _wait_for_signal(self) -> None:
        number = self._asked.get()
        if number is None:
            return
        queries = list(self._queries())
        sys.stderr.write(
            f"{signal.Signals(number).name}: stopping {', '.join(_name(query) for query in queries) or 'no query'}. "
            "A batch that is decided is committed first, or by the next start; one that is not is undone. "
            "A second signal ends the process immediately; nothing is lost.\n"
        )
        stop(queries)


@contextmanager
def stopped_by_signals(queries: Callable[[], Iterable[StreamingQuery]]) -> Iterator[Stopping]:
    """Stops queries on a signal while the context is active."""
    stopping = Stopping(queries)
    stopping.listen()
    try:
        yield stopping
    finally:
        stopping.end()


def stop(queries: Iterable[StreamingQuery]) -> None:
    """Stops each query. A query that cannot be stopped has failed or lost its JVM, which `wait` reports."""
    for query in queries:
        with suppress(Exception):
            query.stop()


def _run(query: StreamingQuery) -> str:
    with suppress(Exception):
        return str(query.runId)
    return ""


def _name(query: StreamingQuery) -> str:
    with suppress(Exception):
        return repr(query.name) if query.name else f"{str(query.id)[:8]}…"
    return "(unnamed)"
