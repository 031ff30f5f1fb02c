"""A query that reads a queue of RabbitMQ: the product's reader, consumer and receiver, on models of queue and store.

A message is ready, or delivered on some connection and not acknowledged there. When the server notices that a
connection is gone, its messages are ready again. Spark is its checkpoint: offsets before a batch, commits after it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pika
from greenlet import getcurrent, greenlet
from pika.exceptions import AMQPConnectionError

from simulation.engine import UNDER_WAY, Broken, NoAnswerError, RefusedError, Words
from simulation.oracle import Start, Violation
from simulation.store import ModelFiles
from sparkonce import errors
from sparkonce.sources.rabbitmq.queue.consumer import ConsumerSettings
from sparkonce.sources.rabbitmq.queue.receiver import ReceiverSettings
from sparkonce.sources.rabbitmq.queue.segments import Segment
from sparkonce.spark.rabbitmq_queue import QueueOptions, QueueReader

if TYPE_CHECKING:
    from simulation.engine import Party, Simulation
    from simulation.oracle import Place
    from simulation.systems import System

PREFETCH, SEGMENT_ROWS, BATCH_ROWS = 5, 2, 3
REMEMBER = 12
"""As many as the longest schedule has: a message may come again as late as the server notices that its first connection
is gone, and the source's condition is that it is remembered until then."""

_MESSAGES_OF_A_BATCH = 4
_MOST_ROUNDS = 400
_WAITS_S = 0.02
_SEGMENTS = "/segments/"


class Oracle:
    """Sees what is in batches, and what is acknowledged."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.violation: Violation | None = None
        self.batches: dict[int, tuple[str, ...]] = {}
        self.kept: set[str] = set()
        self.finished: set[str] = set()
        self.runs = 0

    def broken(self, violation: Violation, *words: object) -> None:
        """Ends the schedule."""
        if self.violation is None:
            self.violation = violation
            self._simulation.say("BROKEN:", violation.value, *words)
        raise Broken(violation.value)

    def failed(self, error: BaseException) -> None:
        """Something was raised that nobody may raise."""
        self.broken(Violation.FAILED, repr(error)[:300])

    def read(self, batch: int, rows: tuple[str, ...]) -> None:
        """A batch has these rows, whenever it is read."""
        if self.batches.setdefault(batch, rows) != rows:
            self.broken(Violation.MIXED, batch, rows)
        every = [row for some in self.batches.values() for row in some]
        if len(every) != len(set(every)):
            self.broken(Violation.TWICE, batch, rows)

    def acknowledged(self, messages: Sequence[str], wanted: set[str]) -> None:
        """A message may be gone once it is kept; by choice, once its batch is finished."""
        if not set(messages) <= wanted:
            self.broken(Violation.MISSING, sorted(set(messages) - wanted))

    def start(self, run: str) -> Start:
        """A run begins."""
        self.runs += 1
        return Start(run=run, requests=self._simulation.requests, claims=self.runs, clock_s=0.0)

    def stopped(self, start: Start, error: BaseException) -> None:
        """A run has stopped by itself: it was replaced, or nobody answered it."""
        self._simulation.say("stops:", type(error).__name__, str(error)[:150])
        deposed = self.runs > 1 and isinstance(error, errors.SupersededError | errors.CorruptRecordError)
        away = isinstance(error, errors.OutageError | OSError) and self._simulation.gone_wrong(start.requests)
        if not deposed and not away:
            self.broken(Violation.WRONG_STOP, repr(error)[:300])

    def all_done(self, batches: int, lost: frozenset[Place]) -> None:
        """Every message is in a batch."""
        there = {row for some in self.batches.values() for row in some}
        if len(there) != self._simulation.config.batches * _MESSAGES_OF_A_BATCH:
            self.broken(Violation.MISSING, sorted(there))

    def lost_for_good(self, error: BaseException) -> frozenset[Place]:
        """Nothing may be."""
        return frozenset()


class Query:
    """What drivers share: the checkpoint and the queue. It takes the place of a `simulation.spark.Cluster`."""

    systems: Mapping[str, System] = {}

    def __init__(self, simulation: Simulation, oracle: Oracle) -> None:
        self.simulation, self.oracle = simulation, oracle
        self.queue = Queue(simulation, oracle)
        self.store = ModelFiles(simulation, "checkpoint:", self._changed)
        self.runs = 0
        self.drivers: list[Party] = []
        stored = not simulation.config.deterministic
        self.queue.may_go = oracle.kept if stored else oracle.finished
        self.receiver = ReceiverSettings(
            acknowledge="stored" if stored else "finished",
            remember=REMEMBER,
            most_ahead=2 * PREFETCH,
            segment_rows=SEGMENT_ROWS,
            linger_s=0.0,
        )

    @property
    def committed(self) -> int:
        """No batch, as long as there is something to read."""
        return self.simulation.config.batches if self._is_done else -1

    @property
    def _is_done(self) -> bool:
        return (
            self.queue.is_empty and len(self.oracle.finished) == self.simulation.config.batches * _MESSAGES_OF_A_BATCH
        )

    def _changed(self, path: str, data: bytes | None) -> None:
        if data is not None and _SEGMENTS in path:
            table = Segment.decode(data, path).table()
            self.oracle.kept.update(bytes(one).decode() for one in table.column("value").to_pylist())

    def start_run(self) -> None:
        """A driver starts, whoever else is there."""
        number = self.runs
        self.runs += 1
        self.drivers.append(self.simulation.start(f"run {number}", lambda: self._guarded(number)))

    def _guarded(self, number: int) -> None:
        start = self.oracle.start(f"run-{number}")
        try:
            self.run(number, 0)
        except (errors.SparkonceError, OSError) as error:
            self.oracle.stopped(start, error)

    def run(self, number: int, batches: int) -> None:
        """A driver, until nothing is left to read.

        Raises:
            SparkonceError: if it has to stop.
            OSError: if the store does not answer it.
        """
        simulation = self.simulation
        if simulation.peace:
            self.queue.drop_all()
        settings: Any = ConsumerSettings(
            server=self.queue,  # type: ignore[arg-type] # instead of a server's settings
            queue="q",
            prefetch=PREFETCH,
            exclusive="overlap" not in simulation.config.faults,
            patience_s=1_000.0,
        )
        options = QueueOptions(
            files=self.store, consumer=settings, receiver=self.receiver, most=BATCH_ROWS, partitions=2
        )
        reader = QueueReader(options)
        try:
            batch = self._replayed(reader)
            for _ in range(_MOST_ROUNDS):
                if self._is_done and simulation.peace:
                    return
                start, end = self._end(batch - 1, reader), None
                end = reader.latestOffset(start)
                if end != start:
                    if not self._record("offsets", batch, end):
                        return
                    self._finish(reader, batch, start, end)
                    batch += 1
                self.pump(reader)
        finally:
            reader.stop()
        if simulation.peace:
            self.oracle.broken(Violation.STRANDED)

    def pump(self, reader: QueueReader) -> None:
        """Lets the thread that receives go on."""
        if reader._consumer is not None:
            reader._consumer._thread.go_on()  # type: ignore[attr-defined]

    def _replayed(self, reader: QueueReader) -> int:
        """Finishes a batch that was planned, as Spark does after a restart. Returns the number of the next one."""
        planned, done = (
            len([one for one in self.store.kept if one.startswith(log)]) for log in ("offsets/", "commits/")
        )
        if planned > done:
            last = planned - 1
            self._finish(reader, last, self._end(last - 1, reader), self._end(last, reader))
        return planned

    def _finish(self, reader: QueueReader, batch: int, start: Any, end: Any) -> None:
        rows: list[str] = []
        for partition in reader.partitions(start, end):
            for part in reader.read(partition):
                rows += [bytes(one).decode() for one in part.column("value").to_pylist()]
        self.oracle.read(batch, tuple(rows))
        self.simulation.say("batch", batch, "has", rows)
        self.simulation.stop_here()
        self.oracle.finished.update(rows)
        self._record("commits", batch, {})

    def _record(self, log: str, batch: int, said: object) -> bool:
        """Spark puts a file of its own. False if another driver has put another one."""
        self.simulation.stop_here()
        data = f"v1\n{{}}\n{json.dumps(said)}\n".encode()
        return self.store.kept.setdefault(f"{log}/{batch}", data) == data

    def _end(self, batch: int, reader: QueueReader) -> Any:
        if batch < 0:
            return reader.initialOffset()
        return json.loads(self.store.kept[f"offsets/{batch}"].splitlines()[-1])


# --- the queue --------------------------------------------------------------------------------------------------------


class Queue:
    """A classic queue, and its connections."""

    timeout_s = 5.0

    def __init__(self, simulation: Simulation, oracle: Oracle) -> None:
        self.simulation, self._oracle = simulation, oracle
        count = simulation.config.batches * _MESSAGES_OF_A_BATCH
        self.ready: deque[str] = deque(f"m{number}" for number in range(count))
        self.may_go: set[str] = set()
        self.connections: list[Connection] = []
        self.delivered: set[str] = set()
        simulation.events.append(self.notice)

    @property
    def waiting(self) -> int:
        """How many messages are delivered and not acknowledged."""
        return sum(len(one.unacked) for one in self.connections)

    @property
    def is_empty(self) -> bool:
        """Whether every message is acknowledged."""
        return not self.ready and not self.waiting

    def notice(self) -> Callable[[], None] | None:
        """The server notices that a connection is gone; None if none is."""
        gone = [one for one in self.connections if one.is_broken or one.is_gone]
        return (lambda: self.drop(gone[0])) if gone else None

    def drop(self, connection: Connection) -> None:
        """What was delivered there is ready again."""
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
        """Whether its process was killed."""
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
