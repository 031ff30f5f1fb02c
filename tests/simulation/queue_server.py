"""A queue of RabbitMQ, its connections by pika's callbacks, and what takes the place of the consumer's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pika
from greenlet import getcurrent, greenlet
from pika.exceptions import AMQPConnectionError

from simulation.engine import UNDER_WAY, NoAnswerError, RefusedError, Words

if TYPE_CHECKING:
    from simulation.engine import Simulation
    from simulation.queue_source import Oracle

MESSAGES_OF_A_BATCH = 4
_WAITS_S = 0.02


class Queue:
    """A classic queue, and its connections."""

    timeout_s = 5.0

    def __init__(self, simulation: Simulation, oracle: Oracle) -> None:
        self.simulation, self._oracle = simulation, oracle
        count = simulation.config.batches * MESSAGES_OF_A_BATCH
        self.ready: deque[str] = deque(f"m{number}" for number in range(count))
        self.may_go: set[str] = set()
        self.connections: list[Connection] = []
        self.delivered: set[str] = set()
        simulation.events.append(self.notice)

    @property
    def waiting(self) -> int:
        """Counts the messages that are delivered and not acknowledged."""
        return sum(len(one.unacked) for one in self.connections)

    @property
    def is_empty(self) -> bool:
        """Tells if every message is acknowledged."""
        return not self.ready and not self.waiting

    def notice(self) -> Callable[[], None] | None:
        """The server notices that a connection is gone; None if none is."""
        gone = [one for one in self.connections if one.is_broken or one.is_gone]
        return (lambda: self.drop(gone[0])) if gone else None

    def drop(self, connection: Connection) -> None:
        """Makes what was delivered there ready again."""
        if connection in self.connections:
            self.connections.remove(connection)
            self.ready.extendleft(reversed(connection.unacked.values()))
            connection.is_broken = True

    def drop_all(self) -> None:
        """Nobody else answers any more."""
        while self.connections:
            self.drop(self.connections[0])

    def acknowledge(self, connection: Connection, tag: int) -> None:
        """All up to this one, if the server still knows the connection."""
        if connection in self.connections:
            gone = {number: name for number, name in connection.unacked.items() if number <= tag}
            self._oracle.acknowledged(list(gone.values()), self.may_go)
            for number in gone:
                del connection.unacked[number]


class Connection:
    """pika's connection with callbacks, its channel, and its loop. The parameters are the queue."""

    def __init__(
        self,
        queue: Queue,
        on_open_callback: Callable[[Any], None],
        on_open_error_callback: Callable[[Any, BaseException], None],
        on_close_callback: Callable[[Any, BaseException | None], None],
    ) -> None:
        self._queue = queue
        self._opened, self._failed, self._closed = on_open_callback, on_open_error_callback, on_close_callback
        self._party = queue.simulation.current
        self._deliver: Callable[..., None] = lambda *_: None
        self._refused: Callable[[Any, BaseException], None] = lambda *_: None
        self._later: Callable[[], None] | None = None
        self._prefetch = self._tag = 0
        self.unacked: dict[int, str] = {}
        self.is_open = self.is_broken = self._is_stopped = False
        self.is_closed = True
        self.ioloop = SimpleNamespace(start=self._run, stop=self._stop, close=lambda: None, call_later=self._call_later)

    @property
    def is_gone(self) -> bool:
        """Tells if its process was killed."""
        return self._party is not None and self._party.dead

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._ask(("connects",), lambda: None)
        except AMQPConnectionError as error:
            self._failed(self, error)
            return
        self.is_open, self.is_closed = True, False
        self._opened(self)
        while not self._is_stopped:
            if self.is_open and not self.is_broken:
                self._receive()
            if self.is_open and not self.is_broken:
                if self._later is not None:
                    self._later()
                continue
            error = AMQPConnectionError("closed") if self.is_broken else None
            self._end()
            self._closed(self, error)

    def _end(self) -> None:
        if not self.is_broken and not self._queue.simulation.chance("request late"):
            self._queue.drop(self)
        self.is_broken = self.is_closed = True
        self.is_open = False

    def _stop(self) -> None:
        self._is_stopped = True

    def _call_later(self, _: float, call: Callable[[], None]) -> None:
        self._later = call

    def _receive(self) -> None:
        """Takes a delivery, if there is one, and waits if there is none."""
        queue, simulation = self._queue, self._queue.simulation
        if not queue.ready or len(self.unacked) >= self._prefetch:
            simulation.clock_s += _WAITS_S
            if simulation.peace:
                getcurrent().parent.switch()
            simulation.stop_here()
            simulation.let_others_go_on()
            return
        with suppress(AMQPConnectionError):
            self._ask(("delivers", queue.ready[0]), lambda: None)
        if self.is_broken or not queue.ready or self not in queue.connections:
            return
        name = queue.ready.popleft()
        self._tag += 1
        self.unacked[self._tag] = name
        method = SimpleNamespace(
            delivery_tag=self._tag, exchange="", routing_key="q", redelivered=name in queue.delivered
        )
        queue.delivered.add(name)
        self._deliver(None, method, pika.BasicProperties(message_id=name), name.encode())

    # --- the connection and its channel -------------------------------------------------------------------------------

    def close(self) -> None:
        self.is_open = False

    def channel(self, on_open_callback: Callable[[Any], None]) -> None:
        on_open_callback(self)

    def basic_qos(self, prefetch_count: int) -> None:
        self._prefetch = prefetch_count

    def add_on_close_callback(self, refused: Callable[[Any, BaseException], None]) -> None:
        self._refused = refused

    def add_on_cancel_callback(self, _: object) -> None:
        pass

    def basic_consume(
        self, _: str, deliver: Callable[..., None], exclusive: bool, callback: Callable[[Any], None]
    ) -> None:
        self._deliver = deliver
        if exclusive and self._queue.connections:
            self._refused(self, pika.exceptions.ChannelClosedByBroker(403, "ACCESS_REFUSED - exclusive"))
            return
        with suppress(AMQPConnectionError):
            self._ask(("consumes",), lambda: self._queue.connections.append(self))
            callback(None)

    def basic_ack(self, tag: int, multiple: bool) -> None:
        with suppress(AMQPConnectionError):  # it is only sent: whether it comes there nobody is told
            self._ask(("is told that all is taken up to", tag), lambda: self._queue.acknowledge(self, tag))

    def _ask(self, what: Words, apply: Callable[[], Any]) -> Any:
        if self.is_broken:
            raise AMQPConnectionError("closed")
        try:
            return self._queue.simulation.request(("queue:", *what), apply)
        except (NoAnswerError, RefusedError):
            self.is_broken = True
            raise AMQPConnectionError("no answer") from None


# --- in place of threads ----------------------------------------------------------------------------------------------


class _Thread:
    """The consumer's thread: a party, or, in peace, whoever is asked to go on."""

    def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
        self._target = target
        self._alone: greenlet | None = None

    def start(self) -> None:
        simulation = UNDER_WAY[0]
        driver = simulation.current
        if simulation.peace or driver is None:
            self._alone = greenlet(self._target)
            return
        thread = simulation.start(f"{driver.name}, receiver", self._target, lambda: simulation.kill(driver))
        driver.also_on_death(lambda: simulation.kill(thread))

    def go_on(self) -> None:
        """In peace it goes on until it has nothing to do."""
        if UNDER_WAY[0].over:
            return
        if self._alone is None:
            UNDER_WAY[0].let_others_go_on()
        elif not self._alone.dead:
            self._alone.parent = getcurrent()
            self._alone.switch()

    def join(self, _: float) -> None:
        self.go_on()


class _Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float) -> bool:
        simulation = UNDER_WAY[0]
        if not self._is_set:
            simulation.let_others_go_on()
            simulation.clock_s += timeout
        return self._is_set


REPLACED: tuple[tuple[str, str, Any], ...] = (
    ("consumer", "pika", SimpleNamespace(SelectConnection=Connection, exceptions=pika.exceptions)),
    ("consumer", "amqp_parameters", lambda queue: queue),
    ("consumer", "threading", SimpleNamespace(Thread=_Thread, Event=_Event)),
    ("consumer", "_LOOK_S", 0.02),
    ("receiver", "_SPARE_SEGMENTS", 2),
    (
        "segments",
        "secrets",
        SimpleNamespace(
            token_bytes=lambda count: UNDER_WAY[0].nonce().to_bytes(count, "big"), token_hex=lambda _: "identity"
        ),
    ),
)
"""Of `sparkonce.sources.rabbitmq.queue`."""
