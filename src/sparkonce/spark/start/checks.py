"""Finds the point at which a query resumes, and checks its sources, before Spark starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from sparkonce.checkpoint.files import CheckpointFiles
from sparkonce.checkpoint.spark import SparkCheckpoint
from sparkonce.driver.start import recorded_topics
from sparkonce.protocol.view import LogView
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.start.first_batch import analyzed, check_partition_column, warn_of_slots
from sparkonce.spark.start.pravega import ask_pravega, pravega_sources
from sparkonce.spark.start.source_checks import KafkaSource, ask_sources
from sparkonce.spark.start.streams import ask_streams, stream_sources
from sparkonce.spark.start.topics import SourceTopics, kafka_sources
from sparkonce.spark.views import ShareSample


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The point at which a query resumes, by its checkpoint and its log.

    Attributes:
        checkpoint: Spark's checkpoint, as it was when the query was started.
        view: The content of its decision log.
        batch: The newest batch that Spark has planned; -1 if there is none.
        is_done: True if Spark has recorded that this batch is done, or there is none.
    """

    checkpoint: SparkCheckpoint
    view: LogView
    batch: int
    is_done: bool

    @classmethod
    def of(cls, checkpoint: CheckpointFiles, view: LogView) -> ResumePoint:
        """Reads the checkpoint with these files."""
        kept = SparkCheckpoint(checkpoint)
        batch = kept.begun()
        return cls(checkpoint=kept, view=view, batch=batch, is_done=batch < 0 or kept.is_finished(batch))

    @property
    def awaits_commit(self) -> bool:
        """True if the newest batch was decided and may not be finished. It is committed first, and needs no input."""
        return not self.is_done and self.view.decision(self.batch) is not None

    def description(self) -> str:
        """Describes it for people; empty for a new query."""
        if self.batch < 0:
            return ""
        if self.is_done:
            return f"Resuming after batch {self.batch}."
        if self.awaits_commit:
            return f"Batch {self.batch} was decided and may not be finished: it is committed first."
        return f"Batch {self.batch} was not decided: its open transactions are aborted, and it is written again."


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
    if point.awaits_commit:
        return ()
    is_first = point.batch < 0
    plan = analyzed(df)
    found = kafka_sources(plan)
    ask_streams(stream_sources(plan), trigger or {})
    ask_pravega(df.sparkSession, pravega_sources(plan))
    sources = ask_sources(df.sparkSession, found, is_first=is_first, is_limited=not (trigger or {}).get("once"))
    check_partition_column(df, sources, samples, is_first=is_first)
    if is_first:
        warn_of_slots(df.sparkSession, plan, sources, samples, sinks)
        return sources
    with closing(SourceTopics(found)) as topics:
        before = () if point.is_done else point.checkpoint.input_offsets(point.batch - 1) or ()
        topics.check_ends(recorded_topics(point.view), before, point.checkpoint.input_offsets(point.batch) or ())
    return sources
