"""Kafka's executor side: the product's own `WorkerProducers`, `ProducerPool` and `KafkaWriter`.

librdkafka's producer is a model.

A thread in which a producer is initialized is a party that continues when it is chosen, and a task that waits for one
is paused. The keeper's thread, which ends idle producers, is an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from unittest import mock

from confluent_kafka import KafkaError, KafkaException

from simulation.engine import UNDER_WAY
from simulation.oracle import Violation
from simulation.systems import Writer, ask
from sparkonce.errors import OutageError, PrepareError, SparkonceError
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.sinks.kafka import producer_pool
from sparkonce.sinks.kafka.pooled_producer import ProducerSpec, Reports
from sparkonce.sinks.kafka.producer_pool import KEEP_AT_MOST, ProducerPool, WorkerProducers
from sparkonce.sinks.kafka.writer import KafkaWriter, WriterLimits

if TYPE_CHECKING:
    from simulation.kafka import Kafka
    from simulation.spark import Process
    from sparkonce.protocol.handles import Scalar
    from sparkonce.sink import Owner

_LIMITS = WriterLimits(queued_rows=1, queued_bytes=1, row_bytes=1, topic_bytes=1, delivery_s=60.0, initialise_s=65.0)


class Lease:
    """`concurrent.futures.Future`, as far as a pool needs it. Waiting for its result lets other parties continue.

    Attributes:
        process: The process that waits for it.
        too_late: True if the waiting party has given up.
    """

    __slots__ = ("_done", "_error", "_lane", "process", "too_late")

    def __init__(self) -> None:
        self.process: Process | None = None
        self._done = self.too_late = False
        self._error: BaseException | None = None
        self._lane: Any = None

    def done(self) -> bool:
        return self._done

    def set_result(self, lane: Any) -> None:
        self._lane, self._done = lane, True

    def set_exception(self, error: BaseException) -> None:
        self._error, self._done = error, True

    def exception(self) -> BaseException | None:
        return self._error

    def result(self, timeout_s: float | None = None) -> Any:
        if not self._done:
            if self.process is not None:
                self.process.catch_up(self.done)
            UNDER_WAY[0].wait(lambda: self._done or self.too_late)
        if not self._done:
            raise producer_pool.LeaseTimeoutError
        if self._error is not None:
            raise self._error
        return self._lane


class _Random:
    """Replaces the module ``os``."""

    @staticmethod
    def urandom(size: int) -> bytes:
        return UNDER_WAY[0].nonce().to_bytes(size, "big")


REPLACED: tuple[tuple[str, str, Any], ...] = (("producer_pool", "Future", Lease), ("producer_pool", "os", _Random))


class ModelWorker(WorkerProducers):
    """The product's `WorkerProducers` of a process.

    Attributes:
        process: The process.
        waits_for: What its task is waiting for.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(process.in_thread)
        self.process = process
        self.waits_for: Lease | None = None

    def _begin_to_keep(self) -> None:
        """Whatever is discarded ends immediately."""

    @property
    def keeps_some(self) -> bool:
        """Returns True if producers are ready that no task has taken."""
        return any(pool._ready for pool in self._pools.values())

    @property
    def may_lose_patience(self) -> bool:
        """Returns True if its task waits for a producer while the thread that creates it is paused."""
        if self.waits_for is None or self.waits_for.too_late or self.process.dead:
            return False
        return any(thread.paused for thread in self.process.threads)

    def grow_old(self) -> None:
        """No task has taken a producer for a long time."""
        with mock.patch.object(producer_pool, "IDLE_LIMIT_S", -1.0):
            self._poll_idle()


class ModelProducer:
    """A producer with the methods of `sparkonce.sinks.kafka.pooled_producer.PooledProducer`."""

    __slots__ = ("_system", "epoch", "lane", "producer_id", "transactional_id")

    def __init__(self, system: Kafka, lane: int, transactional_id: str) -> None:
        self._system = system
        self.lane = lane
        self.transactional_id = transactional_id
        self.producer_id, self.epoch = 1, -1

    polled_s = float("inf")
    reports = Reports()

    @property
    def producer(self) -> ModelProducer:
        """Returns itself as the sender: librdkafka's methods are few enough to fit in here."""
        return self

    def initialise(self) -> None:
        system, name = self._system, self.transactional_id
        for _ in range(3):
            if system.is_slow():
                system.initialises_late(name)
                raise OutageError("the initialisation was not answered in time")
            epoch = ask(system, ("initialises", name), lambda: system.initialise(name))
            if epoch is not None:
                self.epoch = epoch
                return
            system.simulation.let_others_go_on()
        raise PrepareError("the id's last transaction is still being ended")

    def abort_reason(self) -> str:
        return ""

    def begin_task(self) -> None: ...

    def poll(self, timeout_s: float) -> None: ...

    def acknowledged(self, accepted: int) -> int:
        return accepted

    def destroy(self) -> None:
        pass

    def __len__(self) -> int:
        return 0

    def begin_transaction(self) -> None:
        pass

    def abort_transaction(self, timeout_s: float) -> None:
        what = ("gives up", self.transactional_id, self.epoch)
        try:
            ask(self._system, what, lambda: self._system.give_up(self.transactional_id, self.epoch))
        except PrepareError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


class PoolWriter(Writer):
    """The product's `KafkaWriter`, except for rows."""

    system: Kafka

    def __init__(self, system: Kafka, owner: Owner, process: Process, batch: int, slot: int) -> None:
        super().__init__(system)
        self._worker = worker_of(process)
        if self._worker not in system.workers:
            system.workers.append(self._worker)
        self._batch, self._slot = batch, slot
        self._shipped = KafkaWriter(self._pool(owner), batch=batch, topic="t", transactional=True, limits=_LIMITS)

    def _pool(self, owner: Owner) -> ProducerPool:
        system = self.system

        def open_producer(spec: ProducerSpec, worker: str, lane: int) -> Any:
            name = TransactionalId(prefix=system.prefix, query=spec.query, token=spec.token, worker=worker, lane=lane)
            pooled = ModelProducer(system, lane, str(name))
            try:
                pooled.initialise()
            except SparkonceError:
                raise
            except Exception as error:
                system.simulation.oracle.failed(error)
                raise
            return pooled

        spec = ProducerSpec(sink=system.name, query=owner.query, token=owner.token, generation=owner.generation)
        keep_at_most = KEEP_AT_MOST if system.simulation.config.keep_ready else 0
        return self._worker.pool(spec, keep_at_most=keep_at_most, open_producer=open_producer)

    def begin(self) -> None:
        lease: Any = self._shipped._lease
        lease.process, self._worker.waits_for = self._worker.process, lease
        try:
            self._shipped.begin()
        finally:
            self._worker.waits_for = None
        self._worker.process.catch_up()

    def write(self, parts: int) -> None:
        system, pooled = self.system, self._shipped._open_producer()
        name, epoch = pooled.transactional_id, pooled.epoch
        what = ("writes", name, epoch)
        answer = ask(system, what, lambda: system.produce(name, epoch, self._batch, self._slot, parts, self))
        if answer == "fenced":
            raise PrepareError("fenced")
        if answer != "taken":
            self.system.simulation.oracle.broken(Violation.SHARED_EPOCH, answer, name, epoch)

    def prepare(self) -> Mapping[str, Scalar]:
        return self._shipped.prepare()

    def abort(self) -> None:
        self._shipped.abort()

    def close(self) -> None:
        self._shipped.close()


def worker_of(process: Process) -> ModelWorker:
    """The process's own pool, shared by all sinks and runs."""
    found: ModelWorker | None = process.kept.get("worker")
    if found is None:
        found = process.kept["worker"] = ModelWorker(process)
    return found
