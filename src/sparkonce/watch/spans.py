"""Exports each batch to OpenTelemetry: one span for the batch, and one for each of its phases.

Nothing is sent unless ``opentelemetry-api`` is installed and the process has set up a tracer provider.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkonce.watch.figures import Figures, WatchedBatch

logger = logging.getLogger("sparkonce")

_NS_A_MS = 1_000_000


def emit(figures: Figures, batch: WatchedBatch) -> None:
    """Creates the spans of a committed batch.

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
            "sparkonce.phase",
            context=inside,
            start_time=began_ms * _NS_A_MS,
            attributes={"sparkonce.phase": phase},
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
