"""The cells of the matrix: which fault strikes a run, and where."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from crashes.target import ABORT, COMMIT, DISK_FULL, MEMORY_FULL, PREPARE, Target
from sparkonce.protocol.state import Phase
from striking.points import ASKING, BEGUN, HALFWAY, IN_COMMITTER, IN_DRIVER, IN_WRITERS, PREPARED, WRITTEN

POINTS = (*IN_DRIVER, *ASKING, *IN_WRITERS, *IN_COMMITTER)

BEFORE = {
    Phase.READING.name: HALFWAY,
    Phase.CLAIMING.name: Phase.DECIDING.name,
    Phase.CHECKING.name: HALFWAY,
    Phase.SWEEPING.name: PREPARED,
    Phase.REPLAYING.name: Phase.IDLE.name,
}
"""Points that only a run's first batch reaches, each with the point at which the previous run was killed."""

KILL = "kill"
"""SIGKILL of driver and worker."""
RESTART = "server killed"
"""SIGKILL of the server, which is restarted with its data while the run continues."""
CUT = "cut"
"""RST on every connection."""
HOLE = "black hole"
"""For a while, nothing gets through, and no connection is refused. Then the connections are cut."""
PAUSE = "server paused"
"""SIGSTOP of the server for a while."""
ZOMBIE = "paused run"
"""SIGSTOP of driver and worker. A newer run takes over and continues; then the old one resumes."""
ORPHAN = "paused worker"
"""The same, but the resumed run prepares and is killed: a worker whose driver is gone."""
LOG_FULL = "log disk full"
AT_POINTS = (KILL, RESTART, CUT, HOLE, PAUSE, ZOMBIE, ORPHAN, LOG_FULL, DISK_FULL, MEMORY_FULL)

REPLY_LOST = "reply lost"
"""The request is delivered, its response dropped, and the connection cut."""
HALVED = "halved"
"""Half of the request is delivered, then the connection is cut."""
LATE = "applied late"
"""The request is held and its client disconnected. It is delivered when the next run has recovered."""
LATE_KILLED = "killed and applied late"
"""The same, and the run is killed at that moment."""
AT_REQUESTS = (REPLY_LOST, HALVED, LATE, LATE_KILLED)
REQUESTS = (PREPARE, COMMIT, ABORT)

_BEFORE_PREPARED = frozenset({Phase.WRITING.name, BEGUN, WRITTEN})


@dataclass(frozen=True, slots=True)
class Cell:
    """One point, or kind of request, and one fault."""

    point: str
    fault: str

    def __str__(self) -> str:
        return f"{self.fault} at {self.point}".replace(" ", "-")

    @property
    def is_request(self) -> bool:
        return self.point in REQUESTS

    @property
    def before(self) -> str:
        """Where to kill an earlier run first; empty for nowhere."""
        return PREPARED if self.point == ABORT else BEFORE.get(self.point, "")


def unmeant(cell: Cell, target: Target) -> str:
    """Why the cell makes no sense for the target; empty if it does."""
    if target.faults and cell.fault not in target.faults:
        return "another target is there for it"
    if cell.is_request:
        return "" if cell.point in target.requests else "no such request"
    if cell.fault == ORPHAN and cell.point not in _BEFORE_PREPARED:
        return "it has prepared already, or will not write"
    return "" if target.can(cell.fault) else "the system cannot be brought to it"


EVERY = (
    *(Cell(point, fault) for fault in AT_POINTS for point in POINTS),
    *(Cell(kind, fault) for fault in AT_REQUESTS for kind in REQUESTS),
)

_CORE = {
    KILL: (Phase.DECIDING.name, HALFWAY),
    ZOMBIE: (Phase.FINISHING.name,),
    REPLY_LOST: (COMMIT,),
    LATE: (COMMIT,),
}
"""The cells that no test double of a server can replace.

They are a kill before the decision, one halfway through the commits, a run that resumes too late, a lost response, and
a late request.
"""

CHOICES: dict[str, Mapping[str, Collection[str]]] = {
    "every kill": {**_CORE, KILL: POINTS},
    "every kill outside the driver": {**_CORE, KILL: (Phase.DECIDING.name, *IN_WRITERS, *IN_COMMITTER)},
    "core": _CORE,
    "one": {REPLY_LOST: (COMMIT,)},
    "none": {},
}
"""The cells of the first tier. All others are slow. `spark/test_kills.py` kills a query into Kafka in every phase."""


def is_chosen(cell: Cell, target: Target) -> bool:
    """Returns True if the cell is in the first tier."""
    return cell.point in CHOICES[target.choice].get(cell.fault, ())
