"""Sends one sample to one broker, reads the output, and judges it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from sparkonce_lab.kafka import create_topic, produce, read_committed
from tryout.checkpoint import read_batches
from tryout.sample import Message, Outcome, Row, Sample

LIMIT_S = 120.0
"""The time limit of each request to the broker, in seconds. It is long enough for busy machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The rows that a read_committed reader sees, compared with the expected ones.

    Attributes:
        unread: See `Outcome`.
        waiting: See `Outcome`.
        late: See `Outcome`.
        expected: The number of expected rows.
        seen: The number of rows in the output.
        missing: The number of expected rows that are missing.
        doubled: The number of repeated rows, counting every repetition.
        strange: The number of rows that are not expected.
    """

    unread: int
    waiting: int
    late: int
    expected: int
    seen: int
    missing: int
    doubled: int
    strange: int

    @property
    def is_done(self) -> bool:
        """True if the whole sample was written exactly once."""
        return self.unread == self.waiting == self.missing == self.doubled == self.strange == 0 < self.expected


class Trial:
    """Sends a sample, and counts the resulting rows.

    Args:
        sample: The sample.
        bootstrap: The broker.
        checkpoint: The example's checkpoint.
        registry: The schema registry's URL, if the sample needs one.
    """

    def __init__(self, sample: Sample, *, bootstrap: str, checkpoint: Path, registry: str | None) -> None:
        self.sample = sample
        self._bootstrap = bootstrap
        self._checkpoint = checkpoint
        self._registry = registry

    def make_topics(self) -> None:
        """Creates the source topics, and the output topic with as many partitions."""
        for topic, partitions in self.sample.sources.items():
            create_topic(self._bootstrap, topic, partitions)
        create_topic(self._bootstrap, self.sample.target, max(self.sample.sources.values()))

    def messages(self) -> list[Message]:
        """Returns all messages of the sample."""
        return list(self.sample.messages(self._registry))

    def send(self, messages: Iterable[Message]) -> None:
        """Sends messages to their topics, in order."""
        for topic, some in groupby(sorted(messages, key=lambda one: one.topic), key=lambda one: one.topic):
            produce(
                self._bootstrap,
                topic,
                (
                    {"partition": one.partition, "value": one.value, "key": one.key, "timestamp": one.timestamp_ms}
                    for one in some
                ),
                timeout_s=LIMIT_S,
            )

    def close(self) -> None:
        """Advances the time, so that rows that were read can be emitted."""
        self.send(self.sample.closing(self._registry))

    def has_begun(self) -> bool:
        """Returns True if the job has finished a batch."""
        return bool(read_batches(self._checkpoint))

    def outcome(self, decided: int = -1) -> Outcome:
        """Returns the expected output, given the current source topics and checkpoint.

        Args:
            decided: See `read_batches`.
        """
        batches = read_batches(self._checkpoint, decided)
        sources = {topic: read_committed(self._bootstrap, topic, timeout_s=LIMIT_S) for topic in self.sample.sources}
        return self.sample.outcome(sources, batches)

    def count(self) -> Count:
        """Compares the output with the expected one. While the job is running, the output may be ahead."""
        outcome = self.outcome()
        records = read_committed(self._bootstrap, self.sample.target, timeout_s=LIMIT_S)
        seen = Counter(Row((one.key or b"").decode(), (one.value or b"").decode()) for one in records)
        expected = Counter(outcome.rows.keys())
        more = seen - expected
        return Count(
            unread=outcome.unread,
            waiting=outcome.waiting,
            late=outcome.late,
            expected=expected.total(),
            seen=seen.total(),
            missing=(expected - seen).total(),
            doubled=sum(count for row, count in more.items() if row in expected),
            strange=sum(count for row, count in more.items() if row not in expected),
        )
