"""Transactions that superseded attempts and older runs left open are aborted in time, and no batch waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from eventually import eventually
from sparkonce.driver.run import RunDriver
from sparkonce.driver.sweeper import Sweeper
from sparkonce.guarantees import Guarantee
from sparkonce.protocol import sweeping
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.state import Phase
from sparkonce.sink import Owner
from sparkonce.sinks.memory import MemorySink
from sparkonce.sinks.memory.sink import _Committer
from unit.driver_world import World, asked, numbers, owner_of, stopped_clock

THREAD = "sparkonce-sweeper"


@pytest.fixture
def driver(world, monkeypatch) -> Iterator[RunDriver]:
    monkeypatch.setattr(sweeping, "LOSERS_END_WITHIN_S", 0.2)
    driver = world.start(in_background=True)
    yield driver
    driver.close()
    eventually(lambda: THREAD not in {thread.name for thread in threading.enumerate()}, "its thread has ended")


def begin_late(world: World, driver: RunDriver) -> None:
    world.server.begin(f"memory.{owner_of(driver).query}.0-{driver.state.claim.nonce}")


def run_with_a_loser(world: World, driver: RunDriver, batch: int) -> None:
    work = world.work(batch)
    work.loser = True
    driver.run_batch(asked(batch), work)


def test_what_a_loser_has_open_is_aborted_while_the_query_is_idle(world, driver):
    run_with_a_loser(world, driver, 0)
    eventually(lambda: not world.unfinished(), "what lost is aborted")
    begin_late(world, driver)
    eventually(lambda: not world.unfinished(), "what it opens after the first look is aborted")
    assert world.visible() == numbers(0)


def test_what_a_loser_has_open_is_aborted_when_the_query_ends(world, driver, monkeypatch):
    monkeypatch.setattr(sweeping, "LOSERS_END_WITHIN_S", 3600.0)
    run_with_a_loser(world, driver, 0)
    eventually(lambda: not world.unfinished(), "what lost is aborted")
    begin_late(world, driver)
    driver.close()
    assert (world.visible(), world.unfinished()) == (numbers(0), [])


@pytest.fixture
def asking(monkeypatch) -> list[str]:
    asked, list_lingering = [], _Committer.list_lingering

    def noted(committer: _Committer, owners: Sequence[Owner]) -> Sequence[Handle]:
        asked.append(threading.current_thread().name)
        return list_lingering(committer, owners)

    monkeypatch.setattr(_Committer, "list_lingering", noted)
    return asked


def test_a_query_that_ends_lets_its_losers_end_first(world, driver, asking):
    """With ``availableNow``, no batch follows the last one, and Spark soon kills the superseded attempt's worker."""
    run_with_a_loser(world, driver, 0)
    driver.end()
    assert asking == [THREAD, THREAD], "at once, and when they have ended; and nothing is left to look for"
    driver.end()


def test_a_query_that_ends_does_not_wait_where_none_can_have_lost_nor_for_a_sink_that_is_away(
    world, driver, monkeypatch
):
    monkeypatch.setattr(sweeping, "LOSERS_END_WITHIN_S", 3600.0)
    world.run(driver, 0)
    driver.end()
    away = world.start(in_background=True)
    world.run(away, 1)
    monkeypatch.setattr(_Committer, "list_lingering", lambda *_: 1 / 0)
    run_with_a_loser(world, away, 2)
    away.end()


def test_a_loser_is_looked_for_twice_and_not_after_each_batch_from_then_on(world, asking, monkeypatch):
    clock = stopped_clock(monkeypatch)
    driver = world.start()
    run_with_a_loser(world, driver, 0)
    for batch in range(1, 10):
        clock.pass_by(1.0)
        world.run(driver, batch)
    assert len(asking) == 2, "behind it, and when it has ended"
    clock.pass_by(10.0)
    world.run(driver, 10)
    assert len(asking) == 3, "as often as without losers"


def test_a_loser_of_a_batch_behind_which_a_sink_was_away_is_looked_for_once_it_is_back(world, asking, monkeypatch):
    """The attempt has ended by then, so a single listing finds everything that it opened."""
    clock = stopped_clock(monkeypatch)
    driver = world.start()
    with monkeypatch.context() as patch:
        patch.setattr(_Committer, "list_lingering", lambda *_: 1 / 0)
        patch.setattr(Sweeper, "sweep_older", lambda *_, **__: None)
        run_with_a_loser(world, driver, 0)
        run_with_a_loser(world, driver, 1)
    clock.pass_by(4.0)
    begin_late(world, driver)
    world.run(driver, 2)
    assert asking == [], "not once a batch"
    clock.pass_by(16.0)
    world.run(driver, 3)
    assert (len(asking), world.unfinished()) == (1, [])
    clock.pass_by(5.0)
    world.run(driver, 4)
    assert len(asking) == 1, "as often as without losers"


def test_no_batch_waits_for_a_sweep_of_its_own(world, driver, asking):
    world.run(driver, 0)
    asking.clear()
    for batch in range(1, 20):
        run_with_a_loser(world, driver, batch)
    eventually(lambda: not world.unfinished(), "what lost is aborted")
    assert set(asking) == {THREAD}


def test_a_sink_that_does_not_answer_is_asked_less_and_less_often(world, driver, monkeypatch, caplog):
    away = True
    list_lingering = _Committer.list_lingering

    def at_first_not(committer: _Committer, owners: Sequence[Owner]) -> Sequence[Handle]:
        if away:
            raise OSError("away")
        return list_lingering(committer, owners)

    world.run(driver, 0)
    monkeypatch.setattr(_Committer, "list_lingering", at_first_not)
    run_with_a_loser(world, driver, 1)
    eventually(lambda: "could not be aborted" in caplog.text, "it was asked once")
    world.run(driver, *range(2, 50))
    assert caplog.text.count("could not be aborted") == 1
    assert {owner_of(driver).generation} == {0}, "nothing was asked to be aborted, so nothing can arrive late"
    away = False
    driver.close()
    assert (world.visible(), world.unfinished()) == (numbers(*range(50)), [])


def test_what_a_sink_has_left_open_is_swept_after_its_guarantee_was_lowered(world, monkeypatch):
    monkeypatch.setattr(MemorySink, "preflight", lambda *_: {"prefix": "memory"})
    world.crash(0, Phase.DECIDING)
    assert world.unfinished()
    world.guarantees["memory"] = Guarantee.AT_LEAST_ONCE
    world.run(world.start(), 0)
    assert (world.visible(), world.unfinished()) == (numbers(0), [])
