from __future__ import annotations

import pytest

from sparkonce import errors
from sparkonce.driver.prepare import check_same_target
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import Finishing, Phase, State
from sparkonce.protocol.view import Amend, Claim, Decision, LogView, Run
from sparkonce.sink import SinkWriter, WriterContext
from sparkonce.sinks.memory import MemoryServer, MemorySink
from sparkonce.sinks.memory.server import TransactionState, reply_lost
from unit.driver_world import NEVER, QUERY, SLOTS, Clock, Crash, Work, World, asked, call_at, numbers, stopped_clock


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    return stopped_clock(monkeypatch)


def expire(server: MemoryServer, *numbers_: int) -> None:
    for number in numbers_ or [number for number, _ in server.unfinished()]:
        server.expire(number)


def decided(world: World, *, committed: int) -> None:
    world.server.fail("commit", *[reply_lost(Outcome.COMMITTED)] * committed, Crash())
    with pytest.raises(Crash):
        world.run(world.start(), 0)
    expire(world.server)
    assert len(world.visible()) == 2 * committed


def heal(world: World, **changes: object) -> Work:
    work = world.work(0)
    for name, value in changes.items():
        setattr(work, name, value)
    world.start().run_batch(asked(0), work)
    return work


def test_a_batch_that_is_wholly_lost_is_written_again(world):
    decided(world, committed=0)
    driver = world.start()
    (done,) = world.run(driver, 0)
    assert (done.recovered, done.healed, done.rows) == (True, SLOTS, {"memory": 2 * SLOTS})
    assert world.visible() == numbers(0)
    assert world.kinds() == ["Claim", "Commit", "Claim", "Amend"]
    commit, amend = world.records()[1], world.records()[3]
    assert (amend.batch, amend.offsets) == (commit.batch, commit.offsets)
    assert {handle.transaction for handle in amend.handles}.isdisjoint(h.transaction for h in commit.handles)
    world.run(driver, 1)
    assert world.visible() == numbers(0, 1)


def test_a_batch_that_is_wholly_lost_may_have_other_rows_and_slots_the_second_time(world):
    """Nobody has seen the rows of the first attempt."""
    decided(world, committed=0)
    heal(world, shift=5)
    assert world.visible() == [number + 5 for number in numbers(0)]

    world = world.another()
    decided(world, committed=0)
    heal(world, together=True)
    assert world.visible() == numbers(0)

    world = world.another()
    decided(world, committed=0)
    heal(world)
    states = list(world.server.transactions().values())
    assert states == [TransactionState.ABORTED] * SLOTS + [TransactionState.COMMITTED] * SLOTS


def test_slots_in_another_order_are_found_again_and_the_lost_ones_written(world):
    decided(world, committed=1)
    before = world.records()[1]
    work = heal(world, orders=[[2, 0, 1]])
    # The rows of the lost slots 1 and 2 are now in slots 2 and 0.
    assert [only for _, only in work.written] == [{("memory", 1), ("memory", 2)}, {("memory", 2), ("memory", 0)}]
    assert world.visible() == numbers(0)
    assert world.unfinished() == []
    amend = world.records()[3]
    assert isinstance(amend, Amend)
    assert [handle.evidence for handle in amend.handles] == [handle.evidence for handle in before.handles]
    assert [one == other for one, other in zip(amend.handles, before.handles, strict=True)] == [True, False, False]


def test_what_is_written_a_second_time_has_other_names_if_the_first_may_still_be_aborted(world, monkeypatch):
    generations: list[int] = []
    writer = MemorySink.writer

    def noted(sink: MemorySink, context: WriterContext) -> SinkWriter:
        generations.append(context.owner.generation)
        return writer(sink, context)

    decided(world, committed=1)
    monkeypatch.setattr(MemorySink, "writer", noted)
    world.server.fail("abort", Finished(outcome=Outcome.RETRY, in_flight=True))
    heal(world, orders=[[2, 0, 1]])
    assert generations == [0, 0, 1, 1]
    assert world.visible() == numbers(0)


def test_the_same_rows_in_other_slots_stop_the_query_and_heal_when_the_slots_are_back(world):
    """This happens with adaptive execution or a changed number of partitions.

    All lost rows can still be written again.
    """
    decided(world, committed=1)
    with pytest.raises(errors.TransactionLostError, match="the same rows, distributed differently, in") as caught:
        heal(world, together=True)
    assert caught.value.details["same_rows"] is True
    assert "the batch had a different number of slots" in caught.value.next_step
    assert (world.visible(), world.unfinished()) == (numbers(0, slots=[0]), [])
    heal(world)
    assert world.visible() == numbers(0)


def lost_in_one_sink(world: World, **changes: object) -> None:
    other, work = world.add("other"), world.work(0)
    for name, value in changes.items():
        setattr(work, name, value)
    other.fail("commit", Crash())
    with pytest.raises(Crash):
        world.start().run_batch(asked(0), work)
    expire(other)
    assert (world.visible(), world.visible("other")) == (numbers(0), [])


ONE, FOUR = {"together": True}, {"slots": SLOTS + 1, "empty": frozenset({SLOTS})}


@pytest.mark.parametrize(
    ("first", "second", "slots"),
    [({}, ONE, [0]), (ONE, {}, [0, 1, 2]), (FOUR, {}, [0, 1, 2]), ({}, {"orders": [[2, 0, 1]]}, [0, 1, 2])],
    ids=["fewer", "more", "an empty one less", "in another order"],
)
def test_a_sink_that_is_lost_as_a_whole_may_have_other_slots_the_second_time(world, first, second, slots):
    lost_in_one_sink(world, **first)
    before = world.records()[1]
    heal(world, **second)
    assert world.visible() == world.visible("other") == numbers(0)
    amend = world.records()[-1]
    assert isinstance(amend, Amend)
    assert [one for one in amend.handles if one.sink == "memory"] == [
        one for one in before.handles if one.sink == "memory"
    ]
    assert [one.slot for one in amend.handles if one.sink == "other"] == slots
    # The record is complete: the next run finds that all transactions in it are committed.
    world.run(world.start(), 0, 1)
    assert world.visible() == world.visible("other") == numbers(0, 1)


def test_a_sink_that_is_lost_as_a_whole_has_the_same_rows_the_second_time(world):
    lost_in_one_sink(world)
    for change in ({"shift": 1}, {"together": True, "shift": 1}, {"together": True, "empty": frozenset({2})}):
        with pytest.raises(errors.TransactionLostError, match="returned different rows"):
            heal(world, **change)
        assert (world.visible("other"), world.unfinished()) == ([], [])
    heal(world)
    assert world.visible() == world.visible("other") == numbers(0)


def test_slots_that_change_places(world):
    decided(world, committed=2)
    work = heal(world, orders=[[1, 0, 2]])
    assert [only for _, only in work.written] == [{("memory", 2)}]
    assert world.visible() == numbers(0)

    world = world.another()
    decided(world, committed=2)
    with pytest.raises(errors.PrepareError, match="different order each time"):
        heal(world, orders=[[2, 0, 1], [1, 2, 0]])
    assert world.visible() == numbers(0, slots=[0, 1])
    heal(world)
    assert world.visible() == numbers(0)
    assert world.unfinished() == []


def test_a_loss_in_the_run_that_decided_is_healed_too(world):
    driver = world.start(call_at(Phase.FINISHING, lambda: expire(world.server)))
    (done,) = world.run(driver, 0)
    assert (done.recovered, done.healed) == (False, SLOTS)
    assert world.visible() == numbers(0)
    assert world.kinds() == ["Claim", "Commit", "Amend"]

    world = world.another()
    decided(world, committed=0)
    losses = []

    def lose(phase: Phase, batch: int) -> None:
        if phase is Phase.FINISHING and len(losses) < 3:
            losses.append(phase)
            expire(world.server)

    world.run(world.start(lose), 0)
    assert world.visible() == numbers(0)
    assert world.kinds() == ["Claim", "Commit", "Claim", "Amend", "Amend", "Amend"]

    world = world.another()

    def lose(phase: Phase, batch: int) -> None:
        if phase is Phase.FINISHING:
            expire(world.server)

    with pytest.raises(errors.TransactionTooOldError, match="written 3 times and its transactions were lost each time"):
        world.run(world.start(listener=lose), 0)
    assert world.kinds() == ["Claim", "Commit", "Amend", "Amend", "Amend"]
    assert world.visible() == []
    # Nothing is permanently lost. A run whose transaction timeout is long enough writes the batch again.
    world.run(world.start(), 0)
    assert world.visible() == numbers(0)


@pytest.mark.parametrize(
    "change",
    [{"shift": 1}, {"empty": frozenset({2})}, {"empty": frozenset({0})}, {"slots": SLOTS + 1}, {"slots": SLOTS - 1}],
    ids=["other rows", "a lost slot is empty", "a kept slot is empty", "one slot more", "one slot less"],
)
def test_a_part_that_comes_out_differently_is_not_written(world, change):
    decided(world, committed=1)
    before = world.visible()
    with pytest.raises(errors.TransactionLostError):
        heal(world, **change)
    assert (world.visible(), world.unfinished()) == (before, [])
    assert world.kinds() == ["Claim", "Commit", "Claim"]
    assert heal(world).written != []  # healing succeeds as soon as the input is back
    assert world.visible() == numbers(0)


def test_unknown_outcomes_forbid_healing(world):
    decided(world, committed=0)
    world.server.fail("commit", *[Finished(outcome=Outcome.UNKNOWN, reason="no permission")] * NEVER)
    work = world.work(0)
    with pytest.raises(errors.UnknownOutcomeError):
        world.start().run_batch(asked(0), work)
    assert work.written == []
    assert world.kinds() == ["Claim", "Commit", "Claim"]

    world = world.another()
    decided(world, committed=0)
    lost = Finished(outcome=Outcome.LOST)
    world.server.fail("commit", lost, lost, *[Finished(outcome=Outcome.UNKNOWN)] * NEVER)
    work = world.work(0)
    with pytest.raises(errors.UnknownOutcomeError) as caught:
        world.start().run_batch(asked(0), work)
    assert caught.value.details["handles"] == (("memory", 2),)
    assert work.written == []


def test_a_run_that_is_deposed_heals_nothing(world):
    """An apparent loss may only mean that the newer run has moved past the batch."""
    decided(world, committed=0)
    newer = world.start()
    work = world.work(0)
    older = world.start(call_at(Phase.JUDGING, lambda: world.run(newer, 0, 1)))
    with pytest.raises(errors.SupersededError, match="while a loss was judged"):
        older.run_batch(asked(0), work)
    assert work.written == []
    assert world.visible() == numbers(0, 1)

    world = world.another()
    decided(world, committed=0)
    newer = world.start(call_at(Phase.FINISHING, lambda: None))
    older, work = world.start(), world.work(0)
    work.before = lambda: world.run(newer, 0)
    with pytest.raises(errors.SupersededError):
        older.run_batch(asked(0), work)
    assert (world.visible(), world.unfinished()) == (numbers(0), [])

    world = world.another()
    # The run stalled during its replay, and the replay produced other slots.
    decided(world, committed=1)
    newer, older, work = world.start(), world.start(), world.work(0)
    work.together, work.before = True, lambda: world.run(newer, 0)
    with pytest.raises(errors.SupersededError, match=r"considered rows lost: .* distributed differently"):
        older.run_batch(asked(0), work)
    assert (world.visible(), world.unfinished()) == (numbers(0), [])


def test_a_batch_that_is_healed_too_slowly_is_not_decided(world, clock):
    decided(world, committed=1)
    world.timeouts_s["memory"] = 60.0
    with pytest.raises(errors.TransactionTooOldError):
        heal(world, after=lambda: clock.pass_by(61.0))
    assert world.unfinished() == []
    heal(world)
    assert world.visible() == numbers(0)


def test_weaker_sinks_and_empty_slots_take_no_part_in_healing(world):
    world.add("least", Guarantee.AT_LEAST_ONCE)
    decided(world, committed=0)
    work = heal(world)
    assert work.written == [(("memory",), None)]
    assert world.visible("least") == world.visible() == numbers(0)

    world = world.another()
    driver, work = world.start(call_at(Phase.FINISHING, lambda: expire(world.server))), world.work(0)
    work.empty = frozenset({1})
    assert driver.run_batch(asked(0), work).healed == 2
    assert world.visible() == numbers(0, slots=[0, 2])

    world = world.another()
    world.add("other")
    world.crash(0, Phase.FINISHING)
    world.guarantees["other"] = Guarantee.AT_LEAST_ONCE
    world.run(world.start(), 0, 1)
    assert world.visible() == world.visible("other") == numbers(0, 1)


@pytest.mark.parametrize("weaker", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
@pytest.mark.parametrize("all_lost", [True, False])
def test_a_sink_that_is_weaker_after_a_restart_cannot_be_healed(world, weaker, all_lost):
    other = world.add("other")
    world.crash(0, Phase.FINISHING)
    for server in (other, world.server) if all_lost else (other,):
        expire(server)
    world.guarantees["other"] = weaker
    with pytest.raises(errors.ConfigurationError, match="sink 'other' was exactly-once") as caught:
        world.run(world.start(), 0)
    assert "until this batch is committed" in caught.value.next_step
    assert world.kinds() == ["Claim", "Commit", "Claim"]
    world.guarantees["other"] = Guarantee.EXACTLY_ONCE
    world.run(world.start(), 0)
    assert world.visible() == world.visible("other") == numbers(0)


def test_late_comers_of_older_runs_are_swept_again(world):
    world.run(world.start(), 0)
    (late,) = world.server.owners_of([1])
    driver = world.start()
    work = world.work(1)
    # A task of the first run's driver, which is dead, opens a transaction after the newer run has swept.
    work.before = lambda: opened.append(world.server.begin(late))
    work.loser = True
    opened: list[int] = []
    driver.run_batch(asked(1), work)
    assert world.server.transactions()[opened[0]] is TransactionState.ABORTED
    assert world.visible() == numbers(0, 1)


@pytest.mark.parametrize("fact", ["topic", "table", "schema"])
def test_a_batch_that_is_lost_in_part_is_not_written_elsewhere(world, monkeypatch, fact):
    place = {fact: "old"}
    monkeypatch.setattr(MemorySink, "preflight", lambda *_: {"prefix": "memory", **place})
    decided(world, committed=1)
    place[fact] = "new"
    with pytest.raises(errors.ConfigurationError, match=f"{fact}='old'; now the sink has {fact}='new'"):
        heal(world)
    assert world.visible() == numbers(0, slots=[0])
    place.clear()  # like a sink whose rows contain their topics
    with pytest.raises(errors.ConfigurationError, match=f"{fact}='old'; now the sink has {fact}=None"):
        heal(world)
    place[fact] = "old"
    heal(world)
    assert world.visible() == numbers(0)


def test_a_batch_that_is_lost_as_a_whole_may_be_written_elsewhere(world, monkeypatch):
    place = {"table": "old"}
    monkeypatch.setattr(MemorySink, "preflight", lambda *_: {"prefix": "memory", **place})
    decided(world, committed=0)
    place["table"] = "new"
    heal(world)
    assert world.visible() == numbers(0)

    runs = [
        Run(token=token, query=QUERY, sinks=(("s", (("topic", topic),)),))
        for token, topic in ((Token(0, "00000001"), "old"), (Token(2, "00000002"), "new"))
    ]
    kept, lost = (
        Handle(sink="s", slot=slot, transaction=(("transactional_id", f"p.q.0-00000001.w-{slot}"),)) for slot in (0, 1)
    )
    decision = Decision(position=3, token=runs[1].token, query=QUERY, batch=0, offsets=(), handles=(kept, lost))
    state = State(
        claim=Claim(nonce="n", run="r", query=QUERY, location="/l"),
        view=LogView(runs=tuple(runs)),
        finishing=Finishing(decision=decision, lost=frozenset({lost.key})),
    )
    check_same_target(state, lambda _: {"topic": "old"})
    with pytest.raises(errors.ConfigurationError, match="committed in topic='old'; now the sink has topic='new'"):
        check_same_target(state, lambda _: {"topic": "new"})
