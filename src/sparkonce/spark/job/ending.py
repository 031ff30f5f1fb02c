"""Waits until queries end, stops them in order at a signal, and tells in a few words why one has failed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback as traces
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, NoReturn

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from sparkonce.errors import ConfigurationError, QueryFailedError, SparkonceError
from sparkonce.spark.exactly_once import wait_until_closed
from sparkonce.spark.show.display import end_displays, leave_terminal
from sparkonce.spark.show.failures import message_and_next

_SENT_TWICE_S = 0.5
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def await_end(*queries: StreamingQuery, traceback: bool = False) -> None:
    """Waits until the queries have ended; the last line of a job.

    SIGTERM, or SIGINT (Ctrl-C, a notebook's interrupt), stops them in order: a batch that is not decided is undone, and
    written again by the next start; one that is decided is committed first. A second signal ends the process at once,
    with 128 and the signal's number; nothing is lost by it either. If one of several queries fails, the others are
    stopped. Connections are closed before it returns, as `ExactlyOnce.close` does.

    Returns when all have ended by themselves or were stopped. If one has failed, its message and ``Next: …`` are
    written to standard error, and the process ends with 1. In a notebook, an interactive Python, and any thread but the
    main one, which sees no signals, the same message is raised instead, and a second signal ends the wait alone.

    Args:
        queries: As `ExactlyOnce.start` or ``writeStream.start`` returned them.
        traceback: Whether the whole error, with Spark's traces, is written as well.

    Raises:
        ConfigurationError: if no query is given, or what is none.
        SystemExit: if a query has failed, in the main thread of a script. With 1, or, if Spark's JVM ended by the same
            signal, with 128 and its number.
        QueryFailedError: if a query has failed, elsewhere.
    """
    if not queries:
        raise ConfigurationError("await_end() was given no query.", next_step="give it what start() returned.")
    for query in queries:
        if not hasattr(query, "awaitTermination"):
            raise ConfigurationError(
                f"await_end({query!r}): that is no query; await_end waits for queries, without a limit.",
                next_step="give it what start() returned, one after the other: await_end(first, second).",
            )
    with stopped_by_signals(lambda: queries) as stopping:
        failed = wait(queries)
    if failed:
        told(failed, stopping.signal, traceback=traceback)


def wait(queries: Sequence[StreamingQuery]) -> list[QueryFailedError]:
    """Waits until all have ended, and their connections are closed; stops the others when one fails.

    Returns:
        What is to be told of those that have failed.
    """
    known = {query: (_name(query), _run(query)) for query in queries}  # nobody answers once the JVM is gone
    ended: SimpleQueue[tuple[StreamingQuery, BaseException | None]] = SimpleQueue()

    def wait_for(query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - the query's, or the JVM is gone: both are told
            ended.put((query, error))
        else:
            ended.put((query, None))

    for query in known:
        threading.Thread(target=wait_for, args=(query,), name="sparkonce-await", daemon=True).start()
    failed = []
    for _ in known:
        query, error = ended.get()
        if error is not None:
            stop(other for other in known if other is not query)
            failed.append(_failure(known[query][0], error))
    for _, run in known.values():
        wait_until_closed(run)
    end_displays()
    return failed


def told(failed: Sequence[QueryFailedError], by_signal: int | None, *, traceback: bool) -> NoReturn:
    """Tells why queries have failed, and ends the process; raises it where that would take a session from its user.

    Args:
        failed: At least one.
        by_signal: The signal that came before.
        traceback: Whether Spark's traces are told as well.
    """
    if is_interactive() or threading.current_thread() is not threading.main_thread():
        raise failed[0] from (failed[0].__cause__ if traceback else None)
    for error in failed:
        if traceback and error.__cause__ is not None:
            sys.stderr.write("".join(traces.format_exception(error.__cause__)))
        tell(error)
    if by_signal is not None and all(error.spark_is_gone for error in failed):
        raise SystemExit(128 + by_signal)
    raise SystemExit(1)


def _failure(name: str, cause: BaseException) -> QueryFailedError:
    if gone := spark_is_gone():
        message = f"Spark was stopped under the query {name}: its JVM, or somebody, ended the context."
        next_step = (
            "start it again: it finishes what is decided of its last batch, or undoes it, and no row is lost. If a "
            "signal to all processes of the job did it, or one to spark-submit's JVM, send it to the job's Python only."
        )
    else:
        message, next_step = message_and_next(cause)
        message = f"The query {name} has failed. {message}"
    error = QueryFailedError(message, next_step=next_step)
    error.__cause__, error.spark_is_gone = cause, gone
    return error


def spark_is_gone() -> bool:
    """Tells if Spark's context has been stopped, or its JVM no longer answers."""
    context = SparkContext._active_spark_context
    try:
        return context is not None and bool(context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - nobody answers
        return True


def tell(error: SparkonceError) -> None:
    """Writes message and next step to standard error."""
    sys.stderr.write("".join(f"{line}\n" for line in error.lines()))


def is_interactive() -> bool:
    """Tells if somebody types at this process (a notebook, IPython, ``python -i``), who would lose it by SystemExit."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or (ipython is not None and bool(ipython.get_ipython()))


class Stopping:
    """Stops queries when a signal comes, from a thread of its own: the main one may be inside a call of Spark's.

    A handler runs between two steps of whatever the main thread does, perhaps in the middle of a request to the JVM. So
    it asks Spark nothing: it leaves the signal where the thread finds it.

    Args:
        queries: Gives those that are to be stopped.
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
        """Takes the signals, also from who has taken them since; does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            before = signal.signal(number, self._on_signal)
            if before != self._on_signal:
                self._before[number] = before

    def end(self) -> None:
        """Puts back who had the signals before."""
        self._asked.put(None)
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def _on_signal(self, number: int, _frame: object) -> None:
        if os.getpid() != self._process:  # a child that was forked has the handler, and nobody who would stop anything
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.signal is not None and time.monotonic() - self._signalled_s < _SENT_TWICE_S:
            return  # by the terminal, and by a program that has started this one
        if self.signal is not None and is_interactive():
            raise KeyboardInterrupt
        if self.signal is not None:
            # Not SystemExit: a call of Spark's would catch it, and threads of a batch would be waited for.
            leave_terminal()
            with suppress(Exception):
                sys.stdout.flush()
            os._exit(128 + number)
        self.signal, self._signalled_s = number, time.monotonic()
        self._asked.put(number)

    def _wait_for_signal(self) -> None:
        number = self._asked.get()
        if number is None:
            return
        end_displays()
        queries = list(self._queries())
        sys.stderr.write(
            f"{signal.Signals(number).name}: stopping {', '.join(_name(query) for query in queries) or 'no query'}. "
            "A batch that is not decided is undone; one that is decided is committed first. "
            "A second signal ends at once; nothing is lost by it.\n"
        )
        stop(queries)


@contextmanager
def stopped_by_signals(queries: Callable[[], Iterable[StreamingQuery]]) -> Iterator[Stopping]:
    """Stops queries at a signal for as long as the context lasts."""
    stopping = Stopping(queries)
    stopping.listen()
    try:
        yield stopping
    finally:
        stopping.end()


def stop(queries: Iterable[StreamingQuery]) -> None:
    """Stops each; one that cannot be stopped has failed or lost its JVM, which who waits for it is told."""
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
