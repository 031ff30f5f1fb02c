from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from sparkonce.errors import PrepareError
from sparkonce.protocol.ownership import Token
from sparkonce.sinks.kafka import producers
from sparkonce.sinks.kafka.producers import Pool, PoolKey, Worker


class FakeLane:
    """Stands in for a producer: a number, and whether it was ended."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.polled_s = float("inf")
        self.ended = False

    def destroy(self) -> None:
        self.ended = True


class Bench:
    """A pool whose background work is done when the test says so."""

    def __init__(self, keep_at_most: int = 8) -> None:
        self.work: deque[Callable[[], None]] = deque()
        self.made: list[FakeLane] = []
        self.failure: Exception | None = None
        self.pool = Pool(self.make, FakeLane.destroy, keep_at_most, self.work.append)  # type: ignore[arg-type]

    def make(self, number: int) -> FakeLane:
        if self.failure is not None:
            raise self.failure
        self.made.append(FakeLane(number))
        return self.made[-1]

    def settle(self) -> None:
        while self.work:
            self.work.popleft()()

    def carry(self, batch: int) -> FakeLane:
        """A task that takes a producer, opens a transaction on it, and ends."""
        lease = self.pool.take(batch)
        self.settle()
        lane = lease.result(0)
        self.pool.retire(lane, batch)
        return lane  # type: ignore[return-value]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_second_task_takes_the_producer_that_was_made_while_the_first_ran(bench: Bench) -> None:
    first = bench.pool.take(0)
    assert not first.done()
    bench.settle()
    second = bench.pool.take(0)
    assert second.done()
    assert first.result(0) is not second.result(0)


def test_a_producer_carries_one_transaction_and_its_lane_rests_for_a_batch(bench: Bench) -> None:
    carried = [bench.carry(batch) for batch in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert len({id(lane) for lane in carried}) == len(carried)
    assert all(lane.ended for lane in carried)
    last_use: dict[int, int] = {}
    for batch, lane in zip((0, 0, 1, 1, 2, 2, 3, 3), carried, strict=True):
        assert last_use.get(lane.number, -2) <= batch - 1
        last_use[lane.number] = batch
    assert max(last_use) < 7


def test_lanes_are_used_again(bench: Bench) -> None:
    assert max(bench.carry(batch).number for batch in range(100)) < 5


def test_no_lane_is_initialised_again_before_two_batches_later(bench: Bench) -> None:
    lanes = [bench.carry(7).number for _ in range(20)]
    assert len(set(lanes)) == 20


def test_a_task_that_had_to_wait_raises_how_many_are_kept_up_to_a_limit(bench: Bench) -> None:
    leases = [bench.pool.take(0) for _ in range(20)]
    bench.settle()
    assert all(lease.done() for lease in leases)
    assert len(bench.made) == 20 + producers.KEEP_AT_MOST


def test_an_unused_producer_is_kept_for_the_next_task(bench: Bench) -> None:
    lease = bench.pool.take(0)
    bench.settle()
    unused = lease.result(0)
    bench.pool.withdraw(lease)
    taken = [bench.pool.take(0).result(0) for _ in range(2)]
    assert unused in taken


def test_a_lease_given_up_early_leaves_its_producer_to_the_next_task(bench: Bench) -> None:
    bench.pool.withdraw(bench.pool.take(0))
    bench.settle()
    assert bench.pool.take(0).done()
    assert len(bench.made) <= 3


def test_an_error_reaches_the_task_that_waits_and_the_next_task_tries_again(bench: Bench) -> None:
    bench.failure = PrepareError("not allowed")
    lease = bench.pool.take(0)
    bench.settle()
    with pytest.raises(PrepareError, match="not allowed"):
        lease.result(0)
    bench.pool.withdraw(lease)
    bench.failure = None
    again = bench.pool.take(0)
    bench.settle()
    assert again.result(0).number not in (0, 1), "an initialisation that failed may have happened"


def test_an_error_of_a_replacement_is_logged_and_hurts_no_task(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    lease = bench.pool.take(0)
    bench.work.popleft()()
    bench.failure = PrepareError("not allowed")
    bench.settle()
    assert lease.done()
    assert "not allowed" in caplog.text


def test_producers_that_are_used_again_are_never_made_in_advance() -> None:
    bench = Bench(keep_at_most=0)
    for batch in range(5):
        lease: Future[FakeLane] = bench.pool.take(batch)  # type: ignore[assignment]
        bench.settle()
        bench.pool.give_back(lease.result(0))  # type: ignore[arg-type]
    assert len(bench.made) == 1
    assert not bench.made[0].ended


def test_dropping_ends_what_is_ready_now_and_the_rest_when_it_comes_back(bench: Bench) -> None:
    lease = bench.pool.take(0)
    bench.settle()
    used, ready = bench.made
    bench.pool.drop()
    assert (used.ended, ready.ended) == (False, True)
    bench.pool.withdraw(lease)
    assert used.ended


def test_what_no_task_takes_for_long_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.carry(0)
    kept = bench.made[-1]
    bench.pool.expire()
    assert not kept.ended
    monkeypatch.setattr(producers, "IDLE_LIMIT_S", -1.0)
    bench.pool.expire()
    assert kept.ended


def key(position: int, query: str = "0123456789ab", sink: str = "kafka") -> PoolKey:
    return PoolKey(sink=sink, query=query, token=Token(position, "00000000"))


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


FORK = """
import os
from sparkonce.sinks.kafka.producers import this_worker

parent = this_worker().id
receive, send = os.pipe()
if os.fork() == 0:
    os.write(send, this_worker().id.encode())
    os._exit(0)
os.wait()
print(parent, os.read(receive, 100).decode(), this_worker().id)
"""


def test_a_forked_process_is_another_worker() -> None:
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=60)
    before, child, after = run.stdout.split()
    assert before == after
    assert len(child) == 12
    assert child != before
