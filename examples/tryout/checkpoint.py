"""What Spark has written into a query's checkpoint about the batches that it has done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RETAIN = "spark.sql.streaming.minBatchesToRetain"
"""How many batches Spark keeps, 100 by default. Those that a try does must all be there when it is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch that Spark has recorded as done.

    Attributes:
        number: Spark's batch id.
        watermark_ms: The watermark at which it closed windows, milliseconds since the epoch.
        timestamp_ms: What ``current_timestamp()`` was in it, whenever and however often it ran.
        ends: For each topic and partition the offset before which all had been read when it was done.
    """

    number: int
    watermark_ms: int
    timestamp_ms: int
    ends: Mapping[str, Mapping[int, int]]


def read_batches(checkpoint: Path, decided: int = -1) -> list[Batch]:
    """The batches that are done, oldest first.

    Args:
        checkpoint: Spark's.
        decided: The last batch that sparkonce's log has decided, if it counts as done as well; -1 for none.

    Raises:
        ValueError: Spark has deleted the first ones, and nobody can say any more what they have read.
    """
    done = {int(file.name) for file in (checkpoint / "commits").glob("*") if file.name.isdigit()}
    if decided >= 0:
        done.add(decided)
    numbers = sorted(done)
    if numbers != list(range(len(numbers))):
        raise ValueError(f"the checkpoint {checkpoint} has no longer each batch from 0 on (see {RETAIN}): {numbers}")
    return [_batch(number, (checkpoint / "offsets" / str(number)).read_text()) for number in numbers]


def _batch(number: int, text: str) -> Batch:
    """Line 1 is a version, line 2 is about the batch, and each line below it about one source."""
    _, about, *sources = text.splitlines()
    told = json.loads(about)
    ends = {
        topic: {int(partition): offset for partition, offset in partitions.items()}
        for source in sources
        for topic, partitions in json.loads(source).items()
    }
    return Batch(number=number, watermark_ms=told["batchWatermarkMs"], timestamp_ms=told["batchTimestampMs"], ends=ends)
