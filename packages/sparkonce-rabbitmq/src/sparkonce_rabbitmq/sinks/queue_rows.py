"""Rows as AMQP 0-9-1 messages: the columns that they may have, and what the protocol does not allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkonce.checks import utf8_text
from sparkonce.errors import PrepareError, SchemaError
from sparkonce.write_ahead import WriteAheadWriter

if TYPE_CHECKING:
    import pyarrow as pa

VALUE, ROUTING_KEY, MESSAGE_ID, CONTENT_TYPE = "value", "routing_key", "message_id", "content_type"
_SHORT = (ROUTING_KEY, MESSAGE_ID, CONTENT_TYPE)
_SHORT_BYTES = 255
"""The maximum length of these strings in the protocol."""

MOST_BYTES = 128 * 2**20
"""The default maximum message size of RabbitMQ 3.8 to 3.13."""


def queue_columns(schema: pa.Schema) -> list[str]:
    """Returns the columns that make up a message.

    Raises:
        SchemaError: If a column is missing, unknown, or of the wrong type. The message names it.
    """
    import pyarrow as pa

    for column in schema:
        text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        binary = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
        if column.name not in (VALUE, *_SHORT):
            raise SchemaError(
                f"Column {column.name!r} is none of a message's: {VALUE}, {', '.join(_SHORT)}.",
                next_step="Drop it, or rename it.",
            )
        if not text and not (binary and column.name == VALUE):
            raise SchemaError(
                f"Column {column.name!r} is a {column.type}.",
                next_step="Turn it into a string" + (" or binary." if column.name == VALUE else "."),
            )
    if VALUE not in schema.names:
        raise SchemaError(f"Column {VALUE!r} is missing: the body of a message.", next_step="Give it.")
    return [name for name in (VALUE, *_SHORT) if name in schema.names]


def check_rows(rows: pa.RecordBatch) -> None:
    """Checks that each row can be published.

    Raises:
        PrepareError: If one cannot. The message names the column.
    """
    import pyarrow.compute as pc

    for name in rows.schema.names:
        column = rows.column(name)
        if name in (VALUE, ROUTING_KEY) and column.null_count:
            raise PrepareError(f"Column {name!r} is null in a row.", next_step="Give each row one, or drop it.")
        if name in _SHORT:
            utf8_text(column, name)
        most = MOST_BYTES if name == VALUE else _SHORT_BYTES
        longest = pc.max(pc.binary_length(column)).as_py() or 0
        if longest > most:
            raise PrepareError(
                f"Column {name!r} has {longest:,} bytes in a row, and RabbitMQ takes {most:,}.",
                next_step="Make it shorter, or drop the row.",
            )


class QueueRowsWriter(WriteAheadWriter):
    """Writes one task attempt's rows, after checking that each can be published: later, nothing may refuse them."""

    def write(self, rows: pa.RecordBatch) -> None:
        """See `SinkWriter.write`."""
        check_rows(rows)
        super().write(rows)
