"""Handlers: all of a batch is committed. Late writes, losers, the log's floor, and those who are told."""

from __future__ import annotations

from dataclasses import replace

from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol import horizon, stopping
from sparkonce.protocol.effects import StopReason
from sparkonce.protocol.state import Phase, State, batch_of, finishing_of, token_of
from sparkonce.protocol.stopping import Step
from sparkonce.protocol.view import Floor


def deliver(state: State) -> Step:
    """Writes to the at-most-once sinks, unless an earlier run may have done so."""
    if state.after and not finishing_of(state).recovering:
        return replace(state, phase=Phase.DELIVERING), do.Deliver(batch=batch_of(state).number, sinks=state.after)
    return _sweep_own(state)


def delivered(state: State, _event: on.Prepared) -> Step:
    """Goes on behind the last write."""
    return _sweep_own(state)


def delivery_failed(state: State, event: on.PrepareFailed) -> Step:
    """Stops, and says that rows may be missing."""
    return stopping.stop(
        state,
        StopReason.PREPARE_FAILED,
        f"batch {batch_of(state).number} is decided, and writing it to the at-most-once sinks failed: some of its rows "
        f"may be missing there, and will not be written again: {event.reason}",
    )


def _sweep_own(state: State) -> Step:
    """Sweeps this run and all older ones: no writer is at work now, so whatever is open belongs to a copy that lost.

    Older runs are swept again because a task of a killed driver may open a transaction late.
    """
    known = tuple(run for run in state.view.runs if run.token <= token_of(state))
    return replace(state, phase=Phase.SWEEPING_OWN), do.Sweep(runs=known, best_effort=True, optional=True)


def own_swept(state: State, _event: on.Swept) -> Step:
    """Tidies the log now and then."""
    if len(state.view.decisions) < horizon.KEEP_BATCHES + horizon.TIDY_EVERY_BATCHES:
        return conclude(state)
    return raise_floor(state, state.view.raised(horizon.KEEP_BATCHES))


def raise_floor(state: State, floor: Floor) -> Step:
    """Makes a floor durable, so that what lies below may be deleted."""
    return replace(state, phase=Phase.RAISING_FLOOR), do.RaiseFloor(floor=floor)


def floor_raised(state: State, event: on.FloorRaised) -> Step:
    """Deletes what lies below the floor."""
    state = replace(state, phase=Phase.TIDYING, view=state.view.above(event.floor))
    return state, do.DeleteBelow(position=event.floor.position)


def conclude(state: State) -> Step:
    """Tells each sink with transactions in the batch that all of it is committed.

    Also one that was EXACTLY_ONCE until now: what it had prepared then was committed by two phases.
    """
    batch, handles = batch_of(state), finishing_of(state).decision.handles
    committed = dict.fromkeys((*state.transactional, *(handle.sink for handle in handles if handle.transaction)))
    sinks = tuple(sink for sink in committed if any(handle.sink == sink for handle in handles))
    if not sinks:
        return _report(state)
    return replace(state, phase=Phase.CONCLUDING), do.Conclude(batch=batch.number, sinks=sinks, handles=handles)


def concluded(state: State, _event: on.Concluded) -> Step:
    """Reports how far the query has read."""
    return _report(state)


def _report(state: State) -> Step:
    if not state.reports:
        return _done(state)
    return replace(state, phase=Phase.REPORTING), do.Report(offsets=batch_of(state).offsets)


def reported(state: State, _event: on.Reported) -> Step:
    """Lets Spark go on."""
    return _done(state)


def _done(state: State) -> Step:
    batch, known = batch_of(state), finishing_of(state)
    effect = do.Done(
        batch=batch.number, handles=known.decision.handles, recovered=known.recovering, healed=known.healed
    )
    view = state.view.without_handles()
    return replace(state, phase=Phase.IDLE, batch=None, finishing=None, view=view), effect
