"""RabbitMQ: the leader of a stream, which accepts a publishing id once, and a queue, which accepts everything.

- A stream's leader stores the highest id of each publisher's name, drops what is not above it, and confirms a dropped
  message when the entry with the highest id is safe. When a leader fails, what no replica has is lost. Readers see what
  is safe. A frame on a broken connection arrives late, or never, and never at another leader.
- A queue confirms each message that it has. Each of the messages sent on a connection that breaks may arrive.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pika
from pika.exceptions import AMQPConnectionError

from simulation.engine import NoAnswerError, RefusedError, Words
from simulation.oracle import Violation
from simulation.staged import WIDTH, Staged, read
from sparkonce.sinks.write_ahead.application import Applies
from sparkonce.sinks.write_ahead.committer import WriteAheadCommitter
from sparkonce_rabbitmq.sinks.committer import StreamCommitter
from sparkonce_rabbitmq.sinks.connection import StreamRefusedError
from sparkonce_rabbitmq.sinks.messages import FRAME_OVERHEAD_BYTES, Frame
from sparkonce_rabbitmq.sinks.publishing import Publisher
from sparkonce_rabbitmq.sinks.queue_publisher import DEDUPLICATION_HEADER, QueuePublish

if TYPE_CHECKING:
    from simulation.engine import Simulation

_HEAD = struct.Struct(">QI")
_INTERNAL_ERROR = 15


class Stream(Staged):
    """A stream, by its leader."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.log: list[tuple[str, int, int]] = []
        self.safe = 0
        self.leader = 0
        self.open: list[Connection] = []
        simulation.events.append(self.replicate)

    def committer(self) -> StreamCommitter:
        settings = self.settings(Applies.TRANSACTIONAL, lambda *_: None)
        return StreamCommitter(
            self.folder,
            self.name,
            self.prefix,
            settings,
            "stream",
            lambda query, stream: Publisher(self, stream, query),  # instead of a server's settings
        )

    def highest(self, publisher: str) -> int:
        """Returns the highest id of a publisher; 0 if there is none."""
        return max((number for name, number, _ in self.log if name == publisher), default=0)

    def take(self, leader: int, publisher: str, frame: Frame) -> None:
        """A frame arrives at a leader."""
        if leader != self.leader:
            return
        at = 0
        for _ in range(frame.count):
            number, length = _HEAD.unpack_from(frame.payload, at)
            at += _HEAD.size + length
            if number > self.highest(publisher):
                self.log.append((publisher, number, int(bytes(frame.payload[at - length : at]))))
        if not self.simulation.chance("request late"):
            self._keep(len(self.log))

    def replicate(self) -> Callable[[], None] | None:
        """Replicas get what the leader has; None if they have it."""
        return (lambda: self._keep(self.safe + 1)) if self.safe < len(self.log) else None

    def _keep(self, safe: int) -> None:
        for _, _, row in self.log[self.safe : safe]:
            self.safe += 1
            self.show(row)

    def restart(self) -> Callable[[], None] | None:
        """The leader fails, and a replica takes over."""
        if not self.open:
            return None

        def fail() -> None:
            self.simulation.say(self.called, "the leader fails, with", len(self.log) - self.safe, "messages")
            del self.log[self.safe :]
            self.leader += 1
            self.open.clear()

        return fail

    def hang_up(self) -> Callable[[], None] | None:
        return (lambda: self.open.pop(0).close()) if self.open else None


class Connection:
    """Replaces a `PublisherConnection` to the leader. The settings are the stream."""

    frame_max = FRAME_OVERHEAD_BYTES + 3 * (_HEAD.size + WIDTH)

    def __init__(self, _: type, stream: Stream, *__: str, leader: bool) -> None:
        self._stream, self._leader = stream, stream.leader
        self._publisher = ""
        stream.open.append(self)
        self._ask(("connects",), lambda: None)

    def declare(self, _: str, publisher: str) -> None:
        self._publisher = publisher

    def sequence(self, _: str, publisher: str) -> int:
        found: int = self._ask(("asks for the last id",), lambda: self._stream.highest(publisher))
        return found

    def publish(self, frame: Frame) -> None:
        stream = self._stream
        what = ("publishes", frame.count, "from", frame.first_id)
        self._ask(what, lambda: stream.take(self._leader, self._publisher, frame))
        needed = len(stream.log)
        stream.simulation.wait(lambda: stream.safe >= needed or not self._is_open)
        if not self._is_open:
            raise ConnectionError("it broke before the confirms came")

    def close(self) -> None:
        if self in self._stream.open:
            self._stream.open.remove(self)

    @property
    def _is_open(self) -> bool:
        return self in self._stream.open

    def _ask(self, what: Words, apply: Callable[[], Any]) -> Any:
        if not self._is_open:
            raise ConnectionError("it was closed")
        try:
            return self._stream.simulation.request((self._stream.called, *what), apply)
        except NoAnswerError:
            self.close()
            raise ConnectionError("no answer") from None
        except RefusedError:
            raise StreamRefusedError("it", _INTERNAL_ERROR) from None


class Queue(Staged):
    """A queue, and what a reader sees that drops ids it has already seen."""

    per = "slot"
    parallel = 4
    timeout_s = 30.0

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.had: dict[str, int] = {}

    def committer(self) -> WriteAheadCommitter:
        publish = QueuePublish(self, "", "queue")  # instead of a server's settings
        return WriteAheadCommitter(self.folder, self.name, self.prefix, self.settings(Applies.NEITHER, publish))

    def take(self, made: str, row: int) -> None:
        """A message arrives. A repeated one has the same id, and somebody has failed, or was superseded."""
        simulation = self.simulation
        if made in self.had:
            alone = simulation.config.runs == 1 and not (simulation.happened or simulation.config.operators)
            if alone or self.had[made] != row:
                simulation.oracle.broken(Violation.TWICE, made, row)
            return
        self.had[made] = row
        self.show(row)


class SelectConnection:
    """pika's connection, and its loop. The parameters are the queue."""

    def __init__(
        self,
        queue: Queue,
        on_open_callback: Callable[[Any], None],
        on_open_error_callback: Callable[[Any, BaseException], None],
        on_close_callback: Callable[[Any, BaseException | None], None],
    ) -> None:
        self._queue = queue
        self._opened, self._failed, self._closed = on_open_callback, on_open_error_callback, on_close_callback
        self._sent: deque[tuple[int, Any]] = deque()
        self._answered: Callable[[Any], None] = lambda _: None
        self._count = 0
        self.is_open, self.is_closed = False, True
        self._is_running = True
        self.ioloop = self

    # --- the loop -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        try:
            self._ask(("connects",), lambda: None)
        except (AMQPConnectionError, RefusedError) as error:
            self._failed(self, error)
            return
        self.is_open, self.is_closed = True, False
        self._opened(self)
        while self._is_running:
            if not self.is_open or not self._sent:
                self._end(None)
                continue
            tag, (made, row) = self._sent.popleft()
            kind = pika.spec.Basic.Ack
            try:
                self._ask(("publishes", made), lambda made=made, row=row: self._queue.take(made, row))
            except RefusedError:
                kind = pika.spec.Basic.Nack
            except AMQPConnectionError as error:
                self._end(error)
                continue
            self._answered(SimpleNamespace(method=kind(delivery_tag=tag)))

    def _end(self, error: BaseException | None) -> None:
        """Closes it. What was sent but not confirmed may still arrive, in order, up to some message."""
        simulation, queue = self._queue.simulation, self._queue
        while self._sent and not simulation.chance("request lost"):
            _, (made, row) = self._sent.popleft()
            if "request late" in simulation.config.faults:
                what = (queue.called, "publishes", made)
                simulation.flights.append((what, lambda made=made, row=row: queue.take(made, row)))
        self.is_open, self.is_closed = False, True
        self._closed(self, error)

    def stop(self) -> None:
        self._is_running = False

    def call_later(self, *_: object) -> None:
        pass

    def _ask(self, what: Words, apply: Callable[[], Any]) -> Any:
        try:
            return self._queue.simulation.request((self._queue.called, *what), apply)
        except NoAnswerError:
            raise AMQPConnectionError("no answer") from None

    # --- the connection and its channel -------------------------------------------------------------------------------

    def close(self) -> None:
        self.is_open = False

    def channel(self, on_open_callback: Callable[[Any], None]) -> None:
        on_open_callback(self)

    def add_on_close_callback(self, _: object) -> None:
        pass

    def add_on_return_callback(self, _: object) -> None:
        pass

    def confirm_delivery(self, answered: Callable[[Any], None], callback: Callable[[Any], None]) -> None:
        self._answered = answered
        callback(None)

    def basic_publish(self, _: str, key: str, body: bytes, properties: Any, mandatory: bool) -> None:
        self._count += 1
        self._sent.append((self._count, (properties.headers[DEDUPLICATION_HEADER], int(body))))


REPLACED: tuple[tuple[str, str, Any], ...] = (
    ("publishing", "connect_to", Connection),
    ("publishing", "read", read),
    ("queue_publisher", "amqp_parameters", lambda queue: queue),
    (
        "queue_publisher",
        "pika",
        SimpleNamespace(SelectConnection=SelectConnection, BasicProperties=pika.BasicProperties, spec=pika.spec),
    ),
)
