"""Reads a batch's end offsets in Kafka from the entries of its sources in Spark's offset log."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

Offsets = Mapping[str, Mapping[int, int]]
"""The offset of the next record to read, by topic and partition."""


def kafka_offsets(sources: Sequence[str], topics: Collection[str] | None = None) -> Offsets:
    """Returns the offsets up to which a batch has read Kafka's topics.

    Spark writes one JSON text for each source. A Kafka source's is ``{"topic": {"0": 17}}``, and no other source of
    Spark, Delta or Iceberg has that form. If two sources read one partition, the lower offset counts, because a row
    that only one of them has read is still to be read.

    Args:
        sources: See `sparkonce.checkpoint.SparkCheckpoint.input_offsets`.
        topics: Only these; None for all.
    """
    found: dict[str, dict[int, int]] = {}
    for source in sources:
        for topic, partitions in _of_kafka(source).items():
            if topics is None or topic in topics:
                known = found.setdefault(topic, {})
                for partition, offset in partitions.items():
                    known[partition] = min(offset, known.get(partition, offset))
    return found


def _of_kafka(source: str) -> Offsets:
    try:
        said = json.loads(source)
        if not isinstance(said, dict) or not all(isinstance(one, dict) for one in said.values()):
            return {}
        return {
            topic: {int(partition): _offset(offset) for partition, offset in partitions.items()}
            for topic, partitions in said.items()
        }
    except ValueError:
        return {}


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value
