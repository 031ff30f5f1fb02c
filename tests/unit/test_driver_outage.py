"""A system that is down or full for a while. The run waits in every phase."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence

import pytest

from sparkonce import errors
from sparkonce.driver.outage import Outage
from sparkonce.driver.put import CONTESTED
from sparkonce.driver.work import LargerRowsError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import Claim, Commit
from sparkonce.sinks.memory.sink import _Committer
from unit.driver_world import NEVER, Clock, FlakyLog, Work, World, asked, call_at, numbers, stopped_clock

AWAY = errors.OutageError("the server is away", next_step="start it.")


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    return stopped_clock(monkeypatch)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


class Call:
    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.tries = 0

    def __call__(self) -> int:
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.tries


def test_a_call_is_repeated_until_it_succeeds(clock, caplog):
    assert Outage(60.0).retry(Call(AWAY, errors.UnknownOutcomeError("silence"), AWAY), "the batch waits") == 4
    assert clock.slept == [0.5, 1.0, 2.0]
    waits, goes_on = warnings(caplog)
    assert waits == "Waiting for up to 60 s: the batch waits: the server is away"
    assert goes_on.startswith("Continuing after 4 s and 4 tries")

    caplog.clear()
    clock.slept.clear()
    assert Outage(60.0).retry(Call()) == 1
    assert (clock.slept, warnings(caplog)) == ([], [])

    clock.slept.clear()
    with pytest.raises(errors.PrepareError, match="a NUL"):
        Outage(60.0).retry(Call(errors.PrepareError("a NUL")))
    assert clock.slept == []

    caplog.clear()
    clock.slept.clear()
    outage = Outage(60.0, first_pause_s=0.1, longest_pause_s=1.0, silent_s=2.0)
    outage.retry(Call(AWAY, AWAY, AWAY))
    assert warnings(caplog) == []
    outage.retry(Call(*[AWAY] * 9))
    assert max(clock.slept) == 1.0
    assert len(warnings(caplog)) == 2


@pytest.mark.parametrize("ends", [{"patience_s": 0.0}, {"patience_s": 60.0, "is_stopped": lambda: True}])
def test_without_patience_or_once_stopped_a_call_is_made_once(clock, caplog, ends):
    call = Call(AWAY)
    with pytest.raises(errors.OutageError):
        Outage(**ends).retry(call)
    assert (call.tries, clock.slept, warnings(caplog)) == (1, [], [])


@pytest.mark.parametrize("call", ["begin", "write", "prepare"])
def test_a_server_that_is_away_for_a_minute_is_waited_for(world, clock, call, caplog):
    world.server.fail(call, *[AWAY] * 8)
    world.run(world.start(), 0, 1)
    assert (world.visible(), world.unfinished()) == (numbers(0, 1), [])
    assert sum(clock.slept) > 40
    assert max(clock.slept) <= 10
    waits, goes_on = warnings(caplog)
    assert waits == "Waiting for up to 300 s: the server is away. Next: Start it."
    assert "9 tries" in goes_on


def test_it_is_waited_for_no_longer_than_the_patience(world, clock):
    world.server.fail("begin", *[AWAY] * NEVER)
    with pytest.raises(
        errors.PrepareError, match=r"the server is away \(tried \d+ times in 60 s, outage_patience_s=60\)"
    ) as caught:
        world.run(world.start(deadline_s=60.0), 0)
    assert caught.value.next_step == "start it. Then start the query again; no row is lost."
    assert caught.value.__cause__ is AWAY
    assert 60 <= clock.monotonic() < 61
    assert (world.visible(), world.unfinished()) == ([], [])


def test_an_outage_as_long_as_transactions_live_is_not_taken_for_their_age(world, clock):
    """librdkafka keeps rows until the transaction timeout, and then reports them as undelivered."""
    world.timeouts_s["memory"] = 60.0
    world.server.fail("prepare", AWAY, AWAY)
    work = world.work(0)
    work.before = lambda: clock.pass_by(61.0) if len(work.first) < 3 else None
    driver = world.start()
    driver.run_batch(asked(0), work)
    assert (work.first, world.visible()) == ([False, False, False], numbers(0))
    assert clock.slept != []
    assert not driver._sinks.live_long


def test_what_a_failed_write_prepared_is_undone_before_the_next_one(world, clock):
    """Its locks would block the next write, and its prepared transactions would use up the server's limit."""
    world.server.fail("prepare", *[errors.OutageError("away")])
    open_at_begin: list[int] = []
    work = world.work(0)
    work.slots = 1
    work.before = lambda: open_at_begin.append(len(world.unfinished()))
    lose_aborts(world, 1)
    world.start().run_batch(asked(0), work)
    assert open_at_begin == [0, 0]

    world = world.another()
    clock.slept.clear()
    world.server.fail("prepare", LargerRowsError("a row is larger"))
    open_at_begin: list[int] = []
    work = world.work(0)
    work.before = lambda: open_at_begin.append(len(world.unfinished()))
    lose_aborts(world, 1)
    world.start().run_batch(asked(0), work)
    assert open_at_begin == [0, 0]
    assert clock.slept == []
    assert (world.visible(), world.unfinished()) == (numbers(0), [])

    world = world.another()
    clock.slept.clear()
    world.server.fail("prepare", AWAY)
    lose_aborts(world, 1 + 5)
    work = world.work(0)
    world.start().run_batch(asked(0), work)
    assert len(work.written) == 2
    assert len(clock.slept) == 6
    assert (world.visible(), world.unfinished()) == (numbers(0), [])


def test_a_larger_row_while_its_sink_cannot_be_swept_waits_like_any_outage(world, clock):
    world.server.fail("prepare", LargerRowsError("a row is larger"))
    lose_aborts(world, 1 + 5)  # by the writer first, then by the sweeps
    world.start().run_batch(asked(0), world.work(0))
    assert clock.slept, "the sweep was asked again without a pause"
    assert (world.visible(), world.unfinished()) == (numbers(0), [])


def lose_aborts(world: World, count: int) -> None:
    world.server.fail("abort", *[Finished(outcome=Outcome.RETRY, reason="away")] * count)


def test_a_run_that_is_superseded_while_it_waits_stops(world, clock, monkeypatch):
    world.server.fail("begin", AWAY)
    first, work = world.start(), world.work(0)

    def sleep(seconds: float) -> None:
        monkeypatch.undo()
        world.run(world.start(), 0)

    monkeypatch.setattr(clock, "sleep", sleep)
    with pytest.raises(errors.SupersededError):
        first.run_batch(asked(0), work)
    assert len(work.written) == 1
    assert (world.visible(), world.unfinished()) == (numbers(0), [])


def test_a_finish_that_waits_says_so_once(world, caplog):
    world.server.fail("commit", *[Finished(outcome=Outcome.RETRY, reason="no answer")] * 90)
    world.run(world.start(), 0)
    waits, goes_on = warnings(caplog)
    assert waits.startswith("Waiting for up to 300 s: batch 0 is decided")
    assert waits.endswith("no answer")
    assert "Continuing after" in goes_on

    world = world.another()
    caplog.clear()
    world.server.fail("commit", *[Finished(outcome=Outcome.RETRY, reason="not yet")] * 9)
    world.run(world.start(), 0)
    assert warnings(caplog) == []


def test_a_query_that_is_stopped_does_not_wait(world, clock):
    class Stopped(Work):
        def __init__(self, world: World) -> None:
            super().__init__(world.sinks(), 0)

        def write(self, sinks, only, computed=None):
            if self.stopped:
                raise errors.PrepareError("in Spark's words", stopped=True)
            self.stopped = True
            return super().write(sinks, only, computed)

    world.server.fail("prepare", AWAY)
    lose_aborts(world, NEVER)
    work = Stopped(world)
    with pytest.raises(errors.PrepareError, match="in Spark's words"):
        world.start().run_batch(asked(0), work)
    assert clock.slept == []


@pytest.mark.parametrize(
    ("phase", "unanswered"),
    [(Phase.SWEEPING, "list_lingering"), (Phase.CHECKING, "missing"), (Phase.CONCLUDING, "conclude")],
    ids=lambda one: getattr(one, "name", ""),
)
def test_a_query_that_is_stopped_while_a_server_does_not_answer_ends(world, clock, monkeypatch, phase, unanswered):
    world.run(world.start(), 0)
    entered: list[Phase] = []
    driver, work = world.start(lambda entering, _: entered.append(entering)), world.work(1)

    def unreachable(*_: object) -> None:
        work.stopped = True
        raise errors.UnknownOutcomeError("no answer")

    monkeypatch.setattr(_Committer, unanswered, unreachable)
    with pytest.raises(errors.UnknownOutcomeError, match="no answer"):
        driver.run_batch(asked(1), work)
    assert (entered[-1], clock.slept) == (phase, [])


def test_a_query_that_is_stopped_does_not_wait_for_its_log(world, clock):
    class Unreadable(FlakyLog):
        """A log that cannot be read once the query is stopped."""

        def read_bytes(self, position: int) -> list[bytes]:
            if work.stopped:
                raise OSError(errno.ETIMEDOUT, "no answer from the store")
            return super().read_bytes(position)

    work = world.work(0)
    driver = world.start(log=Unreadable(world.log, Claim))
    work.stopped = True
    with pytest.raises(errors.LogError, match="no answer from the store"):
        driver.run_batch(asked(0), work)
    assert clock.slept == []


def test_a_query_that_is_stopped_does_not_wait_before_its_claim(world, clock):
    for _ in range(CONTESTED):
        world.crash(0, Phase.WRITING)
    work = world.work(0)
    work.stopped = True
    world.start().run_batch(asked(0), work)
    assert (world.visible(), clock.slept) == (numbers(0), [])


def test_a_healing_waits_too(world):
    world.crash(0, Phase.FINISHING)
    for number, _ in world.unfinished():
        world.server.expire(number)
    world.server.fail("begin", *[AWAY] * 5)
    world.run(world.start(), 0, 1)
    assert (world.visible(), world.unfinished()) == (numbers(0, 1), [])


def test_what_the_driver_asks_before_the_decision_waits_too(world, monkeypatch):
    world.timeouts_s["memory"] = 900.0
    answers = iter([errors.UnknownOutcomeError("away")] * 3)

    def before_decision(*_: object) -> str:
        if (error := next(answers, None)) is not None:
            raise error
        return ""

    monkeypatch.setattr(_Committer, "before_decision", before_decision)
    world.run(world.start(), 0)
    assert (world.visible(), world.unfinished()) == (numbers(0), [])


def test_a_refused_write_is_not_waited_for_and_keeps_its_advice(world, clock, caplog):
    world.add("once", Guarantee.AT_MOST_ONCE).fail("write", AWAY)
    with pytest.raises(errors.PrepareError, match="will not be written again") as caught:
        world.run(world.start(), 0)
    assert "continues with the next batch" in caught.value.next_step
    assert clock.slept == []

    world = world.another()
    world.server.fail("write", errors.PrepareError("a NUL", next_step="take it out with regexp_replace."))
    with pytest.raises(errors.PrepareError) as caught:
        world.run(world.start(), 0)
    assert caught.value.next_step.startswith("take it out with regexp_replace. Then start the query again")

    world = world.another()
    world.server.fail("write", AWAY, errors.PrepareError("a NUL"))
    with pytest.raises(errors.PrepareError, match="a NUL"):
        world.run(world.start(), 0)
    assert len(warnings(caplog)) == 1


def test_a_full_disk_at_the_decision_is_waited_for(world, caplog):
    world.run(world.start(log=FlakyLog(world.log, Commit, *["full"] * 9)), 0, 1)
    assert (world.visible(), world.unfinished()) == (numbers(0, 1), [])
    assert world.kinds() == ["Claim", "Commit", "Commit"]
    waits, goes_on = warnings(caplog)
    assert "record 1 of the decision log could not be written" in waits
    assert "No space left" in waits
    assert "10 tries" in goes_on

    world = world.another()
    inner = FlakyLog(world.log, Claim, "none", "full", "full")
    world.run(world.start(log=FlakyLog(inner, Commit, "landed")), 0, 1)
    assert (world.visible(), world.unfinished()) == (numbers(0, 1), [])


def test_transactions_that_grow_too_old_while_the_disk_is_full_are_not_decided(world, clock):
    world.timeouts_s["memory"] = 120.0
    with pytest.raises(errors.LogError, match=r"No space left.*meanwhile the transaction of slot 0 .* is 9[0-9] s old"):
        world.run(world.start(log=FlakyLog(world.log, Commit, *["full"] * NEVER)), 0)
    assert sum(clock.slept) < 120
    assert (world.visible(), world.unfinished()) == ([], [])


def test_a_run_that_is_superseded_or_stopped_does_not_wait_for_its_disk(world, clock):
    newer = call_at(Phase.DECIDING, lambda: world.run(world.start(), 0))
    with pytest.raises(errors.SupersededError):
        world.run(world.start(newer, log=FlakyLog(world.log, Commit, *["full"] * NEVER)), 0)
    assert sum(clock.slept) < 1
    assert (world.visible(), world.unfinished()) == (numbers(0), [])

    world = world.another()
    clock.slept.clear()
    work = world.work(0)
    work.stopped = True
    with pytest.raises(errors.LogError, match="No space left"):
        world.start(log=FlakyLog(world.log, Commit, "full")).run_batch(asked(0), work)
    assert clock.slept == []


@pytest.mark.parametrize(("times", "stopped"), [(3, False), (NEVER, False), (NEVER, True)])
def test_a_quota_that_is_used_up_when_the_log_is_tidied(world, clock, times, stopped, monkeypatch):
    class FullAtFloors(FlakyLog):
        def __init__(self, world: World, times: int) -> None:
            super().__init__(world.log, Commit)
            self.times = times

        def raise_floor_bytes(self, position: int, data: bytes) -> None:
            if self.times:
                self.times -= 1
                raise OSError(errno.EDQUOT, "Disk quota exceeded")
            super().raise_floor_bytes(position, data)

    monkeypatch.setattr("sparkonce.protocol.horizon.KEEP_BATCHES", 1)
    monkeypatch.setattr("sparkonce.protocol.horizon.TIDY_EVERY_BATCHES", 1)
    driver = world.start(log=FullAtFloors(world, times))
    if times == NEVER:
        world.run(driver, 0)
        work = world.work(1)
        work.stopped = stopped
        with pytest.raises(errors.LogError, match="Disk quota exceeded"):
            driver.run_batch(asked(1), work)
    else:
        world.run(driver, 0, 1, 2)
        assert world.visible() == numbers(0, 1, 2)
    assert bool(clock.slept) != stopped


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Finished(outcome=Outcome.UNKNOWN, reason="refused", next_step="UPDATE the row."), "UPDATE the row. Then"),
        (Finished(outcome=Outcome.UNKNOWN, reason="the user has no right: grant it"), "do what the answer asks for"),
        (Finished(outcome=Outcome.RETRY, reason="no answer"), "check whether the servers can be reached"),
    ],
)
def test_an_outcome_that_stays_open_says_what_the_answer_asks_for(world, answer, said):
    world.server.fail("commit", *[answer] * NEVER)
    with pytest.raises(errors.UnknownOutcomeError) as caught:
        world.run(world.start(), 0)
    assert caught.value.next_step.startswith(said)


@pytest.mark.parametrize("life_s", [None, 900.0])
def test_what_is_lost_each_time_is_blamed_on_timeouts_only_where_there_are_some(world, monkeypatch, life_s):
    if life_s is not None:
        world.timeouts_s["memory"] = life_s

    def commit(_: _Committer, handles: Sequence[object]) -> Sequence[Finished]:
        return [Finished(outcome=Outcome.LOST, reason="somebody deleted it")] * len(handles)

    monkeypatch.setattr(_Committer, "commit", commit)
    with pytest.raises(errors.TransactionTooOldError, match="lost each time") as caught:
        world.run(world.start(), 0)
    if life_s is None:
        assert caught.value.next_step.startswith("find out what removes them")
        assert "somebody deleted it" in caught.value.next_step
        assert "transaction.timeout.ms" not in caught.value.next_step
    else:
        assert "transaction.timeout.ms" in caught.value.next_step
