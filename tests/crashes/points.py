"""Where a run can be struck."""

from __future__ import annotations

from sparkonce.protocol.state import Phase

BEGUN = "a slot has begun"
WRITTEN = "a slot has written some rows"
PREPARED = "a slot has prepared"
HALFWAY = "half-way through the commits"
BEFORE_CONCLUDE = "before conclude"
CONCLUDED = "after conclude"

PHASES = tuple(
    phase.name
    for phase in (
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
)
"""Those that a run without losses goes through. A phase is told before anything is done in it: WRITING is before the
first slot, DECIDING when all is prepared, FINISHING when nothing is committed yet, SWEEPING_OWN when all is committed,
IDLE before Spark itself would write down that the batch is done."""

IN_WRITERS = (BEGUN, WRITTEN, PREPARED)
IN_COMMITTER = (HALFWAY, BEFORE_CONCLUDE, CONCLUDED)
POINTS = (*PHASES, *IN_WRITERS, *IN_COMMITTER)

BEFORE = {
    Phase.READING.name: HALFWAY,
    Phase.CLAIMING.name: Phase.DECIDING.name,
    Phase.SWEEPING.name: PREPARED,
    Phase.REPLAYING.name: Phase.IDLE.name,
}
"""Points that only a run's first batch comes to, with where the run before was killed to make them hard."""
