"""Determines which rows belong to which window, without Spark's engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from sparkonce_lab.kafka import Record
from tryout.checkpoint import Batch

NEVER_READ = -1


@dataclass(slots=True)
class Windows:
    """Rows by the start of their window, in milliseconds since the epoch.

    Attributes:
        closed: The windows that the watermark has passed, and which were therefore emitted.
        closed_by: The batch that emitted each of these windows.
        open: The windows that the watermark has not passed.
        late: The rows that arrived after their window was emitted.
        unread: The rows that no batch has read yet.
    """

    closed: dict[int, list[Record]] = field(default_factory=dict)
    closed_by: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[Record]] = field(default_factory=lambda: defaultdict(list))
    late: list[Record] = field(default_factory=list)
    unread: list[Record] = field(default_factory=list)


def into_windows(
    topic: str,
    records: Sequence[Record],
    batches: Sequence[Batch],
    *,
    time_ms: Callable[[Record, Batch], int],
    size_ms: int,
) -> Windows:
    """Assigns each row to its window, given the offsets and watermarks of the batches.

    A batch drops rows whose window was closed by the previous batch, and closes the windows that its own watermark has
    passed (Spark's Structured Streaming guide, "Handling Late Data and Watermarking").

    Args:
        topic: The source topic.
        records: All records of the topic.
        batches: All finished batches, from the first one on.
        time_ms: Returns the time of a row, which may depend on the batch that reads it.
        size_ms: The length of a window, in milliseconds.
    """
    found = Windows()
    for record in records:
        number = reader(topic, record, batches)
        if number == NEVER_READ:
            found.unread.append(record)
            continue
        start = time_ms(record, batches[number]) // size_ms * size_ms
        closed_before = batches[number - 1].watermark_ms if number else 0
        if start + size_ms <= closed_before:
            found.late.append(record)
        else:
            found.open[start].append(record)
    for batch in batches:
        for start in [each for each in found.open if each + size_ms <= batch.watermark_ms]:
            found.closed[start] = found.open.pop(start)
            found.closed_by[start] = batch.number
    return found


def milliseconds(interval: str) -> int:
    """Converts an interval that Spark and pandas both accept, such as ``20 seconds``, to milliseconds."""
    return pd.Timedelta(interval) // pd.Timedelta(milliseconds=1)


def reader(topic: str, record: Record, batches: Sequence[Batch]) -> int:
    """Returns the index in ``batches`` of the first batch that has read the record."""
    return next(
        (
            number
            for number, batch in enumerate(batches)
            if record.offset < batch.ends.get(topic, {}).get(record.partition, 0)
        ),
        NEVER_READ,
    )
