"""The objects and files that a query accumulates over ten thousand batches, or over ten thousand failed starts."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from sparkonce.decision_log import DecisionLog, Landed, Taken
from sparkonce.protocol import horizon
from sparkonce.protocol.codec import decode_floor, encode_record
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import KEPT_RUNS, Claim
from unit.driver_world import QUERY, SLOTS, Clock, World, numbers, stopped_clock

MANY = 10_000


class InMemory(DecisionLog):
    def __init__(self, location: str) -> None:
        self._location = location
        self.records: dict[int, bytes] = {}
        self.floors: dict[int, bytes] = {}

    @property
    def location(self) -> str:
        return self._location

    def put_bytes(self, position: int, data: bytes) -> Landed | Taken:
        standing = self.records.setdefault(position, data)
        return Landed() if standing is data else Taken(standing=standing)

    def read_bytes(self, position: int) -> list[bytes]:
        end = position
        while end in self.records:
            end += 1
        return [self.records[place] for place in range(position, end)]

    def floor_bytes(self) -> bytes | None:
        return self.floors[max(self.floors)] if self.floors else None

    def raise_floor_bytes(self, position: int, data: bytes) -> None:
        self.floors.setdefault(position, data)

    def delete_below(self, position: int) -> None:
        for place in [place for place in self.records if place < position]:
            del self.records[place]
        for place in [place for place in self.floors if place < max(self.floors)]:
            del self.floors[place]


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return stopped_clock(monkeypatch)


@pytest.fixture
def world(tmp_path, clock) -> World:
    world = World(tmp_path)
    world.log = InMemory(str(tmp_path))
    return world


def claims(world: World, count: int) -> None:
    end = max(world.log.records, default=-1) + 1
    for position in range(end, end + count):
        claim = Claim(nonce=f"{position:08x}", run=f"run {position}", query=QUERY, location=world.log.location)
        world.log.records[position] = encode_record(claim, at_ms=0)


def test_a_query_that_has_failed_for_a_night_starts_again(world, clock):
    world.run(world.start(), 0)
    claims(world, MANY)
    world.run(world.start(), 1, 2)
    assert world.visible() == numbers(0, 1, 2)
    assert sum(clock.slept) <= 30.0
    assert sorted(world.log.records) == [MANY + 2, MANY + 3, MANY + 4], "its claim, and two decisions"
    world.run(world.start(), 2, 3)
    assert world.visible() == numbers(0, 1, 2, 3)


def test_a_log_of_failures_does_not_grow(world, monkeypatch):
    monkeypatch.setattr(horizon, "KEEP_RECORDS", 20)
    world.run(world.start(), 0)
    for _ in range(100):
        world.crash(1, Phase.WRITING)
        assert len(world.log.records) <= 22
        assert len(world.log.floors) <= 1
    world.run(world.start(), 1)
    assert (world.visible(), world.unfinished()) == (numbers(0, 1), [])


def test_a_batch_that_was_decided_before_a_night_of_failures_is_finished(world):
    """The floor carries the batch with its handles."""
    world.run(world.start(), 0)
    world.crash(1, Phase.FINISHING)
    claims(world, MANY)
    world.crash(1, Phase.TIDYING)
    world.crash(1, Phase.FINISHING)
    assert world.visible() == numbers(0)
    assert world.run(world.start(), 1)[0].recovered
    assert (world.visible(), world.unfinished()) == (numbers(0, 1), [])


def test_a_commit_is_asked_for_thousands_of_times(world, clock):
    world.server.fail("commit", *[Finished(outcome=Outcome.RETRY)] * MANY)
    driver = world.start(deadline_s=10.0 * MANY)
    world.run(driver, 0)
    assert world.visible() == numbers(0)
    assert max(clock.slept) <= 2.0


@pytest.mark.slow
@pytest.mark.parametrize("batches", [400, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_run_of_many_batches_keeps_what_a_short_one_keeps(world, batches):
    """Measures the memory of the log, the driver and the protocol, without that of the in-memory server."""

    def held() -> int:
        gc.collect()
        ours = [tracemalloc.Filter(True, f"*/sparkonce/{part}/*") for part in ("driver", "log", "protocol")]
        return sum(one.size for one in tracemalloc.take_snapshot().filter_traces(ours).statistics("filename"))

    driver = world.start()
    tracemalloc.start()
    try:
        world.run(driver, *range(200))
        before = held()
        world.run(driver, *range(200, batches))
        assert held() < 1.2 * before
    finally:
        tracemalloc.stop()
    assert len(world.log.records) <= horizon.KEEP_BATCHES + horizon.TIDY_EVERY_BATCHES
    assert len(world.log.floors) == 1
    named = [bool(decision.handles) for decision in driver.state.view.decisions]
    assert named == [False] * (len(named) - 1) + [True], "no run finishes an older one than the newest"
    world.run(world.start(), batches)
    assert len(world.visible()) == len(numbers(*range(batches + 1)))


@pytest.mark.parametrize("starts", [200, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_query_that_starts_for_each_batch_finds_as_little_as_at_first(world, monkeypatch, starts):
    """This happens with ``availableNow`` in a loop. Each batch raises the floor, which carries the runs below it."""
    monkeypatch.setattr(horizon, "KEEP_BATCHES", 2)
    monkeypatch.setattr(horizon, "TIDY_EVERY_BATCHES", 1)
    for batch in range(starts):
        world.run(world.start(), batch)
        assert len(world.log.records) <= 6
        assert len(world.log.floors) <= 1
        assert world.visible()[-len(numbers(0)) :] == numbers(batch)
        for number in [*world.server._transactions][:-SLOTS]:  # servers forget, too
            del world.server._transactions[number]
    (floor,) = world.log.floors.values()
    assert len(decode_floor(floor).runs) <= KEPT_RUNS
    assert len(floor) < 64 * 1024
