"""A query that reads a queue of RabbitMQ: the product's reader, consumer and receiver, on models of queue and store.

A message is ready, or delivered on some connection and not acknowledged there. When the server notices that a
connection is gone, its messages are ready again. Spark is its checkpoint: offsets before a batch, commits after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulation.engine import Broken
from simulation.oracle import Start, Violation
from simulation.queue_server import MESSAGES_OF_A_BATCH, Queue
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

_MOST_ROUNDS = 400
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
        """Every message is in a batch, after a fresh run, which has replaced those that still wake up."""
        self.runs += 1
        there = {row for some in self.batches.values() for row in some}
        if len(there) != self._simulation.config.batches * MESSAGES_OF_A_BATCH:
            self.broken(Violation.MISSING, sorted(there))

    def lost_for_good(self, error: BaseException) -> frozenset[Place]:
        """Nothing may be."""
        return frozenset()


class Query:
    """Holds what drivers share: the checkpoint and the queue. It takes the place of a `simulation.spark.Cluster`."""

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
        return self.queue.is_empty and len(self.oracle.finished) == self.simulation.config.batches * MESSAGES_OF_A_BATCH

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
