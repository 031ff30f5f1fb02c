"""Runs a file that starts queries, and ends it as a job is to end: see `sparkonce.spark.job.ending`."""

from __future__ import annotations

import sys
import traceback as traces
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sparkonce.errors import SparkonceError
from sparkonce.spark.job.ending import Stopping, spark_is_gone, stop, tell, told, wait
from sparkonce.spark.job.script import run_script, script
from sparkonce.spark.show.display import end_displays


def run_job(file: Path, arguments: Sequence[str], *, traceback: bool = False) -> None:
    """Runs a file as a script, then waits for the queries that it has left running.

    From its first query on signals stop its queries in order, as with `await_end`, wherever the file waits for them.

    Args:
        file: The file.
        arguments: Its own, ``sys.argv[1:]``.
        traceback: Whether errors are told with their traces.

    Raises:
        SystemExit: with what the file gives; with 1 if the file or one of its queries has failed; with 128 and the
            signal's number if Spark's JVM ended by the same signal, or no query had been started.
    """
    newest: dict[str, StreamingQuery] = {}  # a query that was started again is the newer run

    def noting(start: Callable[..., StreamingQuery]) -> Callable[..., StreamingQuery]:
        def noted(*given: Any, **options: Any) -> StreamingQuery:
            query = start(*given, **options)
            newest[str(query.id)] = query
            stopping.listen()  # again: PySpark has taken SIGINT when it made its context
            return query

        return noted

    stopping = Stopping(lambda: list(newest.values()))
    started = patch.multiple(
        DataStreamWriter, start=noting(DataStreamWriter.start), toTable=noting(DataStreamWriter.toTable)
    )
    try:
        with script(file, arguments) as name, started:
            try:
                run_script(name)
            except Exception as error:  # noqa: BLE001 - the file's own, whatever it is
                _end_of(error, name, list(newest.values()), stopping.signal, traceback=traceback)
            except KeyboardInterrupt:
                raise SystemExit(130) from None
            except SystemExit as end:
                if end.code:
                    raise  # the file's own failure
            if failed := wait([query for query in newest.values() if _goes_on_or_failed(query)]):
                told(failed, stopping.signal, traceback=traceback)
    finally:
        stopping.end()


def _goes_on_or_failed(query: StreamingQuery) -> bool:
    return spark_is_gone() or query.isActive or query.exception() is not None


def _end_of(
    error: Exception, name: str, queries: Sequence[StreamingQuery], by_signal: int | None, *, traceback: bool
) -> None:
    """Ends a file that raised: an error of ours, or of a query, is told in a few words, any other as Python does."""
    end_displays()
    stop(queries)
    of_query = isinstance(error, StreamingQueryException) or (spark_is_gone() and not isinstance(error, SparkonceError))
    if queries and of_query and (failed := wait([query for query in queries if _goes_on_or_failed(query)])):
        told(failed, by_signal, traceback=traceback)
    if isinstance(error, SparkonceError) and not traceback:
        tell(error)
    else:
        trace = error.__traceback__ if traceback else _from(name, error.__traceback__)
        sys.stderr.write("".join(traces.format_exception(type(error), error, trace)))
    raise SystemExit(1)


def _from(name: str, trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback that Python itself would show: the file's own frames, and those below them."""
    own = trace
    while own is not None and own.tb_frame.f_code.co_filename != name:
        own = own.tb_next
    return own or trace
