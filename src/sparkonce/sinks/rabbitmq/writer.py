"""The executor half: rows are encoded where they are computed, and wait as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkonce.sinks.rabbitmq.messages import Body, encode
from sparkonce.sinks.write_ahead.apply import Apply
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.sinks.write_ahead.writer import WriteAheadWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import WriterContext


class MessageWriter(WriteAheadWriter):
    """Writes one copy's rows as messages.

    Args:
        folder: The sink's folder.
        prefix: The sink's name as the names of its files begin with it.
        context: The copy.
        body: The form of a message's body.
        most_bytes: The greatest size of a message.
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
        apply_now: Apply | None = None,
    ) -> None:
        super().__init__(folder, prefix, context, apply_now)
        self._body = body
        self._most_bytes = most_bytes

    def write(self, rows: pa.RecordBatch) -> None:
        """See `SinkWriter.write`."""
        super().write(encode(rows, self._body, self._most_bytes))
