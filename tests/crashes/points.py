"""Where a run can be struck."""

from __future__ import annotations

from phases import PHASES
from sparkonce.protocol.state import Phase

BEGUN = "a slot has begun"
WRITTEN = "a slot has written some rows"
PREPARED = "a slot has prepared"
HALFWAY = "half-way through the commits"
BEFORE_CONCLUDE = "before conclude"
CONCLUDED = "after conclude"

IN_DRIVER = tuple(phase.name for phase in PHASES)
IN_WRITERS = (BEGUN, WRITTEN, PREPARED)
IN_COMMITTER = (HALFWAY, BEFORE_CONCLUDE, CONCLUDED)
POINTS = (*IN_DRIVER, *IN_WRITERS, *IN_COMMITTER)

BEFORE = {
    Phase.READING.name: HALFWAY,
    Phase.CLAIMING.name: Phase.DECIDING.name,
    Phase.SWEEPING.name: PREPARED,
    Phase.REPLAYING.name: Phase.IDLE.name,
}
"""Points that only a run's first batch comes to, with where the run before was killed to make them hard."""
