"""Counts the slots of a query's batches, by its plan or as they were, and warns if they are too many."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from sparkonce.driver.progress import BatchProgress
from sparkonce.spark.jvm import class_name, items
from sparkonce.spark.plans import SHUFFLES, is_leaf

logger = logging.getLogger("sparkonce")

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_SLOTS_A_CORE = 4
_ALWAYS_FINE = 16
_GOOD_A_CORE = 2
_FEW_ROWS = 1000
"""The rows of a slot that cost less than a twentieth of the slot itself (docs/benchmark.md)."""
_GOOD_ROWS = 10_000
_DYNAMIC = "spark.dynamicAllocation.enabled"


def slots_of(plan: Any, shuffled: int, of_leaf: Callable[[Any], int | None]) -> int | None:
    """Returns the number of tasks in the last stage of a plan.

    Args:
        plan: Spark's analyzed ``LogicalPlan``.
        shuffled: The value of ``spark.sql.shuffle.partitions``.
        of_leaf: Returns the number of partitions of a streaming leaf; None if it is unknown.

    Returns:
        The number; None if the plan alone does not say.
    """
    kind = class_name(plan)
    if kind == "WithCTE":  # the definitions come first
        return slots_of(plan.plan(), shuffled, of_leaf)
    if kind == "Repartition":
        below_it = None if plan.shuffle() else slots_of(plan.child(), shuffled, of_leaf)
        return min(int(plan.numPartitions()), below_it or int(plan.numPartitions()))
    if kind in ("RepartitionByExpression", "RebalancePartitions"):
        given = plan.optNumPartitions()
        return int(given.get()) if given.isDefined() else shuffled
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
    """Warns if a batch has far more slots than there are cores: each is a task and a transaction, with few rows.

    Args:
        spark: The session.
        slots: The number of a batch's slots.
        sinks: The number of the query's sinks that write transactions.
    """
    cores = int(spark.sparkContext.defaultParallelism)
    if spark.conf.get(_DYNAMIC, "false").lower() == "true" or slots <= _fine(cores):
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


class SlotAdvice:
    """Warns once if a batch had many slots and few rows: `rows_per_slot` helps at any time, other settings do not."""

    def __init__(self, *, is_needed: bool) -> None:
        self._is_needed = is_needed

    def look(self, spark: SparkSession, rows: int | None, done: BatchProgress) -> None:
        """Looks at a batch that is done.

        Args:
            spark: The session.
            rows: The number of rows that the batch has read; None if it is not known.
            done: The batch.
        """
        if not self._is_needed or done.transactions <= _ALWAYS_FINE:  # asking for the cores takes milliseconds
            return
        if done.transactions <= _fine(int(spark.sparkContext.defaultParallelism)):
            return
        if rows is None or rows >= _FEW_ROWS * done.transactions:
            return
        self._is_needed = False
        logger.warning(
            "Batch %d read %d rows, and wrote %d transactions: they cost more than the rows. Next: Group small batches "
            "to fewer slots, by ExactlyOnce(..., rows_per_slot=%d).",
            *(done.batch, rows, done.transactions, _GOOD_ROWS),
        )


def _fine(cores: int) -> int:
    return max(_SLOTS_A_CORE * cores, _ALWAYS_FINE)
