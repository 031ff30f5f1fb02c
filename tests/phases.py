"""The phases that a run without losses and without at-most-once sinks goes through."""

from __future__ import annotations

from sparkonce.protocol.state import Phase

PHASES = (
    Phase.READING,
    Phase.CLAIMING,
    Phase.SWEEPING,
    Phase.WRITING,
    Phase.DECIDING,
    Phase.FINISHING,
    Phase.REPLAYING,
    Phase.SWEEPING_OWN,
    Phase.RAISING_FLOOR,
    Phase.TIDYING,
    Phase.IDLE,
)
"""A phase is told before anything is done in it: WRITING is before the first task, DECIDING when all is prepared,
FINISHING when nothing is committed yet, SWEEPING_OWN when all is committed, IDLE before Spark itself writes down that
the batch is done."""
