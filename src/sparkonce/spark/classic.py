"""A query of a classic session: the checks before Spark starts it, and its runs in the process of Spark's driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sparkonce.decision_log import DecisionLog
from sparkonce.driver.outage import Outage
from sparkonce.driver.progress import BatchProgress
from sparkonce.driver.run import RunDriver
from sparkonce.driver.start import ResumePoint, check_log, mend, read_log, recorded_facts
from sparkonce.driver.stops import stop_error
from sparkonce.jvm import JvmCache
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.ownership import short_query
from sparkonce.source import all_registered
from sparkonce.sources.groups import GroupReporter
from sparkonce.sources.offsets import rows_read
from sparkonce.spark.arrow_batches import ArrowBatches
from sparkonce.spark.checkpoints.planned import check_planned, is_as_planned
from sparkonce.spark.connect import missing_offsets
from sparkonce.spark.grouping import grouping_of, slots_decided
from sparkonce.spark.plans import kafka_sources, reads_plainly, registered_sources, running_plan
from sparkonce.spark.settings import QuerySettings
from sparkonce.spark.start.arguments import location_of
from sparkonce.spark.start.checks import check_query, check_sources, input_offsets, needs_of_sources
from sparkonce.spark.start.executors import check_executors
from sparkonce.spark.start.first_batch import warn_of_mode, warn_of_rows
from sparkonce.spark.views import ShareSample
from sparkonce.spark.work import SparkWork, check_plans
from sparkonce.storage.spark_checkpoint import SparkCheckpoint
from sparkonce.watch.listener import QueryListener

logger = logging.getLogger("sparkonce")


def start_classic(
    writer: DataStreamWriter,
    df: DataFrame,
    settings: QuerySettings,
    commit: Callable[[DataFrame, int], None],
    say: Callable[[str], None],
    *,
    output_mode: str,
    trigger: Mapping[str, Any] | None,
) -> StreamingQuery:
    """Checks a query and starts it. ``commit`` gets its batches, and ``say`` shows the user where it resumes."""
    settings.open(df.sparkSession).check()
    samples = settings.check_columns(df)
    check_plans(samples)
    check_servers(df, samples, settings, say, output_mode=output_mode, trigger=trigger)
    settings.is_checked = True
    return writer.foreachBatch(commit).start()


def check_servers(
    df: DataFrame,
    samples: Sequence[ShareSample],
    settings: QuerySettings,
    say: Callable[[str], None],
    *,
    output_mode: str,
    trigger: Mapping[str, Any] | None,
) -> None:
    """Checks the servers before Spark starts. The first batch checks them again and records the results."""
    files = settings.open(df.sparkSession)
    log = DecisionLog(files, make=False)
    check_log(files)
    view = read_log(log)
    mend(SparkCheckpoint(files), view)
    query = SparkCheckpoint(files).query_id()
    point = ResumePoint.of(files, view)
    if stop := point.refusal(log.location, moved=settings.moved):
        raise stop_error(stop, point.batch)
    if point.batch < 0:
        warn_of_mode(output_mode)
    sinks = tuple(settings.sinks.values())
    sources = check_sources(df, samples, point, sinks, trigger=trigger)
    if where := point.description():
        logger.info("%s", where)
        say(where)
    recorded = recorded_facts(view)
    short = short_query(query or "0" * 12)
    facts = {name: sink.preflight(short, recorded.get(name)) for name, sink in settings.sinks.items()}
    warn_of_rows(sources, sinks, facts)
    for group in settings.groups:
        with closing(GroupReporter(group)) as reporter:
            reporter.check(facts)
    # If a batch only has to be committed, no task needs the workers. The first tasks of the next batch check them.
    if not point.awaits_commit:
        check_executors(df.sparkSession, sinks, needs_of_sources(df))


class ClassicRun:
    """A run of a query in a classic session. Each start of the query begins a new run.

    The former run's driver is closed once the new run has passed its checks.
    """

    def __init__(
        self,
        df: DataFrame,
        batch: int,
        run: str,
        query: str,
        settings: QuerySettings,
        listener: QueryListener,
        former: RunDriver | None,
    ) -> None:
        self._settings, self.run_id, self._query, spark = settings, run, query, df.sparkSession
        sinks = tuple(settings.sinks.values())
        files = settings.open(spark)
        self._checkpoint = SparkCheckpoint(files)
        offsets = self._offsets(batch)
        check_query(files, query, lambda: location_of(spark, query))
        samples = settings.check_columns(df)
        check_plans(samples)
        if not settings.is_checked:
            check_log(files, Outage(settings.timing.outage_patience_s))
            check_executors(spark, sinks)
        if former is not None:
            former.close()
        plan = running_plan(spark, query)
        whole = all(share.view is None for share in settings.shares)
        self._is_plain = plan is not None and whole and reads_plainly(plan)
        sources = kafka_sources(plan) if plan is not None else ()
        # Without the plan, any registered source may have produced the offsets. Consider all of them, because a
        # repeated batch must be grouped in the same way.
        self._others = [source for _, source in (all_registered() if plan is None else registered_sources(plan))]
        self._arrow = ArrowBatches()
        self._cache = JvmCache()
        self.driver, self._topics = settings.begin_run(listener, run, query, files, sources, offsets or ())

    def commit(self, df: DataFrame, batch: int) -> BatchProgress:
        """Commits a batch."""
        settings = self._settings
        if (offsets := self._offsets(batch)) is None:
            raise missing_offsets(settings.checkpoint, batch)
        check_planned(df.sparkSession, self._query, batch, self._checkpoint, offsets, self._cache)
        decision = self.driver.state.view.decision(batch)
        if self._topics is not None and decision is None:
            self._topics.check_same()
        before = self._offsets(batch - 1)
        rows = rows_read(before, offsets, self._others)
        plain = self._is_plain and is_as_planned(df, self._query, self._cache)
        row_bytes = self._arrow.row_bytes if plain else None
        grouping = grouping_of(rows, before, offsets, settings.rows_per_slot, row_bytes, slots_decided(decision))
        work = SparkWork(df, batch, settings.shares, grouping, settings.max_refused, self._arrow, self._cache)
        return self.driver.run_batch(BatchAsked(batch=batch, offsets=offsets, previous_offsets=before), work, rows)

    def end(self) -> None:
        """Ends the run, and releases the JVM's objects."""
        self._cache = JvmCache()
        self.driver.end()

    def _offsets(self, batch: int) -> tuple[str, ...] | None:
        return input_offsets(self._checkpoint, batch, self._settings.timing.outage_patience_s)
