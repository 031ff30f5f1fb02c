"""Checks the sources of a query, before Spark starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from pyspark.sql import DataFrame

from sparkonce.driver.start import ResumePoint, recorded_topics
from sparkonce.needs import WorkerNeeds
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.plans import registered_sources
from sparkonce.spark.start.first_batch import analyzed, check_partition_column, warn_of_slots
from sparkonce.spark.start.source_checks import KafkaSource, ask_sources
from sparkonce.spark.start.topics import SourceTopics, check_names, kafka_sources
from sparkonce.spark.views import ShareSample


def check_sources(
    df: DataFrame,
    samples: Sequence[ShareSample],
    point: ResumePoint,
    sinks: Sequence[TwoPhaseCommitSink],
    *,
    trigger: Mapping[str, Any] | None = None,
) -> Sequence[KafkaSource]:
    """Asks the servers of the query's sources, and warns of a costly first batch.

    Args:
        df: The query's DataFrame.
        samples: Each sink's share of an empty batch.
        point: The point at which the query resumes.
        sinks: The query's sinks.
        trigger: The query's trigger.

    Returns:
        The Kafka sources, as their brokers know them; none if the newest batch is committed first.

    Raises:
        PreflightError: naming the servers, the topic, the stream or the column.
    """
    is_first = point.batch < 0
    plan = analyzed(df)
    found = kafka_sources(plan)
    newest = point.checkpoint.input_offsets(point.batch) or ()
    before = () if point.is_done else point.checkpoint.input_offsets(point.batch - 1) or ()
    check_names(found, before or newest, point.batch if point.awaits_commit else None)
    if point.awaits_commit:
        return ()
    for facts, source in registered_sources(plan):
        source.check(df.sparkSession, facts, trigger or {})
    sources = ask_sources(df.sparkSession, found, is_first=is_first, is_limited=not (trigger or {}).get("once"))
    check_partition_column(df, sources, samples, is_first=is_first)
    if is_first:
        warn_of_slots(df.sparkSession, plan, sources, samples, sinks)
        return sources
    with closing(SourceTopics(found)) as topics:
        topics.check_ends(recorded_topics(point.view), before, newest)
    return sources


def needs_of_sources(df: DataFrame) -> dict[str, WorkerNeeds]:
    """Returns what a query's tasks need to read sources that packages have registered, by a name for people."""
    return {facts.where or facts.format: one.worker_needs(facts) for facts, one in registered_sources(analyzed(df))}
