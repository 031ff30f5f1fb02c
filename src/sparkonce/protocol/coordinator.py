"""The driver's side of the protocol, as a table: (phase, event) → (state, effect).

Every step requests exactly one effect and then waits for the event that answers it::

    IDLE ─BatchAsked─► READING ─► CLAIMING ─► CHECKING ─► judge the batch
                                                             ├─ refused ─────────────────────► STOPPED
                                                             ├─ decided ──► FINISHING ─► REPLAYING ──┐
                                                             └─ not decided ─► SWEEPING ─► WRITING   │
                                                                                              │      │
           ABORTING ◄─ a slot failed, or an objection ── VALIDATING ◄─── all prepared ────────┘      │
              │                                              │ no objection                          │
              ├─► STOPPED                                    ▼                                       │
              └─► WRITING again            RESOLVING ◄─► DECIDING                                    │
                                                             │  the commit point                     │
                                                             ▼                                       │
                WRITING again (heal) ◄─ JUDGING ◄──────── FINISHING ─► DELIVERING ─► SWEEPING_OWN ◄──┘
                                                           │   ▲                          │
                                                   damaged └───┴ DECIDING, that           ▼
                                                                 it is void      RAISING_FLOOR ─► TIDYING
                                                                                          │
                                          IDLE ◄─Done─ REPORTING ◄─ CONCLUDING ◄──────────┘

The diagram omits two details: a run rejects a batch right after READING, before it claims, if the log does not allow
the batch; and it tidies a log that has grown long after CHECKING.

If a system is unreachable or a write takes too long, a run in WRITING or VALIDATING starts WRITING over. If the driver
cannot carry out an effect, it raises an error, which ends the run, and the next run takes over.

`step` is the only entry point. It is deterministic, and raises `BadTransition` for an event that the phase does not
expect. The handlers follow the course of a batch; `TRANSITIONS` lists them all. Comments cite the rules and traps of
docs/protocol.md by their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol import horizon
from sparkonce.protocol.effects import Attempt, Effect, StopReason
from sparkonce.protocol.events import Event
from sparkonce.protocol.handles import COMMITTED, FINAL, Handle, Outcome
from sparkonce.protocol.healing import HealingRefusal, first_write, heal
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import (
    BadTransition,
    Batch,
    Finishing,
    Phase,
    Putting,
    State,
    Writing,
    batch_of,
    finishing_of,
    putting_of,
    record_of,
    token_of,
    writing_of,
)
from sparkonce.protocol.view import Amend, Claim, Commit, Decision, Floor, LogView, LogViolation, Record, Void
from sparkonce.storage.offsets import same_offsets

Step: TypeAlias = tuple[State, Effect]
Handler: TypeAlias = Callable[[State, Any], Step]
MOST_DOUBTS = 8
"""The number of consecutive lost replies after which the run stops. The next run then determines the outcome."""
MOST_HEALINGS = 3
"""The number of times a run rewrites a batch's lost transactions."""


# The start of a batch. A run claims the log before its first batch, and checks every batch against the log.


def batch_asked(state: State, event: on.BatchAsked) -> Step:
    """Judges the batch. Before its first batch, the run reads the log in order to claim it."""
    batch = Batch(number=event.batch, offsets=event.offsets, previous_offsets=event.previous_offsets)
    state = replace(state, batch=batch)
    if state.token is None:
        return replace(state, phase=Phase.READING), do.ReadLog(view=state.view)
    return judge_batch(state)


def log_read(state: State, event: on.LogRead) -> Step:
    """Claims the log if it allows the batch. A driver that cannot run must not supersede one that can."""
    view = event.view
    state = replace(state, view=view, phase=Phase.CLAIMING, putting=Putting(record=state.claim))
    refused = refusal(state)
    if refused is not None:
        return replace(state, phase=Phase.STOPPED), refused
    return state, do.Put(position=view.end, record=state.claim, contested=view.claims_in_a_row)


def claim_landed(state: State, event: on.PutLanded) -> Step:
    """Requests a check of the servers before anything is finished, swept or written."""
    if event.position < event.floor.position:
        # Trap 7: the position was free only because cleanup had deleted its record. Read from the newer floor.
        return replace(state, phase=Phase.READING, view=LogView()), do.ReadLog(view=LogView())
    view = state.view.apply(event.position, state.claim)
    token = Token(event.position, state.claim.nonce)
    state = replace(state, phase=Phase.CHECKING, view=view, token=token, putting=None)
    return state, do.CheckServers(batch=batch_of(state).number, sinks=state.transactional, view=view)


def claim_taken(state: State, event: on.PutTaken) -> Step:
    """Continues if an earlier put of this claim has landed. Otherwise, reads the record that has taken the position."""
    if event.standing == state.claim:
        return claim_landed(state, on.PutLanded(position=event.position, floor=event.floor))
    return replace(state, phase=Phase.READING), do.ReadLog(view=state.view)


def claim_unknown(state: State, event: on.PutUnknown) -> Step:
    """Puts the claim again at the same position."""
    return doubt(state, event, phase=Phase.CLAIMING, record=state.claim)


def claim_refused(state: State, event: on.PutRefused) -> Step:
    """Stops. There is nothing to undo yet."""
    message = f"record {event.position} could not be written: {event.reason}"
    return stop(state, StopReason.UNWRITABLE, message)


def servers_checked(state: State, _event: on.ServersChecked) -> Step:
    """Judges the batch, after tidying the log if failed starts have left many claims in it."""
    if state.view.end - state.view.floor.position > horizon.KEEP_RECORDS:
        return raise_floor(state, state.view.raised_to(token_of(state)))
    return judge_batch(state)


def judge_batch(state: State) -> Step:
    """Rejects the batch, finishes it, or requests that it be written. A decided batch is never rewritten (rule 3)."""
    refused = refusal(state)
    if refused is not None:
        return replace(state, phase=Phase.STOPPED), refused
    decision = state.view.decision(batch_of(state).number)
    if decision is not None:
        known = Finishing(decision=decision, replayed=False, recovering=True)
        return finish(replace(state, finishing=known), decision, decision.handles)
    if not state.swept:
        older = tuple(run for run in state.view.runs if run.token < token_of(state))
        return replace(state, phase=Phase.SWEEPING), do.Sweep(runs=older)
    return write(state)


def swept(state: State, _event: on.Swept) -> Step:
    """Requests that the batch be written."""
    return write(replace(state, swept=True))


def refusal(state: State) -> do.Stop | None:
    """Returns the stop if the log does not allow this batch, or None if it does. No batch is ever skipped."""
    batch, run, newest = batch_of(state), state.view.newest_run, state.view.newest_decision
    if run is not None and run.query != state.claim.query:
        return do.Stop(
            reason=StopReason.MISMATCH,
            message=f"the decision log belongs to query {run.query}, and the checkpoint to {state.claim.query}: the "
            "checkpoint was deleted or copied, and the log was kept",
        )
    if run is not None and run.location != state.claim.location and not state.moved:
        return do.Stop(
            reason=StopReason.MISMATCH,
            message=(
                f"the decision log was last used at {run.location}, and is now at {state.claim.location}: two "
                "copies of one checkpoint would write the same batches twice"
            ),
            details=(("moved", True),),
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
    expected = batch.offsets if newest.batch == batch.number else batch.previous_offsets
    if expected is not None and not same_offsets(expected, newest.offsets):
        return do.Stop(
            reason=StopReason.MISMATCH,
            message=(
                f"batch {newest.batch} was decided with input offsets {list(newest.offsets)}, and the checkpoint "
                f"now says {list(expected)}: the checkpoint was copied, restored or recreated"
            ),
        )
    return None


# Writing and preparing a batch, and putting the record that decides it.


def write(state: State, only: frozenset[tuple[str, int]] | None = None) -> Step:
    """Requests that the batch be written: all of it, or only the lost slots if it is already decided."""
    writing = Writing(only=only)
    return replace(state, phase=Phase.WRITING, writing=writing), _effect(state, writing)


def prepared(state: State, event: on.Prepared) -> Step:
    """Asks for objections to the decision. During healing, first compares the new rows with the recorded ones."""
    handles = tuple(sorted(event.handles))
    if state.finishing is None:
        return _validate(state, handles, handles)
    state = replace(state, finishing=replace(state.finishing, replayed=True))
    known, writing = finishing_of(state), writing_of(state)
    plan = heal(known.decision.handles, handles, known.lost, recorded_sinks(state))
    if isinstance(plan, HealingRefusal):
        return abort(state, handles, _lost_for_good(known.decision, plan))
    if plan.write == writing.only:
        return _validate(state, plan.replayed, plan.handles)
    if writing.attempt is Attempt.ELSEWHERE:
        return prepare_failed(
            state, on.PrepareFailed(reason="the batch's slots were in a different order each time it was run")
        )
    writing = Writing(only=plan.write, attempt=Attempt.ELSEWHERE)
    return abort(replace(state, writing=writing), handles, _effect(state, writing))


def _validate(state: State, prepared: tuple[Handle, ...], handles: tuple[Handle, ...]) -> Step:
    writing = replace(writing_of(state), handles=handles)
    effect = do.Validate(sinks=_sinks(state), handles=prepared, offsets=batch_of(state).offsets)
    return replace(state, phase=Phase.VALIDATING, writing=writing), effect


def validated(state: State, _event: on.Validated) -> Step:
    """Decides the batch with a `Commit`, or amends its decision if it is being healed."""
    return decide(state, Commit if state.finishing is None else Amend, writing_of(state).handles)


def unready(state: State, event: on.Unready) -> Step:
    """Requests the same write again. During healing, `prepared` may request one more if rows are in different slots."""
    writing = writing_of(state)
    again = replace(writing, attempt=Attempt.AGAIN, handles=())
    state = replace(state, writing=again)
    if event.undo and not writing.handles:
        return sweep_own(state, _effect(state, again))  # A slot failed. It is unknown which other slots had prepared.
    if event.undo:
        return abort(state, writing.handles, _effect(state, again))
    return replace(state, phase=Phase.WRITING), _effect(state, again)


def objected(state: State, event: on.Objected) -> Step:
    """Stops, after sweeping the run's open transactions as if a slot had failed."""
    return prepare_failed(state, on.PrepareFailed(reason=event.reason, too_old=event.too_old))


def prepare_failed(state: State, event: on.PrepareFailed) -> Step:
    """Stops, after aborting all open transactions of the run (rule 7)."""
    reason, message = StopReason.PREPARE_FAILED, event.reason
    if event.too_old:
        reason, message = StopReason.TOO_OLD, f"{event.too_old}: {message}"
    if event.superseded:
        # The newer run's sweep may have made the slot fail. Report that instead, so that nobody restarts this run.
        reason, message = StopReason.SUPERSEDED, f"a newer run has claimed the query, while a slot failed: {message}"
    return sweep_own(state, do.Stop(reason=reason, message=message))


def too_old(state: State, event: on.TooOld) -> Step:
    """Stops, after aborting the prepared transactions, which may expire before their commit."""
    return abort(state, writing_of(state).handles, do.Stop(reason=StopReason.TOO_OLD, message=event.reason))


def decide(state: State, kind: type[Commit] | type[Amend] | partial[Void], handles: tuple[Handle, ...]) -> Step:
    """Puts the record that decides the batch."""
    batch = batch_of(state)
    record = kind(
        token=token_of(state), query=state.claim.query, batch=batch.number, offsets=batch.offsets, handles=handles
    )
    state = replace(state, phase=Phase.DECIDING, writing=None, putting=Putting(record=record))
    return state, do.Put(position=state.view.end, record=record)


def recorded_sinks(state: State) -> tuple[str, ...]:
    """Returns the transactional sinks in the decision.

    A sink that was added after the decision gets its first rows with the next batch.
    """
    recorded = {handle.sink for handle in finishing_of(state).decision.handles}
    return tuple(name for name in state.transactional if name in recorded)


def _sinks(state: State) -> tuple[str, ...]:
    return (*state.transactional, *state.direct) if state.finishing is None else recorded_sinks(state)


def _effect(state: State, writing: Writing) -> do.Write:
    return do.Write(batch=batch_of(state).number, sinks=_sinks(state), only=writing.only, attempt=writing.attempt)


def _lost_for_good(decision: Decision, refusal: HealingRefusal) -> do.Stop:
    rows = sum(rows for _, _, rows in refusal.lost)
    returned = "the same rows, distributed differently," if refusal.same_rows else "different rows"
    return do.Stop(
        reason=StopReason.LOST,
        message=f"batch {decision.batch} is decided, {rows} of its rows in {len(refusal.lost)} transactions were lost, "
        f"the others are committed, and running the batch again returned {returned} in {len(refusal.differing)} slots",
        details=(
            ("lost", refusal.lost),
            ("differing", refusal.differing),
            ("same_rows", refusal.same_rows),
            ("offsets", decision.offsets),
        ),
    )


# The result of putting a decision. If the reply is lost, a claim at the same position shows whether the decision was
# stored.


def decision_landed(state: State, event: on.PutLanded) -> Step:
    """Finishes the decided batch."""
    if event.position < event.floor.position:
        return superseded(state, "its decision fell below the log's floor", event.floor.newest)
    view = state.view.apply(event.position, record_of(state))
    state = replace(state, view=view, putting=None)
    decision = view.newest_decision
    if decision is None:
        raise BadTransition(f"record {event.position} landed and decided nothing")
    # Trap 8: an amendment still contains the handles that were committed before. Do not commit these again.
    committed = state.finishing.committed if state.finishing is not None else frozenset()
    return finish(state, decision, tuple(one for one in decision.handles if one.key not in committed))


def decision_taken(state: State, event: on.PutTaken) -> Step:
    """Continues if an earlier put of this decision has landed. Otherwise stops, since another run has the position."""
    if event.standing == record_of(state):
        return decision_landed(state, on.PutLanded(position=event.position, floor=event.floor))
    found = f"{describe(event.standing)} stands at position {event.position}"
    return superseded(state, found, event.floor.newest)


def decision_unknown(state: State, event: on.PutUnknown) -> Step:
    """Puts a claim at the same position. A read that finds it free proves nothing: the put may land later (rule 4)."""
    return doubt(state, event, phase=Phase.RESOLVING, record=_renewal(state))


def decision_refused(state: State, event: on.PutRefused) -> Step:
    """Aborts the prepared handles: nothing is decided, and no earlier put of this decision is in doubt."""
    record = record_of(state)
    what = "that handles are void" if isinstance(record, Void) else "the decision"
    message = f"{what} of batch {batch_of(state).number} could not be written: {event.reason}"
    return abort(state, record.handles, do.Stop(reason=StopReason.UNWRITABLE, message=message))


def resolved_against(state: State, event: on.PutLanded) -> Step:
    """Decides at the next position. The renewal now occupies the old one, so the earlier put can never land there."""
    if event.position < event.floor.position:
        return superseded(state, "its claim fell below the log's floor", event.floor.newest)
    view = state.view.apply(event.position, _renewal(state))
    return replace(state, view=view, phase=Phase.DECIDING), do.Put(position=view.end, record=record_of(state))


def resolved(state: State, event: on.PutTaken) -> Step:
    """Handles the record found at the position: this run's renewal, its decision, or another run's record."""
    if event.standing == _renewal(state):
        return resolved_against(state, on.PutLanded(position=event.position, floor=event.floor))
    return decision_taken(state, event)


def doubt(state: State, event: on.PutUnknown, *, phase: Phase, record: Record) -> Step:
    """Puts a record at the position where the last put got no reply, up to `MOST_DOUBTS` times in a row."""
    putting = putting_of(state)
    if putting.doubts >= MOST_DOUBTS:
        return never_learned(state, event)
    putting = replace(putting, doubts=putting.doubts + 1)
    return replace(state, phase=phase, putting=putting), do.Put(position=event.position, record=record)


def never_learned(state: State, event: on.PutUnknown | on.PutRefused) -> Step:
    """Stops without undoing anything: the record itself is still in doubt (rule 4)."""
    message = f"whether record {event.position} was written could not be learned: {event.reason}"
    return stop(state, StopReason.UNKNOWN, message)


def _renewal(state: State) -> Claim:
    return replace(state.claim, renews=token_of(state))


# Committing a decided batch, and judging its losses.


def finish(state: State, decision: Decision, handles: tuple[Handle, ...]) -> Step:
    """Commits these handles of a decision, and aborts the void ones."""
    pending = tuple(handle for handle in handles if handle.transaction)
    known = state.finishing if state.finishing is not None else Finishing(decision=decision)
    state = replace(state, finishing=replace(known, decision=decision, pending=pending, lost=frozenset()))
    if not pending:
        return _all_finished(state)
    effect = do.Finish(batch=decision.batch, handles=pending, attempt=0, void=decision.void)
    return replace(state, phase=Phase.FINISHING), effect


def finished(state: State, event: on.HandlesFinished) -> Step:
    """Retries handles without a final outcome, then voids damaged ones, and then begins to heal lost ones."""
    known = finishing_of(state)
    by_outcome = {handle.key: outcome for handle, outcome in zip(known.pending, event.outcomes, strict=True)}
    committed = {key for key, outcome in by_outcome.items() if outcome in COMMITTED}
    lost = {key for key, outcome in by_outcome.items() if outcome in (Outcome.LOST, Outcome.ABORTED)}
    pending = tuple(handle for handle in known.pending if by_outcome[handle.key] not in FINAL)
    known = replace(known, committed=known.committed | committed, lost=known.lost | lost, pending=pending)
    state, void = replace(state, finishing=known), known.decision.void
    if too_late := tuple(handle for handle in known.decision.handles if handle.key in committed.intersection(void)):
        return _committed_in_part(state, too_late)
    waiting = tuple(handle.key for handle in pending if by_outcome[handle.key] is not Outcome.DAMAGED)
    if waiting and event.deadline_passed:
        return stop(
            state,
            StopReason.UNKNOWN,
            f"batch {known.decision.batch} is decided, but the outcome of {len(waiting)} of its transactions could not "
            f"be learned in time: {event.deadline_passed}",
            (("handles", waiting),),
        )
    if waiting:
        again = do.Finish(batch=known.decision.batch, handles=pending, attempt=event.attempt + 1, void=void)
        return state, again
    if pending:
        # Rule 10: before aborting these handles, make sure that nobody can commit them anymore.
        keys = tuple(sorted({*void, *(handle.key for handle in pending)}))
        return decide(state, partial(Void, void=keys), known.decision.handles)
    if known.lost:
        # Rule 5: read the log first, because only the newest run may heal a loss.
        return replace(state, phase=Phase.JUDGING), do.ReadLog(view=state.view)
    return _all_finished(state)


def judge_loss(state: State, event: on.LogRead) -> Step:
    """Requests that lost rows be rewritten.

    If the log has grown, another run may have committed the batch, and a fenced handle is no proof of a loss (trap 6).
    """
    known = finishing_of(state)
    if event.view.end != state.view.end:
        return superseded(state, "the log advanced while a loss was judged")
    if strange := sorted({sink for sink, _ in known.lost} - set(state.transactional)):
        message = f"sinks {strange} have lost transactions, and cannot write them again"
        return stop(state, StopReason.UNKNOWN, message)
    if known.healings >= MOST_HEALINGS:
        return stop(
            state,
            StopReason.TOO_OLD,
            f"batch {known.decision.batch} was written {known.healings} times and its transactions were lost each time",
        )
    known = replace(known, healings=known.healings + 1, healed=known.healed + len(known.lost))
    # Trap 8: consider all handles in effect, including those committed by earlier amendments and runs.
    return write(replace(state, finishing=known), first_write(known.decision.handles, known.lost))


def replayed(state: State, _event: on.PlanRun) -> Step:
    """Continues after the plan of a decided batch has run."""
    return deliver(replace(state, finishing=replace(finishing_of(state), replayed=True)))


def _all_finished(state: State) -> Step:
    if finishing_of(state).replayed:
        return deliver(state)
    # The plan must still run for the sake of Spark's state store, even though nothing is written.
    return replace(state, phase=Phase.REPLAYING), do.RunIntoNothing(batch=batch_of(state).number)


def _committed_in_part(state: State, handles: tuple[Handle, ...]) -> Step:
    """Stops, because an earlier commit arrived before the abort and made the remaining rows visible."""
    lost = tuple((handle.sink, handle.slot, handle.rows) for handle in handles)
    decision = finishing_of(state).decision
    return stop(
        state,
        StopReason.LOST,
        f"rows of {len(lost)} decided transactions of batch {decision.batch} were deleted by their server before "
        "they were committed, and an earlier request has committed what was left of them",
        (
            ("lost", lost),
            ("differing", ()),
            ("same_rows", False),
            ("deleted", True),
            ("offsets", decision.offsets),
        ),
    )


# After the commit: late writes, the transactions of losing attempts, the log's floor, and reports.


def deliver(state: State) -> Step:
    """Writes to the at-most-once sinks, unless an earlier run may have done so."""
    if state.after and not finishing_of(state).recovering:
        return replace(state, phase=Phase.DELIVERING), do.Deliver(batch=batch_of(state).number, sinks=state.after)
    return sweep_losers(state)


def delivery_failed(state: State, event: on.PrepareFailed) -> Step:
    """Stops with the message that rows may be missing."""
    return stop(
        state,
        StopReason.PREPARE_FAILED,
        f"batch {batch_of(state).number} is decided, and writing it to the at-most-once sinks failed: some of its rows "
        f"may be missing there, and will not be written again: {event.reason}",
    )


def sweep_losers(state: State, _event: on.Prepared | None = None) -> Step:
    """Sweeps this run and all older ones. No writer is active, so every open transaction is from a losing attempt.

    Older runs are swept again, because a task of a killed driver may have opened a transaction late.
    """
    known = tuple(run for run in state.view.runs if run.token <= token_of(state))
    return replace(state, phase=Phase.SWEEPING_OWN), do.Sweep(runs=known, best_effort=True, optional=True)


def own_swept(state: State, _event: on.Swept) -> Step:
    """Tidies the log if it has many decisions, and concludes the batch."""
    if len(state.view.decisions) < horizon.KEEP_BATCHES + horizon.TIDY_EVERY_BATCHES:
        return conclude(state)
    return raise_floor(state, state.view.raised(horizon.KEEP_BATCHES))


def raise_floor(state: State, floor: Floor) -> Step:
    """Makes a floor durable, so that everything below it can be deleted."""
    return replace(state, phase=Phase.RAISING_FLOOR), do.RaiseFloor(floor=floor)


def floor_raised(state: State, event: on.FloorRaised) -> Step:
    """Deletes everything below the floor."""
    state = replace(state, phase=Phase.TIDYING, view=state.view.above(event.floor))
    return state, do.DeleteBelow(position=event.floor.position)


def tidied(state: State, _event: on.Deleted) -> Step:
    """Continues after the floor was raised: concludes a batch, or judges the run's first one."""
    return judge_batch(state) if state.finishing is None else conclude(state)


def conclude(state: State) -> Step:
    """Tells each sink with transactions in the batch that the whole batch is committed.

    This includes a sink that was EXACTLY_ONCE when the batch was decided, and has a different guarantee in this run.
    """
    batch, handles = batch_of(state), finishing_of(state).decision.handles
    committed = dict.fromkeys((*state.transactional, *(handle.sink for handle in handles if handle.transaction)))
    sinks = tuple(sink for sink in committed if any(handle.sink == sink for handle in handles))
    if not sinks:
        return report(state)
    return replace(state, phase=Phase.CONCLUDING), do.Conclude(batch=batch.number, sinks=sinks, handles=handles)


def report(state: State, _event: on.Concluded | None = None) -> Step:
    """Reports how far the query has read."""
    if not state.reports:
        return done(state)
    return replace(state, phase=Phase.REPORTING), do.Report(offsets=batch_of(state).offsets)


def done(state: State, _event: on.Reported | None = None) -> Step:
    """Lets Spark continue."""
    batch, known = batch_of(state), finishing_of(state)
    effect = do.Done(
        batch=batch.number, handles=known.decision.handles, recovered=known.recovering, healed=known.healed
    )
    view = state.view.without_handles()
    return replace(state, phase=Phase.IDLE, batch=None, finishing=None, view=view), effect


# Stopping a run, either immediately or after undoing its work. A write that was undone can also be repeated.


def stop(state: State, reason: StopReason, message: str, details: tuple[tuple[str, object], ...] = ()) -> Step:
    """Stops without undoing anything."""
    return replace(state, phase=Phase.STOPPED), do.Stop(reason=reason, message=message, details=details)


def stopped(state: State, _event: on.BatchAsked) -> Step:
    """Stays stopped."""
    return stop(state, StopReason.STOPPED, "this run has stopped; only a new run can continue")


def abort(state: State, handles: tuple[Handle, ...], then: do.Stop | do.Write) -> Step:
    """Aborts those of the handles that no decision names (rule 1), then stops or writes again."""
    named = set(state.finishing.decision.handles) if state.finishing is not None else set()
    own = tuple(handle for handle in handles if handle.transaction and handle not in named)
    if not own:
        return _go_on(state, then)
    return replace(state, phase=Phase.ABORTING, then=then), do.Abort(handles=own)


def sweep_own(state: State, then: do.Stop | do.Write) -> Step:
    """Aborts all open transactions of the run, then stops or writes again. Used if the prepared slots are unknown."""
    own = tuple(run for run in state.view.runs if run.token == state.token)
    return replace(state, phase=Phase.ABORTING, then=then), do.Sweep(runs=own, best_effort=True)


def aborted(state: State, _event: on.Swept | on.Aborted) -> Step:
    """Stops or writes again, as planned when the abort began."""
    if state.then is None:
        raise BadTransition("aborted without a reason")
    return _go_on(state, state.then)


def superseded(state: State, why: str, carried: Decision | None = None) -> Step:
    """Stops, after aborting the handles of the decision being put, except those that ``carried`` names.

    If this run's decision landed below the floor after the floor was raised, the decision is void. If it landed before,
    either the floor contains it, or its handles are already finished.

    Args:
        state: The run's state.
        why: The reason for the stop.
        carried: The decision in the log's floor; None if there is none.
    """
    record = state.putting.record if state.putting is not None else None
    handles = () if record is None or isinstance(record, Claim) else record.handles
    named = frozenset(carried.handles) if carried is not None else frozenset()
    verdict = do.Stop(reason=StopReason.SUPERSEDED, message=f"a newer run has claimed the query: {why}")
    return abort(state, tuple(handle for handle in handles if handle not in named), verdict)


def describe(record: Record) -> str:
    """Describes a record that another run has put."""
    if isinstance(record, Claim):
        return f"a claim by run {record.run} on {record.host}, process {record.process}"
    return f"a decision of batch {record.batch}"


def _go_on(state: State, then: do.Stop | do.Write) -> Step:
    phase = Phase.STOPPED if isinstance(then, do.Stop) else Phase.WRITING
    return replace(state, phase=phase, then=None), then


TRANSITIONS: Mapping[tuple[Phase, type], Handler] = {
    (Phase.IDLE, on.BatchAsked): batch_asked,
    (Phase.READING, on.LogRead): log_read,
    (Phase.CLAIMING, on.PutLanded): claim_landed,
    (Phase.CLAIMING, on.PutTaken): claim_taken,
    (Phase.CLAIMING, on.PutUnknown): claim_unknown,
    (Phase.CLAIMING, on.PutRefused): claim_refused,
    (Phase.CHECKING, on.ServersChecked): servers_checked,
    (Phase.SWEEPING, on.Swept): swept,
    (Phase.WRITING, on.Prepared): prepared,
    (Phase.WRITING, on.PrepareFailed): prepare_failed,
    (Phase.WRITING, on.Unready): unready,
    (Phase.VALIDATING, on.Validated): validated,
    (Phase.VALIDATING, on.Objected): objected,
    (Phase.VALIDATING, on.TooOld): too_old,
    (Phase.VALIDATING, on.Unready): unready,
    (Phase.DECIDING, on.PutLanded): decision_landed,
    (Phase.DECIDING, on.PutTaken): decision_taken,
    (Phase.DECIDING, on.PutUnknown): decision_unknown,
    (Phase.DECIDING, on.PutRefused): decision_refused,
    (Phase.RESOLVING, on.PutLanded): resolved_against,
    (Phase.RESOLVING, on.PutTaken): resolved,
    (Phase.RESOLVING, on.PutUnknown): decision_unknown,
    (Phase.RESOLVING, on.PutRefused): never_learned,
    (Phase.FINISHING, on.HandlesFinished): finished,
    (Phase.JUDGING, on.LogRead): judge_loss,
    (Phase.REPLAYING, on.PlanRun): replayed,
    (Phase.DELIVERING, on.Prepared): sweep_losers,
    (Phase.DELIVERING, on.PrepareFailed): delivery_failed,
    (Phase.SWEEPING_OWN, on.Swept): own_swept,
    (Phase.RAISING_FLOOR, on.FloorRaised): floor_raised,
    (Phase.TIDYING, on.Deleted): tidied,
    (Phase.CONCLUDING, on.Concluded): report,
    (Phase.REPORTING, on.Reported): done,
    (Phase.ABORTING, on.Aborted): aborted,
    (Phase.ABORTING, on.Swept): aborted,
    (Phase.STOPPED, on.BatchAsked): stopped,
}


def step(state: State, event: Event, table: Mapping[tuple[Phase, type], Handler] | None = None) -> Step:
    """Returns the next state, and the effect to carry out.

    Args:
        state: The run's state.
        event: The answer to the last effect, or `events.BatchAsked`.
        table: Replaces `TRANSITIONS` in model checks of deliberately wrong protocols.

    Raises:
        BadTransition: If the phase does not expect the event.
    """
    handler = (TRANSITIONS if table is None else table).get((state.phase, type(event)))
    if handler is None:
        raise BadTransition(f"{type(event).__name__} while {state.phase.value}")
    try:
        return handler(state, event)
    except LogViolation as violation:
        return stop(state, StopReason.LOG_VIOLATION, str(violation))
