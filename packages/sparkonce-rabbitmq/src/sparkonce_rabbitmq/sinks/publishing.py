"""Publishes the rows of a decided batch to the stream, in order, each once.

The stream's leader remembers the highest publishing id of each publisher, and drops a message whose id is not higher. A
row is therefore in the stream once, no matter how often it is published, provided that **ids are accepted without
gaps**. There are no gaps because each process that publishes a group of rows first queries the highest id, continues
directly after it, and sends one frame at a time. Concurrent processes leave no gaps either: each process sends a row
only after the leader has confirmed all previous rows to it, no matter which process published them.

All processes compute the same ids. An id consists of the batch's number plus one, the number of the group of slots that
were committed together, and the row's position in that group, so ids increase in publishing order.

The leader may report an id whose row is not replicated yet. That row is therefore published again: the server confirms
a duplicate, which it drops, only once the original message is safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from sparkonce.write_ahead import (
    Application,
    ApplyToken,
    CallSettings,
    RefusedError,
    RetryLaterError,
    Unit,
    WriteAheadFolder,
    read,
)
from sparkonce_rabbitmq.sinks.connection import FINAL, PublisherConnection, StreamRefusedError, connect_to
from sparkonce_rabbitmq.sinks.messages import FRAME_OVERHEAD_BYTES, MESSAGE, frames
from sparkonce_rabbitmq.sinks.routing import by_stream, total

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce_rabbitmq.server import RabbitMQ


_GROUP_BITS, _ROW_BITS = 5, 28
MOST_ROWS = 1 << _ROW_BITS
"""The maximum number of rows in a batch."""

_MOST_GROUPS = 1 << _GROUP_BITS
_MOST_BATCHES = (1 << (63 - _GROUP_BITS - _ROW_BITS)) - 1


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of the rows of one group, without a gap."""

    first: int
    last: int

    @classmethod
    def of(cls, batch: int, group: int, rows: int) -> Ids:
        """Returns the ids of a group's rows; raises OverflowError if there are too many batches, groups or rows."""
        if not (0 <= batch < _MOST_BATCHES and 0 <= group < _MOST_GROUPS and 0 < rows <= MOST_ROWS):
            raise OverflowError(
                f"Batch {batch} with {rows} rows in group {group} has no publishing ids: they allow for "
                f"{_MOST_BATCHES} batches, {_MOST_GROUPS} groups of each and {MOST_ROWS} rows of each."
            )
        first = (((batch + 1) << _GROUP_BITS) | group) << _ROW_BITS
        return cls(first, first + rows - 1)


def batch_of(sequence: int) -> int:
    """Returns the batch of an id; -1 for 0, which is not an id."""
    return (sequence >> (_GROUP_BITS + _ROW_BITS)) - 1


_Answer = TypeVar("_Answer")

OTHERS_WITHIN_S = 10.0
"""How long another driver may take to record that it has published the same rows, in seconds."""

_CHECK_AGAIN_S = 0.2


class Publisher:
    """A publisher of one stream. Connects at first use, and reconnects after an error.

    If its name is empty, the server never treats messages as duplicates. `newest` is the highest id that this publisher
    is known to have published; None if unknown.
    """

    def __init__(self, settings: RabbitMQ, stream: str, name: str) -> None:
        self._settings = settings
        self._stream = stream
        self._name = name
        self._connection: PublisherConnection | None = None
        self._lock = threading.RLock()
        self.newest: int | None = None

    def sequence(self) -> int:
        """Returns the highest id of this publisher that the stream's leader has; 0 if it has none."""
        with self._lock:
            if self._connection is not None:
                try:
                    return self._with(lambda connection: connection.sequence(self._stream, self._name))
                except OSError:  # The connection was idle, and the server or something in between has closed it.
                    pass
            return self._with(lambda connection: connection.sequence(self._stream, self._name))

    def publish(self, rows: Iterable[pa.RecordBatch], first_id: int, skip: int = 0) -> None:
        """Publishes rows, except for the first ``skip`` rows. Returns once all of them are confirmed."""
        with self._lock:
            at = 0
            for batch in rows:
                new = batch.column(MESSAGE).slice(max(0, skip - at))
                start = first_id + at + batch.num_rows - len(new)
                at += batch.num_rows
                self._with(partial(self._send, messages=new, first_id=start))

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _send(self, connection: PublisherConnection, messages: pa.Array, first_id: int) -> None:
        for frame in frames(messages, first_id, connection.frame_max - FRAME_OVERHEAD_BYTES):
            connection.publish(frame)
            self.newest = max(self.newest or 0, frame.first_id + frame.count - 1)

    def _with(self, use: Callable[[PublisherConnection], _Answer]) -> _Answer:
        try:
            if self._connection is None:
                self._connection = connect_to(PublisherConnection, self._settings, self._stream, leader=True)
                self._connection.declare(self._stream, self._name)
            return use(self._connection)
        except BaseException:
            self.close()
            raise


@dataclass(slots=True)
class _Share:
    """The rows of a group that go to one stream."""

    publisher: Publisher
    first_id: int
    skip: int
    at: int = 0

    def publish(self, rows: pa.RecordBatch) -> None:
        self.publisher.publish([rows], self.first_id + self.at, max(0, self.skip - self.at))
        self.at += rows.num_rows


class StreamApplication(Application):
    """Publishes the rows of decided batches. See `StreamCommitter` for the arguments."""

    def __init__(
        self,
        folder: WriteAheadFolder,
        sink: str,
        settings: CallSettings,
        stream: str,
        publisher_of: Callable[[str, str], Publisher],
    ) -> None:
        super().__init__(folder, sink, settings)
        self._stream, self._publisher_of = stream, publisher_of
        self._begun: set[str] = set()
        self._ahead_since: dict[str, float] = {}

    def deliver(self, unit: Unit, token: ApplyToken, opened: Sequence[BinaryIO]) -> None:
        """Publishes the rows that the streams do not have yet.

        Raises:
            RefusedError: If a stream has lost rows of this query, or has rows that another copy of the query has
                published.
        """
        begun = unit.repeated or token.id in self._begun
        counts = total(entry.parts for entry in unit.entries) or {self._stream: token.rows}
        shares: dict[str, _Share] = {}
        try:
            for stream, rows in counts.items():
                if rows == 0:
                    continue
                ids, publisher = Ids.of(token.batch, unit.number, rows), self._publisher_of(token.query, stream)
                there = publisher.sequence()
                if reason := why_behind(publisher.newest, there):
                    raise RefusedError(reason)
                if not begun and there >= ids.first:
                    self._wait_for_others(token, there)
                shares[stream] = _Share(publisher, ids.first, min(max(there - ids.first, 0), rows - 1))
            self._begun.add(token.id)
            for batch in read(opened, []):
                for stream, part in by_stream(batch, tuple(counts)):
                    if part.num_rows:
                        shares[stream].publish(part)
        except OverflowError as error:
            raise RefusedError(str(error)) from error
        except StreamRefusedError as error:
            if error.code in FINAL:
                raise RefusedError(str(error)) from error
            raise
        self._begun.discard(token.id)

    def _wait_for_others(self, token: ApplyToken, there: int) -> None:
        """Raises an error: another process has published under these ids. If a driver has, a retry finds its record."""
        since = self._ahead_since.setdefault(token.id, time.monotonic())
        if time.monotonic() - since >= OTHERS_WITHIN_S:
            raise RefusedError(ahead(there))
        raise RetryLaterError(ahead(there), after_s=_CHECK_AGAIN_S)


def why_behind(known: int | None, there: int) -> str:
    """Returns why nothing may be published to a stream that has lost rows; empty if it has not.

    ``known`` is the highest id that the publisher is known to have published; ``there`` is its highest id in the
    stream.
    """
    if known is None or there >= known:
        return ""
    return (
        f"The stream has rows up to batch {batch_of(there)} of this query, and batch {batch_of(known)} was published "
        "there: the stream was deleted and recreated, or returned to an older state, or its list of publishers' names "
        "is full (255)."
    )


def ahead(there: int) -> str:
    """Returns the message that a stream has rows of which this checkpoint has no record."""
    return (
        f"The stream has rows of batch {batch_of(there)} of this query that this checkpoint does not know: it is an "
        "old copy, or another driver of the query is ahead."
    )
