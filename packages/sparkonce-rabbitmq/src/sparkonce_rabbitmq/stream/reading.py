"""Reads a part of a stream, either completely or with an error. Never skips messages silently."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from rstream.constants import OffsetType

from sparkonce.errors import OutageError, PrepareError, SparkonceError
from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.sinks.connection import OUTAGES, connect_to
from sparkonce_rabbitmq.stream.chunks import StreamChunk, columns_of, next_offset
from sparkonce_rabbitmq.stream.connection import ConsumerConnection
from sparkonce_rabbitmq.stream.positions import StreamRange, another

logger = logging.getLogger("sparkonce")

AHEAD_CHUNKS = 8
"""The number of chunks that the server may send before they are requested."""

ROWS_AT_ONCE = 20_000
BYTES_AT_ONCE = 8 << 20
"""Rows are passed to Spark once there are this many bytes."""

AGAIN_S = 0.2


class RangeReader:
    """Reads one part of a stream, reconnecting as needed. Messages may be missing below the offset ``accepted``."""

    def __init__(self, server: RabbitMQ, part: StreamRange, *, patience_s: float, accepted: int = 0) -> None:
        self._server, self._part = server, part
        self._patience_s, self._accepted = patience_s, accepted
        self._next = part.start
        self._hole: tuple[int, int] | None = None
        self._heard_at = time.monotonic()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows in offset order, in chunks of limited size.

        Raises:
            PrepareError: If messages are gone.
            StaleServerError: If the stream is not the one that the positions refer to.
            OutageError: If the server is unreachable for too long.
        """
        kept: list[pa.RecordBatch] = []
        rows = size = 0
        for piece in self._pieces():
            kept.append(piece)
            rows, size = rows + len(piece), size + piece.nbytes
            if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                yield _together(kept)
                kept, rows, size = [], 0, 0
        if kept:
            yield _together(kept)

    def _pieces(self) -> Iterator[pa.RecordBatch]:
        connection: ConsumerConnection | None = None
        try:
            while self._next < self._part.end:
                try:
                    connection = connection or self._subscribed()
                    for chunk in iter(connection.next_chunk, None):
                        self._heard_at = time.monotonic()
                        piece = self._piece(chunk)
                        if piece is not None:
                            yield piece
                            self._heard_at = time.monotonic()  # Spark's processing time is not the server's silence.
                        if self._next >= self._part.end:
                            break
                        connection.credit(1)
                except OUTAGES as error:
                    _close(connection)
                    connection = None
                    self._wait(error)
            self._check_hole()
        finally:
            _close(connection)

    def _subscribed(self) -> ConsumerConnection:
        """Returns a connection that sends chunks starting at the previous message, to check that it exists."""
        connection = connect_to(ConsumerConnection, self._server, self._part.stream)
        is_begun = self._next > self._part.start or self._part.before is not None
        connection.subscribe(
            self._part.stream, OffsetType.OFFSET, self._next - 1 if is_begun else self._next, credit=AHEAD_CHUNKS
        )
        return connection

    def _piece(self, chunk: StreamChunk) -> pa.RecordBatch | None:
        """Returns the rows of a chunk that belong to the part and have not been read; None if there are none."""
        part, first, end = self._part, chunk.chunk_first_offset, next_offset(chunk)
        found = (first, chunk.timestamp)
        if part.before is not None and first < part.start <= end and found != part.before:
            raise another(part.stream, part.start, f"its chunk at {first} has a different timestamp")
        if first < part.end <= end and found != part.last:
            raise another(part.stream, part.end, f"its chunk at {first} has a different timestamp")
        if first > self._next:
            self._note_hole(first)
        if end <= self._next:
            return None
        skipped = max(0, self._next - first)
        rows = pa.RecordBatch.from_pydict(columns_of(chunk, part.stream))
        rows = rows.slice(skipped, max(0, min(end, part.end) - first - skipped))
        self._next = end
        return rows if len(rows) else None

    def _note_hole(self, first: int) -> None:
        """Records the first gap between chunks: it contains the server's own entries, or messages were deleted."""
        if first <= self._accepted:
            logger.warning(
                "Messages %d to %d of the stream %r are gone, which accept_lost allows.",
                *(self._next, first - 1, self._part.stream),
            )
        elif self._hole is None:
            self._hole = (self._next, first)
            if self._next == self._part.start:
                self._check_hole()

    def _check_hole(self) -> None:
        """Checks that no messages were deleted: a gap after the current beginning of the stream never had any.

        Stored offsets and publishers' sequences take up an offset each, and readers do not see them.
        """
        if self._hole is None:
            return
        wanted, there = self._hole
        begin = self._first_offset()
        if begin is not None and begin < wanted:
            self._hole = None
            return
        part = self._part
        now = "it is empty" if begin is None else f"its first message is {begin}"
        raise PrepareError(
            f"The stream {part.stream!r} has no messages {wanted} to {there - 1}, and {now}: retention deleted them "
            "before this query has read them.",
            next_step=f"Give accept_lost={{{part.stream!r}: {there}}} to go on without them, and the stream a longer "
            "retention (max-age, max-length-bytes).",
            stream=part.stream,
            wanted=wanted,
            there=there,
        )

    def _first_offset(self) -> int | None:
        while True:
            try:
                with closing(connect_to(ConsumerConnection, self._server, self._part.stream)) as connection:
                    first = connection.first_chunk(self._part.stream, OffsetType.FIRST)
                return None if first is None else first.chunk_first_offset
            except OUTAGES as error:  # noqa: PERF203 - each attempt may fail
                self._wait(error)

    def _wait(self, error: Exception) -> None:
        """Waits before the next attempt; raises OutageError if nothing has arrived for too long."""
        if time.monotonic() - self._heard_at >= self._patience_s:
            raise away(self._part.stream, error, self._patience_s) from None
        logger.warning("The stream %r is read again from offset %d on: %s", self._part.stream, self._next, error)
        time.sleep(AGAIN_S)


def away(stream: str, error: Exception, waited_s: float) -> OutageError:
    """Returns the error for a server that has sent nothing for too long."""
    said = error.message if isinstance(error, SparkonceError) else f"{type(error).__name__}: {error}"
    return OutageError(
        f"The stream {stream!r} could not be read for {waited_s:.0f} s: {said.rstrip('.')}.",
        next_step="Check that RabbitMQ runs and that this host can reach it.",
    )


def _together(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]


def _close(connection: ConsumerConnection | None) -> None:
    if connection is not None:
        connection.close()
