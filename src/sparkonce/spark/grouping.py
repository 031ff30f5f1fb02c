"""Groups a batch's partitions to fewer slots, by a number that follows from Spark's recorded offsets alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from sparkonce.driver.ages import offsets_between
from sparkonce.sources.rabbitmq.places import is_place
from sparkonce.spark.jvm import class_name, items

_KEPT_IN_ORDER = 4
"""The most members of a Scala set that keeps the order in which they came. Larger ones go by their members' hashes."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Says how a batch's partitions become slots.

    Attributes:
        slots: Their number, at least 1.
        is_small: Whether a source has so few partitions that Spark may number them otherwise after a restart.
    """

    slots: int
    is_small: bool = False

    def is_worth_it(self, rows: DataFrame) -> bool:
        """Tells if rows have more partitions than slots, and each slot has the same ones whenever they are run.

        True if only a run would tell how many partitions they have: there is a shuffle then.
        """
        plan = rows._jdf.queryExecution().executedPlan()
        if class_name(plan) == "AdaptiveSparkPlanExec":
            return True
        read = plan.execute()
        if int(read.getNumPartitions()) <= self.slots:
            return False
        return self.slots == 1 or not (self.is_small and _has_the_sources_partitions(read))

    def grouped(self, rows: DataFrame) -> DataFrame:
        """Sends all rows of a partition to one slot, in order, chosen by the partition's number.

        Not ``coalesce``, which groups by where the partitions' data are: after a restart, or with other executors, the
        same batch would have other slots. A partition is never divided, so a part of it that Spark computes again, with
        other rows if the plan is not deterministic, is never mixed with the first.
        """
        return rows.repartition(self.slots, F.spark_partition_id())


def grouping_of(before: Sequence[str] | None, now: Sequence[str], rows_per_slot: int | None) -> Grouping | None:
    """Returns the grouping of a batch with these offsets: one slot for each so many rows read.

    The offsets of a batch are the same whenever it is run again, so the grouping is, too.

    Spark's Kafka source lists its partitions by a set. A small one has the order in which the brokers named them, and
    after a restart that in which the checkpoint does (``KafkaOffsetReaderBase.getOffsetRangesFromResolvedOffsets``).

    Args:
        before: The offsets of the batch before, a line for each source; None if there are none.
        now: The batch's own.
        rows_per_slot: The number of rows read that are worth a slot; None to leave each partition a slot.

    Returns:
        The grouping; None if none is wanted, or the offsets do not count rows, as those of files.
    """
    if rows_per_slot is None or (rows := offsets_between(before, now)) is None:
        return None
    kafka = [json.loads(source) for source in now if source != "-"]
    sizes = [sum(map(len, source.values())) for source in kafka if not any(map(is_place, source.values()))]
    return Grouping(max(1, -(-rows // rows_per_slot)), any(1 < size <= _KEPT_IN_ORDER for size in sizes))


def _has_the_sources_partitions(rdd: Any) -> bool:
    """Tells if partitions come from a source without a shuffle between: behind one, their number follows from rows."""
    if class_name(rdd) == "DataSourceRDD":
        return True
    behind = (one for one in items(rdd.dependencies()) if class_name(one) != "ShuffleDependency")
    return any(_has_the_sources_partitions(one.rdd()) for one in behind)
