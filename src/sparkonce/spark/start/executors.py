"""Checks the executors with one small job: their sparkonce, client libraries, files, and access to the sinks."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import SparkSession

from sparkonce.errors import PreflightError, SparkonceError
from sparkonce.jvm import is_connect
from sparkonce.needs import WorkerNeeds
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.python_worker import is_local, needs_of
from sparkonce.spark.shipped import NEXT_STEPS, REPORT, Needs, reporter
from sparkonce.spark.show.failures import is_stop, message_and_next, short_error

logger = logging.getLogger("sparkonce")

ANSWER_WITHIN_S = 120.0
"""The time limit of the job. An executor that joins later is checked by its first task."""
_MOST_HOSTS = 3

_proven: set[tuple[str, str]] = set()
"""The local applications, and the needs, that have already been checked: their only executor does not change."""


def check_executors(
    spark: SparkSession, sinks: Sequence[TwoPhaseCommitSink], sources: Mapping[str, WorkerNeeds] | None = None
) -> None:
    """Checks that the executors match the driver, and have what the sinks' writers and Python sources need."""
    if is_connect(spark):
        _judge(_ask(spark, needs_of(sinks, str(spark.conf.get("spark.master", "")), sources), None))
        return
    context = spark.sparkContext
    needs = needs_of(sinks, context.master, sources)
    proof = (context.applicationId, repr(needs))
    if proof in _proven:
        return
    # Spark offers each executor one task before it offers any a second one.
    found = _ask(spark, needs, max(len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1, 1))
    _judge(found)
    if is_local(context.master) and found:
        _proven.add(proof)


def _ask(spark: SparkSession, needs: Needs, tasks: int | None) -> list[tuple[str, str, str]]:
    """Runs this many tasks, or one per core. Returns the workers' reports; none if no executor has answered in time."""
    tag, is_late = f"sparkonce-executors-{uuid.uuid4()}", threading.Event()
    if is_connect(spark):
        add, remove, cancel = spark.addTag, spark.removeTag, spark.interruptTag
    else:  # A classic session's own tags apply only to the current thread, but a timer's thread cancels the job.
        context = spark.sparkContext
        add, remove, cancel = context.addJobTag, context.removeJobTag, context.cancelJobsWithTag

    def give_up() -> None:
        is_late.set()
        cancel(tag)

    timer = threading.Timer(ANSWER_WITHIN_S, give_up)
    timer.daemon = True
    try:
        # Identify the job by a tag, not by its own job group, so that stopping the query also cancels the job.
        add(tag)
        timer.start()
        # Use the same kind of function as for writing a batch, so that Spark reuses these workers, which have to start
        # anyway.
        asked = spark.range(0, tasks or 1, 1, tasks).mapInArrow(reporter(needs), REPORT)
        return [tuple(row) for row in asked.collect()]
    except Exception as error:  # noqa: BLE001 - Spark may raise any error for a failed job
        if not is_late.is_set():
            raise _failure(error) from None
        logger.warning(
            "No executor has run a task within %.0f s: the executors are not checked before the first batch. Next: "
            "Check the cluster manager for free cores.",
            ANSWER_WITHIN_S,
        )
        return []
    finally:
        timer.cancel()
        remove(tag)


def _failure(error: Exception) -> SparkonceError:
    if is_stop(error):
        return short_error(error)
    logger.debug("The job that checks the executors has failed.", exc_info=error)
    message, next_step = message_and_next(error)
    return PreflightError(f"The executors cannot be used. {message}", next_step=next_step)


def _judge(reports: Collection[tuple[str, str, str]]) -> None:
    hosts: dict[str, list[str]] = {}
    kinds = {kind for _, kind, _ in reports}
    for host, kind, text in sorted(set(reports)):
        if kind:
            hosts.setdefault(host, []).append(text)
    if not hosts:
        return
    named = [f"host {host!r}: {'; '.join(lacks)}" for host, lacks in list(hosts.items())[:_MOST_HOSTS]]
    if more := len(hosts) - len(named):
        named.append(f"{more} more hosts")
    raise PreflightError(
        f"Executors are not as the driver needs them. On {'; on '.join(named)}.",
        next_step=" ".join(step for kind, step in NEXT_STEPS.items() if kind in kinds),
        hosts=hosts,
    )
