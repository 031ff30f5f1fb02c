"""Publishes rows to an exchange with publisher confirms, many messages at a time.

The publisher uses pika's callback-based connection, because the blocking one waits for each confirm before the next
message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pika
import pyarrow as pa
from pika.exceptions import AMQPError, ChannelClosedByBroker

from sparkonce.errors import PreflightError
from sparkonce.write_ahead import ApplyToken, RefusedError
from sparkonce_rabbitmq.sinks.amqp import FAILED, NOT_FOUND, amqp_parameters, is_refused_login, said
from sparkonce_rabbitmq.sinks.queue_sink import CONTENT_TYPE, MESSAGE_ID, ROUTING_KEY, VALUE

if TYPE_CHECKING:
    from sparkonce_rabbitmq.server import RabbitMQ

DEDUPLICATION_HEADER = "x-deduplication-header"
"""The header that RabbitMQ's community plugin for deduplication uses to identify a message."""

_PERSISTENT = 2
_WINDOW = 1000
"""The maximum number of messages that are sent but unconfirmed."""

Message = tuple[str, bytes, pika.BasicProperties]
"""The routing key, the body and the properties of a message."""


@dataclass(frozen=True)
class QueuePublish:
    """Publishes the rows of one call: a function for `WriteAheadSink`."""

    server: RabbitMQ
    exchange: str
    routing_key: str

    def __call__(self, rows: pa.RecordBatchReader, token: ApplyToken) -> None:
        _Publishing(self.server, self.exchange, self.messages(rows, token)).run()

    def messages(self, rows: pa.RecordBatchReader, token: ApplyToken) -> Iterator[Message]:
        """Yields messages, each with an id that is the same in every retry."""
        number = 0
        for batch in rows:
            values = batch.column(VALUE).cast(pa.large_binary()).to_pylist()  # A string may contain any bytes.
            given = {name: batch.column(name).to_pylist() for name in batch.schema.names if name != VALUE}
            nothing = [None] * batch.num_rows
            keys = given.get(ROUTING_KEY) or [self.routing_key] * batch.num_rows
            ids, kinds = given.get(MESSAGE_ID, nothing), given.get(CONTENT_TYPE, nothing)
            for key, value, own, kind in zip(keys, values, ids, kinds, strict=True):
                made = f"{token.id}-{number}"
                yield (
                    key,
                    value,
                    pika.BasicProperties(
                        message_id=own or made,
                        content_type=kind,
                        delivery_mode=_PERSISTENT,
                        headers={DEDUPLICATION_HEADER: made},
                    ),
                )
                number += 1


class _Publishing:
    """A connection that publishes messages until each is confirmed."""

    def __init__(self, server: RabbitMQ, exchange: str, messages: Iterator[Message]) -> None:
        self._server, self._exchange, self._messages = server, exchange, messages
        self._sent = self._confirmed = 0
        self._tags: set[int] = set()
        self._is_all_sent = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Publishes the messages.

        Raises:
            RefusedError: If the server will keep rejecting a message.
            OSError: If it is unknown whether all messages arrived.
        """
        self._connection = pika.SelectConnection(
            amqp_parameters(self._server),
            on_open_callback=self._connected,
            on_open_error_callback=lambda _, error: self._stop(error),
            on_close_callback=lambda _, error: self._closed(error),
        )
        self._watch(-1)
        try:
            self._connection.ioloop.start()
        finally:
            self._connection.ioloop.close()
        if self._error is not None and is_refused_login(self._error):
            raise RefusedError(f"the server refuses the login of user {self._server.user!r}")
        if isinstance(self._error, ChannelClosedByBroker) and self._error.reply_code in (NOT_FOUND, FAILED):
            raise RefusedError(said(self._error))
        if isinstance(self._error, RefusedError):
            raise self._error
        if self._error is not None:
            raise ConnectionError(said(self._error)) from self._error

    # --- on its loop --------------------------------------------------------------------------------------------------

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(lambda _, error: self._stop(None if self._is_done() else error))
        channel.add_on_return_callback(self._returned)
        channel.confirm_delivery(self._answered, callback=lambda _: self._send())

    def _connected(self, connection: Any) -> None:
        if self._error is not None:  # The connection was established too late.
            connection.close()
        else:
            connection.channel(on_open_callback=self._opened)

    def _send(self) -> None:
        while len(self._tags) < _WINDOW and not self._is_all_sent and self._error is None:
            try:
                found = next(self._messages, None)
                if found is None:
                    self._is_all_sent = True
                    break
                key, body, properties = found
                self._channel.basic_publish(self._exchange, key, body, properties, mandatory=True)
            except Exception as error:  # noqa: BLE001 - the loop must end with any error
                self._stop(error)
                return
            self._sent += 1
            self._tags.add(self._sent)
        if self._is_done():
            self._stop(None)

    def _is_done(self) -> bool:
        return self._is_all_sent and not self._tags

    def _answered(self, frame: Any) -> None:
        method = frame.method
        if isinstance(method, pika.spec.Basic.Nack):  # These messages will never be confirmed, so the call must fail.
            self._stop(ConnectionError("the server did not accept a message"))
            return
        tags = range(self._confirmed + 1, method.delivery_tag + 1) if method.multiple else (method.delivery_tag,)
        self._tags.difference_update(tags)
        if method.multiple:
            self._confirmed = max(self._confirmed, method.delivery_tag)
        if len(self._tags) <= _WINDOW // 2:
            self._send()

    def _returned(self, _: Any, method: Any, __: Any, ___: Any) -> None:
        to = f"exchange {self._exchange!r}, routing key {method.routing_key!r}"
        self._stop(RefusedError(f"a message goes to no queue ({to}): {method.reply_text}"))

    def _watch(self, before: int) -> None:
        """Stops with an error if nothing was confirmed since the previous call."""
        now = self._sent - len(self._tags)
        if now == before:
            self._stop(TimeoutError(f"the server confirmed nothing for {self._server.timeout_s:g} s"))
        else:
            self._connection.ioloop.call_later(self._server.timeout_s, lambda: self._watch(now))

    def _stop(self, error: BaseException | None) -> None:
        """Records the first error, and closes the connection, which ends the loop."""
        if not self._is_done():
            self._error = self._error or error
        if self._connection.is_open:
            self._connection.close()
        elif self._connection.is_closed:
            self._connection.ioloop.stop()

    def _closed(self, error: BaseException) -> None:
        if not self._is_done():
            self._error = self._error or error
        self._connection.ioloop.stop()


def check_exchange(server: RabbitMQ, exchange: str, routing_key: str) -> None:
    """Checks that the exchange exists or, for the default exchange, that the queue exists.

    Raises:
        PreflightError: If it does not exist, if this user may not log in, or if the server is unreachable.
    """
    try:
        connection = pika.BlockingConnection(amqp_parameters(server))
        try:
            if exchange:
                connection.channel().exchange_declare(exchange, passive=True)
            elif routing_key:
                connection.channel().queue_declare(routing_key, passive=True)
        finally:
            with suppress(AMQPError, OSError):
                connection.close()
    except (AMQPError, OSError) as error:
        if isinstance(error, ChannelClosedByBroker) or is_refused_login(error):
            raise PreflightError(
                f"RabbitMQ at {server.host} refuses exchange={exchange!r}, routing_key={routing_key!r}: {said(error)}.",
                next_step="Create the exchange or the queue, or correct the user, the password or the virtual host.",
            ) from error
        raise PreflightError(
            f"RabbitMQ at {server.host} cannot be reached: {said(error)}.", next_step="Start it, or correct host=."
        ) from error
