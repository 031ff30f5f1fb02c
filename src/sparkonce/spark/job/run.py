"""Runs a file that starts queries, and ends them gracefully; see `sparkonce.spark.job.ending`."""

from __future__ import annotations

import runpy
import sys
import traceback as traces
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sparkonce.errors import SparkonceError
from sparkonce.spark.job.ending import Stopping, end_process, spark_is_gone, stop, wait, write_error


def run_job(file: Path, arguments: Sequence[str], *, traceback: bool = False) -> None:
    """Runs a file as a script, then waits for the queries that it has left running.

    Once its first query has started, signals stop its queries gracefully, as in `await_end`, wherever the file waits.

    Args:
        file: The file.
        arguments: The file's arguments, ``sys.argv[1:]``.
        traceback: True writes errors with their tracebacks.

    Raises:
        SystemExit: With the file's own exit code; with 1 if the file or one of its queries has failed; if this process
            received a signal, with 128 plus the signal's number, provided that the signal also ended Spark's JVM or
            that no query had been started.
    """
    newest: dict[str, StreamingQuery] = {}  # the newest run of each query

    def noting(start: Callable[..., StreamingQuery]) -> Callable[..., StreamingQuery]:
        def noted(*arguments: Any, **options: Any) -> StreamingQuery:
            query = start(*arguments, **options)
            newest[str(query.id)] = query
            stopping.listen()  # again, because PySpark's context replaces the SIGINT handler
            return query

        return noted

    stopping = Stopping(lambda: list(newest.values()))
    try:
        with script(file, arguments) as name, ExitStack() as started:
            for writer in _writers():
                for method in ("start", "toTable"):
                    started.enter_context(patch.object(writer, method, noting(getattr(writer, method))))
            try:
                runpy.run_path(name, run_name="__main__")
            except Exception as error:  # noqa: BLE001 - the user's file may raise any error
                _end_of(error, name, list(newest.values()), stopping.signal, traceback=traceback)
            except KeyboardInterrupt:
                raise SystemExit(130) from None
            except SystemExit as end:
                if end.code:
                    raise  # the file's own failure
            if failed := wait([query for query in newest.values() if _is_active_or_failed(query)]):
                end_process(failed, stopping.signal, traceback=traceback)
    finally:
        stopping.end()


def _writers() -> list[type]:
    """Returns the classes whose methods start queries: a classic session's, and Spark Connect's if it is installed."""
    try:
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as OfConnect
    except ImportError:
        return [DataStreamWriter]
    return [DataStreamWriter, OfConnect]


def _is_active_or_failed(query: StreamingQuery) -> bool:
    return spark_is_gone() or query.isActive or query.exception() is not None


def _end_of(
    error: Exception, name: str, queries: Sequence[StreamingQuery], by_signal: int | None, *, traceback: bool
) -> None:
    """Ends the process after the file raised an error. Omits the traceback if it is sparkonce's or a query's."""
    stop(queries)
    of_query = isinstance(error, StreamingQueryException) or (spark_is_gone() and not isinstance(error, SparkonceError))
    if queries and of_query and (failed := wait([query for query in queries if _is_active_or_failed(query)])):
        end_process(failed, by_signal, traceback=traceback)
    if isinstance(error, SparkonceError) and not traceback:
        write_error(error)
    else:
        trace = error.__traceback__ if traceback else _from(name, error.__traceback__)
        sys.stderr.write("".join(traces.format_exception(type(error), error, trace)))
    raise SystemExit(1)


def _from(name: str, trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback that Python would show: the file's frames and those below."""
    own = trace
    while own is not None and own.tb_frame.f_code.co_filename != name:
        own = own.tb_next
    return own or trace


@contextmanager
def script(file: Path, arguments: Sequence[str]) -> Iterator[str]:
    """Sets ``sys.argv`` and ``sys.path`` while the context is active. Yields the file's name in tracebacks.

    The caller then runs it as ``python FILE`` would, by ``runpy``.
    """
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [str(file), *arguments], [str(file.absolute().parent)]
    try:
        yield str(file)
    finally:
        sys.argv, sys.path[:] = argv, path
