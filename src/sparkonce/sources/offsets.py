"""Reads Spark's offset log: the Kafka offsets in a batch's entries, and the rows between two entries."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sparkonce.source import Source

Offsets = Mapping[str, Mapping[int, int]]
"""The offset of the next record to read, by topic and partition."""


def kafka_offsets(sources: Sequence[str], topics: Collection[str] | None = None) -> Offsets:
    """Returns the offsets up to which a batch has read Kafka topics.

    Spark writes one JSON text per source. The text of a Kafka source has the form ``{"topic": {"0": 17}}``, which no
    other source of Spark, Delta or Iceberg uses. If two sources read the same partition, the lower offset counts,
    because one of them still has to read the rows above it.

    Args:
        sources: See `sparkonce.storage.spark_checkpoint.SparkCheckpoint.input_offsets`.
        topics: The topics to include; None for all.
    """
    found: dict[str, dict[int, int]] = {}
    for source in sources:
        for topic, partitions in (_of_kafka(_parsed(source)) or {}).items():
            if topics is None or topic in topics:
                known = found.setdefault(topic, {})
                for partition, offset in partitions.items():
                    known[partition] = min(offset, known.get(partition, offset))
    return found


def rows_read(before: Sequence[str] | None, now: Sequence[str], others: Collection[Source] = ()) -> int | None:
    """Counts a batch's input rows by its offsets. Returns None if a source's offsets do not count rows.

    Args:
        before: The sources' offsets before the batch, one line per source; None for a query's first batch.
        now: The sources' offsets after the batch.
        others: The query's sources other than Kafka. They count their own offsets.
    """
    if before is None or len(before) != len(now):
        return None
    total = 0
    for first, last in zip(map(_parsed, before), map(_parsed, now), strict=True):
        found = (source.rows_between(first, last) for source in others)
        rows = next((one for one in found if one is not None), None)
        if rows is None and (rows := _kafka_rows(first, last)) is None:
            return None
        total += rows
    return total


def _kafka_rows(before: Any, now: Any) -> int | None:
    first, last = _of_kafka(before), _of_kafka(now)
    if first is None or last is None:
        return None
    return sum(
        offset - first.get(topic, {}).get(partition, 0)
        for topic, partitions in last.items()
        for partition, offset in partitions.items()
    )


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _of_kafka(said: Any) -> Offsets | None:
    """Returns a parsed offset of a Kafka source; None if it is not one."""
    if not isinstance(said, dict) or not all(isinstance(one, dict) for one in said.values()):
        return None
    try:
        return {
            topic: {int(partition): _offset(offset) for partition, offset in partitions.items()}
            for topic, partitions in said.items()
        }
    except ValueError:
        return None


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value
