"""A log that is older than the written data, and how a run detects this before it claims."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from sparkonce import errors
from sparkonce.decision_log import DecisionLog
from sparkonce.driver import start as start_module
from sparkonce.protocol import horizon
from sparkonce.protocol.state import Phase
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, SinkCommitter
from sparkonce.sinks.memory.sink import MemorySink, _Committer
from sparkonce.storage.local import LocalFiles
from unit.driver_world import NEVER, SLOTS, World, numbers, stopped_clock


def keep_copy(world: World) -> Path:
    copy = world.checkpoint.with_name(f"{world.checkpoint.name}-copy")
    shutil.copytree(world.checkpoint, copy)
    return copy


def restore(world: World, copy: Path) -> None:
    shutil.rmtree(world.checkpoint)
    shutil.copytree(copy, world.checkpoint)
    world.log = DecisionLog(LocalFiles(world.checkpoint))


@pytest.mark.parametrize("same_run", [False, True], ids=["a newer run has gone on", "the same run has gone on"])
def test_a_restored_copy_is_refused(world, same_run):
    driver = world.start()
    world.run(driver, 0)
    copy = keep_copy(world)
    world.run(driver if same_run else world.start(), 1)
    restore(world, copy)
    before = world.kinds()
    for _ in range(2):
        with pytest.raises(errors.StaleLogError, match="remembers more of this query than its decision log") as told:
            world.start()
        assert ("no decision in it names" if same_run else "its claim is at position 2") in str(told.value)
    assert world.kinds() == before
    assert world.visible() == numbers(0, 1)


def test_a_restored_copy_of_a_run_that_has_forgotten_its_first_batches_is_refused(world, monkeypatch):
    """Its claim is below the floor, so only the batch shows that the log is outdated."""
    monkeypatch.setattr(horizon, "KEEP_BATCHES", 2)
    monkeypatch.setattr(horizon, "TIDY_EVERY_BATCHES", 1)
    driver = world.start()
    world.run(driver, *range(6))
    copy = keep_copy(world)
    world.run(driver, 6)
    restore(world, copy)
    with pytest.raises(errors.StaleLogError, match="no decision in it names 3 of the committed"):
        world.start()
    assert world.visible() == numbers(*range(7))


def test_a_copy_that_nothing_has_gone_beyond_goes_on(world):
    world.run(world.start(), 0)
    world.crash(1, Phase.DECIDING)
    restore(world, keep_copy(world))
    world.run(world.start(), 1, 2)
    assert world.visible() == numbers(0, 1, 2)

    world = world.another()
    world.run(world.start(), 0)
    shutil.rmtree(world.checkpoint / "sparkonce")
    world.log = DecisionLog(LocalFiles(world.checkpoint))
    with pytest.raises(errors.StaleLogError, match="this log ends at 0"):
        world.start()


def test_another_driver_that_is_ahead_is_no_old_copy(world, monkeypatch):
    """A batch that the other driver commits during the start is in the log by the time the log is read again."""
    world.run(world.start(), 0)
    list_traces = _Committer.list_traces
    monkeypatch.setattr(_Committer, "list_traces", SinkCommitter.list_traces)
    other = world.start()

    def while_the_other_goes_on(committer: _Committer, query: str, facts: Facts) -> Sequence[Trace]:
        world.run(other, 1)
        return list_traces(committer, query, facts)

    monkeypatch.setattr(_Committer, "list_traces", while_the_other_goes_on)
    world.run(world.start(), 2)
    assert world.visible() == numbers(0, 1, 2)


def not_asked(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [record.getMessage() for record in caplog.records if "The run starts without" in record.getMessage()]
    caplog.clear()
    return told


def test_a_server_that_cannot_say_what_it_remembers_is_waited_for_and_then_passed_over(world, monkeypatch, caplog):
    clock = stopped_clock(monkeypatch)
    world.run(world.start(), 0)
    away = [errors.UnknownOutcomeError("away")] * 3
    list_traces = _Committer.list_traces

    def at_first_not(committer: _Committer, query: str, facts: Facts) -> Sequence[Trace]:
        if away:
            raise away.pop()
        return list_traces(committer, query, facts)

    monkeypatch.setattr(_Committer, "list_traces", at_first_not)
    world.run(world.start(), 1)
    assert (len(clock.slept), not_asked(caplog)) == (3, [])
    away.extend([errors.UnknownOutcomeError("away for good")] * NEVER)
    began_s = clock.monotonic()
    world.run(world.start(), 2)
    assert clock.monotonic() - began_s == pytest.approx(60.0, abs=1.0)
    (warning,) = not_asked(caplog)
    assert "Sink 'memory' does not report what it remembers of this query: away for good. The run starts" in warning
    assert world.visible() == numbers(0, 1, 2)


def test_a_sink_that_is_away_takes_no_patience_from_the_next_one(world, monkeypatch, caplog):
    stopped_clock(monkeypatch)
    world.add("other")
    world.run(world.start(), 0)
    list_traces = _Committer.list_traces
    once = [errors.UnknownOutcomeError("away")]

    def away(committer: _Committer, query: str, facts: Facts) -> Sequence[Trace]:
        if committer._name == "memory":
            raise errors.UnknownOutcomeError("away for good")
        if once:
            raise once.pop()
        return list_traces(committer, query, facts)

    monkeypatch.setattr(_Committer, "list_traces", away)
    world.run(world.start(), 1)
    (warning,) = not_asked(caplog)
    assert "Sink 'memory'" in warning


def test_a_sink_that_cannot_be_asked_what_it_remembers_is_passed_over_at_once(world, monkeypatch, caplog):
    """The sink may lack permissions or have a bug, and nothing else depends on the answer.

    The other sinks are still queried.
    """
    clock = stopped_clock(monkeypatch)
    world.add("other")
    world.run(world.start(), 0)
    list_traces = _Committer.list_traces

    def may_not(committer: _Committer, query: str, facts: Facts) -> Sequence[Trace]:
        if committer._name == "memory":
            raise PermissionError("not for you")
        return list_traces(committer, query, facts)

    monkeypatch.setattr(_Committer, "list_traces", may_not)
    copy = keep_copy(world)
    world.run(world.start(), 1)
    (warning,) = not_asked(caplog)
    assert "PermissionError: not for you. The run starts" in warning
    assert (world.visible(), clock.slept) == (numbers(0, 1), [])
    restore(world, copy)
    with pytest.raises(errors.StaleLogError, match="Sink 'other' remembers more"):
        world.start()


def test_a_server_that_went_back_says_so_when_it_is_asked_what_it_remembers(world, monkeypatch):
    def went_back(*_: object) -> Sequence[Trace]:
        raise errors.StaleServerError("the server returned to an older state")

    monkeypatch.setattr(_Committer, "list_traces", went_back)
    with pytest.raises(errors.StaleServerError, match="returned to an older state"):
        world.start()


def test_a_log_that_another_driver_tidies_meanwhile_is_no_old_copy(world, monkeypatch):
    """The traces include a record that the log has deleted by the time the run continues reading."""
    monkeypatch.setattr(horizon, "KEEP_BATCHES", 2)
    monkeypatch.setattr(horizon, "TIDY_EVERY_BATCHES", 1)
    world.run(world.start(), 0)
    list_traces = _Committer.list_traces
    other, asked = world.start(), []

    def before_the_other_goes_on(committer: _Committer, query: str, facts: Facts) -> Sequence[Trace]:
        found = list_traces(committer, query, facts)
        asked.append(len(found))
        world.run(other, *range(1, 9))
        return found

    monkeypatch.setattr(_Committer, "list_traces", before_the_other_goes_on)
    world.run(world.start(), 9)
    assert asked == [SLOTS]
    assert world.visible() == numbers(*range(10))


@pytest.mark.parametrize("fact", [1, True, None])
def test_facts_that_the_log_could_not_keep_are_refused(fact):
    with pytest.raises(errors.PreflightError, match="'server'"):
        start_module._check_facts({"orders": {"server": fact}})


def test_two_copies_that_have_both_written_are_both_refused(world):
    """Duplicates that both have written cannot be undone, but neither continues as if nothing had happened."""
    original = world.start()
    world.run(original, 0)
    copy = DecisionLog(LocalFiles(keep_copy(world)))
    world.run(world.start(log=copy, moved=True), 1)
    world.run(original, 1)  # this run started before the other one and does not notice it
    for log in (world.log, copy):
        with pytest.raises(errors.StaleLogError, match="two copies that have both written"):
            world.start(log=log)


def test_a_sink_that_is_taken_away_is_named_with_what_it_may_have_left_open(world, monkeypatch, caplog):
    monkeypatch.setattr(MemorySink, "preflight", lambda sink, *_: {"prefix": f"ids-of-{sink.name}"})
    world.add("other")
    world.crash(0, Phase.DECIDING)
    caplog.clear()
    del world.servers["other"]
    driver = world.start()
    (warning,) = [record.getMessage() for record in caplog.records if "was removed" in record.getMessage()]
    assert "Sink 'other'" in warning
    assert "'ids-of-other'" in warning
    world.run(driver, 0)
    caplog.clear()
    world.start()
    assert caplog.records == []
