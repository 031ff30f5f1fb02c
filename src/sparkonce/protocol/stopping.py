"""Handlers: a run stops, at once or after it has undone its own. Also the next write once that is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.effects import Effect, StopReason
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.records import Claim, Record
from sparkonce.protocol.state import BadTransition, Phase, State
from sparkonce.protocol.view import Decision

Step: TypeAlias = tuple[State, Effect]
Handler: TypeAlias = Callable[[State, Any], Step]


def stop(state: State, reason: StopReason, message: str, details: tuple[tuple[str, object], ...] = ()) -> Step:
    """Stops, and undoes nothing."""
    return replace(state, phase=Phase.STOPPED), do.Stop(reason=reason, message=message, details=details)


def stopped(state: State, _event: on.BatchAsked) -> Step:
    """Stays stopped."""
    return stop(state, StopReason.STOPPED, "this run has stopped; only a new run can go on")


def abort(state: State, handles: tuple[Handle, ...], then: do.Stop | do.Write) -> Step:
    """Aborts those of the handles that no decision names (rule 1), and then stops or writes again."""
    named = set(state.finishing.decision.handles) if state.finishing is not None else set()
    own = tuple(handle for handle in handles if handle.transaction and handle not in named)
    if not own:
        return _go_on(state, then)
    return replace(state, phase=Phase.ABORTING, then=then), do.Abort(handles=own)


def sweep_own(state: State, then: do.Stop | do.Write) -> Step:
    """Aborts whatever the run has open, where it does not know which slots had prepared; then stops or writes again."""
    own = tuple(run for run in state.view.runs if run.token == state.token)
    return replace(state, phase=Phase.ABORTING, then=then), do.Sweep(runs=own, best_effort=True)


def aborted(state: State, _event: on.Swept | on.Aborted) -> Step:
    """Goes on as it was meant to when the abort began."""
    if state.then is None:
        raise BadTransition("aborted without a reason")
    return _go_on(state, state.then)


def superseded(state: State, why: str, carried: Decision | None = None) -> Step:
    """Aborts the handles of the decision that is being put, if no decision names them, and stops.

    A decision of this run that has fallen below the floor is void if it landed there after the floor was raised. If it
    landed before, the floor carries it, or what it named is finished.
    """
    record = state.putting.record if state.putting is not None else None
    handles = () if record is None or isinstance(record, Claim) else record.handles
    named = frozenset(carried.handles) if carried is not None else frozenset()
    verdict = do.Stop(reason=StopReason.SUPERSEDED, message=f"a newer run has claimed the query: {why}")
    return abort(state, tuple(handle for handle in handles if handle not in named), verdict)


def describe(record: Record) -> str:
    """Words a record that another run has put."""
    if isinstance(record, Claim):
        return f"a claim by run {record.run} on {record.host}, process {record.process}"
    return f"a decision of batch {record.batch}"


def _go_on(state: State, then: do.Stop | do.Write) -> Step:
    phase = Phase.STOPPED if isinstance(then, do.Stop) else Phase.WRITING
    return replace(state, phase=phase, then=None), then
