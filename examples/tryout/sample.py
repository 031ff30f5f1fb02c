"""What a sample is, and what must come of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sparkonce_lab.kafka import Record
from tryout.checkpoint import Batch

CLOSING = b"closing"
"""The key of records that only move the time on, so that the windows of all others close."""


class Message(NamedTuple):
    """One record to send. ``timestamp_ms`` is in milliseconds since the epoch, 0 for the time of sending."""

    topic: str
    partition: int
    value: bytes
    key: bytes | None = None
    timestamp_ms: int = 0


class Row(NamedTuple):
    """One record of the target, as text."""

    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What must have come out, once the batches that are done are done.

    Attributes:
        rows: The target's records, each with the batch that must have written it.
        unread: Source records, without the closing ones, that no batch has read yet.
        waiting: Those that have been read and have not come out yet.
        late: Source records that came too late, and never will.
    """

    rows: Mapping[Row, int]
    unread: int
    waiting: int
    late: int = 0


class Sample(Protocol):
    """Rows for one example.

    Attributes:
        sources: Its topics, and how many partitions each has.
        target: The topic that it writes.
        options: Of the example's, for a try that is to take less than a minute.
        registry: Whether it needs a schema registry.
    """

    sources: Mapping[str, int]
    target: str
    options: Sequence[str]
    registry: bool

    def messages(self, registry: str | None) -> Iterator[Message]:
        """All of the sample. ``registry`` is the registry's URL."""

    def closing(self, registry: str | None) -> Iterator[Message]:
        """What is sent, again and again, when all of the sample has been read."""

    def outcome(self, sources: Mapping[str, Sequence[Record]], batches: Sequence[Batch]) -> Outcome:
        """What must have come out.

        Args:
            sources: The records of each source topic.
            batches: Those that are done.
        """


def of_sample(records: Iterable[Record]) -> int:
    """How many of them are not closing ones."""
    return sum(record.key != CLOSING for record in records)


def started_ms(size_ms: int) -> int:
    """Where the sample's time begins: a quarter of an hour ago, at the start of a window.

    Not much earlier, or the broker deletes the records, nor later, or it does not take the closing ones.
    """
    return (time.time_ns() // 1_000_000 - 15 * 60 * 1000) // size_ms * size_ms


def text_of(time_ms: int) -> str:
    """A window's start as the examples write it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time_ms / 1000))


def iso_of(time_ms: int) -> str:
    """An instant in JSON."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_ms // 1000)) + f".{time_ms % 1000:03d}Z"
