"""Handlers: a batch is asked for; the run claims the log before its first one, and judges each by what the log says."""

from __future__ import annotations

from dataclasses import replace

from sparkonce.checkpoint.offsets import same_offsets
from sparkonce.protocol import closing, deciding, finishing, horizon, preparing, stopping
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.effects import StopReason
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import Batch, Finishing, Phase, Putting, State, batch_of, token_of
from sparkonce.protocol.stopping import Step
from sparkonce.protocol.view import LogView


def asked(state: State, event: on.BatchAsked) -> Step:
    """Reads the log and claims it, before a run's first batch."""
    batch = Batch(number=event.batch, offsets=event.offsets, previous_offsets=event.previous_offsets)
    state = replace(state, batch=batch)
    if state.token is None:
        return replace(state, phase=Phase.READING), do.ReadLog(view=state.view)
    return judge_batch(state)


def read(state: State, event: on.LogRead) -> Step:
    """Claims. Refuses before that, so that a driver which must not run does not depose one that may."""
    view = event.view
    state = replace(state, view=view, phase=Phase.CLAIMING, putting=Putting(record=state.claim))
    refused = refusal(state)
    if refused is not None:
        return replace(state, phase=Phase.STOPPED), refused
    return state, do.Put(position=view.end, record=state.claim, contested=view.claims_in_a_row)


def claim_landed(state: State, event: on.PutLanded) -> Step:
    """Asks for a check of the servers, before anything is finished, swept or written."""
    if event.position < event.floor.position:
        # Trap 7: the key was free only because clean-up had freed it. Start reading again from the newer floor.
        return replace(state, phase=Phase.READING, view=LogView()), do.ReadLog(view=LogView())
    view = state.view.apply(event.position, state.claim)
    token = Token(event.position, state.claim.nonce)
    state = replace(state, phase=Phase.CHECKING, view=view, token=token, putting=None)
    return state, do.CheckServers(batch=batch_of(state).number, sinks=state.transactional, view=view)


def claim_taken(state: State, event: on.PutTaken) -> Step:
    """Reads on, unless the record at this position is this very claim, from an earlier put."""
    if event.standing == state.claim:
        return claim_landed(state, on.PutLanded(position=event.position, floor=event.floor))
    return replace(state, phase=Phase.READING), do.ReadLog(view=state.view)


def claim_unknown(state: State, event: on.PutUnknown) -> Step:
    """Puts the claim again at the same position."""
    return deciding.doubt(state, event, phase=Phase.CLAIMING, record=state.claim)


def claim_refused(state: State, event: on.PutRefused) -> Step:
    """Stops: the run owns nothing yet."""
    message = f"record {event.position} could not be written: {event.reason}"
    return stopping.stop(state, StopReason.UNWRITABLE, message)


def servers_checked(state: State, _event: on.ServersChecked) -> Step:
    """Judges the batch. Tidies the log before, if failed starts have left many claims there."""
    if state.view.end - state.view.floor.position > horizon.KEEP_RECORDS:
        return closing.raise_floor(state, state.view.raised_to(token_of(state)))
    return judge_batch(state)


def tidied(state: State, _event: on.Deleted) -> Step:
    """Goes on where the floor was raised: behind a batch, or before the run's first one."""
    return judge_batch(state) if state.finishing is None else closing.conclude(state)


def judge_batch(state: State) -> Step:
    """Refuses the batch, finishes it or has it written. A decided one is never written again (rule 3)."""
    refused = refusal(state)
    if refused is not None:
        return replace(state, phase=Phase.STOPPED), refused
    decision = state.view.decision(batch_of(state).number)
    if decision is not None:
        known = Finishing(decision=decision, replayed=False, recovering=True)
        return finishing.finish(replace(state, finishing=known), decision, decision.handles)
    if not state.swept:
        older = tuple(run for run in state.view.runs if run.token < token_of(state))
        return replace(state, phase=Phase.SWEEPING), do.Sweep(runs=older)
    return preparing.write(state)


def swept(state: State, _event: on.Swept) -> Step:
    """Asks for the batch to be written."""
    return preparing.write(replace(state, swept=True))


def refusal(state: State) -> do.Stop | None:
    """Returns why the log does not let this batch run; None if it does. Never skips a batch silently."""
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
    expected = batch.offsets if newest.batch == batch.number else batch.previous_offsets
    if expected is not None and not same_offsets(expected, newest.offsets):
        return do.Stop(
            reason=StopReason.MISMATCH,
            message=f"batch {newest.batch} was decided with input offsets {list(newest.offsets)}, and the checkpoint "
            f"now says {list(expected)}: the checkpoint was copied, restored or made again",
        )
    return None
