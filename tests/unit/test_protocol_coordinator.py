"""Single steps of the coordinator. The model check covers how they work together."""

from __future__ import annotations

import re

import pytest

from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.coordinator import MOST_DOUBTS, TRANSITIONS, step
from sparkonce.protocol.effects import Attempt, Effect, StopReason
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import BadTransition, Phase, State
from sparkonce.protocol.view import Claim, Commit, Floor, LogView

QUERY = "5f6a2c1e-0000-4000-8000-000000000000"
OLDER = Claim(nonce="aaaaaaaa", run="run-a", query=QUERY, host="there", process=12)
MINE = Claim(nonce="bbbbbbbb", run="run-b", query=QUERY)
OLD = Token(0, "aaaaaaaa")
NONE = Floor()


def handle(slot: int = 0, *, sink: str = "out", rows: int = 3, epoch: int = 0, fingerprint: int = 11) -> Handle:
    return Handle(
        sink=sink,
        slot=slot,
        rows=rows,
        fingerprint=fingerprint,
        transaction=(("epoch", epoch), ("id", f"{sink}-{slot}")),
    )


def empty(slot: int, sink: str = "out") -> Handle:
    return Handle(sink=sink, slot=slot)


def decided(batch: int, *handles: Handle, token: Token = OLD, query: str = QUERY) -> Commit:
    return Commit(token=token, query=query, batch=batch, offsets=(f"end {batch}",), handles=handles)


def log(*batches: int) -> LogView:
    view = LogView().apply(0, OLDER)
    for batch in batches:
        view = view.apply(view.end, decided(batch, handle(0), handle(1)))
    return view


def asks(batch: int, offsets: str | None = None, previous: str | None = "") -> on.BatchAsked:
    before = f"end {batch - 1}" if previous == "" and batch else previous
    return on.BatchAsked(
        batch=batch, offsets=(offsets or f"end {batch}",), previous_offsets=None if before is None else (before,)
    )


def begun(asked: on.BatchAsked, view: LogView, **changes: object) -> tuple[State, Effect]:
    state = State(claim=MINE, transactional=("out",), **changes)
    state, effect = step(state, asked)
    assert isinstance(effect, do.ReadLog)
    return step(state, on.LogRead(view=view))


def through(state: State, *answers: on.Event) -> tuple[State, Effect]:
    effect: Effect | None = None
    for answer in answers:
        state, effect = step(state, answer)
    assert effect is not None
    return state, effect


def claimed(state: State, position: int) -> tuple[State, Effect]:
    """Continues after the run's claim succeeded and no server turned out to be restored from a backup."""
    return through(state, on.PutLanded(position=position, floor=NONE), on.ServersChecked())


def writing(view: LogView, batch: int, **changes: object) -> State:
    state, _ = begun(asks(batch), view, **changes)
    state, _ = claimed(state, view.end)
    state, effect = step(state, on.Swept())
    assert isinstance(effect, do.Write)
    return state


def prepared(state: State, *handles: Handle) -> tuple[State, Effect]:
    """Continues after everything is prepared and validation passed."""
    state, effect = step(state, on.Prepared(handles=handles))
    assert isinstance(effect, do.Validate)
    return step(state, on.Validated())


def finishing(*handles: Handle) -> State:
    view = log()
    state, _ = prepared(writing(view, 0), *handles)
    state, effect = step(state, on.PutLanded(position=view.end + 1, floor=NONE))
    assert isinstance(effect, do.Finish)
    return state


@pytest.mark.parametrize(
    ("asked", "view", "reason", "says"),
    [
        (asks(1), log(0, 1, 2), StopReason.STALE, "batch 1 is asked for, but batch 2 is already decided"),
        (asks(3), log(0, 1), StopReason.MISMATCH, "batch 3 is asked for, but the last decided batch is 1"),
        (asks(1, "other"), log(0, 1), StopReason.MISMATCH, r"offsets \['end 1'\], and the checkpoint now says"),
        (asks(2, previous="other"), log(0, 1), StopReason.MISMATCH, r"batch 1 was decided .* now says \['other'\]"),
    ],
    ids=["stale", "gap", "other offsets", "other previous offsets"],
)
def test_a_batch_that_the_log_contradicts_is_refused_before_any_claim(asked, view, reason, says):
    state, effect = begun(asked, view)
    assert effect.reason is reason
    assert re.search(says, effect.message)
    assert (state.phase, state.token) == (Phase.STOPPED, None)


def test_what_a_log_may_begin_with():
    _, effect = begun(asks(2, previous=None), log(0, 1))
    assert isinstance(effect, do.Put)

    _, effect = begun(asks(17), LogView())
    assert effect == do.Put(position=0, record=MINE, contested=0)

    other = LogView().apply(0, Claim(nonce="aaaaaaaa", run="run-a", query="11111111-0000-4000-8000-000000000000"))
    state, effect = begun(asks(0), other)
    assert effect.reason is StopReason.MISMATCH
    assert "belongs to query 11111111-" in effect.message
    assert QUERY in effect.message
    assert state.token is None


def test_what_was_refused_by_the_first_look_is_refused_by_the_second():
    state, effect = begun(asks(2), log(0, 1))
    standing = decided(2, handle(0))
    state, effect = step(state, on.PutTaken(position=3, standing=standing, floor=NONE))
    assert isinstance(effect, do.ReadLog)
    state, effect = step(state, on.LogRead(view=log(0, 1, 2, 3)))
    assert effect.reason is StopReason.STALE


def test_a_run_sweeps_all_older_runs_and_only_those_once_it_has_claimed():
    state, effect = begun(asks(2), log(0, 1))
    assert effect == do.Put(position=3, record=MINE, contested=0)
    state, effect = step(state, on.PutLanded(position=3, floor=NONE))
    assert effect == do.CheckServers(batch=2, sinks=("out",), view=state.view)
    state, effect = step(state, on.ServersChecked())
    assert isinstance(effect, do.Sweep)
    assert [run.token for run in effect.runs] == [OLD]
    assert not effect.best_effort
    assert state.token == Token(3, "bbbbbbbb")

    _, effect = begun(asks(0), log().apply(1, Claim(nonce="cccccccc", run="run-c", query=QUERY)))
    assert effect.contested == 2


def test_a_claim_whose_reply_was_lost_is_put_again_and_found():
    state, _ = begun(asks(0), log())
    state, effect = step(state, on.PutUnknown(position=1))
    assert effect == do.Put(position=1, record=MINE)
    state, effect = step(state, on.PutTaken(position=1, standing=MINE, floor=NONE))
    assert isinstance(effect, do.CheckServers)
    assert state.token == Token(1, "bbbbbbbb")

    state, _ = begun(asks(0), log())
    state, effect = step(state, on.PutLanded(position=1, floor=Floor(5)))
    assert effect == do.ReadLog(view=LogView())
    assert state.token is None

    state, _ = begun(asks(0), log())
    _, effect = step(state, on.PutRefused(position=1, reason="No space left on device"))
    assert effect.reason is StopReason.UNWRITABLE
    assert "No space left on device" in effect.message


def test_a_decided_batch_is_finished_and_run_into_nothing():
    state, _ = begun(asks(1), log(0, 1))
    state, effect = claimed(state, 3)
    assert effect == do.Finish(batch=1, handles=(handle(0), handle(1)), attempt=0)
    state, effect = step(state, on.HandlesFinished(outcomes=(Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)))
    assert effect == do.RunIntoNothing(batch=1)
    state, effect = through(state, on.PlanRun(), on.Swept())
    assert effect == do.Conclude(batch=1, sinks=("out",), handles=(handle(0), handle(1)))
    _, effect = step(state, on.Concluded())
    assert effect == do.Done(batch=1, handles=(handle(0), handle(1)), recovered=True)

    view = log().apply(1, decided(0, empty(0), empty(1)))
    state, _ = begun(asks(0), view)
    _, effect = claimed(state, 2)
    assert effect == do.RunIntoNothing(batch=0)


def test_the_decision_holds_every_handle_in_order():
    _, effect = prepared(writing(log(), 0), handle(1), empty(2), handle(0))
    assert isinstance(effect.record, Commit)
    assert effect.position == 2
    assert effect.record.handles == (handle(0), handle(1), empty(2))
    assert (effect.record.batch, effect.record.offsets) == (0, ("end 0",))


@pytest.mark.parametrize("is_prepared", [True, False])
def test_what_a_system_was_away_for_is_written_again(is_prepared):
    state = writing(log(), 0)
    for _ in range(2):
        if is_prepared:
            state, _ = step(state, on.Prepared(handles=(handle(0),)))
        state, effect = step(state, on.Unready())
        assert effect == do.Write(batch=0, sinks=("out",), attempt=Attempt.AGAIN)
    state, effect = prepared(state, handle(0, epoch=1))
    assert effect.record.handles == (handle(0, epoch=1),)


def test_lost_rows_are_looked_for_again_where_the_write_elsewhere_is_repeated():
    state = finishing(handle(0), handle(1, fingerprint=22))
    state, _ = step(state, on.HandlesFinished(outcomes=(Outcome.COMMITTED, Outcome.LOST)))
    state, _ = step(state, on.LogRead(view=state.view))
    counted = Handle(sink="out", slot=0, rows=3, fingerprint=22)
    state, _ = step(state, on.Prepared(handles=(counted, handle(1, epoch=5))))
    state, effect = step(state, on.Aborted())
    assert effect == do.Write(batch=0, sinks=("out",), only=frozenset({("out", 0)}), attempt=Attempt.ELSEWHERE)
    state, effect = step(state, on.Unready())
    assert effect == do.Write(batch=0, sinks=("out",), only=frozenset({("out", 0)}), attempt=Attempt.AGAIN)
    as_before = (handle(0, epoch=6), Handle(sink="out", slot=1, rows=3, fingerprint=22))
    state, effect = step(state, on.Prepared(handles=as_before))
    assert effect == do.Abort(handles=as_before[:1])
    _, effect = step(state, on.Aborted())
    assert effect == do.Write(batch=0, sinks=("out",), only=frozenset({("out", 1)}), attempt=Attempt.ELSEWHERE)


def test_a_decision_in_doubt_is_settled_or_undoes_nothing():
    state, put = prepared(writing(log(), 0), handle(0))
    assert isinstance(put, do.Put)
    state, effect = step(state, on.PutUnknown(position=2))
    assert (effect.position, effect.record.renews) == (2, Token(1, "bbbbbbbb"))
    found, effect = step(state, on.PutTaken(position=2, standing=put.record, floor=NONE))
    assert isinstance(effect, do.Finish)
    assert found.finishing is not None
    _, effect = step(state, on.PutLanded(position=2, floor=NONE))
    assert effect == do.Put(position=3, record=put.record)

    state, _ = prepared(writing(log(), 0), handle(0))
    for _ in range(MOST_DOUBTS):
        state, effect = step(state, on.PutUnknown(position=2, reason="timed out"))
        assert isinstance(effect, do.Put)
    _, effect = step(state, on.PutUnknown(position=2, reason="timed out"))
    assert effect.reason is StopReason.UNKNOWN

    state, _ = prepared(writing(log(), 0), handle(0))
    _, effect = through(state, on.PutUnknown(position=2), on.PutRefused(position=2, reason="read-only"))
    assert effect.reason is StopReason.UNKNOWN


def test_a_decision_that_does_not_stand_is_undone():
    state, _ = prepared(writing(log(), 0), handle(0))
    state, effect = step(state, on.PutRefused(position=2, reason="No space left on device"))
    assert effect == do.Abort(handles=(handle(0),))
    _, effect = step(state, on.Aborted())
    assert effect.reason is StopReason.UNWRITABLE

    state, _ = prepared(writing(log(), 0), handle(0))
    _, effect = through(state, on.PutLanded(position=2, floor=Floor(9)), on.Aborted())
    assert effect.reason is StopReason.SUPERSEDED

    newer = Claim(nonce="cccccccc", run="run-c", query=QUERY, host="elsewhere", process=99)
    state, _ = prepared(writing(log(), 0), handle(0))
    state, effect = step(state, on.PutTaken(position=2, standing=newer, floor=NONE))
    assert effect == do.Abort(handles=(handle(0),))
    _, effect = step(state, on.Aborted())
    assert effect.reason is StopReason.SUPERSEDED
    assert "run run-c on elsewhere, process 99" in effect.message

    state, _ = begun(asks(0), log())
    _, effect = step(state, on.PutLanded(position=7, floor=NONE))
    assert effect.reason is StopReason.LOG_VIOLATION


@pytest.mark.parametrize("doubtful", [Outcome.RETRY, Outcome.UNKNOWN])
def test_unknown_is_never_healed(doubtful):
    state = finishing(handle(0), handle(1))
    _, effect = step(state, on.HandlesFinished(outcomes=(Outcome.LOST, doubtful), deadline_passed="after 300 s"))
    assert effect.reason is StopReason.UNKNOWN
    assert dict(effect.details) == {"handles": (("out", 1),)}


def test_a_loss_is_judged_by_the_log_as_it_is_now():
    state = finishing(handle(0), handle(1))
    state, effect = step(state, on.HandlesFinished(outcomes=(Outcome.LOST, Outcome.COMMITTED)))
    assert effect == do.ReadLog(view=state.view)
    gone_on = state.view.apply(state.view.end, Claim(nonce="cccccccc", run="run-c", query=QUERY))
    _, effect = step(state, on.LogRead(view=gone_on))
    assert effect.reason is StopReason.SUPERSEDED


def test_of_a_partial_loss_only_the_lost_is_written_again():
    state = finishing(handle(0), handle(1))
    state, _ = step(state, on.HandlesFinished(outcomes=(Outcome.COMMITTED, Outcome.LOST)))
    state, effect = step(state, on.LogRead(view=state.view))
    assert effect == do.Write(batch=0, sinks=("out",), only=frozenset({("out", 1)}))
    counted = Handle(sink="out", slot=0, rows=3, fingerprint=11)
    state, effect = prepared(state, counted, handle(1, epoch=5))
    assert effect.record.handles == (handle(0), handle(1, epoch=5))
    _, effect = step(state, on.PutLanded(position=effect.position, floor=NONE))
    assert effect == do.Finish(batch=0, handles=(handle(1, epoch=5),), attempt=0)


def damaged_once(*others: Outcome) -> tuple[State, Effect]:
    state = finishing(handle(0), handle(1))
    return step(state, on.HandlesFinished(outcomes=(*others, Outcome.DAMAGED)))


def test_the_next_run_aborts_what_is_void_and_commits_the_rest():
    state, effect = damaged_once(Outcome.COMMITTED)
    view = state.view.apply(state.view.end, effect.record)
    state, _ = begun(asks(0), view)
    _, effect = claimed(state, view.end)
    assert effect == do.Finish(batch=0, handles=(handle(0), handle(1)), attempt=0, void=(("out", 1),))

    state, put = damaged_once(Outcome.COMMITTED)
    state, _ = step(state, on.PutLanded(position=put.position, floor=NONE))
    _, effect = step(state, on.HandlesFinished(outcomes=(Outcome.ALREADY_COMMITTED,)))
    assert effect.reason is StopReason.LOST
    assert dict(effect.details)["lost"] == (("out", 1, 3),)

    state, effect = damaged_once(Outcome.RETRY)
    assert effect == do.Finish(batch=0, handles=(handle(0), handle(1)), attempt=1)
    _, effect = step(
        state, on.HandlesFinished(outcomes=(Outcome.UNKNOWN, Outcome.DAMAGED), deadline_passed="after 300 s")
    )
    assert (effect.reason, dict(effect.details)) == (StopReason.UNKNOWN, {"handles": (("out", 0),)})


def test_a_void_record_in_doubt_aborts_nothing():
    state, put = damaged_once(Outcome.COMMITTED)
    _, effect = step(state, on.PutRefused(position=put.position, reason="full"))
    assert effect.reason is StopReason.UNWRITABLE
    state, effect = step(state, on.PutUnknown(position=put.position))
    assert isinstance(effect.record, Claim)
    _, effect = step(state, on.PutTaken(position=effect.position, standing=put.record, floor=NONE))
    assert effect == do.Finish(batch=0, handles=(handle(1),), attempt=0, void=(("out", 1),))
    newer = Claim(nonce="cccccccc", run="run-c", query=QUERY)
    _, effect = step(state, on.PutTaken(position=put.position, standing=newer, floor=NONE))
    assert effect.reason is StopReason.SUPERSEDED


@pytest.mark.parametrize("phase", Phase)
def test_an_event_that_a_phase_does_not_expect_is_refused(phase):
    events = (
        asks(0),
        on.LogRead(view=LogView()),
        on.PutLanded(position=0, floor=NONE),
        on.PutTaken(position=0, standing=MINE, floor=NONE),
        on.PutUnknown(position=0),
        on.PutRefused(position=0),
        on.ServersChecked(),
        on.Swept(),
        on.Prepared(handles=()),
        on.PrepareFailed(reason=""),
        on.Unready(),
        on.Validated(),
        on.Objected(reason=""),
        on.TooOld(reason=""),
        on.HandlesFinished(outcomes=()),
        on.Aborted(),
        on.PlanRun(),
        on.FloorRaised(floor=NONE),
        on.Deleted(),
        on.Concluded(),
        on.Reported(),
    )
    unexpected = [event for event in events if (phase, type(event)) not in TRANSITIONS]
    assert unexpected
    for event in unexpected:
        with pytest.raises(BadTransition, match=f"{type(event).__name__} while {phase.value}"):
            step(State(claim=MINE, phase=phase), event)


def test_a_run_that_has_stopped_stays_stopped():
    state, effect = step(State(claim=MINE, phase=Phase.STOPPED), asks(0))
    assert effect.reason is StopReason.STOPPED
    assert state.phase is Phase.STOPPED

    assert {phase for phase, _ in TRANSITIONS} == set(Phase)

    state = finishing(handle(0))
    state, effect = through(state, on.HandlesFinished(outcomes=(Outcome.COMMITTED,)), on.Swept(), on.Concluded())
    assert effect == do.Done(batch=0, handles=(handle(0),))
    _, effect = step(state, asks(1))
    assert effect == do.Write(batch=1, sinks=("out",))
