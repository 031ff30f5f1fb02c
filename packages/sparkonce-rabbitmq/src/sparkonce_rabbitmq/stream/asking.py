"""The driver's side of the source: queries where the streams of a server begin and end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime
from typing import TypeVar

from rstream.constants import OffsetType

from sparkonce.errors import PreflightError
from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.sinks.connection import OUTAGES, connect_to
from sparkonce_rabbitmq.stream.chunks import StreamChunk, next_offset
from sparkonce_rabbitmq.stream.connection import ConsumerConnection
from sparkonce_rabbitmq.stream.positions import Position, Positions, another, beginning, behind, shares
from sparkonce_rabbitmq.stream.reading import AGAIN_S, away

logger = logging.getLogger("sparkonce")

Answer = TypeVar("Answer")

_SURE_AFTER_S = 10.0


class StreamAsker:
    """Queries streams, over one connection per stream."""

    def __init__(self, server: RabbitMQ, *, patience_s: float) -> None:
        self._server, self.patience_s = server, patience_s
        self._open: dict[str, ConsumerConnection] = {}

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def partitions(self, super_stream: str) -> tuple[str, ...]:
        def ask() -> tuple[str, ...]:
            with closing(ConsumerConnection(self._server)) as connection:
                return tuple(connection.partitions_of(super_stream))

        return self._patiently(super_stream, ask)

    def check(self, stream: str) -> None:
        """Checks once that a stream exists and may be read."""
        self._connection(stream).first_chunk(stream, OffsetType.FIRST)

    def begin(self, stream: str, starting: str | datetime | int) -> Position:
        """Returns the position at which a query starts."""
        if starting == "latest":
            last = self._chunk(stream, OffsetType.LAST)
            return beginning(0 if last is None else next_offset(last))
        if isinstance(starting, datetime):
            return self._begin_at(stream, int(starting.timestamp() * 1000))
        first = self._chunk(stream, OffsetType.FIRST)
        begin = 0 if first is None else first.chunk_first_offset
        if not isinstance(starting, int):
            return beginning(begin)
        last = self._chunk(stream, OffsetType.LAST)
        end = 0 if last is None else next_offset(last)
        if not begin <= starting <= end:
            raise PreflightError(
                f"starting={starting}: the stream {stream!r} has messages {begin} to {end - 1}.",
                next_step="Give an offset that it has, or 'earliest'.",
                setting="starting",
            )
        return beginning(starting)

    def _begin_at(self, stream: str, milliseconds: int) -> Position:
        """Returns the position of the first chunk that is not older than a time."""
        chunk = self._chunk(stream, OffsetType.TIMESTAMP, milliseconds)
        if chunk is None or chunk.timestamp < milliseconds:  # The server starts with the previous chunk.
            last = self._chunk(stream, OffsetType.LAST)
            if chunk is None or last is None or last.timestamp < milliseconds:
                return beginning(0 if last is None else next_offset(last))
            return beginning(next_offset(chunk))
        return beginning(chunk.chunk_first_offset)

    def ends(self, streams: tuple[str, ...]) -> Positions:
        """Returns the end of each stream; an empty position for a stream without messages."""
        found: Positions = {}
        for stream in streams:
            last = self._chunk(stream, OffsetType.LAST)
            found[stream] = {} if last is None else {"offset": next_offset(last), **_chunk(last)}
        return found

    def next_position(self, start: Positions, ends: Positions, most: int | None) -> Positions:
        """Returns the position up to which the next batch reads: at most ``most`` messages over all streams.

        Raises:
            StaleServerError: If a stream ends before its start.
        """
        available: dict[str, int] = {}
        for stream, end in ends.items():
            known = start[stream]["offset"]
            if end and end["offset"] < known:
                self._confirm(stream, known)
            elif end and end["offset"] > known:
                available[stream] = end["offset"] - known
        taken = shares(available, most)
        return start | {
            stream: behind(ends[stream]["offset"], (ends[stream]["chunk"], ends[stream]["at"]), start[stream])
            if count == available[stream]
            else self._within(stream, start[stream], count)
            for stream, count in taken.items()
        }

    def compare(self, positions: Positions) -> None:
        """Checks that each stream still reaches a position; raises StaleServerError if one does not."""
        for stream, position in positions.items():
            self._confirm(stream, position["offset"])

    def _confirm(self, stream: str, known: int) -> None:
        """Raises StaleServerError if a stream remains shorter than what was read from it.

        Checks several times, because a new leader may not know yet that all of its messages are committed.
        """
        give_up_at = time.monotonic() + min(_SURE_AFTER_S, self.patience_s)
        while True:
            last = self._chunk(stream, OffsetType.LAST)
            if last is None or next_offset(last) >= known:  # Retention may have deleted everything in an empty stream.
                return
            self._drop(stream)
            if time.monotonic() >= give_up_at:
                raise another(stream, known, f"it ends at offset {next_offset(last)}")
            time.sleep(AGAIN_S)

    def _within(self, stream: str, start: Position, count: int) -> Position:
        """Returns the position ``count`` offsets after another one; after the next message if that offset has none."""
        offset = start["offset"] + count
        chunk = self._chunk(stream, OffsetType.OFFSET, offset - 1)
        if chunk is None:
            return start
        found = _chunk(chunk)
        return behind(max(offset, chunk.chunk_first_offset + 1), (found["chunk"], found["at"]), start)

    def store(self, position: Positions, name: str) -> None:
        """Stores each stream's last offset under a name. A failure is logged as a warning."""
        for stream, one in position.items():
            if "chunk" not in one:
                continue
            try:
                self._connection(stream).store_offset(stream, name, one["offset"] - 1)
            except (*OUTAGES, PreflightError) as error:
                logger.warning("The offset of the stream %r could not be stored as %r: %s", stream, name, error)

    def _chunk(self, stream: str, kind: OffsetType, offset: int | None = None) -> StreamChunk | None:
        return self._patiently(stream, lambda: self._connection(stream).first_chunk(stream, kind, offset))

    def _connection(self, stream: str) -> ConsumerConnection:
        if stream not in self._open:
            self._open[stream] = connect_to(ConsumerConnection, self._server, stream, leader=True)
        return self._open[stream]

    def _patiently(self, stream: str, ask: Callable[[], Answer]) -> Answer:
        give_up_at = time.monotonic() + self.patience_s
        while True:
            try:
                return ask()
            except OUTAGES as error:  # noqa: PERF203 - each attempt may fail
                self._drop(stream)
                if time.monotonic() >= give_up_at:
                    raise away(stream, error, self.patience_s) from None
                logger.warning("The stream %r is queried again: %s", stream, error)
                time.sleep(AGAIN_S)

    def _drop(self, stream: str) -> None:
        with suppress(KeyError):
            self._open.pop(stream).close()


def _chunk(chunk: StreamChunk) -> dict[str, int]:
    return {"chunk": chunk.chunk_first_offset, "at": chunk.timestamp}
