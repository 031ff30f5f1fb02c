"""The executor side: rows are encoded where they are computed, and staged as messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkonce.write_ahead import Apply, WriteAheadFolder, WriteAheadWriter
from sparkonce_rabbitmq.sinks.messages import Body, encode
from sparkonce_rabbitmq.sinks.routing import ROUTE, RowsByStream, routes

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import WriterContext


class MessageWriter(WriteAheadWriter):
    """Writes one task attempt's rows as messages.

    Args:
        folder: The sink's folder.
        prefix: The sink's name, as it appears in the names of its files.
        context: The task attempt.
        body: The format of a message's body.
        most_bytes: The maximum size of a message.
        route_by: The column with the key that determines a row's partition; empty for a single stream.
        partitions: The streams of the super stream.
        apply_now: See `WriteAheadWriter`.
    """

    def __init__(
        self,
        folder: WriteAheadFolder,
        prefix: str,
        context: WriterContext,
        *,
        body: Body,
        most_bytes: int,
        route_by: str = "",
        partitions: Sequence[str] = (),
        apply_now: Apply | None = None,
    ) -> None:
        super().__init__(folder, prefix, context, apply_now)
        self._body = body
        self._most_bytes = most_bytes
        self._route_by = route_by
        self._partitions = partitions
        self._counts = RowsByStream(partitions)

    def write(self, rows: pa.RecordBatch) -> None:
        """See `SinkWriter.write`."""
        messages = encode(rows, self._body, self._most_bytes)
        if self._route_by:
            numbers = routes(rows.column(self._route_by), len(self._partitions))
            messages = messages.from_arrays([*messages.columns, numbers], [*messages.schema.names, ROUTE])
            self._counts.add(numbers)
        super().write(messages)

    def parts(self) -> str:
        """See `WriteAheadWriter.parts`."""
        return self._counts.text() if self._route_by else ""
