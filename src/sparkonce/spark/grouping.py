"""Groups a batch's partitions to fewer slots: by Spark's recorded offsets, or as the batch was decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from sparkonce.protocol.view import Decision
from sparkonce.sources.offsets import kafka_offsets
from sparkonce.spark.jvm import class_name, items

SMALL_ROWS, SMALL_BYTES, SMALL_PARTITIONS = 5_000, 1 << 20, 16
"""A batch of at most so many rows, of about so many bytes, from so many partitions, is one slot. Each other slot would
cost 60 ms of CPU, as much as 15,000 rows (docs/benchmark.md). Spark, too, merges what is smaller than a megabyte
(``spark.sql.adaptive.coalescePartitions.minPartitionSize``). A task holds a consumer for each partition
until it ends, and an executor keeps 64 (``spark.kafka.consumer.cache.capacity``)."""

_KEPT_IN_ORDER = 4
"""The most members of a Scala set that keeps the order in which they came. Larger ones go by their members' hashes."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Says how a batch's partitions become slots.

    Attributes:
        slots: Their number, at least 1.
        is_renumbered: Whether a source has so few partitions that Spark may number them otherwise after a restart.
        merges: Whether one task reads all partitions, one after another, without a shuffle.
    """

    slots: int
    is_renumbered: bool = False
    merges: bool = False

    def is_worth_it(self, rows: DataFrame) -> bool:
        """Tells if rows have more partitions than slots, and each slot has the same ones whenever they are run.

        True if only a run would tell how many partitions they have: there is a shuffle then.
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
        """Sends all rows of a partition to one slot, in order, chosen by the partition's number.

        Not ``coalesce``, except to one slot: it groups by where the partitions' data are. After a restart, or with
        other executors, the same batch would have other slots. A partition is never divided, so a part of it that Spark
        computes again, with other rows if the plan is not deterministic, is never mixed with the first.
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
    """Returns the grouping of a batch with these offsets: one slot if it is small, else one for each so many rows read.

    The offsets of a batch are the same whenever it is run again, so the grouping by them is, too. Once a batch is
    decided as one slot, it stays one. Once it is decided as several, it is not small any more.

    Spark's Kafka source lists its partitions by a set. A small one has the order in which the brokers named them, and
    after a restart that in which the checkpoint does (``KafkaOffsetReaderBase.getOffsetRangesFromResolvedOffsets``).

    Args:
        rows: The number of rows that the batch reads; None if its offsets do not count rows, as those of files.
        before: The offsets of the batch before, a line for each source; None if there are none.
        now: The batch's own.
        rows_per_slot: The number of rows read that are worth a slot; None to leave each partition a slot, unless the
            batch is small.
        row_bytes: The size of the rows before, on average, if the plan `reads_plainly`; None if it does not, or if the
            size is not known.
        decided: The number of slots with which the batch was decided; None if it is not.

    Returns:
        The grouping; None if none is wanted, or the number of rows is not known.
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
    places = [(topic, place) for topic, partitions in last.items() for place in partitions]
    return sum(last[topic][at] > first.get(topic, {}).get(at, 0) for topic, at in places) <= SMALL_PARTITIONS


def slots_decided(decision: Decision | None) -> int | None:
    """Returns the number of slots with which a batch was decided, the most of any sink; None if it is not."""
    return None if decision is None else 1 + max((handle.slot for handle in decision.handles), default=0)


def _has_the_sources_partitions(rdd: Any) -> bool:
    """Tells if partitions come from a source without a shuffle between: behind one, their number follows from rows."""
    if class_name(rdd) == "DataSourceRDD":
        return True
    behind = (one for one in items(rdd.dependencies()) if class_name(one) != "ShuffleDependency")
    return any(_has_the_sources_partitions(one.rdd()) for one in behind)
