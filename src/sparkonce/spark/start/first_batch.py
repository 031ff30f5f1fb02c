"""Warns before a query's first batch of its slots, its size, and a column that nobody may have meant to write."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkonce.errors import PreflightError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import Facts, TwoPhaseCommitSink
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.spark.jvm import class_name, items
from sparkonce.spark.plans import MADE_IN_PLACE, nodes, source_of
from sparkonce.spark.start.slots import SHUFFLE_PARTITIONS, slots_of, warn_of_many
from sparkonce.spark.start.source_checks import KafkaSource
from sparkonce.spark.views import Taken

logger = logging.getLogger("sparkonce")

SLOW_ROWS_PER_S = 5_000
"""A pace that any plan should reach: by it `sparkonce.spark.read_kafka.MAX_OFFSETS_PER_TRIGGER` is chosen, too."""

_COLUMN = "partition"


def check_partition_column(
    df: DataFrame, sources: Sequence[KafkaSource], taken: Sequence[Taken], *, is_first: bool
) -> None:
    """Sees whether rows bring the source's column ``partition`` to a Kafka sink, which writes by it.

    A column that the query makes itself, also by a cast, is meant.

    Args:
        df: The query's.
        sources: Its Kafka sources.
        taken: What each sink takes.
        is_first: Whether the query has no batch yet: one that has run is not refused.

    Raises:
        PreflightError: if a source's topic has more partitions than the sink's.
    """
    brought, options = _brought(df)
    most = max((source.highest for source in sources if source.options == options), default=0)
    for one in taken:
        if brought is None or _expression(one.frame, _COLUMN) not in (brought, _expression(one.batch, _COLUMN)):
            continue
        for sink in one.share.sinks.values():
            if isinstance(sink, KafkaSink):
                _judge(sink, most, is_first=is_first)


def _judge(sink: KafkaSink, most: int, *, is_first: bool) -> None:
    there = sink.partitions()
    what = f"The rows for sink {sink.name!r} have the column 'partition' of the Kafka source, and are written by it"
    how = "drop the column, so that the key decides: df.drop('partition'). If it is meant, cast it: "
    how += "df.withColumn('partition', col('partition').cast('int'))"
    if is_first and there is not None and most > there:
        raise PreflightError(
            f"{what}: the source's topic has {most} partitions, and topic={sink.topic!r} has {there}.",
            next_step=f"{how}.",
            sink=sink.name,
        )
    logger.warning("%s, not by their keys. Next: %s.", what, how)


def _brought(df: DataFrame) -> tuple[int | None, Mapping[str, str] | None]:
    """The column ``partition``, if it is the one that a Kafka source gave, and that source's options."""
    column = _expression(df, _COLUMN)
    given = {
        _id(attribute): source_of(node)
        for node in nodes(analyzed(df))
        if class_name(node) == "StreamingRelationV2"
        for attribute in items(node.output())
        if attribute.name() == _COLUMN
    }
    source = given.get(column) if column is not None else None
    return (column, source.options) if source is not None and source.format == "kafka" else (None, None)


def _expression(df: DataFrame, name: str) -> int | None:
    output = items(analyzed(df).output())
    return next((_id(attribute) for attribute in output if attribute.name() == name), None)


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())


def warn_of_mode(output_mode: str) -> None:
    """Tells of the mode in which each batch has the whole result."""
    if output_mode.lower() == "complete":
        logger.warning(
            "output_mode='complete': each batch writes the whole result again, as new rows where the sink appends. "
            "Next: output_mode='update', if only what has changed is to be written."
        )


def warn_of_slots(
    spark: SparkSession,
    plan: Any,
    sources: Sequence[KafkaSource],
    taken: Sequence[Taken],
    sinks: Sequence[TwoPhaseCommitSink],
) -> None:
    """Tells when the batches will have far more slots than there are cores, see `warn_of_many`.

    Args:
        spark: The session.
        plan: The query's, analyzed.
        sources: Its Kafka sources, as far as they were asked.
        taken: What each sink takes.
        sinks: The query's.
    """
    try:
        slots = _slots(spark, plan, sources, taken)
        if slots is not None:
            warn_of_many(spark, slots, sum(sink.guarantee is Guarantee.EXACTLY_ONCE for sink in sinks))
    except Exception as error:  # noqa: BLE001 - Spark's own classes and settings, which may change: nothing is told
        logger.debug("how many slots a batch will have is not known: %s", error)


def _slots(spark: SparkSession, plan: Any, sources: Sequence[KafkaSource], taken: Sequence[Taken]) -> int | None:
    """Returns the slots of the sink that has most; None if the plan does not tell."""
    shuffled = int(spark.conf.get(SHUFFLE_PARTITIONS, "200") or 200)

    def of_source(leaf: Any) -> int | None:
        options = source_of(leaf).options
        return next((_read_by(source) for source in sources if source.options == options), None)

    batch = slots_of(plan, shuffled, of_source)

    def of_batch(leaf: Any) -> int | None:
        return batch if class_name(leaf) in MADE_IN_PLACE else None

    numbers = [batch if one.share.view is None else slots_of(analyzed(one.frame), shuffled, of_batch) for one in taken]
    return max((number for number in numbers if number is not None), default=None)


def _read_by(source: KafkaSource) -> int | None:
    """Returns how many tasks read a source; None if that is unknown."""
    return max(sum(source.partitions.values()), int(source.options.get("minpartitions", "0"))) or None


def warn_of_rows(
    sources: Sequence[KafkaSource], sinks: Sequence[TwoPhaseCommitSink], facts: Mapping[str, Facts]
) -> None:
    """Tells when the first batch has so many rows that it may take longer than its transactions live.

    Args:
        sources: The query's Kafka sources, asked for the rows of a first batch.
        sinks: The query's.
        facts: What each sink's preflight returned, by name.
    """
    rows = sum(source.rows or 0 for source in sources)
    lives = {sink.name: sink.transaction_timeout_s(facts[sink.name]) for sink in sinks}
    shortest = min(((life, name) for name, life in lives.items() if life is not None), default=None)
    if shortest is None or rows <= shortest[0] * SLOW_ROWS_PER_S:
        return
    life_s, name = shortest
    logger.warning(
        "The first batch has %d rows. At %d rows a second it takes %.0f s, and transactions of sink %r live %.0f s: "
        "it may have to be written twice. Next: bound a batch by max_offsets_per_trigger (Spark's "
        "maxOffsetsPerTrigger) before the query's first start: a batch that is planned stays as it is.",
        *(rows, SLOW_ROWS_PER_S, rows / SLOW_ROWS_PER_S, name, life_s),
    )


def analyzed(df: DataFrame) -> Any:
    """Returns its plan, analyzed."""
    return df._jdf.queryExecution().analyzed()
