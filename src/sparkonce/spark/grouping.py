"""Groups a batch's partitions into fewer slots: by Spark's recorded offsets, or as the batch was decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkonce.jvm import class_name, items
from sparkonce.protocol.view import Decision
from sparkonce.sources.offsets import kafka_offsets

SMALL_ROWS, SMALL_BYTES, SMALL_PARTITIONS = 5_000, 1 << 20, 16
"""A batch below all three limits (rows, bytes, partitions) becomes one slot.

Each further slot would cost 60 ms of CPU, as much as 15,000 rows (docs/benchmark.md). Spark, too, merges partitions of
less than a megabyte (``spark.sql.adaptive.coalescePartitions.minPartitionSize``). A task holds one consumer per
partition until it ends, and an executor caches 64 (``spark.kafka.consumer.cache.capacity``).
"""

_KEPT_IN_ORDER = 4
"""The largest Scala set that keeps insertion order. Larger sets are ordered by their members' hashes."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Defines how a batch's partitions become slots.

    Attributes:
        slots: The number of slots, at least 1.
        is_renumbered: True if a source has so few partitions that Spark may number them differently after a restart.
        merges: True if one task reads all partitions one after another, without a shuffle.
    """

    slots: int
    is_renumbered: bool = False
    merges: bool = False

    def is_worth_it(self, rows: DataFrame) -> bool:
        """Returns True if there are more partitions than slots, and slots get the same partitions in every run.

        Also returns True if a shuffle makes the number of partitions unknown before the plan runs.
        """
        if self.merges:
            return True
        plan = rows._jdf.queryExecution().executedPlan()
        if class_name(plan) == "AdaptiveSparkPlanExec":
            return True
        read = plan.execute()
        if int(read.getNumPartitions()) <= self.slots:
            return False
        return self.slots == 1 or not (self.is_renumbered and _has_the_sources_partitions(read))

    def grouped(self, rows: DataFrame) -> DataFrame:
        """Sends all rows of a partition to one slot, in order. The partition's number determines the slot.

        ``coalesce`` is used only for a single slot. It groups partitions by data locality, so the same batch could have
        different slots after a restart or on other executors. A partition is never split. If Spark recomputes a
        partition, and a nondeterministic plan returns different rows, these are never mixed with the first ones.
        """
        if self.merges:
            return rows.coalesce(1)
        return rows.repartition(self.slots, F.spark_partition_id())


def grouping_of(
    rows: int | None,
    before: Sequence[str] | None,
    now: Sequence[str],
    rows_per_slot: int | None,
    row_bytes: int | None = None,
    decided: int | None = None,
) -> Grouping | None:
    """Returns the grouping of a batch: one slot if the batch is small, otherwise one for every `rows_per_slot` rows.

    A batch has the same offsets every time it runs, and so the same grouping. A batch that was decided as one slot
    keeps one slot, and a batch that was decided as several is not treated as small anymore.

    Spark's Kafka source numbers its partitions in the iteration order of a set
    (``KafkaOffsetReaderBase.getOffsetRangesFromResolvedOffsets``). For a small set, this is the order in which the
    brokers list the partitions or, after a restart, the order in the checkpoint.

    Args:
        rows: The number of rows that the batch reads; None if its offsets do not count rows, like those of files.
        before: The previous batch's offsets, one line per source; None if there are none.
        now: The batch's own offsets.
        rows_per_slot: The number of rows read per slot. With None, each partition is a slot, unless the batch is small.
        row_bytes: The average row size in earlier batches, in bytes; None if it is unknown, or if the plan does not
            read plainly (see `reads_plainly`).
        decided: The number of slots with which the batch was decided; None if it is undecided.

    Returns:
        The grouping; None if the batch is not grouped, or if the number of rows is unknown.
    """
    is_small = rows is not None and rows <= (rows_per_slot or SMALL_ROWS) and _is_small(rows, row_bytes, before, now)
    if decided == 1 or (decided is None and is_small):
        return Grouping(1, merges=row_bytes is not None)
    if rows_per_slot is None or rows is None:
        return None
    sizes = [sum(map(len, kafka_offsets([source]).values())) for source in now]
    return Grouping(max(1, -(-rows // rows_per_slot)), any(1 < size <= _KEPT_IN_ORDER for size in sizes))


def _is_small(rows: int, row_bytes: int | None, before: Sequence[str] | None, now: Sequence[str]) -> bool:
    if row_bytes is None or rows > SMALL_ROWS or rows * row_bytes > SMALL_BYTES:
        return False
    first, last = kafka_offsets(before or ()), kafka_offsets(now)
    partitions = [(topic, number) for topic, offsets in last.items() for number in offsets]
    return sum(last[topic][at] > first.get(topic, {}).get(at, 0) for topic, at in partitions) <= SMALL_PARTITIONS


def slots_decided(decision: Decision | None) -> int | None:
    """Returns the number of slots that a batch was decided with (the largest of any sink); None if it is undecided."""
    return None if decision is None else 1 + max((handle.slot for handle in decision.handles), default=0)


def _has_the_sources_partitions(rdd: Any) -> bool:
    """Returns True if no shuffle lies between the source and these partitions.

    After a shuffle, the number of partitions depends on the rows.
    """
    if class_name(rdd) == "DataSourceRDD":
        return True
    behind = (one for one in items(rdd.dependencies()) if class_name(one) != "ShuffleDependency")
    return any(_has_the_sources_partitions(one.rdd()) for one in behind)
