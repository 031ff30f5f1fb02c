"""Compares the offsets in a checkpoint with the ones that the running query used to plan its batch.

Spark's own commit of ``offsets/N`` is not atomic on every store: on S3 a rename is a copy. Two drivers that share a
checkpoint may then plan batch N with different offsets, and the file has the later driver's offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkonce.errors import CheckpointMismatchError
from sparkonce.jvm import JvmCache, execution_of, items
from sparkonce.storage.offsets import without_files
from sparkonce.storage.spark_checkpoint import SparkCheckpoint, canonical

logger = logging.getLogger("sparkonce")

_NONE_YET = "-"
"""Spark's text for a source that has no offset yet."""


def check_planned(
    spark: SparkSession, query: str, batch: int, checkpoint: SparkCheckpoint, recorded: Sequence[str], cache: JvmCache
) -> None:
    """Rejects a batch whose rows are not the ones that the checkpoint's offsets describe."""
    try:
        planned = _planned(cache.get("execution", partial(execution_of, spark, query)), batch)
    except Exception as error:  # noqa: BLE001 - Spark's internal classes may change; then only the file counts
        logger.debug("The planned offsets of batch %d cannot be seen, and are not compared: %s", batch, error)
        return
    if planned is None or planned == tuple(map(without_files, recorded)) or not checkpoint.is_in_source_order(batch):
        return
    raise CheckpointMismatchError(
        f"The running query has planned batch {batch} with the offsets {list(planned)}, and "
        f"{checkpoint.files.location}/offsets/{batch} has {list(recorded)}: another driver runs on this checkpoint.",
        next_step="Stop the other driver, and start this query again: it resumes with the offsets in the checkpoint. "
        "Nothing is written twice, and no row is lost.",
    )


def is_as_planned(batch: DataFrame, query: str, cache: JvmCache) -> bool:
    """Returns True if a batch is exactly what Spark passed to ``foreachBatch``, unmodified by the user's function.

    Spark passes the rows of the plan that it executes (``ForeachBatchSink.addBatch``).
    """
    try:
        execution = cache.get("execution", partial(execution_of, batch.sparkSession, query))
        return bool(batch._jdf.queryExecution().logical().rdd().id() == execution.lastExecution().toRdd().id())
    except Exception as error:  # noqa: BLE001 - most plans have no rdd(), and Spark's internal classes may change
        logger.debug("A batch of query %s is not as Spark gave it: %s", query, error)
        return False


def _planned(execution: Any, batch: int) -> tuple[str, ...] | None:
    """Returns the batch's end offsets in the query's memory, one per source; None if the query is at another batch."""
    context = execution.getLatestExecutionContext()
    if context.batchId() != batch:
        return None
    offsets = context.endOffsets()
    ends = [offsets.get(source) for source in items(execution.sources())]
    return tuple(canonical(str(end.get().json())) if end.isDefined() else _NONE_YET for end in ends)
