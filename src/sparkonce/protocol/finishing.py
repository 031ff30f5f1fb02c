"""Handlers: a decided batch is committed, and what is lost of it is judged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sparkonce.protocol import closing, preparing, stopping
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.effects import StopReason
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.healing import first_write
from sparkonce.protocol.outcomes import COMMITTED, FINAL, Outcome
from sparkonce.protocol.records import Void
from sparkonce.protocol.state import Finishing, Phase, State, batch_of, finishing_of
from sparkonce.protocol.stopping import Step
from sparkonce.protocol.view import Decision

MOST_HEALINGS = 3
"""The number of times that one run writes a batch's lost transactions again."""


def finish(state: State, decision: Decision, handles: tuple[Handle, ...]) -> Step:
    """Commits these handles of a decision, and aborts those that are void."""
    pending = tuple(handle for handle in handles if handle.transaction)
    known = state.finishing if state.finishing is not None else Finishing(decision=decision)
    state = replace(state, finishing=replace(known, decision=decision, pending=pending, lost=frozenset()))
    if not pending:
        return _all_finished(state)
    effect = do.Finish(batch=decision.batch, handles=pending, attempt=0, void=decision.void)
    return replace(state, phase=Phase.FINISHING), effect


def finished(state: State, event: on.Finished) -> Step:
    """Asks again for what is not final, makes void what is damaged, and has losses judged."""
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
        return stopping.stop(
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
        # Rule 10: nobody may be able to commit them any more before they are aborted.
        keys = tuple(sorted({*void, *(handle.key for handle in pending)}))
        return preparing.decide(state, partial(Void, void=keys), known.decision.handles)
    if known.lost:
        # Rule 5: first see whether this run may judge at all.
        return replace(state, phase=Phase.JUDGING), do.ReadLog(view=state.view)
    return _all_finished(state)


def judge_loss(state: State, event: on.LogRead) -> Step:
    """Asks for what is lost to be written again. A loss counts only if the log still ends with this run (trap 6)."""
    known = finishing_of(state)
    if event.view.end != state.view.end:
        return stopping.superseded(state, "the log went on while a loss was judged")
    if strange := sorted({sink for sink, _ in known.lost} - set(state.transactional)):
        message = f"sinks {strange} have lost transactions, and cannot write them again"
        return stopping.stop(state, StopReason.UNKNOWN, message)
    if known.healings >= MOST_HEALINGS:
        return stopping.stop(
            state,
            StopReason.TOO_OLD,
            f"batch {known.decision.batch} was written {known.healings} times and its transactions were lost each time",
        )
    known = replace(known, healings=known.healings + 1, healed=known.healed + len(known.lost))
    # Trap 8: judged is the whole effective set, with the handles that earlier amendments and runs have committed.
    return preparing.write(replace(state, finishing=known), first_write(known.decision.handles, known.lost))


def replayed(state: State, _event: on.PlanRun) -> Step:
    """Goes on behind a decided batch whose plan has run in this run, too."""
    return closing.deliver(replace(state, finishing=replace(finishing_of(state), replayed=True)))


def _all_finished(state: State) -> Step:
    if finishing_of(state).replayed:
        return closing.deliver(state)
    # Spark's state store needs the plan to run, even though nothing is written.
    return replace(state, phase=Phase.REPLAYING), do.RunIntoNothing(batch=batch_of(state).number)


def _committed_in_part(state: State, handles: tuple[Handle, ...]) -> Step:
    """Stops: a commit that was under way came before the abort, and made visible what is left of the rows."""
    lost = tuple((handle.sink, handle.slot, handle.rows) for handle in handles)
    decision = finishing_of(state).decision
    return stopping.stop(
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
