"""Every row is there once, no matter in which phase and how often the driver dies."""

from __future__ import annotations

import itertools

import pytest

from sparkonce import errors
from sparkonce.decision_log import DecisionLog
from sparkonce.protocol import horizon
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import Amend
from sparkonce.sinks.memory import MemoryServer
from sparkonce.sinks.memory.server import reply_lost
from sparkonce.storage.local import LocalFiles
from unit.driver_world import Clock, Crash, FlakyLog, World, crash_at, numbers, stopped_clock

# The phases of a run's first batch if nothing goes wrong.
PHASES = [
    *(Phase.READING, Phase.CLAIMING, Phase.CHECKING, Phase.SWEEPING, Phase.WRITING, Phase.VALIDATING),
    *(Phase.DECIDING, Phase.FINISHING, Phase.SWEEPING_OWN, Phase.CONCLUDING, Phase.IDLE),
]
# The phases of a run that finds a decided batch whose rows are all lost.
HEALING = [
    *(Phase.READING, Phase.CLAIMING, Phase.CHECKING, Phase.FINISHING, Phase.JUDGING, Phase.WRITING),
    *(Phase.VALIDATING, Phase.DECIDING, Phase.SWEEPING_OWN, Phase.CONCLUDING, Phase.IDLE),
]


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    return stopped_clock(monkeypatch)


@pytest.fixture
def world(tmp_path) -> World:
    world = World(tmp_path)
    world.run(world.start(), 0)
    return world


def check(world: World) -> None:
    world.run(world.start(), 1, 2)
    for name in world.servers:
        assert world.visible(name) == numbers(0, 1, 2)
    assert world.unfinished() == []


@pytest.mark.parametrize(("first", "second"), list(itertools.product(PHASES, [*PHASES, Phase.REPLAYING])))
def test_two_crashes_in_a_row(world, first, second):
    world.add("other")
    world.crash(0, Phase.IDLE)
    world.crash(1, first)
    world.crash(1, second)
    world.run(world.start(), 1, 2)
    assert world.visible() == numbers(0, 1, 2)
    assert world.visible("other") == numbers(1, 2)
    assert world.unfinished() == []


@pytest.mark.parametrize("phase", [Phase.RAISING_FLOOR, Phase.TIDYING])
def test_a_crash_while_the_log_is_cleaned_up(tmp_path, monkeypatch, phase):
    monkeypatch.setattr(horizon, "KEEP_BATCHES", 10)
    monkeypatch.setattr(horizon, "TIDY_EVERY_BATCHES", 2)
    world = World(tmp_path)
    world.run(world.start(), *range(11))
    with pytest.raises(Crash):
        world.run(world.start(crash_at(phase)), 11)
    world.run(world.start(), *range(11, 25))
    assert world.visible() == numbers(*range(25))
    assert len(world.kinds()) <= 15


def test_each_file_of_the_log_can_be_restored_from_a_copy(tmp_path, monkeypatch):
    """As the error says, while a batch is decided and not committed."""
    monkeypatch.setattr(horizon, "KEEP_BATCHES", 10)
    monkeypatch.setattr(horizon, "TIDY_EVERY_BATCHES", 2)
    world = World(tmp_path)
    world.run(world.start(), *range(13))
    world.crash(13, Phase.FINISHING)
    log = world.checkpoint / "sparkonce"
    floor = max((log / "floors").iterdir())
    for file in (floor, *(one for one in (log / "records").iterdir() if one.name >= floor.name)):
        copy = file.read_bytes()
        file.write_bytes(copy[:-1])
        with pytest.raises(errors.CorruptRecordError, match="Restore the file from a copy of the checkpoint"):
            world.start(log=DecisionLog(LocalFiles(world.checkpoint), decides=True))
        file.write_bytes(copy)
    world.run(world.start(), 13, 14)
    assert world.visible() == numbers(*range(15))
    assert world.unfinished() == []


@pytest.mark.parametrize(("first", "second"), list(itertools.product(HEALING, repeat=2)))
def test_losses_again_and_again(world, first, second):
    world.crash(1, Phase.FINISHING)
    for phase in (first, second):
        expire_all(world.server)
        world.crash(1, phase)
    expire_all(world.server)
    check(world)


@pytest.mark.parametrize("phase", [Phase.JUDGING, Phase.WRITING, Phase.DECIDING, Phase.SWEEPING_OWN])
def test_a_crash_while_a_part_of_a_batch_is_healed(world, phase):
    world.server.fail("commit", reply_lost(Outcome.COMMITTED), Crash())
    with pytest.raises(Crash):
        world.run(world.start(), 1)
    expire_all(world.server)
    with pytest.raises(Crash):
        world.run(world.start(crash_at(phase)), 1)
    check(world)


@pytest.mark.parametrize("faults", [["landed"], ["unknown"], ["unknown", "landed"]])
def test_the_reply_to_an_amendment_is_lost(world, faults):
    world.crash(1, Phase.FINISHING)
    expire_all(world.server)
    world.run(world.start(log=FlakyLog(world.log, Amend, *faults)), 1)
    check(world)


def test_failures_while_a_batch_is_healed(world):
    world.crash(1, Phase.FINISHING)
    expire_all(world.server)
    with pytest.raises(errors.LogError):
        world.run(world.start(log=FlakyLog(world.log, Amend, "read-only")), 1)
    assert world.unfinished() == []
    check(world)

    world = world.another()
    world.run(world.start(), 0)
    world.crash(1, Phase.FINISHING)
    expire_all(world.server)
    world.server.fail("prepare", RuntimeError("no"))
    with pytest.raises(errors.PrepareError):
        world.run(world.start(), 1)
    assert world.unfinished() == []
    check(world)

    world = world.another()
    world.run(world.start(), 0)
    world.crash(1, Phase.FINISHING)
    world.server.fail("commit", *[Finished(outcome=Outcome.RETRY)] * 20)
    check(world)


def expire_all(server: MemoryServer) -> None:
    for number, _ in server.unfinished():
        server.expire(number)
