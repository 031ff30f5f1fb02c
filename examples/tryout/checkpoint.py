"""Reads what Spark has recorded about finished batches in a query's checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RETAIN = "spark.sql.streaming.minBatchesToRetain"
"""The setting for how many batches Spark keeps, 100 by default. A test must keep all of its batches until its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch that Spark has recorded as finished.

    Attributes:
        number: Spark's batch id.
        watermark_ms: The watermark with which it closed windows, in milliseconds since the epoch.
        timestamp_ms: The value of ``current_timestamp()`` in the batch, which is the same in every replay.
        ends: For each topic and partition, the offset up to which the batch and those before it have read.
    """

    number: int
    watermark_ms: int
    timestamp_ms: int
    ends: Mapping[str, Mapping[int, int]]


def read_batches(checkpoint: Path, decided: int = -1) -> list[Batch]:
    """Returns the finished batches, oldest first.

    Args:
        checkpoint: Spark's checkpoint.
        decided: The last batch that sparkonce's log has decided, if it counts as finished as well; -1 for none.

    Raises:
        ValueError: If Spark has deleted the records of the first batches, so that it is unknown what they have read.
    """
    done = {int(file.name) for file in (checkpoint / "commits").glob("*") if file.name.isdigit()}
    if decided >= 0:
        done.add(decided)
    numbers = sorted(done)
    if numbers != list(range(len(numbers))):
        raise ValueError(f"the checkpoint {checkpoint} has no longer each batch from 0 on (see {RETAIN}): {numbers}")
    return [_batch(number, (checkpoint / "offsets" / str(number)).read_text()) for number in numbers]


def _batch(number: int, text: str) -> Batch:
    """Parses a record. Line 1 is a version, line 2 describes the batch, and each further line describes a source."""
    _, about, *sources = text.splitlines()
    told = json.loads(about)
    ends = {
        topic: {int(partition): offset for partition, offset in partitions.items()}
        for source in sources
        for topic, partitions in json.loads(source).items()
    }
    return Batch(number=number, watermark_ms=told["batchWatermarkMs"], timestamp_ms=told["batchTimestampMs"], ends=ends)
