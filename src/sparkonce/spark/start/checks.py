"""Checks a query's sources before its start, and that its checkpoint is the one passed to `ExactlyOnce`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import DataFrame

from sparkonce.driver.outage import Outage, is_store_outage
from sparkonce.driver.start import ResumePoint, recorded_topics
from sparkonce.errors import ConfigurationError, LogError
from sparkonce.guarantees import Guarantee
from sparkonce.needs import WorkerNeeds
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.plans import kafka_sources, registered_sources
from sparkonce.spark.start.first_batch import analyzed, check_partition_column, warn_of_slots
from sparkonce.spark.views import ShareSample
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.spark_checkpoint import SparkCheckpoint

if TYPE_CHECKING:
    from sparkonce.sources.topics import KafkaSource

_DELEGATED = "spark.kafka.clusters."
"""The settings of delegation tokens, with which Spark itself logs in."""


def check_sources(
    df: DataFrame,
    samples: Sequence[ShareSample],
    point: ResumePoint,
    sinks: Sequence[TwoPhaseCommitSink],
    *,
    trigger: Mapping[str, Any] | None = None,
) -> Sequence[KafkaSource]:
    """Checks the servers of the query's sources, and warns if the first batch will be expensive.

    Returns:
        The Kafka sources, as their brokers describe them; none if the latest batch has to be committed first.
    """
    is_first = point.batch < 0
    plan = analyzed(df)
    found = kafka_sources(plan)
    newest = point.checkpoint.input_offsets(point.batch) or ()
    before = () if point.is_done else point.checkpoint.input_offsets(point.batch - 1) or ()
    if found:
        from sparkonce.sources.topics import SourceTopics, ask_sources, check_names  # import kafka-python

        check_names(found, before or newest, point.batch if point.awaits_commit else None)
    if point.awaits_commit:
        return ()
    for facts, source in registered_sources(plan):
        source.check(df.sparkSession, facts, trigger or {})
    sources: Sequence[KafkaSource] = ()
    if found:
        delegated = any(name.startswith(_DELEGATED) for name, _ in df.sparkSession.sparkContext.getConf().getAll())
        is_limited = not (trigger or {}).get("once")
        sources = ask_sources(found, is_first=is_first, is_limited=is_limited, delegated=delegated)
    check_partition_column(df, sources, samples, is_first=is_first)
    if is_first:
        exact = sum(sink.guarantee is Guarantee.EXACTLY_ONCE for sink in sinks)
        warn_of_slots(df.sparkSession, plan, samples, exact)
    elif found:
        with closing(SourceTopics(found)) as topics:
            topics.check_ends(recorded_topics(point.view), before, newest)
    return sources


def needs_of_sources(df: DataFrame) -> dict[str, WorkerNeeds]:
    """Returns what a query's tasks need to read sources registered by packages, keyed by a display name."""
    found = registered_sources(analyzed(df))
    return {f"{facts.format} {facts.where}".strip(): one.worker_needs(facts) for facts, one in found}


class CheckpointLocation(NamedTuple):
    """The location of a query's checkpoint.

    Attributes:
        folder: A path on this machine, or a URL.
        is_temporary: True if Spark deletes the folder when the query ends.
    """

    folder: str
    is_temporary: bool


def check_query(
    files: CheckpointFiles, running: str, location: Callable[[], CheckpointLocation | None] = lambda: None
) -> None:
    """Rejects a checkpoint that does not belong to the running query."""
    found = SparkCheckpoint(files).query_id()
    checkpoint = files.location
    if found != running:
        where = location()
        if where is not None and where.is_temporary:
            raise ConfigurationError(
                "The query has no option checkpointLocation, so each start would begin from scratch. ExactlyOnce has "
                f"checkpoint={checkpoint!r}.",
                next_step=f'Add .option("checkpointLocation", "{checkpoint}") to the query.',
                setting="checkpointLocation",
            )
        if where is not None and where.folder != checkpoint:
            raise ConfigurationError(
                f"The query's checkpointLocation is {where.folder!r}, and ExactlyOnce has checkpoint={checkpoint!r}.",
                next_step="Give both the same folder.",
                setting="checkpointLocation",
            )
        raise ConfigurationError(
            f"checkpoint={checkpoint!r} holds {'no query' if found is None else f'query {found}'}, and the "
            f"running query is {running}.",
            next_step="Give ExactlyOnce the same folder as the query's option checkpointLocation.",
        )


def input_offsets(checkpoint: SparkCheckpoint, batch: int, patience_s: float) -> tuple[str, ...] | None:
    """Returns a batch's offsets, as `SparkCheckpoint.input_offsets` does. Waits for an unreachable store."""
    doing = f"the offsets of batch {batch} in {checkpoint.files.location} cannot be read"
    try:
        return Outage(patience_s).retry(partial(checkpoint.input_offsets, batch), doing, again=is_store_outage)
    except OSError as error:
        raise LogError(
            f"{doing}: {error}.", next_step="Make the checkpoint readable and start the query again; no row is lost."
        ) from error
