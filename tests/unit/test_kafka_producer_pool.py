from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from eventually import LIMIT_S
from sparkonce.errors import PrepareError
from sparkonce.protocol.ownership import Token
from sparkonce.sinks.kafka import producer_pool
from sparkonce.sinks.kafka.pooled_producer import PooledProducer, ProducerSpec, Reports
from sparkonce.sinks.kafka.producer_pool import LEFT_OVER_TASKS, ProducerPool, WorkerProducers


class FakeProducer:
    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.polled_s = float("inf")
        self.reports = Reports()
        self.ended = False

    def destroy(self) -> None:
        self.ended = True


class Bench:
    def __init__(self, keep_at_most: int = 8) -> None:
        self.threads: list[threading.Thread] = []
        self.asked: list[int] = []
        self.made: list[FakeProducer] = []
        self.failure: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.pool = ProducerPool(self.make, FakeProducer.destroy, keep_at_most, self.run)

    def make(self, number: int) -> FakeProducer:
        assert self.gate.wait(LIMIT_S)
        self.asked.append(number)
        if self.failure is not None:
            raise self.failure
        self.made.append(FakeProducer(number))
        return self.made[-1]

    def run(self, work: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()

    def settle(self) -> None:
        for thread in self.threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()

    def take(self, batch: int) -> FakeProducer:
        """Runs a task that waits for its producer if none is ready, and lasts until the next one is ready."""
        self.gate.clear()
        lease = self.pool.take(batch)
        result = lease.result

        def let_it_be_made(timeout_s: float | None = None) -> PooledProducer:
            self.gate.set()
            return result(timeout_s)

        lease.result = let_it_be_made
        pooled = self.pool.wait(lease, LIMIT_S)
        self.settle()
        return pooled

    def carry(self, batch: int) -> FakeProducer:
        pooled = self.take(batch)
        self.pool.retire(pooled, batch)
        return pooled


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_producer_carries_one_transaction_and_its_lane_rests_for_a_batch(bench):
    batches = (0, 0, 1, 1, 2, 2, 3, 3)
    carried = [bench.carry(batch) for batch in batches]
    assert len({id(pooled) for pooled in carried}) == len(carried)
    assert all(pooled.ended for pooled in carried)
    last_use: dict[int, int] = {}
    for batch, pooled in zip(batches, carried, strict=True):
        # A producer that was created in advance may have been initialized while the previous batch was running.
        assert last_use.get(pooled.lane, -2) < batch
        last_use[pooled.lane] = batch
    assert max(last_use) < 7


def test_a_producer_that_has_failed_while_it_was_kept_is_not_handed_out(bench):
    bench.carry(0)
    (kept,) = (pooled for pooled in bench.made if not pooled.ended)
    kept.reports.fatal = "fenced"
    assert bench.carry(1) is not kept
    assert kept.ended


def test_fewer_are_kept_once_tasks_leave_some_over(bench):
    bench.gate.clear()
    for lease in [bench.pool.take(0) for _ in range(4)]:
        with pytest.raises(PrepareError):
            bench.pool.wait(lease, 0)
    bench.gate.set()
    bench.settle()
    assert len(bench.made) >= 4
    for batch in range(1, 9 * LEFT_OVER_TASKS):
        pooled = bench.pool.take(batch).result(0)
        bench.settle()
        bench.pool.retire(pooled, batch)
    assert len([pooled for pooled in bench.made if not pooled.ended]) == 1


def test_an_unused_producer_is_kept_for_the_next_task(bench):
    lease = bench.pool.take(0)
    bench.settle()
    bench.pool.withdraw(lease)
    assert bench.pool.take(0).result(0) is lease.result(0)


def test_an_error_reaches_the_task_that_waits_and_the_next_task_tries_again(bench):
    bench.failure = PrepareError("not allowed")
    lease = bench.pool.take(0)
    with pytest.raises(PrepareError, match="not allowed"):
        bench.pool.wait(lease, LIMIT_S)
    bench.settle()
    bench.pool.withdraw(lease)
    bench.failure = None
    assert bench.take(0).lane > 0, "an initialisation that failed may have happened"


@pytest.mark.parametrize("in_advance", [False, True])
def test_a_lane_whose_initialisation_failed_is_never_initialised_again(bench, *, in_advance):
    """The request may still arrive after a later transaction of the same lane was committed."""
    if in_advance:
        bench.carry(0)
    before = len(bench.asked)
    bench.failure = PrepareError("no answer")
    lease = bench.pool.take(0)
    bench.settle()
    assert (lease.exception(0) is None) is in_advance
    (burnt,) = bench.asked[before:]
    bench.failure = None
    carried = [bench.carry(batch).lane for batch in range(1, 30)]
    assert bench.asked.count(burnt) == 1
    assert len(set(carried)) < len(carried), "other lanes are used again"


def test_dropping_ends_what_is_ready_now_and_the_rest_when_it_comes_back(bench):
    used = bench.take(0)
    (ready,) = (pooled for pooled in bench.made if pooled is not used)
    bench.pool.drop()
    assert (used.ended, ready.ended) == (False, True)
    bench.pool.give_back(used)
    assert used.ended


def test_what_no_task_takes_for_long_is_ended(bench, monkeypatch):
    used = bench.take(0)
    (kept,) = (pooled for pooled in bench.made if pooled is not used)
    bench.pool.expire()
    assert not kept.ended
    monkeypatch.setattr(producer_pool, "IDLE_LIMIT_S", -1.0)
    bench.pool.expire()
    assert (used.ended, kept.ended) == (False, True)


def spec(position: int, query: str = "0123456789ab", sink: str = "kafka", generation: int = 0) -> ProducerSpec:
    return ProducerSpec(sink=sink, query=query, token=Token(position, "00000000"), generation=generation)


def test_a_newer_run_of_the_same_query_ends_the_producers_of_the_older(monkeypatch):
    worker = WorkerProducers()
    dropped: list[ProducerPool] = []
    monkeypatch.setattr(ProducerPool, "drop", lambda pool: dropped.append(pool))

    def pool(position: int, **other: str) -> ProducerPool:
        return worker.pool(spec(position, **other), keep_at_most=0)

    old = pool(1)
    others = [pool(1, query="ba9876543210"), pool(1, sink="second")]
    assert pool(1) is old
    assert dropped == []
    new = pool(2)
    assert dropped == [old]
    late = pool(1)
    assert late is not old
    assert dropped == [old]
    assert pool(2) is new
    worker.stop()
    assert set(dropped) == {old, *others, new, late}


def test_a_newer_generation_of_a_run_begins_with_other_ids(monkeypatch):
    """A request that was not answered may still end a transaction of an earlier id."""
    worker = WorkerProducers()
    drawn: list[str] = []
    dropped: list[ProducerPool] = []
    monkeypatch.setattr(ProducerPool, "drop", lambda pool: dropped.append(pool))

    def open_producer(_: ProducerSpec, id_: str, lane: int) -> FakeProducer:
        drawn.append(id_)
        return FakeProducer(lane)

    for generation in (0, 0, 1):
        pool = worker.pool(spec(1, generation=generation), keep_at_most=0, open_producer=open_producer)
        pool.retire(pool.wait(pool.take(generation), LIMIT_S), generation)
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(dropped) == 1
    worker.stop()


def test_a_producer_that_cannot_be_served_hurts_no_other(monkeypatch, caplog):
    monkeypatch.setattr(producer_pool, "POLL_EVERY_S", 0.001)
    served = threading.Event()

    class Neglected(FakeProducer):
        transactional_id = "bad"
        bad = False

        def __init__(self, lane: int) -> None:
            super().__init__(lane)
            self.polled_s = float("-inf")

        def poll(self, timeout_s: float) -> None:
            if self.lane == 0:
                self.bad = True
                raise SystemError("returned NULL without setting an exception")
            if 0 in lanes and lanes[0].bad:
                served.set()

    lanes: dict[int, Neglected] = {}

    def open_producer(_: ProducerSpec, worker: str, lane: int) -> Neglected:
        lanes[lane] = Neglected(lane)
        return lanes[lane]

    worker = WorkerProducers()
    pool = worker.pool(spec(1), keep_at_most=8, open_producer=open_producer)
    for _ in range(2):
        pool.wait(pool.take(1), LIMIT_S)
    assert served.wait(LIMIT_S)
    worker.stop()
    assert [record.getMessage() for record in caplog.records] == ["The producer of 'bad' could not be polled."]
    assert ["SystemError" in lanes[number].reports.fatal for number in (0, 1)] == [True, False]


def test_a_fatal_error_without_a_reason_is_fatal_all_the_same():
    def fail(_: float) -> None:  # the exception was delivered to another thread's call
        raise SystemError("returned NULL without setting an exception")

    pooled = object.__new__(PooledProducer)
    pooled.transactional_id, pooled.reports, pooled.producer = "", Reports(), SimpleNamespace(flush=fail)
    pooled.flush(1.0)
    assert "SystemError" in pooled.reports.fatal


FORK = """
import os
from sparkonce.protocol.ownership import Token
from sparkonce.sinks.kafka.pooled_producer import ProducerSpec
from sparkonce.sinks.kafka.producer_pool import this_worker

drawn = {}
spec = ProducerSpec(sink="s", query="q", token=Token(0, "00000000"))


def identity():
    def open_producer(spec, worker, lane):
        drawn[lane] = worker
        raise RuntimeError("no broker is needed")

    lease = this_worker().pool(spec, keep_at_most=0, open_producer=open_producer).take(0)
    try:
        lease.result(30)
    except RuntimeError:
        return drawn[max(drawn)]


parent = identity()
receive, send = os.pipe()
if os.fork() == 0:
    os.write(send, identity().encode())
    os._exit(0)
os.wait()
print(parent, os.read(receive, 100).decode(), identity())
"""


def test_a_forked_process_is_another_worker():
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=60)
    before, child, after = run.stdout.split()
    assert before == after
    assert len(child) == 12
    assert child != before


def test_a_refused_login_is_not_forgotten_for_the_error_that_follows_it():
    reports = Reports()
    reports.on_error(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error"))
    reports.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert (reports.barred, reports.last_error) == (True, "SASL authentication error")
    reports.on_error(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
    assert (reports.barred, reports.last_error) == (False, "Connection refused")
