"""The query's one listener: the driver reports each phase to it, and it forwards the phases to all monitoring."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from sparkonce.driver.progress import BatchProgress
from sparkonce.driver.run import Listener
from sparkonce.errors import SparkonceError
from sparkonce.protocol.state import Phase
from sparkonce.storage.files import CheckpointFiles
from sparkonce.watch.display import ProgressDisplay
from sparkonce.watch.figures import Figures, WatchedRun
from sparkonce.watch.timeline import TimelineWriter

if TYPE_CHECKING:
    from sparkonce.watch.figures import Figures, WatchedBatch


logger = logging.getLogger("sparkonce")


class QueryListener:
    """Forwards what a query does to its figures, timeline, spans and display, and to the user's listener.

    A batch reports only its phases. The threads that display a query read everything else from the run's state.
    """

    def __init__(self, listener: Listener | None = None, *, timeline: bool = True, display: bool | None = None) -> None:
        self._listener = listener
        self._has_timeline = timeline
        self.figures = Figures()
        self.display = ProgressDisplay(display)
        self._timeline = TimelineWriter(None, self.figures, "")

    def begin_run(self, query: str, spark_run: str, run: WatchedRun, files: CheckpointFiles) -> None:
        """Starts tracking a new run of the query."""
        self._timeline.close()
        self.figures.begin_run(query, spark_run, run)
        self._timeline = TimelineWriter(files if self._has_timeline else None, self.figures, spark_run)

    def __call__(self, phase: Phase, batch: int) -> None:
        """Records that a phase begins. An error raised by the user's listener ends the run."""
        self.figures.enter(phase, batch)
        self._timeline.tell()
        if self._listener is not None:
            self._listener(phase, batch)

    def committed(self, done: BatchProgress) -> None:
        """Reports a committed batch, and writes its line to the log."""
        self._timeline.add(batch := self.figures.done(done))
        emit(self.figures, batch)
        logger.info("%s", line := done.line())
        self.display.write(line)

    def failed(self, batch: int, error: SparkonceError) -> None:
        """Reports that an error has ended the run."""
        self.figures.stopped(batch, error)
        self._timeline.tell()

    def interrupted(self, spark_run: str) -> None:
        """Reports that the query was stopped in the middle of a batch, which counts as a normal end."""
        self.figures.end_run(spark_run)
        self._timeline.tell()

    def end_run(self, spark_run: str, failure: str = "") -> None:
        """Stops tracking a run that has ended with Spark's error or normally, and completes its timeline.

        Does nothing if another run has started since then.
        """
        self.figures.end_run(spark_run, failure)
        self._timeline.close(spark_run)


_NS_A_MS = 1_000_000


def emit(figures: Figures, batch: WatchedBatch) -> None:
    """Exports a committed batch to OpenTelemetry: one span for the batch, and one for each of its phases.

    Nothing is sent unless ``opentelemetry-api`` is installed and the process has set up a tracer provider.
    The spans are named ``sparkonce.batch`` and ``sparkonce.phase``. The batch has the attributes ``sparkonce.query``,
    ``sparkonce.query_name``, ``sparkonce.run``, ``sparkonce.batch``, ``sparkonce.transactions``, ``sparkonce.healed``,
    ``sparkonce.recovered`` and, for each sink, ``sparkonce.rows.<sink>``. A phase has the attribute
    ``sparkonce.phase``.
    """
    if (trace := _trace()) is None:
        return
    try:
        _emit(trace, figures, batch)
    except Exception as error:  # noqa: BLE001 - a user's span processor may raise anything, and the batch is committed
        logger.debug("The spans of batch %d could not be made: %s", batch.batch, error)


def _emit(trace: Any, figures: Figures, batch: WatchedBatch) -> None:
    began_ms = batch.began_ms
    tracer = trace.get_tracer("sparkonce")
    span = tracer.start_span(
        "sparkonce.batch",
        start_time=began_ms * _NS_A_MS,
        attributes={
            "sparkonce.query": figures.query,
            "sparkonce.query_name": figures.name,
            "sparkonce.run": figures.spark_run,
            "sparkonce.batch": batch.batch,
            "sparkonce.transactions": batch.transactions,
            "sparkonce.healed": batch.healed,
            "sparkonce.recovered": batch.recovered,
            **{f"sparkonce.rows.{sink}": rows for sink, rows in batch.rows.items()},
        },
    )
    inside = trace.set_span_in_context(span)
    for phase, took_ms in batch.phases:
        part = tracer.start_span(
            "sparkonce.phase", context=inside, start_time=began_ms * _NS_A_MS, attributes={"sparkonce.phase": phase}
        )
        began_ms += took_ms
        part.end(began_ms * _NS_A_MS)
    span.end(began_ms * _NS_A_MS)


@cache
def _trace() -> Any:
    try:
        import opentelemetry.trace as trace
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
        logger.debug("OpenTelemetry is not installed: %s", error)
        return None
    return trace
