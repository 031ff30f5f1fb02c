"""Handlers: the put of a decision is answered, or its reply is lost and a claim at the same position settles it."""

from __future__ import annotations

from dataclasses import replace

from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol import finishing, stopping
from sparkonce.protocol.effects import StopReason
from sparkonce.protocol.records import Claim, Record, Void
from sparkonce.protocol.state import BadTransition, Phase, State, batch_of, putting_of, record_of, token_of
from sparkonce.protocol.stopping import Step

MOST_DOUBTS = 8
"""The number of replies that may be lost in a row before the run stops and leaves the question to the next one."""


def landed(state: State, event: on.PutLanded) -> Step:
    """Finishes what is decided now."""
    if event.position < event.floor.position:
        return stopping.superseded(state, "its decision fell below the log's floor", event.floor.newest)
    view = state.view.apply(event.position, record_of(state))
    state = replace(state, view=view, putting=None)
    decision = view.newest_decision
    if decision is None:
        raise BadTransition(f"record {event.position} landed and decided nothing")
    # Trap 8: handles that were committed before an amendment stay in the set, and are not asked for again.
    committed = state.finishing.committed if state.finishing is not None else frozenset()
    return finishing.finish(state, decision, tuple(one for one in decision.handles if one.key not in committed))


def taken(state: State, event: on.PutTaken) -> Step:
    """Stops, unless the record at this position is this very one, from an earlier put."""
    if event.standing == record_of(state):
        return landed(state, on.PutLanded(position=event.position, floor=event.floor))
    found = f"{stopping.describe(event.standing)} stands at position {event.position}"
    return stopping.superseded(state, found, event.floor.newest)


def unknown(state: State, event: on.PutUnknown) -> Step:
    """Puts a claim at the same position, which settles what is there: reading "absent" proves nothing (rule 4)."""
    return doubt(state, event, phase=Phase.RESOLVING, record=_renewal(state))


def refused(state: State, event: on.PutRefused) -> Step:
    """Undoes what was prepared: nothing is decided, and no earlier put of this decision is in doubt."""
    record = record_of(state)
    what = "that handles are void" if isinstance(record, Void) else "the decision"
    message = f"{what} of batch {batch_of(state).number} could not be written: {event.reason}"
    return stopping.abort(state, record.handles, do.Stop(reason=StopReason.UNWRITABLE, message=message))


def resolved_against(state: State, event: on.PutLanded) -> Step:
    """Decides at the next position: the renewal stands where the decision was put, so that put can never land."""
    if event.position < event.floor.position:
        return stopping.superseded(state, "its claim fell below the log's floor", event.floor.newest)
    view = state.view.apply(event.position, _renewal(state))
    return replace(state, view=view, phase=Phase.DECIDING), do.Put(position=view.end, record=record_of(state))


def resolved(state: State, event: on.PutTaken) -> Step:
    """Goes by the record that stands there: the renewal of an earlier put, the decision, or somebody else's."""
    if event.standing == _renewal(state):
        return resolved_against(state, on.PutLanded(position=event.position, floor=event.floor))
    return taken(state, event)


def unresolved(state: State, event: on.PutRefused) -> Step:
    """Stops and undoes nothing: the decision itself is still in doubt (rule 4)."""
    return _never_learned(state, event)


def doubt(state: State, event: on.PutUnknown, *, phase: Phase, record: Record) -> Step:
    """Puts a record at the position whose put had no reply, a few times."""
    putting = putting_of(state)
    if putting.doubts >= MOST_DOUBTS:
        return _never_learned(state, event)
    putting = replace(putting, doubts=putting.doubts + 1)
    return replace(state, phase=phase, putting=putting), do.Put(position=event.position, record=record)


def _never_learned(state: State, event: on.PutUnknown | on.PutRefused) -> Step:
    message = f"whether record {event.position} was written could not be learned: {event.reason}"
    return stopping.stop(state, StopReason.UNKNOWN, message)


def _renewal(state: State) -> Claim:
    return replace(state.claim, renews=token_of(state))
