"""The interface of a sample, and its expected outcome."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sparkonce_lab.kafka import Record
from tryout.checkpoint import Batch

CLOSING = b"closing"
"""The key of records that only advance the time, so that the windows of all other records close."""


class Message(NamedTuple):
    """One record to send. ``timestamp_ms`` is in milliseconds since the epoch; 0 stands for the time of sending."""

    topic: str
    partition: int
    value: bytes
    key: bytes | None = None
    timestamp_ms: int = 0


class Row(NamedTuple):
    """One record of the output topic, as text."""

    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The expected output, given the batches that are finished.

    Attributes:
        rows: The output records, each with the batch that must have written it.
        unread: The number of source records, without closing ones, that no batch has read yet.
        waiting: The number of source records that were read but not written yet.
        late: The number of source records that arrived too late, and will never be written.
    """

    rows: Mapping[Row, int]
    unread: int
    waiting: int
    late: int = 0


class Sample(Protocol):
    """Rows for one example.

    Attributes:
        sources: The source topics, with the number of partitions of each.
        target: The output topic.
        options: Options of the example with which the test takes less than a minute.
        registry: True if the example needs a Schema Registry.
    """

    sources: Mapping[str, int]
    target: str
    options: Sequence[str]
    registry: bool

    def messages(self, registry: str | None) -> Iterator[Message]:
        """Yields the whole sample. ``registry`` is the registry's URL."""

    def closing(self, registry: str | None) -> Iterator[Message]:
        """Yields closing messages, which are sent repeatedly after the whole sample was read."""

    def outcome(self, sources: Mapping[str, Sequence[Record]], batches: Sequence[Batch]) -> Outcome:
        """Returns the expected output.

        Args:
            sources: The records of each source topic.
            batches: The finished batches.
        """


def of_sample(records: Iterable[Record]) -> int:
    """Counts the records that are not closing ones."""
    return sum(record.key != CLOSING for record in records)


def started_ms(size_ms: int) -> int:
    """Returns the time at which the sample begins: a quarter of an hour ago, at the start of a window.

    A much earlier time would make the broker delete the records. A later one would make it reject the closing records.
    """
    return (time.time_ns() // 1_000_000 - 15 * 60 * 1000) // size_ms * size_ms


def text_of(time_ms: int) -> str:
    """Formats a window's start in the same way as the examples."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time_ms / 1000))


def iso_of(time_ms: int) -> str:
    """Formats a time for JSON."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_ms // 1000)) + f".{time_ms % 1000:03d}Z"
