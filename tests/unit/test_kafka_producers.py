from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from sparkonce.errors import PrepareError
from sparkonce.protocol.ownership import Token
from sparkonce.sinks.kafka import producers
from sparkonce.sinks.kafka.lane import Lane, Reports
from sparkonce.sinks.kafka.producers import LEFT_OVER_TASKS, Pool, PoolKey, Worker

WAIT_S = 30.0


class FakeLane:
    """Stands in for a producer: a number, and whether it was ended."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.polled_s = float("inf")
        self.reports = Reports()
        self.ended = False

    def destroy(self) -> None:
        self.ended = True


class Bench:
    """A pool of fakes, and the threads that make them."""

    def __init__(self, keep_at_most: int = 8) -> None:
        self.threads: list[threading.Thread] = []
        self.asked: list[int] = []
        self.made: list[FakeLane] = []
        self.failure: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.pool = Pool(self.make, FakeLane.destroy, keep_at_most, self.run)  # type: ignore[arg-type]

    def make(self, number: int) -> FakeLane:
        assert self.gate.wait(WAIT_S)
        self.asked.append(number)
        if self.failure is not None:
            raise self.failure
        self.made.append(FakeLane(number))
        return self.made[-1]

    def run(self, work: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()

    def settle(self) -> None:
        """Waits for all that has been started."""
        for thread in self.threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def take(self, batch: int) -> FakeLane:
        """A task that has to wait for its producer if none was ready, and runs until the next one is."""
        self.gate.clear()
        lease = self.pool.take(batch)
        result = lease.result

        def let_it_be_made(timeout_s: float | None = None) -> Lane:
            self.gate.set()
            return result(timeout_s)

        lease.result = let_it_be_made  # type: ignore[method-assign]
        lane = self.pool.wait(lease, WAIT_S)
        self.settle()
        return lane  # type: ignore[return-value]

    def carry(self, batch: int) -> FakeLane:
        """A task that opens a transaction and ends."""
        lane = self.take(batch)
        self.pool.retire(lane, batch)  # type: ignore[arg-type]
        return lane


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_second_task_takes_the_producer_that_was_made_while_the_first_ran(bench: Bench) -> None:
    used = bench.take(0)
    bench.gate.clear()
    second = bench.pool.take(0)
    assert second.done()
    assert second.result() is not used
    bench.gate.set()


def test_a_task_that_never_waits_has_no_producer_made_in_advance(bench: Bench) -> None:
    for batch in range(5):
        lease = bench.pool.take(batch)
        bench.settle()
        bench.pool.retire(bench.pool.wait(lease, 0), batch)
    assert len(bench.made) == 5


def test_a_producer_carries_one_transaction_and_its_lane_rests_for_a_batch(bench: Bench) -> None:
    batches = (0, 0, 1, 1, 2, 2, 3, 3)
    carried = [bench.carry(batch) for batch in batches]
    assert len({id(lane) for lane in carried}) == len(carried)
    assert all(lane.ended for lane in carried)
    last_use: dict[int, int] = {}
    for batch, lane in zip(batches, carried, strict=True):
        # Made in advance, it may have been initialised while the batch before ran.
        assert last_use.get(lane.number, -2) < batch
        last_use[lane.number] = batch
    assert max(last_use) < 7


def test_a_producer_that_has_failed_while_it_was_kept_is_not_handed_out(bench: Bench) -> None:
    bench.carry(0)
    (kept,) = (lane for lane in bench.made if not lane.ended)
    kept.reports.fatal = "fenced"
    assert bench.carry(1) is not kept
    assert kept.ended


def test_fewer_are_kept_once_tasks_leave_some_over(bench: Bench) -> None:
    bench.gate.clear()
    for lease in [bench.pool.take(0) for _ in range(4)]:
        with pytest.raises(PrepareError):
            bench.pool.wait(lease, 0)
    bench.gate.set()
    bench.settle()
    assert len(bench.made) >= 4
    for batch in range(1, 9 * LEFT_OVER_TASKS):
        lane = bench.pool.take(batch).result(0)
        bench.settle()
        bench.pool.retire(lane, batch)
    assert len([lane for lane in bench.made if not lane.ended]) == 1


def test_after_a_long_pause_none_is_kept_until_a_task_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.carry(0)
    monkeypatch.setattr(producers, "IDLE_LIMIT_S", -1.0)
    bench.pool.expire()
    assert all(lane.ended for lane in bench.made)
    lease = bench.pool.take(1)
    bench.settle()
    bench.pool.retire(bench.pool.wait(lease, 0), 1)
    assert all(lane.ended for lane in bench.made)


def test_lanes_are_used_again(bench: Bench) -> None:
    assert max(bench.carry(batch).number for batch in range(100)) < 5


def test_no_lane_is_initialised_again_before_two_batches_later(bench: Bench) -> None:
    lanes = [bench.carry(7).number for _ in range(20)]
    assert len(set(lanes)) == 20


def test_tasks_that_had_to_wait_raise_how_many_are_kept_up_to_a_limit(bench: Bench) -> None:
    bench.gate.clear()
    leases = [bench.pool.take(0) for _ in range(20)]
    for lease in leases:
        with pytest.raises(PrepareError, match=r"ready within 0 s"):
            bench.pool.wait(lease, 0)
    bench.gate.set()
    bench.settle()
    taken = [bench.take(0) for _ in range(21)]
    assert len(bench.made) == len(taken) + producers.KEEP_AT_MOST


def test_an_unused_producer_is_kept_for_the_next_task(bench: Bench) -> None:
    lease = bench.pool.take(0)
    bench.settle()
    bench.pool.withdraw(lease)
    assert bench.pool.take(0).result(0) is lease.result(0)


def test_a_lease_given_up_early_leaves_its_producer_to_the_next_task(bench: Bench) -> None:
    bench.gate.clear()
    for _ in range(5):
        bench.pool.withdraw(bench.pool.take(0))
    bench.gate.set()
    bench.settle()
    assert bench.pool.take(0).done()
    assert len(bench.made) == 1


def test_an_error_reaches_the_task_that_waits_and_the_next_task_tries_again(bench: Bench) -> None:
    bench.failure = PrepareError("not allowed")
    lease = bench.pool.take(0)
    with pytest.raises(PrepareError, match="not allowed"):
        bench.pool.wait(lease, WAIT_S)
    bench.settle()
    bench.pool.withdraw(lease)
    bench.failure = None
    assert bench.take(0).number > 0, "an initialisation that failed may have happened"


@pytest.mark.parametrize("in_advance", [False, True])
def test_a_lane_whose_initialisation_failed_is_never_initialised_again(bench: Bench, *, in_advance: bool) -> None:
    """The request may still arrive, after a transaction that a later one carried was committed."""
    if in_advance:
        bench.carry(0)
    before = len(bench.asked)
    bench.failure = PrepareError("no answer")
    lease = bench.pool.take(0)
    bench.settle()
    assert (lease.exception(0) is None) is in_advance
    (burnt,) = bench.asked[before:]
    bench.failure = None
    carried = [bench.carry(batch).number for batch in range(1, 30)]
    assert bench.asked.count(burnt) == 1
    assert len(set(carried)) < len(carried), "other lanes are used again"


def test_an_error_of_a_replacement_is_logged_and_hurts_no_task(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.take(0)
    bench.failure = PrepareError("not allowed")
    assert bench.take(0) is bench.made[-1]
    assert "not allowed" in caplog.text


def test_producers_that_are_used_again_are_never_made_in_advance() -> None:
    bench = Bench(keep_at_most=0)
    for batch in range(5):
        bench.pool.give_back(bench.take(batch))  # type: ignore[arg-type]
    assert len(bench.made) == 1
    assert not bench.made[0].ended


def test_dropping_ends_what_is_ready_now_and_the_rest_when_it_comes_back(bench: Bench) -> None:
    used = bench.take(0)
    (ready,) = (lane for lane in bench.made if lane is not used)
    bench.pool.drop()
    assert (used.ended, ready.ended) == (False, True)
    bench.pool.give_back(used)  # type: ignore[arg-type]
    assert used.ended


def test_what_no_task_takes_for_long_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    used = bench.take(0)
    (kept,) = (lane for lane in bench.made if lane is not used)
    bench.pool.expire()
    assert not kept.ended
    monkeypatch.setattr(producers, "IDLE_LIMIT_S", -1.0)
    bench.pool.expire()
    assert (used.ended, kept.ended) == (False, True)


def key(position: int, query: str = "0123456789ab", sink: str = "kafka", generation: int = 0) -> PoolKey:
    return PoolKey(sink=sink, query=query, token=Token(position, "00000000"), generation=generation)


def test_a_newer_run_of_the_same_query_ends_the_producers_of_the_older(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    dropped: list[Pool] = []
    monkeypatch.setattr(Pool, "drop", lambda pool: dropped.append(pool))

    def pool(position: int, **other: str) -> Pool:
        return worker.pool(key(position, **other), FakeLane, 0)  # type: ignore[arg-type]

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


def test_a_newer_generation_of_a_run_begins_with_other_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was not answered may still end a transaction of an id of before."""
    worker = Worker()
    drawn: list[str] = []
    dropped: list[Pool] = []
    monkeypatch.setattr(Pool, "drop", lambda pool: dropped.append(pool))

    def make(id_: str, number: int) -> FakeLane:
        drawn.append(id_)
        return FakeLane(number)

    for generation in (0, 0, 1):
        pool = worker.pool(key(1, generation=generation), make, 0)  # type: ignore[arg-type]
        pool.retire(pool.wait(pool.take(generation), WAIT_S), generation)
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(dropped) == 1
    worker.stop()


def test_a_producer_that_cannot_be_served_hurts_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producers, "POLL_EVERY_S", 0.001)
    served = threading.Event()

    class Neglected(FakeLane):
        transactional_id = "bad"
        bad = False

        def __init__(self, number: int) -> None:
            super().__init__(number)
            self.polled_s = float("-inf")

        def poll(self, timeout_s: float) -> None:
            if self.number == 0:
                self.bad = True
                raise SystemError("returned NULL without setting an exception")
            if 0 in lanes and lanes[0].bad:
                served.set()

    lanes: dict[int, Neglected] = {}

    def make(drawn: str, number: int) -> Neglected:
        lanes[number] = Neglected(number)
        return lanes[number]

    worker = Worker()
    pool = worker.pool(key(1), make, 8)  # type: ignore[arg-type]
    for _ in range(2):
        pool.wait(pool.take(1), WAIT_S)
    assert served.wait(WAIT_S)
    worker.stop()
    assert [record.getMessage() for record in caplog.records] == ["could not serve the producer of 'bad'"]
    assert ["SystemError" in lanes[number].reports.fatal for number in (0, 1)] == [True, False]


class Silent:
    """A producer whose exception another thread's call was given."""

    def flush(self, timeout_s: float) -> None:
        raise SystemError("returned NULL without setting an exception")


def test_a_fatal_error_without_a_reason_is_fatal_all_the_same() -> None:
    lane = object.__new__(Lane)
    lane.transactional_id, lane.reports, lane.producer = "", Reports(), Silent()  # type: ignore[assignment]
    lane.flush(1.0)
    assert "SystemError" in lane.reports.fatal


FORK = """
import os
from sparkonce.protocol.ownership import Token
from sparkonce.sinks.kafka.producers import PoolKey, this_worker

drawn = {}
key = PoolKey(sink="s", query="q", token=Token(0, "00000000"))


def identity():
    def make(worker, number):
        drawn[number] = worker
        raise RuntimeError("no broker is needed")

    lease = this_worker().pool(key, make, keep_at_most=0).take(0)
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


def test_a_forked_process_is_another_worker() -> None:
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=60)
    before, child, after = run.stdout.split()
    assert before == after
    assert len(child) == 12
    assert child != before
