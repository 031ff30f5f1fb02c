"""The driver's side of the protocol, as a table: (phase, event) → (state, what to do next).

Every step asks for exactly one thing to be done and waits for exactly one event that answers it::

    IDLE ─BatchAsked─► READING ─► CLAIMING ─► CHECKING ─► judge the batch
                                                             ├─ refused ─────────────────────► STOPPED
                                                             ├─ decided ──► FINISHING ─► REPLAYING ──┐
                                                             └─ not decided ─► SWEEPING ─► WRITING   │
                                                                                              │      │
           ABORTING ◄─ a slot failed, or an objection ── VALIDATING ◄─── all is prepared ─────┘      │
              │                                              │ nothing speaks against it             │
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

A batch that the log refuses is refused after READING, too, before the run claims. A log that has grown long is tidied
after CHECKING, too.

A write that a system's absence or its own length has spoilt is done again, from WRITING or VALIDATING. An effect that
cannot be carried out raises in the driver and ends the run there: the next run takes up what it left.

`step` is the only entrance. It is deterministic and total: an event that no entry expects raises `BadTransition`. The
handlers are in the modules of the table's rows. The numbers in comments are the rules and traps of docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparkonce.protocol import claiming, closing, deciding, finishing, preparing, stopping
from sparkonce.protocol import events as on
from sparkonce.protocol.effects import StopReason
from sparkonce.protocol.events import Event
from sparkonce.protocol.state import BadTransition, Phase, State
from sparkonce.protocol.stopping import Handler, Step
from sparkonce.protocol.view import LogViolation

TRANSITIONS: Mapping[tuple[Phase, type], Handler] = {
    (Phase.IDLE, on.BatchAsked): claiming.asked,
    (Phase.READING, on.LogRead): claiming.read,
    (Phase.CLAIMING, on.PutLanded): claiming.claim_landed,
    (Phase.CLAIMING, on.PutTaken): claiming.claim_taken,
    (Phase.CLAIMING, on.PutUnknown): claiming.claim_unknown,
    (Phase.CLAIMING, on.PutRefused): claiming.claim_refused,
    (Phase.CHECKING, on.ServersChecked): claiming.servers_checked,
    (Phase.SWEEPING, on.Swept): claiming.swept,
    (Phase.WRITING, on.Prepared): preparing.prepared,
    (Phase.WRITING, on.PrepareFailed): preparing.failed,
    (Phase.WRITING, on.Unready): preparing.unready,
    (Phase.VALIDATING, on.Validated): preparing.validated,
    (Phase.VALIDATING, on.Objected): preparing.objected,
    (Phase.VALIDATING, on.TooOld): preparing.too_old,
    (Phase.VALIDATING, on.Unready): preparing.unready,
    (Phase.DECIDING, on.PutLanded): deciding.landed,
    (Phase.DECIDING, on.PutTaken): deciding.taken,
    (Phase.DECIDING, on.PutUnknown): deciding.unknown,
    (Phase.DECIDING, on.PutRefused): deciding.refused,
    (Phase.RESOLVING, on.PutLanded): deciding.resolved_against,
    (Phase.RESOLVING, on.PutTaken): deciding.resolved,
    (Phase.RESOLVING, on.PutUnknown): deciding.unknown,
    (Phase.RESOLVING, on.PutRefused): deciding.unresolved,
    (Phase.FINISHING, on.Finished): finishing.finished,
    (Phase.JUDGING, on.LogRead): finishing.judge_loss,
    (Phase.REPLAYING, on.PlanRun): finishing.replayed,
    (Phase.DELIVERING, on.Prepared): closing.delivered,
    (Phase.DELIVERING, on.PrepareFailed): closing.delivery_failed,
    (Phase.SWEEPING_OWN, on.Swept): closing.own_swept,
    (Phase.RAISING_FLOOR, on.FloorRaised): closing.floor_raised,
    (Phase.TIDYING, on.Deleted): claiming.tidied,
    (Phase.CONCLUDING, on.Concluded): closing.concluded,
    (Phase.REPORTING, on.Reported): closing.reported,
    (Phase.ABORTING, on.Aborted): stopping.aborted,
    (Phase.ABORTING, on.Swept): stopping.aborted,
    (Phase.STOPPED, on.BatchAsked): stopping.stopped,
}


def step(state: State, event: Event, table: Mapping[tuple[Phase, type], Handler] | None = None) -> Step:
    """Returns the next state, and the one thing to do.

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
        return stopping.stop(state, StopReason.LOG_VIOLATION, str(violation))
