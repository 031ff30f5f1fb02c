"""The thread that owns the connection. It receives, stores, and acknowledges messages.

The thread runs in the process that plans batches. That process is otherwise idle, so heartbeats are answered even while
the driver is busy. Per message, pika's callback-based connection takes 36 µs of CPU, its blocking connection 50 µs, and
aio-pika 230 µs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker

from sparkonce.errors import OutageError, PreflightError, SparkonceError
from sparkonce_rabbitmq.queue.messages import QueueMessage
from sparkonce_rabbitmq.sinks.amqp import ACCESS_REFUSED, amqp_parameters, is_final, is_refused_login, said

if TYPE_CHECKING:
    from sparkonce_rabbitmq.queue.receiver import Receiver
    from sparkonce_rabbitmq.server import RabbitMQ

logger = logging.getLogger("sparkonce")

_POLL_S = 0.02
_CHECK_EVERY_S = 0.25
_QUIET_S = 0.3
_BACKOFF_S = 0.5
_EXCLUSIVE = "exclusive"
_CANCELLED = "the server has ended the subscription: the queue's node went down, or the queue was deleted"
_RETURNED = "x-delivery-count"
_MANY_RETURNS = 10
_PROPERTIES = (
    "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration", "type",
    "user_id", "app_id",
)  # fmt: skip
_properties_of = attrgetter(*_PROPERTIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The settings of a consumer; see `read_rabbitmq_queue`."""

    server: RabbitMQ
    queue: str
    prefetch: int
    exclusive: bool
    patience_s: float


class QueueConsumer:
    """The connection of a receiver, in a separate thread."""

    def __init__(self, settings: ConsumerSettings, receiver: Receiver) -> None:
        self._settings, self._receiver = settings, receiver
        self._thread = threading.Thread(target=self._run, name="sparkonce-queue", daemon=True)
        self._stopping = threading.Event()
        self._quiet = threading.Event()
        self._error: SparkonceError | None = None
        self._well_at = time.monotonic()
        self._last_delivery = 0.0
        self._has_warned = False
        self._delivered: deque[tuple[int, QueueMessage]] = deque()

    def start(self) -> None:
        self._thread.start()

    def wait_quiet(self, timeout_s: float) -> None:
        """Waits until the queue has delivered its current messages, or until the timeout."""
        self._quiet.wait(timeout_s)

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Closes the connection. Unacknowledged messages return to the queue."""
        self._stopping.set()
        self._thread.join(self._settings.server.timeout_s)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        claimed = False
        while not self._stopping.is_set():
            try:
                if not claimed:
                    self._receiver.claim()
                    claimed = True
                self._receiver.settle()
                # Poll before subscribing: if the store is unreachable, each subscription would return its messages to
                # the queue, and some queues limit how often a message may be returned.
                self._receiver.poll()
                self._consume()
            except SparkonceError as error:
                self._error = error
            except ChannelClosedByBroker as error:
                self._refused(error)
            except (AMQPError, OSError) as error:
                self._away(error)
            except Exception as error:
                logger.exception("The queue's receiver has stopped.")
                self._error = PreflightError(
                    f"The queue {self._settings.queue!r} cannot be received from: {error!r}.",
                    next_step="Start the query again; if this persists, report it with the log.",
                )
            finally:
                self._delivered.clear()
                self._receiver.disconnected()
            if self._error is not None:
                self._quiet.set()
                return

    def _consume(self) -> None:
        """Receives until it is stopped. Raises an error if it cannot continue."""
        self._failure: BaseException | None = None
        self._is_ending = False
        self._connection = pika.SelectConnection(
            amqp_parameters(self._settings.server),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda _, error: self._end(error),
            on_close_callback=lambda _, error: self._closed(error),
        )
        try:
            self._connection.ioloop.start()
        finally:
            self._connection.ioloop.close()
        if self._failure is not None:
            raise self._failure

    def _refused(self, error: ChannelClosedByBroker) -> None:
        if error.reply_code == ACCESS_REFUSED and _EXCLUSIVE in error.reply_text:
            self._wait_for_others(error)
        elif is_final(error):
            self._error = PreflightError(
                f"RabbitMQ refuses queue {self._settings.queue!r}: {error.reply_text}",
                next_step="Recreate the queue, or grant the user the right to read it.",
            )
        else:
            self._away(error)

    def _wait_for_others(self, error: ChannelClosedByBroker) -> None:
        waited_s = time.monotonic() - self._well_at
        if waited_s > self._settings.patience_s:
            self._error = PreflightError(
                f"The queue {self._settings.queue!r} has had another consumer for {waited_s:.0f} s: {error.reply_text}",
                next_step="Stop the other consumer, or give exclusive=False.",
            )
            return
        logger.warning("The queue %r has another consumer: %s", self._settings.queue, error.reply_text)
        self._stopping.wait(_BACKOFF_S)

    def _away(self, error: Exception) -> None:
        if is_refused_login(error):
            self._error = PreflightError(
                f"RabbitMQ refuses the login of user {self._settings.server.user!r} to virtual host "
                f"{self._settings.server.virtual_host!r}: {type(error).__name__}.",
                next_step="Correct the user, the password or the virtual host, or grant the user access to it.",
            )
            return
        self._error = self._outage(error)
        if self._error is None:
            self._stopping.wait(_BACKOFF_S)

    def _outage(self, error: Exception) -> OutageError | None:
        """Returns an error if the outage has lasted too long; otherwise logs a warning and returns None."""
        away_s = time.monotonic() - self._well_at
        if away_s > self._settings.patience_s:
            return OutageError(
                f"RabbitMQ or the checkpoint's store has been unreachable for {away_s:.0f} s: {said(error)}.",
                next_step="Check that both can be reached, then start the query again.",
            )
        logger.warning("Queue %r: %s. Trying again.", self._settings.queue, said(error))
        return None

    # --- on its event loop, which must not raise errors ---------------------------------------------------------------

    def _opened(self, channel: Any) -> None:
        settings, self._channel = self._settings, channel
        channel.add_on_close_callback(lambda _, error: self._end(error))
        channel.add_on_cancel_callback(lambda _: self._end(ConnectionError(_CANCELLED)))
        channel.basic_qos(prefetch_count=settings.prefetch)
        channel.basic_consume(
            settings.queue, self._deliver, exclusive=settings.exclusive, callback=lambda _: self._consuming()
        )

    def _consuming(self) -> None:
        self._last_delivery = self._check_at = time.monotonic()
        self._turn()

    def _turn(self) -> None:
        """Does everything that is due: stores, polls and acknowledges. Schedules its own next call."""
        if self._stopping.is_set():
            self._end(None)
        if self._is_ending:
            return
        again_s = _POLL_S
        try:
            self._advance()
        except OSError as error:
            self._store_away(error)
            again_s = _BACKOFF_S
        except Exception as error:  # noqa: BLE001 - the loop must end with any error
            self._end(error)
        self._connection.ioloop.call_later(again_s, self._turn)

    def _advance(self) -> None:
        now = time.monotonic()
        kept = self._receiver.keep_due()
        self._take()
        if now >= self._check_at:
            self._receiver.poll()
            self._well_at = time.monotonic()
            self._check_at = self._well_at + _CHECK_EVERY_S
        tag = self._receiver.acknowledge()
        if tag is not None:
            self._channel.basic_ack(tag, multiple=True)
        if kept and now - self._last_delivery > _QUIET_S:
            self._quiet.set()

    def _store_away(self, error: OSError) -> None:
        """Waits while the store is unreachable. Keeps the connection, since each reconnect returns all messages."""
        if (outage := self._outage(error)) is not None:
            self._end(outage)

    def _deliver(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        if self._is_ending:
            return
        self._last_delivery = time.monotonic()
        if method.redelivered:
            self._warn_of_limit(properties.headers or {})
        try:
            self._delivered.append((method.delivery_tag, _message(method, properties, body)))
            self._take()
        except OSError as error:
            self._store_away(error)
        except Exception as error:  # noqa: BLE001 - see `_turn`
            self._end(error)

    def _take(self) -> None:
        """Passes deliveries to the receiver.

        While the store does not accept full segments, deliveries wait here, up to the prefetch limit.
        """
        while self._delivered and not self._receiver.is_full():
            self._receiver.take(*self._delivered.popleft())
            if self._receiver.is_full():
                self._receiver.keep()

    def _warn_of_limit(self, headers: Mapping[str, Any]) -> None:
        """Warns once that a quorum queue, which counts how often messages are returned, may soon drop a message."""
        returned = headers.get(_RETURNED, 0)
        if returned >= _MANY_RETURNS and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "Queue %r: a message was returned %d times, and a delivery limit makes the queue drop it, or "
                "dead-letter it (delivery-limit; 20 from RabbitMQ 4.0 on).",
                *(self._settings.queue, returned),
            )

    def _end(self, error: BaseException | None) -> None:
        """Records the first error, and closes the connection, which ends the loop."""
        if self._is_ending:
            return
        self._is_ending, self._failure = True, error
        if self._connection.is_closed:
            self._connection.ioloop.stop()
        elif self._connection.is_open:
            self._connection.close()

    def _closed(self, error: BaseException) -> None:
        self._end(error)
        self._connection.ioloop.stop()


def queue_is_there(server: RabbitMQ, queue: str) -> None:
    """Checks that the queue exists, and that this user may log in.

    Raises:
        PreflightError: If the queue does not exist, or the server rejects the login.
        OutageError: If the server is unreachable.
    """
    try:
        connection = pika.BlockingConnection(amqp_parameters(server))
        try:
            connection.channel().queue_declare(queue, passive=True)
        finally:
            with suppress(AMQPError, OSError):
                connection.close()
    except (AMQPError, OSError) as error:
        if is_refused_login(error) or (isinstance(error, ChannelClosedByBroker) and is_final(error)):
            raise PreflightError(
                f"Queue {queue!r} of {server.host} cannot be read by user {server.user!r}: {said(error)}.",
                next_step=(
                    "Create the queue, correct the user, the password or the virtual host, or grant the right to read."
                ),
            ) from error
        raise OutageError(
            f"RabbitMQ at {server.host} cannot be reached: {said(error)}.", next_step="Start it, or correct host=."
        ) from error


def _as_text(given: Any) -> Any:
    """Returns header names and strings as text. pika returns invalid UTF-8 as bytes, which must remain distinct."""
    if isinstance(given, bytes):
        return given.decode(errors="backslashreplace")
    if isinstance(given, dict):
        return {_as_text(name): _as_text(one) if isinstance(one, dict | list) else one for name, one in given.items()}
    if isinstance(given, list):
        return [_as_text(one) for one in given]
    return given


def _message(method: Any, properties: Any, body: bytes) -> QueueMessage:
    return QueueMessage(
        body,
        _as_text(properties.message_id),
        _as_text(method.exchange),
        _as_text(method.routing_key),
        properties.timestamp,
        _named(_properties_of(properties)),
        _as_text(properties.headers or {}),
        method.redelivered,
    )


@lru_cache(256)
def _named(given: tuple[object, ...]) -> Mapping[str, str]:
    """Returns the properties that are set, by name."""
    return MappingProxyType(
        {name: str(_as_text(one)) for name, one in zip(_PROPERTIES, given, strict=True) if one is not None}
    )
