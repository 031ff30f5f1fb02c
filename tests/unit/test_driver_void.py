"""Decided transactions that lost rows: they are voided, aborted and written again, or the error explains why not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from sparkonce import errors
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import Commit, Void
from sparkonce.sinks.memory.server import TransactionState
from sparkonce.sinks.memory.sink import _Committer
from unit.driver_world import NEVER, Clock, Crash, FlakyLog, asked, numbers, owner_of, stopped_clock

DAMAGED = Finished(outcome=Outcome.DAMAGED, reason="rows are gone", next_step="Keep rows for longer.")


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    return stopped_clock(monkeypatch)


def crash_when_void() -> Callable[[Phase, int], None]:
    finishing = iter((False, True))

    def listen(phase: Phase, _: int) -> None:
        if phase is Phase.FINISHING and next(finishing):
            raise Crash(phase)

    return listen


def test_it_is_written_again(world):
    world.server.fail("commit", DAMAGED)
    world.run(world.start(), 0, 1)
    assert world.visible() == numbers(0, 1)
    assert world.kinds() == ["Claim", "Commit", "Void", "Amend", "Commit"]
    assert world.unfinished() == []

    world = world.another()
    # Slot 0 of a recovered batch is already void when the rows of slot 1 are found to be lost.
    world.server.fail("commit", DAMAGED)
    with pytest.raises(Crash):
        world.run(world.start(crash_when_void()), 0)
    world.server.fail("abort", Finished(outcome=Outcome.RETRY, reason="not now"))
    world.run(world.start(), 0, 1)
    assert world.visible() == numbers(0, 1)

    world = world.another()
    world.server.fail("commit", DAMAGED)
    world.server.fail("abort", Finished(outcome=Outcome.RETRY, reason="no answer", in_flight=True))
    driver = world.start()
    world.run(driver, 0)
    assert owner_of(driver).generation == 1
    assert world.visible() == numbers(0)


def test_a_sink_that_says_so_to_an_abort_is_refused(world):
    """Otherwise, the abort would be voided and repeated forever, with a log record each time."""
    world.server.fail("commit", DAMAGED)
    world.server.fail("abort", *[DAMAGED] * NEVER)
    with pytest.raises(errors.ConfigurationError, match="'memory' returned DAMAGED for the abort of slot 0"):
        world.run(world.start(), 0)
    assert world.kinds() == ["Claim", "Commit", "Void"]


@pytest.mark.parametrize("others", [(), ("b",)])
def test_it_is_not_passed_over_where_its_sink_writes_without_transactions_now(world, others):
    for name in others:
        world.add(name)
    world.server.fail("commit", DAMAGED)
    with pytest.raises(Crash):
        world.run(world.start(crash_when_void()), 0)
    world.guarantees["memory"] = Guarantee.AT_LEAST_ONCE
    with pytest.raises(errors.ConfigurationError, match="Batch 0 was decided when sink 'memory' was exactly-once"):
        world.run(world.start(), 0)
    world.guarantees["memory"] = Guarantee.EXACTLY_ONCE
    world.run(world.start(), 0, 1)
    assert world.visible() == numbers(0, 1)


def test_a_full_disk_is_waited_for_whatever_has_become_of_the_batchs_other_transactions(world, clock, monkeypatch):
    def begun_ms(_: _Committer, handles: list[Handle]) -> list[int | None]:
        states = world.server.transactions()
        is_open = (TransactionState.OPEN, TransactionState.PREPARED)
        return [one.opened_ms if states[int(one["number"])] in is_open else None for one in handles]

    monkeypatch.setattr(_Committer, "begun_ms", begun_ms)
    world.timeouts_s["memory"] = 100.0
    world.server.fail("commit", DAMAGED)
    driver = world.start(log=FlakyLog(world.log, Void, "full"))
    work = world.work(0)
    work.after = partial(clock.pass_by, 60.0)
    driver.run_batch(asked(0), work)
    assert world.visible() == numbers(0)


def test_a_disk_that_has_room_again_is_no_cause_of_what_comes_later(world):
    world.server.fail("commit", *[Finished(outcome=Outcome.UNKNOWN, reason="?")] * NEVER)
    with pytest.raises(errors.UnknownOutcomeError) as raised:
        world.run(world.start(log=FlakyLog(world.log, Commit, "full")), 0)
    assert raised.value.__cause__ is None

    world = world.another()
    world.server.fail("commit", DAMAGED)
    world.server.fail("abort", Finished(outcome=Outcome.ALREADY_COMMITTED))
    with pytest.raises(errors.TransactionLostError, match="an earlier request has committed what was left") as raised:
        world.run(world.start(), 0)
    assert "nothing writes them again" in raised.value.next_step


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_rows_that_go_again_and_again_are_no_matter_of_timeouts(world, timeout_s):
    if timeout_s is not None:
        world.timeouts_s["memory"] = timeout_s
    world.server.fail("commit", *[DAMAGED] * NEVER)
    with pytest.raises(errors.TransactionTooOldError) as raised:
        world.run(world.start(), 0)
    assert raised.value.next_step.endswith("then start the query again: Keep rows for longer.")
