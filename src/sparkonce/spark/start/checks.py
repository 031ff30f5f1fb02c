"""Reads a query's position from its checkpoint, and asks its sources, before Spark starts it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame

from sparkonce.checkpoint import SparkCheckpoint
from sparkonce.driver.start import recorded_topics
from sparkonce.protocol.view import LogView
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.start.first_batch import analyzed, check_partition_column, warn_of_slots
from sparkonce.spark.start.source_checks import KafkaSource, ask_sources
from sparkonce.spark.start.topics import SourceTopics, kafka_sources
from sparkonce.spark.views import Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """The position of a query, by its checkpoint and its log.

    Attributes:
        checkpoint: Spark's, as it was when the query was started.
        view: What its decision log says.
        batch: The newest batch that Spark has planned; -1 if there is none.
        is_done: Whether Spark has noted that this batch is done, or there is none.
    """

    checkpoint: SparkCheckpoint
    view: LogView
    batch: int
    is_done: bool

    @classmethod
    def of(cls, checkpoint: Path, view: LogView) -> Stand:
        """Reads the checkpoint in this folder."""
        kept = SparkCheckpoint(checkpoint)
        batch = kept.begun()
        return cls(checkpoint=kept, view=view, batch=batch, is_done=batch < 0 or kept.is_finished(batch))

    @property
    def is_owed(self) -> bool:
        """True if the newest batch was decided and may not be finished: it is committed first, and needs no input."""
        return not self.is_done and self.view.decision(self.batch) is not None

    def told(self) -> str:
        """Describes, for people, where a query that has run before goes on; empty for a new one."""
        if self.batch < 0:
            return ""
        if self.is_done:
            return f"going on behind batch {self.batch}"
        if self.is_owed:
            return f"batch {self.batch} was decided and may not be finished: it is committed first"
        return f"batch {self.batch} was not decided: what it has open is aborted, and it is written again"


def check_sources(
    df: DataFrame,
    taken: Sequence[Taken],
    stand: Stand,
    sinks: Sequence[TwoPhaseCommitSink],
    *,
    is_limited: bool = True,
) -> Sequence[KafkaSource]:
    """Asks the query's Kafka sources, and tells what its first batch will cost.

    Args:
        df: The query's.
        taken: What each sink takes.
        stand: Where the query stands.
        sinks: Its sinks.
        is_limited: See `ask_sources`.

    Returns:
        The sources, as their brokers know them; none where they are not needed yet.

    Raises:
        PreflightError: naming the brokers, the topic or the column.
    """
    if stand.is_owed:
        return ()
    is_first = stand.batch < 0
    plan = analyzed(df)
    found = kafka_sources(plan)
    sources = ask_sources(df.sparkSession, found, is_first=is_first, is_limited=is_limited)
    check_partition_column(df, sources, taken, is_first=is_first)
    if is_first:
        warn_of_slots(df.sparkSession, plan, sources, taken, sinks)
        return sources
    with closing(SourceTopics(found)) as topics:
        before = () if stand.is_done else stand.checkpoint.input_offsets(stand.batch - 1) or ()
        topics.check_ends(recorded_topics(stand.view), before, stand.checkpoint.input_offsets(stand.batch) or ())
    return sources
