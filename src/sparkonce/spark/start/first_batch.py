"""Warns about expensive first batches (too many slots or rows), and about a column that would choose partitions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from sparkonce.errors import PreflightError
from sparkonce.jvm import class_name, items
from sparkonce.sink import Facts, TwoPhaseCommitSink
from sparkonce.spark.plans import STATEFUL, nodes, source_of
from sparkonce.spark.views import ShareSample

if TYPE_CHECKING:
    from sparkonce.sources.topics import KafkaSource

logger = logging.getLogger("sparkonce")

SLOW_ROWS_PER_S = 5_000
"""A rate that any plan should reach. `sparkonce.spark.read_kafka.MAX_OFFSETS_PER_TRIGGER` is based on it, too."""

_COLUMN = "partition"

_PARTITIONS = "spark.sql.shuffle.partitions"
_SHUFFLED = {*STATEFUL, "Join"} - {"GlobalLimit"}
_SPREAD_AGAIN = {"GlobalLimit", "RebalancePartitions", "Repartition", "RepartitionByExpression"}
"""The operators after which the number of slots is not that of the shuffle."""
_SLOTS_A_CORE, _GOOD_A_CORE, _ALWAYS_FINE = 4, 2, 16


def check_partition_column(
    df: DataFrame, sources: Sequence[KafkaSource], samples: Sequence[ShareSample], *, is_first: bool
) -> None:
    """Checks whether the source's column ``partition`` reaches a Kafka sink, which would then choose partitions by it.

    If the query computes that column itself, even just with a cast, this is considered intended.

    Raises:
        PreflightError: If a source's topic has more partitions than the sink's, and the query has no batch yet.
    """
    brought, options = _brought(df)
    most = max((source.highest for source in sources if source.options == options), default=0)
    for one in samples:
        if brought is None or _expression(one.frame, _COLUMN) not in (brought, _expression(one.batch, _COLUMN)):
            continue
        for sink in one.share.sinks.values():
            if (there := sink.partitions()) is not None:
                _judge(sink, there, most, is_first=is_first)


def _judge(sink: TwoPhaseCommitSink, there: int, most: int, *, is_first: bool) -> None:
    what = f"The rows for sink {sink.name!r} have the column 'partition' of the Kafka source, and are written by it"
    how = "Drop the column, so that the key decides: df.drop('partition'). If it is intended, cast it: "
    how += "df.withColumn('partition', col('partition').cast('int'))"
    if is_first and 0 < there < most:
        raise PreflightError(
            f"{what}: the source's topic has {most} partitions, and topic={sink.target_name!r} has {there}.",
            next_step=f"{how}.",
            sink=sink.name,
        )
    logger.warning("%s, not by their keys. Next: %s.", what, how)


def _brought(df: DataFrame) -> tuple[int | None, Mapping[str, str] | None]:
    """Returns the id of the column ``partition`` and the options of the Kafka source it comes from, if any."""
    column = _expression(df, _COLUMN)
    sources = {
        _id(attribute): source_of(node)
        for node in nodes(analyzed(df))
        if class_name(node) == "StreamingRelationV2"
        for attribute in items(node.output())
        if attribute.name() == _COLUMN
    }
    source = sources.get(column) if column is not None else None
    return (column, source.options) if source is not None and source.format == "kafka" else (None, None)


def _expression(df: DataFrame, name: str) -> int | None:
    output = items(analyzed(df).output())
    return next((_id(attribute) for attribute in output if attribute.name() == name), None)


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())


def warn_of_mode(output_mode: str) -> None:
    """Warns about the output mode in which each batch contains the whole result."""
    if output_mode.lower() == "complete":
        logger.warning(
            "output_mode='complete': each batch writes the whole result again, as new rows where the sink appends. "
            "Next: Use output_mode='update' to write only what has changed."
        )


def warn_of_slots(spark: SparkSession, plan: Any, samples: Sequence[ShareSample], sinks: int) -> None:
    """Warns if a shuffle makes far more slots than there are cores: each slot is a task and a transaction."""
    views = [analyzed(one.frame) for one in samples if one.share.view is not None]
    operators = [node for node in nodes(plan) if node.isStreaming()] + [node for one in views for node in nodes(one)]
    # A stream that is joined with a table may not be shuffled, and an aggregate of all rows is one slot.
    kinds = {
        class_name(node)
        for node in operators
        if class_name(node) != "Join" or all(child.isStreaming() for child in items(node.children()))
    }
    is_global = any(class_name(node) == "Aggregate" and node.groupingExpressions().isEmpty() for node in operators)
    slots, cores = int(spark.conf.get(_PARTITIONS, "200") or 200), int(spark.sparkContext.defaultParallelism)
    if not kinds & _SHUFFLED or kinds & _SPREAD_AGAIN or is_global or slots <= max(_SLOTS_A_CORE * cores, _ALWAYS_FINE):
        return
    if spark.conf.get("spark.dynamicAllocation.enabled", "false").lower() != "true":
        logger.warning(
            "Each batch of this query has %d slots (%s=%d), and this Spark has %d cores: that is %d tasks, and up to "
            "%d transactions, however few the rows are. Next: Set %s=%d, or another number that fits the rows, before "
            "the query's first batch: its checkpoint keeps the number.",
            *(slots, _PARTITIONS, slots, cores, slots, slots * max(sinks, 1), _PARTITIONS, _GOOD_A_CORE * cores),
        )


def warn_of_rows(
    sources: Sequence[KafkaSource], sinks: Sequence[TwoPhaseCommitSink], facts: Mapping[str, Facts]
) -> None:
    """Warns if the first batch has so many rows that it may outlive its transactions."""
    rows = sum(source.rows or 0 for source in sources)
    lives = {sink.name: sink.transaction_timeout_s(facts[sink.name]) for sink in sinks}
    shortest = min(((life, name) for name, life in lives.items() if life is not None), default=None)
    if shortest is None or rows <= shortest[0] * SLOW_ROWS_PER_S:
        return
    life_s, name = shortest
    logger.warning(
        "The first batch has %d rows. At %d rows a second it takes %.0f s, and transactions of sink %r live %.0f s: "
        "it may have to be written twice. Next: Limit batches by max_offsets_per_trigger (Spark's "
        "maxOffsetsPerTrigger) before the query's first start: a planned batch keeps its offsets.",
        *(rows, SLOW_ROWS_PER_S, rows / SLOW_ROWS_PER_S, name, life_s),
    )


def analyzed(df: DataFrame) -> Any:
    """Returns a DataFrame's analyzed plan."""
    return df._jdf.queryExecution().analyzed()
