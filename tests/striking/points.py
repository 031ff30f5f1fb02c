"""The points at which a run can be held: the driver's phases, and those of a `striking.gated.GatedSink`."""

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
"""The phases of a run that has no lost batches and no at-most-once sinks.

A phase is reported before anything is done in it: WRITING before the first task, DECIDING when everything is prepared,
FINISHING when nothing is committed yet, SWEEPING_OWN when everything is committed, and IDLE before Spark records that
the batch is done.
"""

ASKING = (Phase.CHECKING.name, Phase.VALIDATING.name, Phase.CONCLUDING.name)
"""Phases in which the driver only queries or notifies sinks.

The crash matrix kills in them, but whole queries do not.
"""

FIRST = (Phase.READING.name, Phase.CLAIMING.name, Phase.SWEEPING.name, Phase.REPLAYING.name)
"""The phases that only the first batch of a run goes through."""

BEGIN = "a slot begins"
BEGUN = "a slot has begun"
WRITTEN = "a slot has written some rows"
PREPARED = "a slot has prepared"
HALFWAY = "half-way through the commits"
BEFORE_CONCLUDE = "before conclude"
CONCLUDED = "after conclude"

IN_DRIVER = tuple(phase.name for phase in PHASES)
IN_WRITERS = (BEGUN, WRITTEN, PREPARED)
IN_COMMITTER = (HALFWAY, BEFORE_CONCLUDE, CONCLUDED)
