from __future__ import annotations

import errno
import logging
import shutil
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from eventually import eventually
from sparkonce import errors
from sparkonce import executor as executor_module
from sparkonce.decision_log import DecisionLog
from sparkonce.driver import run as run_module
from sparkonce.executor import write_slot
from sparkonce.guarantees import Guarantee
from sparkonce.protocol import horizon
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import Claim, Commit
from sparkonce.sink import Facts, Owner, SinkWriter, WriterContext
from sparkonce.sinks.memory import MemorySink
from sparkonce.sinks.memory.server import TransactionState
from sparkonce.sinks.memory.sink import _Committer
from sparkonce.storage import local as local_files
from sparkonce.storage.local import LocalFiles
from unit.driver_world import (
    NEVER,
    SLOTS,
    Clock,
    Crash,
    FlakyLog,
    Work,
    World,
    asked,
    call_at,
    crash_at,
    numbers,
    owner_of,
    stopped_clock,
)


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    return stopped_clock(monkeypatch)


def test_batches_follow_each_other(world):
    world.run(world.start(), 0, 1, 2)
    assert world.visible() == numbers(0, 1, 2)
    assert world.unfinished() == []
    assert world.kinds() == ["Claim", "Commit", "Commit", "Commit"]

    world = world.another()
    world.run(world.start(), 0)
    claim, commit = world.records()
    assert (commit.token.position, commit.token.nonce) == (0, claim.nonce)
    assert (commit.batch, commit.offsets) == (0, asked(0).offsets)
    assert [(handle.sink, handle.slot, handle.rows) for handle in commit.handles] == [
        ("memory", slot, 2) for slot in range(SLOTS)
    ]
    assert len({handle.fingerprint for handle in commit.handles}) == SLOTS


def test_the_sync_of_spark_s_files_is_begun_before_a_batch_is_written(world, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr(local_files, "sync_file_system", synced.append)
    driver, work = world.start(log=DecisionLog(LocalFiles(world.checkpoint), decides=True)), world.work(0)
    work.before = lambda: eventually(lambda: synced, "the sync has begun", limit_s=30.0)
    driver.run_batch(asked(0), work)
    assert synced == [world.checkpoint]


def test_slots_and_batches_without_rows(world):
    driver, work = world.start(), world.work(0)
    work.empty = frozenset({0, 2})
    done = driver.run_batch(asked(0), work)
    assert (done.transactions, done.rows) == (1, {"memory": 2})
    assert len(world.server.transactions()) == 1
    assert world.visible() == numbers(0, slots=[1])

    world = world.another()
    driver, work = world.start(), world.work(0)
    work.empty = frozenset(range(SLOTS))
    assert driver.run_batch(asked(0), work).transactions == 0
    assert world.kinds() == ["Claim", "Commit"]
    world.run(driver, 1)
    assert world.visible() == numbers(1)

    world = world.another()
    work = world.work(0)
    work.slots = 0
    assert world.start().run_batch(asked(0), work).rows == {"memory": 0}


def test_progress_says_what_a_batch_did(world):
    driver = world.start()
    first, second = world.run(driver, 0, 1)
    assert list(driver.progress) == [first, second]
    assert (second.batch, second.rows, second.transactions) == (1, {"memory": 2 * SLOTS}, SLOTS)
    assert (second.recovered, second.healed) == (False, 0)
    assert set(second.seconds) == {phase.value for phase in _WORK}
    assert second.total_seconds == pytest.approx(sum(second.seconds.values()))
    assert second.finished_at_ms > 1_600_000_000_000

    world = world.another()
    driver = world.start()
    world.run(driver, *range(run_module.KEPT_PROGRESS + 1))
    assert [done.batch for done in driver.progress] == list(range(1, run_module.KEPT_PROGRESS + 1))


_WORK = (*(Phase.WRITING, Phase.VALIDATING, Phase.DECIDING, Phase.FINISHING), *(Phase.SWEEPING_OWN, Phase.CONCLUDING))


@pytest.fixture
def short_log(monkeypatch) -> None:
    monkeypatch.setattr(horizon, "KEEP_BATCHES", 10)
    monkeypatch.setattr(horizon, "TIDY_EVERY_BATCHES", 2)


def test_closing_closes_every_committer(world, caplog):
    world.add("other")
    driver = world.start()
    world.run(driver, 0)
    closed = []
    for name in ("memory", "other"):
        driver._sinks.committer(name).close = lambda name=name: closed.append(name)
    driver.close()
    driver.close()
    assert closed == ["memory", "other"]

    world = world.another()
    world.add("other")
    driver = world.start()
    closed = []

    def fail() -> None:
        raise OSError("the wire is gone")

    driver._sinks.committer("memory").close = fail
    driver._sinks.committer("other").close = lambda: closed.append("other")
    driver.close()
    assert closed == ["other"]
    assert "sink=memory: its connections could not be closed: the wire is gone" in caplog.text


def test_closing_waits_for_the_batch_that_is_under_way(world):
    """Spark's JVM may be gone while its Python thread still commits. That thread's connections must stay open."""
    driver = world.start()
    closing = threading.Thread(target=driver.close)
    seen = []

    def listen(phase: Phase, _: int) -> None:
        if phase is Phase.FINISHING:
            closing.start()
            closing.join(0.2)
            seen.append((closing.is_alive(), bool(driver._sinks._committers)))

    driver._listener = listen
    world.run(driver, 0)
    closing.join(10.0)
    assert seen == [(True, True)]
    assert not driver._sinks._committers
    assert world.visible() == numbers(0)


def test_a_decided_batch_is_finished_and_not_written_again(world):
    world.crash(0, Phase.FINISHING)
    assert world.visible() == []
    driver, work = world.start(), world.work(0)
    done = driver.run_batch(asked(0), work)
    assert (work.written, work.into_nothing) == ([], 1)
    assert (done.recovered, done.rows, done.transactions) == (True, {"memory": 2 * SLOTS}, SLOTS)
    assert Phase.REPLAYING.value in done.seconds
    assert world.visible() == numbers(0)

    world = world.another()
    world.run(world.start(), 0)
    for _ in range(2):
        assert world.run(world.start(), 0)[0].recovered
    assert world.visible() == numbers(0)


def test_what_an_older_run_left_open_is_swept_before_anything_is_written(world):
    world.run(world.start(), 0)
    world.crash(1, Phase.DECIDING)
    left = {number for number, _ in world.unfinished()}
    assert len(left) == SLOTS
    seen: list[set[int]] = []
    driver, work = world.start(), world.work(1)
    work.before = lambda: seen.append({number for number, _ in world.unfinished()})
    driver.run_batch(asked(1), work)
    assert seen == [set()]
    assert {world.server.transactions()[number] for number in left} == {TransactionState.ABORTED}
    assert world.visible() == numbers(0, 1)


def test_a_sweep_waits_for_a_server_that_does_not_say_what_is_open(world, clock, monkeypatch):
    world.crash(0, Phase.DECIDING)
    away = [errors.UnknownOutcomeError("away")] * 3
    list_lingering = _Committer.list_lingering

    def at_first_not(committer: _Committer, owners: Sequence[Owner]) -> Sequence[Handle]:
        if away:
            raise away.pop()
        return list_lingering(committer, owners)

    monkeypatch.setattr(_Committer, "list_lingering", at_first_not)
    world.run(world.start(), 0)
    assert len(clock.slept) == 3
    assert (world.visible(), world.unfinished()) == (numbers(0), [])


def test_a_sweep_waits_for_a_server_that_is_away(world, clock):
    world.crash(0, Phase.DECIDING)
    world.server.fail("abort", Finished(outcome=Outcome.RETRY, reason="away"))
    world.run(world.start(), 0)
    assert clock.slept != []
    assert world.visible() == numbers(0)
    assert world.unfinished() == []

    world = world.another()
    world.crash(0, Phase.DECIDING)
    world.server.fail("abort", *[Finished(outcome=Outcome.UNKNOWN, reason="no permission")] * NEVER)
    work = world.work(0)
    with pytest.raises(errors.UnknownOutcomeError, match="no permission"):
        world.start(deadline_s=5.0).run_batch(asked(0), work)
    assert work.written == []


@pytest.mark.parametrize("question", ["before_decision", "check_prepared"])
@pytest.mark.parametrize("against", ["nothing", "the place is another one", "an error"])
def test_a_sink_may_object_to_a_decision_once_all_is_prepared(world, monkeypatch, against, question):
    asked_with: list[tuple[object, int]] = []

    def object_once(committer: _Committer, told: Facts | Sequence[Handle]) -> str:
        handles = None if isinstance(told, dict) else [(handle.sink, handle.slot) for handle in told]
        asked_with.append((handles or told, len(world.unfinished())))
        if len(asked_with) == 1 and against == "an error":
            raise ValueError(against)
        return against if len(asked_with) == 1 and against != "nothing" else ""

    monkeypatch.setattr(MemorySink, "preflight", lambda *_: {"place": "here"})
    monkeypatch.setattr(_Committer, question, object_once)
    if against == "nothing":
        world.run(world.start(), 0)
    else:
        with pytest.raises(errors.PrepareError, match=against):
            world.run(world.start(), 0)
        assert (world.visible(), world.unfinished(), world.kinds()) == ([], [], ["Claim"])
        world.run(world.start(), 0)
    handles = [("memory", slot) for slot in range(SLOTS)]
    told = {"before_decision": {"place": "here"}, "check_prepared": handles}[question]
    assert asked_with == [(told, SLOTS)] * (1 if against == "nothing" else 2)
    assert (world.visible(), world.unfinished()) == (numbers(0), [])


def test_after_a_failed_batch_each_sink_is_swept_also_where_another_cannot_be(world, monkeypatch):
    world.add("more")
    driver = world.start()
    silent, listed = driver._sinks.committer("memory"), _Committer.list_lingering

    def list_lingering(committer: _Committer, owners: Sequence[Owner]) -> Sequence[Handle]:
        if committer is silent:
            raise errors.UnknownOutcomeError("it does not say", next_step="wait")
        return listed(committer, owners)

    monkeypatch.setattr(_Committer, "list_lingering", list_lingering)
    monkeypatch.setattr(_Committer, "before_decision", lambda *_: "no")
    with pytest.raises(errors.PrepareError, match="no"):
        world.run(driver, 0)
    assert len(world.servers["memory"].unfinished()) == SLOTS
    assert world.servers["more"].unfinished() == []


def test_a_sink_that_was_not_swept_after_its_batch_is_swept_a_while_later(world, clock, monkeypatch):
    world.add("more")
    driver, work = world.start(), world.work(0)
    silent, listed, away = driver._sinks.committer("memory"), _Committer.list_lingering, [True]

    def list_lingering(committer: _Committer, owners: Sequence[Owner]) -> Sequence[Handle]:
        if committer is silent and away:
            away.pop()
            raise errors.UnknownOutcomeError("it does not say", next_step="wait")
        return listed(committer, owners)

    monkeypatch.setattr(_Committer, "list_lingering", list_lingering)
    work.loser = True
    driver.run_batch(asked(0), work)
    assert (len(world.servers["memory"].unfinished()), world.servers["more"].unfinished()) == (SLOTS, [])
    world.run(driver, 1)
    assert len(world.servers["memory"].unfinished()) == SLOTS, "a batch does not wait again for what did not answer"
    clock.pass_by(20.0)
    world.run(driver, 2)
    assert world.unfinished() == []


@pytest.mark.parametrize("said", ["no answer", "an error", "not now"])
def test_names_of_transactions_are_left_after_an_abort_that_was_not_answered(world, clock, monkeypatch, said):
    """The request may still arrive, and abort the transaction that has the name by then."""
    abort, unanswered = _Committer.abort, [True]

    def loses_a_reply(committer: _Committer, handles: Sequence[Handle]) -> Sequence[Finished]:
        if unanswered and handles:
            unanswered.pop()
            if said == "an error":
                raise errors.UnknownOutcomeError("no answer", next_step="wait")
            return [Finished(outcome=Outcome.RETRY, in_flight=said == "no answer") for _ in handles]
        return abort(committer, handles)

    generations: list[int] = []
    writer = MemorySink.writer

    def noted(sink: MemorySink, context: WriterContext) -> SinkWriter:
        generations.append(context.owner.generation)
        return writer(sink, context)

    monkeypatch.setattr(_Committer, "abort", loses_a_reply)
    monkeypatch.setattr(MemorySink, "writer", noted)
    driver = world.start()
    world.run(driver, 0)
    world.server.begin(f"memory.{owner_of(driver).query}.0-{driver.state.claim.nonce}")
    clock.pass_by(10.0)
    world.run(driver, 1)
    assert not unanswered
    clock.pass_by(20.0)
    world.run(driver, 2, 3)
    left = 0 if said == "not now" else 1
    assert generations == [0] * 2 * SLOTS + [left] * 2 * SLOTS
    assert world.unfinished() == []


def test_sinks_are_given_what_they_said_in_the_last_run(world, monkeypatch):
    given: list[tuple[str, Facts | None]] = []

    def preflight(sink: MemorySink, query: str, recorded: Facts | None) -> Facts:
        given.append((sink.name, recorded))
        return {"run": str(len(given))}

    monkeypatch.setattr(MemorySink, "preflight", preflight)
    for batch in (0, 1):
        world.run(world.start(), batch)
    world.add("other")
    world.run(world.start(), 2)
    assert given == [("memory", None), ("memory", {"run": "1"}), ("memory", {"run": "2"}), ("other", None)]


def test_a_run_that_has_stopped_or_was_deposed_goes_no_further(world):
    driver = world.start(crash_at(Phase.DECIDING))
    with pytest.raises(Crash):
        world.run(driver, 0)
    with pytest.raises(errors.SupersededError, match="stopped"):
        world.run(driver, 0)
    assert world.visible() == []

    world = world.another()
    older = world.start()
    world.run(older, 0)
    world.run(world.start(), 1)
    with pytest.raises(errors.SupersededError, match="newer run"):
        world.run(older, 1)
    assert world.visible() == numbers(0, 1)
    assert world.unfinished() == []

    world = world.another()
    driver = world.start()
    world.run(driver, 0, 1)
    with pytest.raises(errors.StaleBatchError):
        world.run(driver, 0)

    world = world.another()
    # Two runs start at the same time, and the one that claims last continues.
    first, second = world.start(), world.start()
    world.run(first, 0)
    world.run(second, 1)
    with pytest.raises(errors.SupersededError):
        world.run(first, 1)
    assert world.visible() == numbers(0, 1)


def test_runs_that_depose_each_other_back_off(world, clock, caplog):
    waits = []
    for _ in range(7):
        clock.slept.clear()
        with caplog.at_level(logging.WARNING, "sparkonce"):
            world.crash(0, Phase.SWEEPING)
        waits.append(sum(clock.slept))
    assert waits[:4] == [0.0] * 4
    assert [lowest <= wait <= 2 * lowest for wait, lowest in zip(waits[4:], (0.5, 1.0, 2.0), strict=True)] == [True] * 3
    assert "stop one of them" in caplog.text
    world.run(world.start(), 0)
    assert world.visible() == numbers(0)


def test_a_batch_that_does_not_fit_the_log_is_refused_without_a_claim(world):
    world.run(world.start(), 0, 1, 2)
    before = world.records()
    with pytest.raises(errors.StaleBatchError, match="batch 1 is asked for, but batch 2"):
        world.run(world.start(), 1)
    with pytest.raises(errors.CheckpointMismatchError, match="input offsets") as caught:
        world.start().run_batch(asked(2, offsets='{"t":{"0":99}}'), world.work(2))
    assert caught.value.details["batch"] == 2
    assert world.records() == before
    assert world.visible() == numbers(0, 1, 2)


def test_a_copied_checkpoint_is_refused_and_a_moved_one_taken(world, tmp_path, caplog):
    world.run(world.start(), 0)
    there = tmp_path / "there"
    shutil.copytree(tmp_path / "sparkonce", there / "sparkonce")
    with pytest.raises(errors.CheckpointMismatchError, match=r"twice\. Next: If .*checkpoint_moved=True.*used last\.$"):
        world.run(world.start(log=DecisionLog(LocalFiles(there))), 1)
    with caplog.at_level("WARNING", "sparkonce"):
        world.run(world.start(log=DecisionLog(LocalFiles(there)), moved=True), 1)
        assert caplog.text == ""
        world.run(world.start(log=DecisionLog(LocalFiles(there))), 2)
        assert caplog.text == ""
        world.run(world.start(log=DecisionLog(LocalFiles(there)), moved=True), 3)
    assert f"checkpoint_moved=True, but the decision log has not moved since the last run: {there}" in caplog.text
    assert world.visible() == numbers(0, 1, 2, 3)


@pytest.mark.parametrize("call", ["begin", "write", "prepare"])
def test_a_slot_that_cannot_prepare_leaves_nothing_in_any_sink(world, call):
    world.add("other").fail(call, RuntimeError("disk on fire"))
    with pytest.raises(errors.PrepareError, match="disk on fire") as caught:
        world.run(world.start(), 0)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "no row is lost" in caught.value.next_step
    assert (world.visible(), world.visible("other"), world.unfinished()) == ([], [], [])
    world.run(world.start(), 0)
    assert world.visible() == world.visible("other") == numbers(0)


def test_a_slot_that_brings_no_handle_is_not_decided(world, monkeypatch):
    def without_slot_1(*given: object, slot: int, **more: object) -> list[Handle]:
        handles = write_slot(*given, slot=slot, **more)
        return [] if slot == 1 else handles

    monkeypatch.setattr("unit.driver_world.write_slot", without_slot_1)
    with pytest.raises(errors.PrepareError, match=r"\[0, 2\]"):
        world.run(world.start(), 0)
    assert (world.visible(), world.unfinished()) == ([], [])


def test_a_batch_that_nothing_shortens_is_not_decided(world, clock):
    world.timeouts_s["memory"] = 60.0
    driver, work = world.start(), world.work(0)
    work.after = lambda: clock.pass_by(60.0)
    with pytest.raises(errors.TransactionTooOldError, match="timeout is 60 s") as caught:
        driver.run_batch(asked(0), work)
    assert "transaction.timeout.ms" in caught.value.next_step
    assert work.first == [False, True]
    assert (world.visible(), world.unfinished(), world.kinds()) == ([], [], ["Claim"])

    world = world.another()
    world.timeouts_s["memory"] = 60.0
    driver, work = world.start(), world.work(0)

    def fail() -> None:
        clock.pass_by(90.0)
        raise errors.PrepareError("transactional producer fenced by newer producer instance")

    work.after = fail
    with pytest.raises(errors.TransactionTooOldError, match=r"took 90 s, and 90 s with all rows computed.* live 60 s"):
        driver.run_batch(asked(0), work)
    assert (work.first, world.visible(), world.unfinished()) == ([False, True], [], [])


def test_a_batch_that_outlasts_its_transactions_is_computed_first_and_then_written(world, clock, caplog):
    world.timeouts_s["memory"] = 60.0
    driver, work = world.start(), world.work(0)
    work.computing = lambda: clock.pass_by(600.0)
    driver.run_batch(asked(0), work)
    assert (work.first, world.visible(), world.unfinished()) == ([False, True], numbers(0), [])
    assert "took 600 s, and transactions of sink memory live 60 s" in caplog.text

    world = world.another()
    # The server fences the writers of aborted transactions, so the batch fails and no old handle is committed.
    world.timeouts_s["memory"] = 60.0
    driver, work = world.start(), world.work(0)

    def computing() -> None:
        clock.pass_by(600.0)
        if not work.first[-1]:
            raise errors.PrepareError("transactional producer fenced by newer producer instance")

    work.computing = computing
    driver.run_batch(asked(0), work)
    assert (work.first, world.visible(), world.unfinished()) == ([False, True], numbers(0), [])


@pytest.mark.parametrize("stopped", [True, False])
def test_a_batch_that_fails_early_or_is_stopped_is_not_written_again(world, clock, stopped):
    world.timeouts_s["memory"] = 60.0
    driver, work = world.start(), world.work(0)

    def fail() -> None:
        clock.pass_by(90.0 if stopped else 59.0)
        raise errors.PrepareError("no", stopped=stopped)

    work.computing = fail
    with pytest.raises(errors.PrepareError, match="no"):
        driver.run_batch(asked(0), work)
    assert work.first == [False]


def test_the_second_time_transactions_live_as_long_as_their_system_allows(world, clock, monkeypatch):
    monkeypatch.setattr(MemorySink, "transaction_timeout_s", lambda _, facts: float(facts.get("lives_s", 60.0)))
    monkeypatch.setattr(MemorySink, "longest_lived", lambda _, facts: {**facts, "lives_s": "600"})
    driver, work, names = world.start(), world.work(0), []

    def write() -> None:
        names.append(owner_of(driver).generation)
        clock.pass_by(100.0)

    work.after = write
    driver.run_batch(asked(0), work)
    assert (work.first, world.visible()) == ([False, True], numbers(0))
    assert names == [0, 1], "an id keeps the timeout with which a worker has begun it"
    driver.run_batch(asked(1), world.work(1))
    assert owner_of(driver).facts["lives_s"] == "600"


def test_how_long_a_batch_is_expected_to_take(world, clock):
    world.timeouts_s["memory"] = 60.0
    driver = world.start()
    took = []
    for batch, seconds in enumerate((20.0, 29.0, 31.0, 31.0, 5.0, 5.0)):
        work = world.work(batch)
        work.computing = partial(clock.pass_by, seconds)
        driver.run_batch(asked(batch), work, 1)
        took.append(work.first)
    assert took == [[False], [False], [False, True], [True], [True], [False]]

    world = world.another()
    world.timeouts_s["memory"] = 60.0
    driver = world.start()
    work = world.work(0)
    driver.run_batch(asked(0), work)
    work = world.work(1)
    work.computing = lambda: clock.pass_by(10.0)
    driver.run_batch(asked(1), work, 1)
    work = world.work(2)
    driver.run_batch(asked(2), work, 10)
    assert work.first == [True]


def test_a_transaction_that_its_server_has_ended_is_not_decided(world, clock, monkeypatch):
    """The clocks do not matter, since a clock stops while its machine is suspended."""
    world.timeouts_s["memory"] = 900.0
    asked_for: list[int] = []

    def begun_ms(_: _Committer, handles: Sequence[Handle]) -> list[int | None]:
        asked_for.append(len(handles))
        return [None, *(handle.opened_ms for handle in handles[1:])]

    monkeypatch.setattr(_Committer, "begun_ms", begun_ms)
    driver, work = world.start(), world.work(0)
    work.after = lambda: clock.pass_by(449.0)
    driver.run_batch(asked(0), work)
    assert asked_for == [], "a batch that is done in half of the time costs no request"
    work = world.work(1)
    work.after = lambda: clock.pass_by(451.0)
    with pytest.raises(errors.TransactionTooOldError, match="slot 0 of sink memory is no longer open"):
        driver.run_batch(asked(1), work)
    assert (world.visible(), world.unfinished()) == (numbers(0), [])


def test_a_batch_that_is_just_in_time_is_decided(world, clock, monkeypatch):
    world.timeouts_s["memory"] = 60.0
    driver, work = world.start(), world.work(0)
    work.after = lambda: clock.pass_by(29.0)
    driver.run_batch(asked(0), work)
    assert world.visible() == numbers(0)

    world = world.another()
    world.timeouts_s["memory"] = 60.0
    monkeypatch.setattr("sparkonce.executor.time.time_ns", lambda: 1)
    world.run(world.start(), 0)
    assert world.visible() == numbers(0)


def test_a_read_only_disk_undoes_what_was_prepared(world):
    driver = world.start(log=FlakyLog(world.log, Commit, "read-only"))
    with pytest.raises(errors.LogError, match="Read-only") as caught:
        world.run(driver, 0)
    assert isinstance(caught.value.__cause__, OSError)
    assert (world.visible(), world.unfinished()) == ([], [])
    world.run(world.start(), 0)
    assert world.visible() == numbers(0)

    world = world.another()
    work = world.work(0)
    with pytest.raises(errors.LogError, match="Read-only"):
        world.start(log=FlakyLog(world.log, Claim, "read-only")).run_batch(asked(0), work)
    assert (work.written, world.kinds()) == ([], [])

    world = world.another()
    # The renewed claim that would settle the question cannot be written, so the decision may be valid.
    inner = FlakyLog(world.log, Claim, "none", "read-only")
    driver = world.start(log=FlakyLog(inner, Commit, "landed"))
    with pytest.raises(errors.UnknownOutcomeError, match="could not be learned"):
        world.run(driver, 0)
    assert len(world.unfinished()) == SLOTS
    assert world.run(world.start(), 0)[0].recovered
    assert world.visible() == numbers(0)


@pytest.mark.parametrize("kind", [Claim, Commit])
@pytest.mark.parametrize(
    "faults",
    [["landed"], ["unknown"], ["unknown", "unknown"], ["unknown", "landed"], ["no floor"], ["unknown", "no floor"]],
)
def test_a_put_whose_reply_is_lost_is_settled(world, kind, faults):
    driver = world.start(log=FlakyLog(world.log, kind, *faults))
    world.run(driver, 0, 1)
    assert world.visible() == numbers(0, 1)
    assert world.unfinished() == []
    world.run(world.start(), 1, 2)
    assert world.visible() == numbers(0, 1, 2)


@pytest.mark.usefixtures("short_log")
@pytest.mark.parametrize(
    ("call", "message"),
    [("read_bytes", "cannot be read"), ("raise_floor_bytes", "tidied away"), ("delete_below", "tidied away")],
)
def test_a_log_that_the_disk_does_not_give_or_tidy_is_said_to_be_one(world, monkeypatch, call, message):
    def fail(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    batches = horizon.KEEP_BATCHES + horizon.TIDY_EVERY_BATCHES
    with monkeypatch.context() as patch:
        patch.setattr(DecisionLog, call, fail)
        with pytest.raises(errors.LogError, match=rf"{message}: .*Stale file handle"):
            world.run(world.start(), *range(batches))
    done = 0 if call == "read_bytes" else batches
    world.run(world.start(), *range(max(0, done - 1), batches + 1))
    assert (world.visible(), world.unfinished()) == (numbers(*range(batches + 1)), [])


@pytest.mark.parametrize("call", ["read_bytes", "floor_bytes", "put_bytes"])
def test_a_store_that_is_away_for_a_moment_is_waited_for(world, monkeypatch, call):
    real, left = getattr(DecisionLog, call), [2]

    def fail_first(*arguments: object) -> object:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.ETIMEDOUT, "no answer from the store")
        return real(*arguments)

    monkeypatch.setattr(DecisionLog, call, fail_first)
    world.run(world.start(), 0, 1)
    assert left[0] < 0
    assert (world.visible(), world.unfinished()) == (numbers(0, 1), [])


@pytest.mark.parametrize(("kind", "reason"), [("unknown", "reply was lost"), ("no floor", "Stale file handle")])
def test_doubts_that_do_not_end_stop_the_run_and_undo_nothing(world, kind, reason):
    inner = FlakyLog(world.log, Claim, "none", *[kind] * NEVER)
    driver = world.start(log=FlakyLog(inner, Commit, kind))
    with pytest.raises(errors.UnknownOutcomeError, match=reason):
        world.run(driver, 0)
    assert len(world.unfinished()) == SLOTS
    world.run(world.start(), 0)
    assert (world.visible(), world.unfinished()) == (numbers(0), [])


def test_a_newer_run_comes_before_the_decision(world):
    older, work = world.start(), world.work(0)
    work.after = lambda: world.run(world.start(), 0)
    with pytest.raises(errors.SupersededError, match="newer run"):
        older.run_batch(asked(0), work)
    assert (world.visible(), world.unfinished()) == (numbers(0), [])

    world = world.another()
    older, work = world.start(), world.work(0)
    newer = world.start(crash_at(Phase.FINISHING))

    def depose() -> None:
        with pytest.raises(Crash):
            world.run(newer, 0)

    work.before = depose
    with pytest.raises(errors.SupersededError):
        older.run_batch(asked(0), work)
    states = list(world.server.transactions().values())
    assert states == [TransactionState.PREPARED] * SLOTS + [TransactionState.ABORTED] * SLOTS
    world.run(world.start(), 0)
    assert world.visible() == numbers(0)

    world = world.another()
    # If this looked like a fault, a supervisor would restart this run's driver, which would supersede the newer one.
    older, work = world.start(), world.work(0)

    def fence() -> None:
        world.run(world.start(), 0)
        raise errors.PrepareError("transactional producer fenced by newer producer instance")

    work.after = fence
    with pytest.raises(errors.SupersededError, match=r"newer run has claimed .* fenced by newer"):
        older.run_batch(asked(0), work)
    assert (world.visible(), world.unfinished()) == (numbers(0), [])


@pytest.mark.usefixtures("short_log")
def test_a_put_at_a_key_that_clean_up_has_freed_is_void(world):
    """The run stalled while another run continued, and its put succeeds at a key whose record was cleaned up."""
    world.run(world.start(), 0)
    newer = world.start()
    older = world.start(call_at(Phase.CLAIMING, lambda: world.run(newer, *range(1, 20))))
    work = world.work(1)
    with pytest.raises(errors.StaleBatchError):
        older.run_batch(asked(1), work)
    assert work.written == []
    world.run(newer, 20)
    assert world.visible() == numbers(*range(21))

    world = world.another()
    world.run(world.start(), 0)
    older = world.start(call_at(Phase.DECIDING, lambda: world.run(world.start(), *range(1, 20))))
    with pytest.raises(errors.SupersededError, match="below the log's floor"):
        world.run(older, 1)
    assert (world.visible(), world.unfinished()) == (numbers(*range(20)), [])


def test_unknown_outcomes_are_asked_for_until_the_deadline_and_undo_nothing(world, clock):
    world.server.fail("commit", *[Finished(outcome=Outcome.UNKNOWN, reason="no permission")] * NEVER)
    work = world.work(0)
    with pytest.raises(errors.UnknownOutcomeError, match="no permission") as caught:
        world.start(deadline_s=60.0).run_batch(asked(0), work)
    assert caught.value.details["handles"] == tuple(("memory", slot) for slot in range(SLOTS))
    assert sum(clock.slept) == pytest.approx(60.0)
    assert max(clock.slept) <= 2.0
    assert len(work.written) == 1
    assert set(world.server.transactions().values()) == {TransactionState.PREPARED}


def test_sinks_are_finished_together_and_answer_for_themselves(world):
    other = world.add("other")
    other.fail("commit", Finished(outcome=Outcome.RETRY))
    (done,) = world.run(world.start(), 0)
    assert done.rows == {"memory": 2 * SLOTS, "other": 2 * SLOTS}
    assert world.visible() == world.visible("other") == numbers(0)

    world = world.another()
    server = world.add("other")
    world.crash(0, Phase.FINISHING)
    del world.servers["other"]
    with pytest.raises(errors.ConfigurationError, match=r"sink 'other'.*only"):
        world.run(world.start(), 0)
    world.servers["other"] = server
    world.run(world.start(), 0)
    assert world.visible() == world.visible("other") == numbers(0)


@pytest.mark.parametrize(
    ("guarantee", "phase"),
    [
        (guarantee, phase)
        for guarantee in (Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE)
        for phase in (*_WORK, Phase.DELIVERING, Phase.IDLE)
        if phase not in (Phase.VALIDATING, Phase.CONCLUDING)
        and (guarantee, phase) != (Guarantee.AT_LEAST_ONCE, Phase.DELIVERING)
    ],
)
def test_weaker_sinks_double_before_the_decision_or_lose_after_it(world, guarantee, phase):
    world.add("weak", guarantee)
    with pytest.raises(Crash):
        world.run(world.start(crash_at(phase)), 0)
    world.run(world.start(), 0, 1)
    if guarantee is Guarantee.AT_LEAST_ONCE:
        times = 2 if phase is Phase.DECIDING else 1
    else:
        times = 0 if phase in (Phase.FINISHING, Phase.DELIVERING) else 1
    assert world.visible("weak") == sorted(numbers(*[0] * times, 1))
    assert world.visible() == numbers(0, 1)


def test_sinks_without_transactions(world):
    weak = world.add("weak", Guarantee.AT_MOST_ONCE)
    weak.fail("write", RuntimeError("away"))
    with pytest.raises(errors.PrepareError, match=r"may be missing there, and will not be written again.*away"):
        world.run(world.start(), 0)
    assert world.visible() == numbers(0)
    world.run(world.start(), 0, 1)
    assert world.visible("weak") == numbers(1)

    world = world.another()
    del world.servers["memory"]
    world.add("least", Guarantee.AT_LEAST_ONCE)
    world.add("most", Guarantee.AT_MOST_ONCE)
    (done,) = world.run(world.start(), 0)
    assert done.transactions == 0
    assert world.visible("least") == world.visible("most") == numbers(0)

    world = world.another()
    world.add("weak", Guarantee.AT_MOST_ONCE)
    driver, work = world.start(), Work(world.sinks(), 0)
    driver.run_batch(asked(0), work)
    assert work.written == [(("memory",), None), (("weak",), None)]
    assert work.into_nothing == 0


class Concluding(World):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.told: list[tuple[int, int, int]] = []
        self.away = 0

    def sinks(self) -> dict[str, MemorySink]:
        told = self

        class Committer(_Committer):
            def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
                if told.away:
                    told.away -= 1
                    raise errors.UnknownOutcomeError("the server is away")
                told.told.append((batch, len(handles), len(told.visible())))

        class Sink(MemorySink):
            def committer(self) -> Committer:
                return Committer(self.server, self.name)

        exactly = Guarantee.EXACTLY_ONCE
        return {
            name: Sink(server, name=name, guarantee=self.guarantees.get(name, exactly))
            for name, server in self.servers.items()
        }


def test_a_sink_is_told_when_a_whole_batch_is_committed(tmp_path):
    world = Concluding(tmp_path)
    world.run(world.start(), 0, 1)
    assert world.told == [(0, SLOTS, 2 * SLOTS), (1, SLOTS, 4 * SLOTS)]

    # The run that recovers a batch reports it again.
    world = world.another()
    world.crash(0, Phase.SWEEPING_OWN)
    assert world.told == []
    world.crash(0, Phase.IDLE)
    world.run(world.start(), 0)
    assert world.told == [(0, SLOTS, 2 * SLOTS)] * 2


def test_a_sink_is_not_told_of_a_batch_without_slots(tmp_path):
    """A plan without tasks, and then one whose only slot has no rows. A sink still sees its handles and their owner."""
    world = Concluding(tmp_path)
    driver = world.start()
    for batch, slots in enumerate((0, 1, SLOTS)):
        work = world.work(batch)
        work.slots, work.empty = slots, frozenset({0} if slots == 1 else ())
        driver.run_batch(asked(batch), work)
    assert world.told == [(1, 1, 0), (2, SLOTS, 2 * SLOTS)]
    world.crash(3, Phase.FINISHING)
    world.run(world.start(), 3)
    assert world.told[2:] == [(3, SLOTS, 4 * SLOTS)]


def test_a_sink_that_cannot_be_told_is_asked_again_until_the_deadline(tmp_path):
    world = Concluding(tmp_path)
    world.away = 3
    world.run(world.start(), 0)
    assert world.told == [(0, SLOTS, 2 * SLOTS)]
    world.away = NEVER
    driver = world.start(deadline_s=5.0)
    with pytest.raises(errors.UnknownOutcomeError, match="away"):
        world.run(driver, 1)
    assert driver.state.phase is Phase.STOPPED
    assert len(world.visible()) == 4 * SLOTS


def test_an_executor_whose_clock_is_ahead_does_not_make_its_transactions_younger(world, clock, monkeypatch):
    world.timeouts_s["memory"] = 900.0
    shifted = Clock()
    shifted.pass_by(360.0)
    begun: list[int] = []
    monkeypatch.setattr(_Committer, "begun_ms", lambda _, handles: [handle.opened_ms - 360_000 for handle in handles])
    monkeypatch.setattr(executor_module, "time", shifted)
    driver, work = world.start(), world.work(0)
    work.after = lambda: clock.pass_by(880.0) or shifted.pass_by(880.0) or begun.append(1)
    with pytest.raises(errors.TransactionTooOldError, match="880 s old, its timeout is 900 s, and 90 s are kept"):
        driver.run_batch(asked(0), work)
    assert len(begun) == 2
    assert world.unfinished() == []


def test_positions_are_reported_once_where_sinks_are_written_after_the_decision(world):
    told: list[str] = []

    class Reporter:
        def check(self, facts: object) -> None:
            pass

        def before_decision(self, handles: object, sources: object) -> str:
            told.append("before")
            return ""

        def after_finish(self, sources: object) -> None:
            told.append("after")

        def close(self) -> None:
            pass

    world.add("most", Guarantee.AT_MOST_ONCE)
    world.run(world.start(reporters=[Reporter()]), 0)
    assert told == ["before", "after"]
    assert world.visible("most") == numbers(0)
    # Without prepared transactions, there is nothing to validate.
    world.guarantees["memory"] = Guarantee.AT_MOST_ONCE
    told.clear()
    world.run(world.start(reporters=[Reporter()]), 1)
    assert told == ["after"]


def test_phases_are_told_in_order_before_anything_is_done_in_them(world):
    told: list[tuple[Phase, int]] = []
    driver = world.start(lambda phase, batch: told.append((phase, batch)))
    world.run(driver, 0, 1)
    every_batch = [*_WORK, Phase.IDLE]
    first = [Phase.READING, Phase.CLAIMING, Phase.CHECKING, Phase.SWEEPING, *every_batch]
    assert told == [*((phase, 0) for phase in first), *((phase, 1) for phase in every_batch)]
