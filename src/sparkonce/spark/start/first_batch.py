"""Warns about expensive batches and duplicate rows: too many slots, too many rows, loops, repeated targets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from sparkonce.errors import PreflightError
from sparkonce.guarantees import Guarantee
from sparkonce.jvm import class_name, items
from sparkonce.sink import Facts, TwoPhaseCommitSink
from sparkonce.spark.plans import LITERAL_ROWS, SHUFFLES, is_leaf, nodes, source_of
from sparkonce.spark.views import Share, ShareSample

if TYPE_CHECKING:
    from sparkonce.sources.topics import KafkaSource

logger = logging.getLogger("sparkonce")

SLOW_ROWS_PER_S = 5_000
"""A rate that any plan should reach. `sparkonce.spark.read_kafka.MAX_OFFSETS_PER_TRIGGER` is based on it, too."""

_COLUMN = "partition"

_TARGET = ("cluster_id", "topic", "system", "server", "database", "schema", "table")
"""The facts that determine where a sink's rows go."""


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


def warn_of_slots(
    spark: SparkSession,
    plan: Any,
    sources: Sequence[KafkaSource],
    samples: Sequence[ShareSample],
    sinks: Sequence[TwoPhaseCommitSink],
) -> None:
    """Warns if the batches will have far more slots than there are cores, see `warn_of_many`."""
    try:
        slots = _slots(spark, plan, sources, samples)
        if slots is not None:
            warn_of_many(spark, slots, sum(sink.guarantee is Guarantee.EXACTLY_ONCE for sink in sinks))
    except Exception as error:  # noqa: BLE001 - Spark's internals may change; then there is no warning
        logger.debug("The number of a batch's slots is unknown: %s", error)


def _slots(
    spark: SparkSession, plan: Any, sources: Sequence[KafkaSource], samples: Sequence[ShareSample]
) -> int | None:
    """Returns the largest number of slots of any sink; None if the plan does not show it."""
    shuffled = int(spark.conf.get(SHUFFLE_PARTITIONS, "200") or 200)

    def of_source(leaf: Any) -> int | None:
        options = source_of(leaf).options
        return next((_read_by(source) for source in sources if source.options == options), None)

    batch = slots_of(plan, shuffled, of_source)

    def of_batch(leaf: Any) -> int | None:
        return batch if class_name(leaf) in LITERAL_ROWS else None

    numbers = [
        batch if one.share.view is None else slots_of(analyzed(one.frame), shuffled, of_batch) for one in samples
    ]
    return max((number for number in numbers if number is not None), default=None)


def _read_by(source: KafkaSource) -> int | None:
    """Returns how many tasks read a source; None if that is unknown."""
    return max(sum(source.partitions.values()), int(source.options.get("minpartitions", "0"))) or None


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


def warn_of_loops(sources: Sequence[KafkaSource], sinks: Sequence[TwoPhaseCommitSink]) -> None:
    """Warns if the query reads the topic that it writes to: each batch is then input to the next one."""
    for sink in sinks:
        servers = _addresses((sink.kafka_settings or {}).get("bootstrap.servers"))
        if any(
            sink.target_name in source.partitions
            and servers & _addresses(source.options.get("kafka.bootstrap.servers"))
            for source in sources
        ):
            logger.warning(
                "The query reads topic=%r, which its sink %r writes to: what a batch writes is input of a later batch, "
                "without end. Next: Write to another topic, unless the query leaves out the rows that it has written.",
                *(sink.target_name, sink.name),
            )


def _addresses(servers: object) -> set[str]:
    return {one.strip().lower() for one in str(servers or "").split(",")} - {""}


def warn_of_repeats(shares: Sequence[Share], facts: Mapping[str, Facts]) -> None:
    """Warns if two sinks write the same rows to one topic or table, which would then contain each row twice."""
    for share in shares:
        targets: dict[tuple[tuple[str, str], ...], list[str]] = {}
        dead_letters = set(share.dead_letters.values())
        for name in share.sinks.keys() - dead_letters:
            target = tuple((fact, facts[name][fact]) for fact in _TARGET if fact in facts[name])
            if {"topic", "table"} & dict(target).keys():
                targets.setdefault(target, []).append(name)
        for target, names in targets.items():
            if len(names) > 1:
                logger.warning(
                    "Sinks %s write the same rows to %s: each row is there %d times. Next: Keep one of them, or give "
                    "each its own view: ExactlyOnce({sink: view, …}).",
                    *(sorted(names), ", ".join(f"{fact}={value!r}" for fact, value in target), len(names)),
                )


def analyzed(df: DataFrame) -> Any:
    """Returns a DataFrame's analyzed plan."""
    return df._jdf.queryExecution().analyzed()


SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_SLOTS_A_CORE = 4

_ALWAYS_FINE = 16

_GOOD_A_CORE = 2

_DYNAMIC = "spark.dynamicAllocation.enabled"


def slots_of(plan: Any, shuffled: int, of_leaf: Callable[[Any], int | None]) -> int | None:
    """Returns the number of tasks in the last stage of a plan.

    Args:
        plan: Spark's analyzed ``LogicalPlan``.
        shuffled: The value of ``spark.sql.shuffle.partitions``.
        of_leaf: Returns the number of partitions of a streaming leaf; None if it is unknown.

    Returns:
        The number of tasks; None if the plan alone does not show it.
    """
    kind = class_name(plan)
    if kind == "WithCTE":  # the definitions come first
        return slots_of(plan.plan(), shuffled, of_leaf)
    if kind == "Repartition":
        below_it = None if plan.shuffle() else slots_of(plan.child(), shuffled, of_leaf)
        return min(int(plan.numPartitions()), below_it or int(plan.numPartitions()))
    if kind in ("RepartitionByExpression", "RebalancePartitions"):
        wanted = plan.optNumPartitions()
        return int(wanted.get()) if wanted.isDefined() else shuffled
    if kind == "GlobalLimit" or (kind == "Aggregate" and plan.groupingExpressions().isEmpty()):
        return 1
    streamed = [child for child in items(plan.children()) if child.isStreaming()] or list(items(plan.children()))
    if kind in SHUFFLES and (kind != "Join" or len(streamed) > 1):
        return shuffled
    if is_leaf(plan):
        return of_leaf(plan)
    below = [slots_of(child, shuffled, of_leaf) for child in streamed]
    if kind == "Union":
        known = [number for number in below if number is not None]
        return sum(known) if len(known) == len(below) else None
    return below[0] if below else None


def warn_of_many(spark: SparkSession, slots: int, sinks: int) -> None:
    """Warns if a batch has far more slots than cores: each slot is a task and a transaction, with few rows."""
    cores = int(spark.sparkContext.defaultParallelism)
    if spark.conf.get(_DYNAMIC, "false").lower() == "true" or slots <= max(_SLOTS_A_CORE * cores, _ALWAYS_FINE):
        return
    shuffled = slots == int(spark.conf.get(SHUFFLE_PARTITIONS, "200"))
    good = _GOOD_A_CORE * cores
    setting = f"{SHUFFLE_PARTITIONS}={good}"
    logger.warning(
        "Each batch of this query has %d slots%s, and this Spark has %d cores: that is %d tasks, and up to %d "
        "transactions, however few the rows are. Next: %s.",
        slots,
        f" ({SHUFFLE_PARTITIONS}={slots})" if shuffled else "",
        cores,
        slots,
        slots * max(sinks, 1),
        f"Set {setting}, or another number that fits the rows, before the query's first batch: its checkpoint keeps "
        "the number"
        if shuffled
        else f"Give the sink fewer of them, for example by repartition({good}, …)",
    )
