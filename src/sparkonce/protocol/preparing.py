"""Handlers: a batch is written and prepared, nothing speaks against it, and the record that decides it is put."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol import stopping
from sparkonce.protocol.effects import Attempt, StopReason
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.healing import HealingRefusal, heal
from sparkonce.protocol.records import Amend, Commit, Void
from sparkonce.protocol.state import (
    Finishing,
    Phase,
    Putting,
    State,
    Writing,
    batch_of,
    finishing_of,
    token_of,
    writing_of,
)
from sparkonce.protocol.stopping import Step


def write(state: State, only: frozenset[tuple[str, int]] | None = None) -> Step:
    """Asks for the batch to be written: all of it, or of a decided one only these lost slots."""
    writing = Writing(only=only)
    return replace(state, phase=Phase.WRITING, writing=writing), _effect(state, writing)


def prepared(state: State, event: on.Prepared) -> Step:
    """Asks for objections. Before that, a batch that is being healed is compared with its record."""
    handles = tuple(sorted(event.handles))
    if state.finishing is None:
        return _validate(state, handles, handles)
    state = replace(state, finishing=replace(state.finishing, replayed=True))
    finishing, writing = finishing_of(state), writing_of(state)
    plan = heal(finishing.decision.handles, handles, finishing.lost, recorded_sinks(state))
    if isinstance(plan, HealingRefusal):
        return stopping.abort(state, handles, _lost_for_good(finishing, plan))
    if plan.write == writing.only:
        return _validate(state, plan.replayed, plan.handles)
    if writing.attempt is Attempt.ELSEWHERE:
        return failed(state, on.PrepareFailed(reason="the batch's slots came in another order each time it was run"))
    writing = Writing(only=plan.write, attempt=Attempt.ELSEWHERE)
    return stopping.abort(replace(state, writing=writing), handles, _effect(state, writing))


def _validate(state: State, prepared: tuple[Handle, ...], handles: tuple[Handle, ...]) -> Step:
    writing = replace(writing_of(state), handles=handles)
    effect = do.Validate(sinks=_sinks(state), handles=prepared, offsets=batch_of(state).offsets)
    return replace(state, phase=Phase.VALIDATING, writing=writing), effect


def validated(state: State, _event: on.Validated) -> Step:
    """Decides: by a commit, or, for a batch that is being healed, by an amendment."""
    return decide(state, Commit if state.finishing is None else Amend, writing_of(state).handles)


def decide(state: State, kind: type[Commit] | type[Amend] | partial[Void], handles: tuple[Handle, ...]) -> Step:
    """Puts the record that decides this about the batch."""
    batch = batch_of(state)
    record = kind(
        token=token_of(state), query=state.claim.query, batch=batch.number, offsets=batch.offsets, handles=handles
    )
    state = replace(state, phase=Phase.DECIDING, writing=None, putting=Putting(record=record))
    return state, do.Put(position=state.view.end, record=record)


def unready(state: State, event: on.Unready) -> Step:
    """Asks for the same write again. The next replay may list its slots in any order, so it may look elsewhere, too."""
    writing = writing_of(state)
    again = replace(writing, attempt=Attempt.AGAIN, handles=())
    state = replace(state, writing=again)
    if event.undo and not writing.handles:
        return stopping.sweep_own(state, _effect(state, again))  # a slot failed, and which had prepared is not known
    if event.undo:
        return stopping.abort(state, writing.handles, _effect(state, again))
    return replace(state, phase=Phase.WRITING), _effect(state, again)


def objected(state: State, event: on.Objected) -> Step:
    """Sweeps what the run has open, as if a slot had failed, and stops."""
    return failed(state, on.PrepareFailed(reason=event.reason, too_old=event.too_old))


def failed(state: State, event: on.PrepareFailed) -> Step:
    """Undoes all that the run has open, and stops (rule 7)."""
    reason, message = StopReason.PREPARE_FAILED, event.reason
    if event.too_old:
        reason, message = StopReason.TOO_OLD, f"{event.too_old}: {message}"
    if event.superseded:
        # A newer run's sweep makes slots fail, too. A supervisor that took it for a fault would start this run again.
        reason, message = StopReason.SUPERSEDED, f"a newer run has claimed the query, while a slot failed: {message}"
    return stopping.sweep_own(state, do.Stop(reason=reason, message=message))


def too_old(state: State, event: on.TooOld) -> Step:
    """Undoes what is prepared, and stops: it would be lost before its commit."""
    return stopping.abort(state, writing_of(state).handles, do.Stop(reason=StopReason.TOO_OLD, message=event.reason))


def recorded_sinks(state: State) -> tuple[str, ...]:
    """Returns the transactional sinks that the decision knows: one added since takes its first rows with the next."""
    recorded = {handle.sink for handle in finishing_of(state).decision.handles}
    return tuple(name for name in state.transactional if name in recorded)


def _sinks(state: State) -> tuple[str, ...]:
    return (*state.transactional, *state.direct) if state.finishing is None else recorded_sinks(state)


def _effect(state: State, writing: Writing) -> do.Write:
    return do.Write(batch=batch_of(state).number, sinks=_sinks(state), only=writing.only, attempt=writing.attempt)


def _lost_for_good(finishing: Finishing, refusal: HealingRefusal) -> do.Stop:
    decision, rows = finishing.decision, sum(rows for _, _, rows in refusal.lost)
    gave = f"gave {'the same rows spread otherwise' if refusal.same_rows else 'other rows'}"
    return do.Stop(
        reason=StopReason.LOST,
        message=f"batch {decision.batch} is decided, {rows} of its rows in {len(refusal.lost)} transactions were lost, "
        f"the others are committed, and running the batch again {gave} in {len(refusal.differing)} slots",
        details=(
            ("lost", refusal.lost),
            ("differing", refusal.differing),
            ("same_rows", refusal.same_rows),
            ("offsets", decision.offsets),
        ),
    )
