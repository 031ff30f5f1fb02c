"""The sink for RabbitMQ queues: its settings, and the checks of its rows on the executors.

The sink is at-least-once. Messages have ids that readers can use to drop duplicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.arguments import nonempty
from sparkonce.checks import utf8_text
from sparkonce.errors import ConfigurationError, PrepareError, SchemaError
from sparkonce.sink import Facts, Guarantee, SinkWriter, WorkerNeeds, WriterContext, spark_type
from sparkonce.write_ahead import Applies, WriteAheadSink, WriteAheadWriter
from sparkonce_rabbitmq.server import PACKAGES, RabbitMQ, checked_server

VALUE, ROUTING_KEY, MESSAGE_ID, CONTENT_TYPE = "value", "routing_key", "message_id", "content_type"
_SHORT = (ROUTING_KEY, MESSAGE_ID, CONTENT_TYPE)

_SHORT_BYTES = 255
"""The maximum length of short strings in the protocol, such as routing keys."""

MOST_BYTES = 128 * 2**20
"""The default maximum message size of RabbitMQ 3.8 to 3.13."""


def queue_columns(schema: pa.Schema) -> list[str]:
    """Returns the columns that make up a message.

    Raises:
        SchemaError: If a column is missing, unknown, or of the wrong type. The message names it.
    """
    for column in schema:
        text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        binary = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
        if column.name not in (VALUE, *_SHORT):
            raise SchemaError(
                f"Column {column.name!r} is not a column of a message: {VALUE}, {', '.join(_SHORT)}.",
                next_step="Drop it, or rename it.",
            )
        if not text and not (binary and column.name == VALUE):
            raise SchemaError(
                f"Column {column.name!r} is {spark_type(column.type)}.",
                next_step="Turn it into a string" + (" or binary." if column.name == VALUE else "."),
            )
    if VALUE not in schema.names:
        raise SchemaError(f"Column {VALUE!r} is missing: the body of a message.", next_step="Give it.")
    return [name for name in (VALUE, *_SHORT) if name in schema.names]


def check_rows(rows: pa.RecordBatch) -> None:
    """Checks that each row can be published. The PrepareError for a row that cannot names the column."""
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
    """Writes one task attempt's rows, after checking that each can be published: nothing may reject them later."""

    def write(self, rows: pa.RecordBatch) -> None:
        check_rows(rows)
        super().write(rows)


class RabbitMQQueueSink(WriteAheadSink):
    """Publishes rows to an exchange or a queue of RabbitMQ, one persistent message per row, with publisher confirms.

    The rows wait in the checkpoint until the batch is decided. Then the driver publishes them. A queue does not know
    which messages it has already received. If a driver dies while it publishes, a slot's rows are published again, and
    readers get them **at least once**. Each message has an id that is the same in every retry, as ``message_id`` and in
    the header ``x-deduplication-header``. A reader that drops ids it has already seen gets each row once.

    Columns: ``value`` is the body, a string or binary. Optional columns are ``routing_key``, ``message_id`` and
    ``content_type``, all strings.

    Example:
        ```python
        from sparkonce import ExactlyOnce
        from sparkonce_rabbitmq import RabbitMQ, RabbitMQQueueSink

        sink = RabbitMQQueueSink(RabbitMQ(host="rabbit-1", user="shop", password=password), "orders")
        ExactlyOnce(sink, "/data/checkpoints/orders").start(orders)
        ```

    Args:
        server: The server, the user and the TLS settings.
        queue: The queue, to which rows are published through the default exchange.
        exchange: An exchange, instead of a queue. It must exist.
        routing_key: The routing key of rows that do not have the column ``routing_key``.
        parallel: The number of slots that are published in parallel, each over its own connection.
        wait_s: How long a commit waits for its rows to be published before the driver retries, in seconds.
        folder: The folder in which rows wait. Defaults to the query's checkpoint. See `WriteAheadSink`.
        guarantee: AT_MOST_ONCE and AT_LEAST_ONCE publish from the executors, before the batch is decided.
        name: A name that is unique within the query and stays the same after a restart.

    Raises:
        ConfigurationError: If a setting is wrong. The message names it.
    """

    def __init__(
        self,
        server: RabbitMQ,
        queue: str | None = None,
        *,
        exchange: str | None = None,
        routing_key: str = "",
        parallel: int = 4,
        wait_s: float = 60.0,
        folder: str | Path | None = None,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        name: str = "rabbitmq-queue",
    ) -> None:
        from sparkonce_rabbitmq.sinks.queue_publisher import QueuePublish

        if (queue is None) == (exchange is None):
            raise ConfigurationError(
                f"queue={queue!r} and exchange={exchange!r}: exactly one is needed.",
                next_step="Give one of them.",
                setting="queue",
            )
        if queue is not None and routing_key:
            raise ConfigurationError(
                f"routing_key={routing_key!r} has no effect with queue={queue!r}.",
                next_step="Give exchange= instead of queue=, or leave routing_key out.",
                setting="routing_key",
            )
        self.server = checked_server(server)
        self.exchange = "" if exchange is None else nonempty("exchange", exchange, example="an exchange's name")
        self.routing_key = routing_key if queue is None else nonempty("queue", queue, example="a queue's name")
        super().__init__(
            QueuePublish(server, self.exchange, self.routing_key),
            applies=Applies.NEITHER,
            parallel=parallel,
            wait_s=wait_s,
            folder=folder,
            guarantee=guarantee,
            name=name,
        )

    def __repr__(self) -> str:
        to = f"exchange={self.exchange!r}" if self.exchange else f"queue={self.routing_key!r}"
        return f"RabbitMQQueueSink({self.server.host!r}, {to}, name={self.name!r})"

    def conditions(self) -> Sequence[str]:
        """Returns the conditions that a reader and the queue must meet."""
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return ()
        return (
            "at least once: rows of a slot whose publishing was interrupted are published again; the log names the "
            "slot as 'applied again'",
            "each row once for a reader that drops messages whose x-deduplication-header it has seen, or behind the "
            "community deduplication plugin for as long as it remembers them",
            "the queue is durable, and no limit of length or age, nor a policy, drops messages that were confirmed",
        )

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        return queue_columns(schema)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        """Checks that the exchange or the queue exists, and that this user may log in."""
        from sparkonce_rabbitmq.sinks.queue_publisher import check_exchange

        check_exchange(self.server, self.exchange, self.routing_key)
        return super().preflight(query, recorded)

    def worker_needs(self) -> WorkerNeeds:
        """Returns what executors need, which do not connect to the server at EXACTLY_ONCE."""
        rows = replace(super().worker_needs(), packages=PACKAGES)
        if self.guarantee is Guarantee.EXACTLY_ONCE:
            return rows
        modules = (*rows.modules, "pika")
        return replace(rows, modules=modules, files=self.server.files, addresses=(self.server.amqp_address,))

    def writer(self, context: WriterContext) -> SinkWriter:
        apply_now = None if self.guarantee is Guarantee.EXACTLY_ONCE else self.apply
        return QueueRowsWriter(self.folder(), self._prefix, context, apply_now)
