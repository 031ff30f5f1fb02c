"""The driver's side of the protocol, as a table: (phase, event) → (state, what to do next).

Every step asks for exactly one thing to be done and waits for exactly one event that answers it::

    IDLE ─BatchAsked─► READING ─► CLAIMING ─► judge the batch
                                                 ├─ refused ──────────────────────────────► STOPPED
                                                 ├─ decided ─────────────► FINISHING ─► REPLAYING ┐
                                                 └─ not decided ─► SWEEPING ─► WRITING            │
                                                                                 │ all prepared   │
                                          RESOLVING ◄─ reply lost ─ DECIDING ◄───┘                │
                                              └──────────────┬─────────┘                          │
                                                             ▼  the commit point                  │
                          WRITING again (heal) ◄─ JUDGING ◄─ FINISHING ─► DELIVERING ─► TIDYING ◄─┘─► IDLE
                                                               │  ▲
                                                       damaged └──┴ DECIDING, that it is void

`step` is the only entrance. It is deterministic and total: an event that no entry expects raises `BadTransition`.
The numbers in comments are the rules of the protocol, see docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.effects import Effect, StopReason
from sparkonce.protocol.events import Event
from sparkonce.protocol.handles import FINGERPRINT_MODULUS, Handle, lost_whole
from sparkonce.protocol.horizon import KEEP_BATCHES, TIDY_EVERY_BATCHES
from sparkonce.protocol.outcomes import COMMITTED, FINAL, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.records import Amend, Claim, Commit, Record, Void
from sparkonce.protocol.state import BadTransition, Batch, Phase, State
from sparkonce.protocol.view import Decision, LogView, LogViolation

KEEP_RECORDS = 1_000
"""How many records the log may have when a run claims: a query that fails at every start leaves a claim each time."""
MOST_HEALINGS = 3
MOST_DOUBTS = 8
"""How often in a row a put's reply may be lost before the run stops and leaves the question to the next one."""


Step: TypeAlias = tuple[State, Effect]
Handler: TypeAlias = Callable[[State, Any], Step]


def step(state: State, event: Event, table: Mapping[tuple[Phase, type], Handler] | None = None) -> Step:
    """The next state, and the one thing to do.

    Args:
        state: The run's state.
        event: The answer to the last effect, or `events.BatchAsked`.
        table: Only for model checks of deliberately wrong protocols.

    Raises:
        BadTransition: if the phase does not expect the event.
    """
    handler = (TRANSITIONS if table is None else table).get((state.phase, type(event)))
    if handler is None:
        raise BadTransition(f"{type(event).__name__} while {state.phase.value}")
    try:
        return handler(state, event)
    except LogViolation as violation:
        return _stop(state, StopReason.LOG_VIOLATION, str(violation))


# --- a batch is asked for -------------------------------------------------------------------------------------------


def _asked(state: State, event: on.BatchAsked) -> Step:
    batch = Batch(number=event.batch, offsets=event.offsets, previous_offsets=event.previous_offsets)
    state = replace(
        state,
        batch=batch,
        decided=None,
        putting=None,
        doubts=0,
        pending=(),
        committed=frozenset(),
        lost=frozenset(),
        healing=None,
        healings=0,
        replayed=False,
        recovering=False,
    )
    if state.token is None:
        return replace(state, phase=Phase.READING), do.ReadLog(view=state.view)
    return _judge_batch(state)


def _read(state: State, event: on.LogRead) -> Step:
    """Refuses before it claims, so that a driver which must not run does not depose one that may."""
    view = event.view
    state = replace(state, view=view, phase=Phase.CLAIMING, putting=state.claim)
    refusal = _refusal(state)
    if refusal is not None:
        return replace(state, phase=Phase.STOPPED), refusal
    return state, do.Put(position=view.end, record=state.claim, contested=view.claims_in_a_row)


def _claim_landed(state: State, event: on.PutLanded) -> Step:
    if event.position < event.floor.position:
        # Trap 7: the key was free only because clean-up had freed it. Start reading again from the newer floor.
        return replace(state, phase=Phase.READING, view=LogView()), do.ReadLog(view=LogView())
    token = Token(event.position, state.claim.nonce)
    view = state.view.apply(event.position, state.claim)
    state = replace(state, view=view, token=token, putting=None, doubts=0)
    if view.end - view.floor.position > KEEP_RECORDS:
        return replace(state, phase=Phase.RAISING_FLOOR), do.RaiseFloor(floor=view.raised_to(token))
    return _judge_batch(state)


def _claim_taken(state: State, event: on.PutTaken) -> Step:
    if event.standing == state.claim:
        return _claim_landed(state, on.PutLanded(position=event.position, floor=event.floor))
    return replace(state, phase=Phase.READING), do.ReadLog(view=state.view)


def _claim_unknown(state: State, event: on.PutUnknown) -> Step:
    return _doubt(state, event, phase=Phase.CLAIMING, record=state.claim)


def _judge_batch(state: State) -> Step:
    """Refused, decided, or to be written (rule 3: a decided batch is never written again)."""
    refusal = _refusal(state)
    if refusal is not None:
        return replace(state, phase=Phase.STOPPED), refusal
    decision = state.view.decision(_batch(state).number)
    if decision is not None:
        return _finish(replace(state, recovering=True), decision, decision.handles)
    if not state.swept:
        older = tuple(run for run in state.view.runs if run.token < _token(state))
        return replace(state, phase=Phase.SWEEPING), do.Sweep(runs=older)
    return _write(state)


def _refusal(state: State) -> do.Stop | None:
    """Why the log does not let this batch run; None if it does. Never a silent skip."""
    batch, run, newest = _batch(state), state.view.newest_run, state.view.newest_decision
    if run is not None and run.query != state.claim.query:
        return do.Stop(
            reason=StopReason.MISMATCH,
            message=f"the decision log belongs to query {run.query}, and this is query {state.claim.query}: the "
            "checkpoint was deleted or copied, and the log was kept",
        )
    if run is not None and run.location != state.claim.location and not state.moved:
        return do.Stop(
            reason=StopReason.MISMATCH,
            message=f"the decision log was last used at {run.location}, and now is at {state.claim.location}: two "
            "copies of one checkpoint would write the same batches twice. If it was moved, and nothing runs on the old "
            "one any more, say so with checkpoint_moved=True",
        )
    if newest is None:
        return None
    if newest.batch > batch.number:
        return do.Stop(
            reason=StopReason.STALE,
            message=f"batch {batch.number} is asked for, but batch {newest.batch} is already decided: another driver "
            "is ahead, or an older checkpoint was restored",
        )
    if newest.batch < batch.number - 1:
        return do.Stop(
            reason=StopReason.MISMATCH,
            message=f"batch {batch.number} is asked for, but the last decided batch is {newest.batch}: the batches "
            "between were run without this log, or the log was restored from an older copy",
        )
    asked = batch.offsets if newest.batch == batch.number else batch.previous_offsets
    if asked is not None and asked != newest.offsets:
        return do.Stop(
            reason=StopReason.MISMATCH,
            message=f"batch {newest.batch} was decided with input offsets {list(newest.offsets)}, and the checkpoint "
            f"now says {list(asked)}: the checkpoint was copied, restored or made again",
        )
    return None


def _swept(state: State, _event: on.Swept) -> Step:
    return _write(replace(state, swept=True))


# --- prepare and decide ---------------------------------------------------------------------------------------------


def _write(state: State) -> Step:
    effect = do.Write(batch=_batch(state).number, sinks=(*state.transactional, *state.direct))
    return replace(state, phase=Phase.WRITING, healing=None), effect


def _prepared(state: State, event: on.Prepared) -> Step:
    state = replace(state, replayed=True)
    handles = tuple(sorted(event.handles))
    if event.too_old:
        verdict = do.Stop(reason=StopReason.TOO_OLD, message=event.too_old)
        return _abort(state, _new(state, handles), verdict)
    if state.decided is None:
        return _decide(state, Commit, handles)
    kept = _kept(state)
    if kept:
        # Rule 5: some of the batch is visible, so what is written again must be the very same rows.
        differing = _differing(state, state.decided, handles)
        if differing:
            return _abort(state, _new(state, handles), _lost_for_good(state, state.decided, handles, differing))
    return _decide(state, Amend, _effective(state, state.decided, handles))


def _decide(state: State, kind: type[Commit] | type[Amend] | partial[Void], handles: tuple[Handle, ...]) -> Step:
    batch = _batch(state)
    record = kind(
        token=_token(state), query=state.claim.query, batch=batch.number, offsets=batch.offsets, handles=handles
    )
    state = replace(state, phase=Phase.DECIDING, putting=record)
    return state, do.Put(position=state.view.end, record=record)


def _prepare_failed(state: State, event: on.PrepareFailed) -> Step:
    """Rule 7. Which slots had prepared is not known here, so the run's whole open remainder is swept.

    A newer run's sweep makes slots fail, too: a supervisor that takes it for a fault would start this one again.
    """
    reason = StopReason.TOO_OLD if event.too_old else StopReason.PREPARE_FAILED
    message = f"{event.too_old}: {event.reason}" if event.too_old else event.reason
    if event.superseded:
        reason, message = StopReason.SUPERSEDED, f"a newer run has claimed the query, while a slot failed: {message}"
    state = replace(state, phase=Phase.ABORTING, verdict=do.Stop(reason=reason, message=message))
    return state, do.Sweep(runs=_own(state), best_effort=True)


def _decision_landed(state: State, event: on.PutLanded) -> Step:
    record = _putting(state)
    if event.position < event.floor.position:
        return _superseded(state, "its decision fell below the log's floor", event.floor.newest)
    view = state.view.apply(event.position, record)
    state = replace(state, view=view, putting=None, doubts=0)
    decision = view.newest_decision
    if decision is None:
        raise BadTransition(f"record {event.position} landed and decided nothing")
    unfinished = tuple(handle for handle in decision.handles if handle.key not in state.committed)
    return _finish(state, decision, unfinished)


def _decision_taken(state: State, event: on.PutTaken) -> Step:
    """Somebody's record stands there. Only if it is this very one, from an earlier put, is the batch decided."""
    if event.standing == state.putting:
        return _decision_landed(state, on.PutLanded(position=event.position, floor=event.floor))
    return _superseded(state, f"{_describe(event.standing)} stands at position {event.position}", event.floor.newest)


def _decision_unknown(state: State, event: on.PutUnknown) -> Step:
    """Rule 4: reading "absent" would prove nothing. A claim at the same key settles which of the two stands."""
    return _doubt(state, event, phase=Phase.RESOLVING, record=_renewal(state))


def _resolved_against(state: State, event: on.PutLanded) -> Step:
    """The renewal stands where the decision was put: that put can never land. Decide at the next position."""
    if event.position < event.floor.position:
        return _superseded(state, "its claim fell below the log's floor", event.floor.newest)
    view = state.view.apply(event.position, _renewal(state))
    state = replace(state, view=view, phase=Phase.DECIDING)
    return state, do.Put(position=view.end, record=_putting(state))


def _resolved(state: State, event: on.PutTaken) -> Step:
    if event.standing == _renewal(state):
        return _resolved_against(state, on.PutLanded(position=event.position, floor=event.floor))
    return _decision_taken(state, event)


def _claim_refused(state: State, event: on.PutRefused) -> Step:
    return _stop(state, StopReason.UNWRITABLE, f"record {event.position} could not be written: {event.reason}")


def _decision_refused(state: State, event: on.PutRefused) -> Step:
    """Nothing is decided, and no earlier put of this decision is in doubt: what was prepared can be undone."""
    what = "that handles are void" if isinstance(state.putting, Void) else "the decision"
    message = f"{what} of batch {_batch(state).number} could not be written: {event.reason}"
    verdict = do.Stop(reason=StopReason.UNWRITABLE, message=message)
    return _abort(state, _new(state, _putting(state).handles), verdict)


def _resolving_refused(state: State, event: on.PutRefused) -> Step:
    """The decision itself is still in doubt, so nothing may be undone (rule 4)."""
    return _stop(
        state, StopReason.UNKNOWN, f"whether record {event.position} was written could not be learned: {event.reason}"
    )


def _doubt(state: State, event: on.PutUnknown, *, phase: Phase, record: Record) -> Step:
    if state.doubts >= MOST_DOUBTS:
        return _stop(
            state,
            StopReason.UNKNOWN,
            f"whether record {event.position} was written could not be learned: {event.reason}",
        )
    state = replace(state, phase=phase, doubts=state.doubts + 1)
    return state, do.Put(position=event.position, record=record)


# --- finish and heal ------------------------------------------------------------------------------------------------


def _finish(state: State, decision: Decision, handles: tuple[Handle, ...]) -> Step:
    pending = tuple(handle for handle in handles if handle.transaction)
    state = replace(state, decided=decision, pending=pending, lost=frozenset(), healing=None)
    if not pending:
        return _all_finished(state)
    effect = do.Finish(batch=decision.batch, handles=pending, attempt=0, void=decision.void)
    return replace(state, phase=Phase.FINISHING), effect


def _finished(state: State, event: on.Finished) -> Step:
    void = _decision(state).void
    by_outcome = {handle.key: outcome for handle, outcome in zip(state.pending, event.outcomes, strict=True)}
    committed = {key for key, outcome in by_outcome.items() if outcome in COMMITTED}
    lost = {key for key, outcome in by_outcome.items() if outcome in (Outcome.LOST, Outcome.ABORTED)}
    pending = tuple(handle for handle in state.pending if by_outcome[handle.key] not in FINAL)
    state = replace(state, committed=state.committed | committed, lost=state.lost | lost, pending=pending)
    if too_late := tuple(handle for handle in _decision(state).handles if handle.key in committed.intersection(void)):
        return _committed_in_part(state, too_late)
    waiting = tuple(handle.key for handle in pending if by_outcome[handle.key] is not Outcome.DAMAGED)
    if waiting and event.deadline_passed:
        return _stop(
            state,
            StopReason.UNKNOWN,
            f"batch {_batch(state).number} is decided, but the outcome of {len(waiting)} of its transactions could not "
            f"be learned in time: {event.deadline_passed}",
            (("handles", waiting),),
        )
    if waiting:
        batch, attempt = _batch(state).number, event.attempt + 1
        return state, do.Finish(batch=batch, handles=pending, attempt=attempt, void=void)
    if pending:
        # Rule 10: nobody may be able to commit them any more before they are aborted.
        keys = tuple(sorted({*void, *(handle.key for handle in pending)}))
        return _decide(state, partial(Void, void=keys), _decision(state).handles)
    if state.lost:
        # Rule 5: first see whether this run may judge at all.
        return replace(state, phase=Phase.JUDGING), do.ReadLog(view=state.view)
    return _all_finished(state)


def _judge_loss(state: State, event: on.LogRead) -> Step:
    """LOST counts only if the log, read after the verdict, shows this run still at its end (trap 6)."""
    if event.view.end != state.view.end:
        return _superseded(state, "the log went on while a loss was judged")
    if strange := sorted({sink for sink, _ in state.lost} - set(state.transactional)):
        return _stop(state, StopReason.UNKNOWN, f"sinks {strange} have lost transactions, and cannot write them again")
    if state.healings >= MOST_HEALINGS:
        return _stop(
            state,
            StopReason.TOO_OLD,
            f"batch {_batch(state).number} was written {state.healings} times and its transactions were lost each time",
        )
    # Trap 8: judged is the whole effective set, committed handles of earlier amendments and runs included.
    healing = state.lost if state.committed else None
    sinks = _recorded_sinks(state, _decision(state))
    effect = do.Write(batch=_batch(state).number, sinks=sinks, only=healing)
    return replace(state, phase=Phase.WRITING, healing=healing, healings=state.healings + 1), effect


def _all_finished(state: State) -> Step:
    if not state.replayed:
        # Spark's state store needs the plan to run, even though nothing is written.
        return replace(state, phase=Phase.REPLAYING), do.RunIntoNothing(batch=_batch(state).number)
    return _deliver(state)


def _replayed(state: State, _event: on.PlanRun) -> Step:
    return _deliver(replace(state, replayed=True))


def _deliver(state: State) -> Step:
    if state.after and not state.recovering:
        return replace(state, phase=Phase.DELIVERING), do.Deliver(batch=_batch(state).number, sinks=state.after)
    return _sweep_own(state)


def _delivered(state: State, _event: on.Prepared) -> Step:
    return _sweep_own(state)


def _delivery_failed(state: State, event: on.PrepareFailed) -> Step:
    return _stop(
        state,
        StopReason.PREPARE_FAILED,
        f"batch {_batch(state).number} is decided, and writing it to the at-most-once sinks failed: some of its rows "
        f"may be missing there, and will not be written again: {event.reason}",
    )


# --- after a batch --------------------------------------------------------------------------------------------------


def _sweep_own(state: State) -> Step:
    """No writer of this run is at work now, so whatever is open of it or of older runs belongs to a copy that lost.

    Older runs are swept again because a task of a killed driver may open a transaction late.
    """
    known = tuple(run for run in state.view.runs if run.token <= _token(state))
    return replace(state, phase=Phase.SWEEPING_OWN), do.Sweep(runs=known, best_effort=True, optional=True)


def _own_swept(state: State, _event: on.Swept) -> Step:
    if len(state.view.decisions) < KEEP_BATCHES + TIDY_EVERY_BATCHES:
        return _done(state)
    floor = state.view.raised(KEEP_BATCHES)
    return replace(state, phase=Phase.RAISING_FLOOR), do.RaiseFloor(floor=floor)


def _floor_raised(state: State, event: on.FloorRaised) -> Step:
    state = replace(state, phase=Phase.TIDYING, view=state.view.above(event.floor))
    return state, do.DeleteBelow(position=event.floor.position)


def _tidied(state: State, _event: on.Deleted) -> Step:
    """Goes on where the floor was raised: behind a batch, whose plan has run then, or before the run's first one."""
    return _done(state) if state.replayed else _judge_batch(state)


def _done(state: State) -> Step:
    idle = replace(state, phase=Phase.IDLE, batch=None, decided=None, view=state.view.without_handles())
    return idle, do.Done(batch=_batch(state).number)


# --- stopping -------------------------------------------------------------------------------------------------------


def _superseded(state: State, why: str, carried: Decision | None = None) -> Step:
    """Aborts this run's own exact handles, if no decision names them, and stops.

    A decision of this run that has fallen below the floor is void if it landed there after the floor was raised. If it
    landed before, the floor carries it, or what it named is finished.
    """
    verdict = do.Stop(reason=StopReason.SUPERSEDED, message=f"a newer run has claimed the query: {why}")
    handles = () if state.putting is None or isinstance(state.putting, Claim) else state.putting.handles
    named = frozenset(carried.handles) if carried is not None else frozenset()
    return _abort(state, tuple(handle for handle in _new(state, handles) if handle not in named), verdict)


def _abort(state: State, handles: tuple[Handle, ...], verdict: do.Stop) -> Step:
    if not handles:
        return replace(state, phase=Phase.STOPPED), verdict
    return replace(state, phase=Phase.ABORTING, verdict=verdict), do.Abort(handles=handles)


def _aborted(state: State, _event: on.Swept | on.Aborted) -> Step:
    if state.verdict is None:
        raise BadTransition("aborted without a reason to stop")
    return replace(state, phase=Phase.STOPPED), state.verdict


def _stop(state: State, reason: StopReason, message: str, details: tuple[tuple[str, object], ...] = ()) -> Step:
    return replace(state, phase=Phase.STOPPED), do.Stop(reason=reason, message=message, details=details)


def _stopped(state: State, _event: on.BatchAsked) -> Step:
    return _stop(state, StopReason.STOPPED, "this run has stopped; only a new run can go on")


def _committed_in_part(state: State, handles: tuple[Handle, ...]) -> Step:
    """A commit that was under way came before the abort, and made visible what is left of the rows."""
    lost = tuple((handle.sink, handle.slot, handle.rows) for handle in handles)
    return _stop(
        state,
        StopReason.LOST,
        f"rows of {len(lost)} decided transactions of batch {_batch(state).number} were deleted by their server before "
        "they were committed, and an earlier request has committed what was left of them",
        (
            ("lost", lost),
            ("differing", ()),
            ("same_rows", False),
            ("deleted", True),
            ("offsets", _decision(state).offsets),
        ),
    )


def _lost_for_good(
    state: State, decision: Decision, replayed: tuple[Handle, ...], differing: frozenset[tuple[str, int]]
) -> do.Stop:
    lost = tuple((handle.sink, handle.slot, handle.rows) for handle in decision.handles if handle.key in state.lost)
    rows = sum(rows for _, _, rows in lost)
    sinks = _recorded_sinks(state, decision)
    before, after = _in_all(decision.handles, sinks), _in_all(replayed, sinks)
    same_rows = before == after
    gave = f"gave {'the same rows spread otherwise' if same_rows else 'other rows'} in {len(differing)} slots"
    return do.Stop(
        reason=StopReason.LOST,
        message=f"batch {decision.batch} is decided, {rows} of its rows in {len(lost)} transactions were lost, the "
        f"others are committed, and running the batch again {gave}",
        details=(
            ("lost", lost),
            ("differing", tuple(sorted(differing))),
            ("same_rows", same_rows),
            ("offsets", decision.offsets),
        ),
    )


# --- small looks at the state ---------------------------------------------------------------------------------------


def _batch(state: State) -> Batch:
    if state.batch is None:
        raise BadTransition("no batch is at work")
    return state.batch


def _token(state: State) -> Token:
    if state.token is None:
        raise BadTransition("the run has not claimed yet")
    return state.token


def _putting(state: State) -> Commit | Amend | Void:
    if state.putting is None or isinstance(state.putting, Claim):
        raise BadTransition("no decision is being put")
    return state.putting


def _renewal(state: State) -> Claim:
    return replace(state.claim, renews=_token(state))


def _own(state: State) -> tuple[Any, ...]:
    return tuple(run for run in state.view.runs if run.token == _token(state))


def _kept(state: State) -> bool:
    return bool(state.committed)


def _new(state: State, handles: tuple[Handle, ...]) -> tuple[Handle, ...]:
    """Of these handles, those with a transaction that no decision names (rule 1)."""
    named = set(state.decided.handles) if state.decided is not None else set()
    return tuple(handle for handle in handles if handle.transaction and handle not in named)


def _decision(state: State) -> Decision:
    if state.decided is None:
        raise BadTransition("no decision is at work")
    return state.decided


def _recorded_sinks(state: State, decision: Decision) -> tuple[str, ...]:
    """The transactional sinks that the decision knows: one that was added since takes its first rows with the next."""
    recorded = {handle.sink for handle in decision.handles}
    return tuple(name for name in state.transactional if name in recorded)


def _differing(state: State, decision: Decision, replayed: tuple[Handle, ...]) -> frozenset[tuple[str, int]]:
    """Slots whose rows or fingerprint are not what the record says, or that exist on one side only.

    Of a sink that is lost in part, any. Of another one nothing is written again, or all: then it does not matter how
    its rows are spread over slots, as long as they are the same in all.
    """
    sinks = _recorded_sinks(state, decision)
    before = {handle.key: handle.evidence for handle in decision.handles if handle.sink in sinks}
    after = {handle.key: handle.evidence for handle in replayed if handle.sink in sinks}
    all_before, all_after = _in_all(decision.handles, sinks), _in_all(replayed, sinks)
    by_slot = {sink for sink, _ in state.lost} - lost_whole(state.lost, decision.handles)
    by_slot |= {sink for sink in sinks if all_before[sink] != all_after[sink]}
    return frozenset(
        key for key in before.keys() | after.keys() if key[0] in by_slot and before.get(key) != after.get(key)
    )


def _in_all(handles: tuple[Handle, ...], sinks: tuple[str, ...]) -> Mapping[str, tuple[int, int]]:
    """Rows and fingerprint of each sink, however they are spread over slots."""
    found = dict.fromkeys(sinks, (0, 0))
    for handle in handles:
        if handle.sink in found:
            rows, fingerprint = found[handle.sink]
            found[handle.sink] = rows + handle.rows, (fingerprint + handle.fingerprint) % FINGERPRINT_MODULUS
    return found


def _effective(state: State, decision: Decision, written: tuple[Handle, ...]) -> tuple[Handle, ...]:
    """The whole set after healing: what was written again in place of what was lost, the rest as recorded."""
    if state.healing is None:
        kept = tuple(handle for handle in decision.handles if handle.sink not in state.transactional)
        return tuple(sorted((*kept, *written)))
    whole, healing = lost_whole(state.lost, decision.handles), state.healing
    kept = tuple(one for one in decision.handles if one.sink not in whole and one.key not in healing)
    again = tuple(one for one in written if one.sink in whole or one.key in healing)
    return tuple(sorted((*kept, *again)))


def _describe(record: Record) -> str:
    if isinstance(record, Claim):
        return f"a claim by run {record.run} on {record.host}, process {record.process}"
    return f"a decision of batch {record.batch}"


TRANSITIONS: Mapping[tuple[Phase, type], Handler] = {
    (Phase.IDLE, on.BatchAsked): _asked,
    (Phase.READING, on.LogRead): _read,
    (Phase.CLAIMING, on.PutLanded): _claim_landed,
    (Phase.CLAIMING, on.PutTaken): _claim_taken,
    (Phase.CLAIMING, on.PutUnknown): _claim_unknown,
    (Phase.CLAIMING, on.PutRefused): _claim_refused,
    (Phase.SWEEPING, on.Swept): _swept,
    (Phase.WRITING, on.Prepared): _prepared,
    (Phase.WRITING, on.PrepareFailed): _prepare_failed,
    (Phase.DECIDING, on.PutLanded): _decision_landed,
    (Phase.DECIDING, on.PutTaken): _decision_taken,
    (Phase.DECIDING, on.PutUnknown): _decision_unknown,
    (Phase.DECIDING, on.PutRefused): _decision_refused,
    (Phase.RESOLVING, on.PutRefused): _resolving_refused,
    (Phase.RESOLVING, on.PutLanded): _resolved_against,
    (Phase.RESOLVING, on.PutTaken): _resolved,
    (Phase.RESOLVING, on.PutUnknown): _decision_unknown,
    (Phase.FINISHING, on.Finished): _finished,
    (Phase.JUDGING, on.LogRead): _judge_loss,
    (Phase.REPLAYING, on.PlanRun): _replayed,
    (Phase.DELIVERING, on.Prepared): _delivered,
    (Phase.DELIVERING, on.PrepareFailed): _delivery_failed,
    (Phase.SWEEPING_OWN, on.Swept): _own_swept,
    (Phase.RAISING_FLOOR, on.FloorRaised): _floor_raised,
    (Phase.TIDYING, on.Deleted): _tidied,
    (Phase.ABORTING, on.Aborted): _aborted,
    (Phase.ABORTING, on.Swept): _aborted,
    (Phase.STOPPED, on.BatchAsked): _stopped,
}
