"""Groups a batch's partitions to fewer slots, by a number that follows from Spark's recorded offsets alone."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from sparkonce.driver.ages import offsets_between
from sparkonce.spark.jvm import class_name


def slots_of_offsets(before: Sequence[str] | None, now: Sequence[str], rows_per_slot: int | None) -> int | None:
    """Returns the number of slots for a batch with these offsets: one for each so many rows read.

    The offsets of a batch are the same whenever it is run again, so this number is, too.

    Args:
        before: The offsets of the batch before, a line for each source; None if there are none.
        now: The batch's own.
        rows_per_slot: The number of rows read that are worth a slot; None to leave each partition a slot.

    Returns:
        The number, at least 1; None if none is wanted, or the offsets do not count rows, as those of files.
    """
    if rows_per_slot is None or (rows := offsets_between(before, now)) is None:
        return None
    return max(1, -(-rows // rows_per_slot))


def grouped(rows: DataFrame, slots: int) -> DataFrame:
    """Sends all rows of a partition to one of so many slots, in order, chosen by the partition's number.

    Not ``coalesce``, which groups by where the partitions' data are: after a restart, or with other executors, the same
    batch would have other slots. A partition is never divided, so a part of it that Spark computes again, with other
    rows if the plan is not deterministic, is never mixed with the first.
    """
    return rows.repartition(slots, F.spark_partition_id())


def is_worth_grouping(rows: DataFrame, slots: int) -> bool:
    """Tells if the rows have more partitions than so many slots; True if only their run would tell."""
    plan = rows._jdf.queryExecution().executedPlan()
    # An adaptive plan would run its shuffles for the answer.
    return class_name(plan) == "AdaptiveSparkPlanExec" or int(plan.execute().getNumPartitions()) > slots
