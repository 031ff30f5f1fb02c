"""The page's words for phases and faults, for a reader who has never seen the product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sparkonce.protocol.state import Phase
from sparkonce_lab.faults import OF_REQUESTS, OF_THE_QUERY, Fault

NO_DRIVER = "NO_DRIVER"
"""The phase of a moment at which no driver was running."""
STARTING = "STARTING"
"""The phase of a driver before its first batch: Spark itself starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Phases that share a colour.

    Attributes:
        name: The colour's name in the style sheet.
        title: The words of the legend.
        phases: The names of the phases.
    """

    name: str
    title: str
    phases: tuple[str, ...]


STAGES = (
    Stage(name="starting", title="Spark starts", phases=(STARTING,)),
    Stage(name="claiming", title="taking over the log", phases=("READING", "CLAIMING", "CHECKING", "SWEEPING")),
    Stage(name="replaying", title="repeating a decided batch", phases=("REPLAYING",)),
    Stage(name="writing", title="writing and preparing", phases=("WRITING", "VALIDATING")),
    Stage(name="deciding", title="deciding", phases=("DECIDING", "RESOLVING")),
    Stage(name="finishing", title="committing", phases=("FINISHING", "JUDGING", "DELIVERING")),
    Stage(
        name="tidying", title="tidying", phases=("SWEEPING_OWN", "RAISING_FLOOR", "TIDYING", "CONCLUDING", "REPORTING")
    ),
    Stage(name="undoing", title="aborting, stopped", phases=("ABORTING", "STOPPED")),
    Stage(name="idle", title="between two batches", phases=("IDLE",)),
)
_NAMES = {phase.value: phase.name for phase in Phase}
STAGE_OF: Mapping[str, str] = MappingProxyType({phase: stage.name for stage in STAGES for phase in stage.phases})

PHASES: Mapping[str, str] = MappingProxyType(
    {
        NO_DRIVER: "No driver was running, or none had reached a batch.",
        STARTING: "The driver's process runs and Spark starts; no batch has begun.",
        "READING": "The driver reads the decision log to learn what earlier drivers decided.",
        "CLAIMING": "The driver claims the log with a record of its own. Older drivers can decide nothing after it.",
        "CHECKING": "The driver asks every system whether it still has the newest batch that was committed there.",
        "SWEEPING": "The driver aborts the transactions that older drivers left open.",
        "REPLAYING": "A batch that was decided earlier is committed, if it was not already. Spark computes it again to "
        "restore its state, and writes none of it.",
        "WRITING": "Workers write the batch's rows to every system and prepare them: complete, durable, invisible.",
        "VALIDATING": "The driver asks for objections to the decision, such as a topic that was made anew.",
        "DECIDING": "The driver puts one record into the decision log. Before it the batch can only be aborted, after "
        "it only be committed.",
        "RESOLVING": "The reply to that put was lost; the driver reads the log to learn whether the record is there.",
        "FINISHING": "Every prepared transaction of the decided batch is committed: its rows become visible.",
        "JUDGING": "A system says that a transaction is gone; the driver confirms it before it writes the rows again.",
        "DELIVERING": "Rows are written to the systems whose guarantee is at-most-once.",
        "SWEEPING_OWN": "If a task ran more than once, the transactions of the attempts that lost are aborted.",
        "RAISING_FLOOR": "Before old decisions are deleted, the log records up to which batch.",
        "TIDYING": "Old decisions are deleted.",
        "CONCLUDING": "Systems that keep a list of whole batches are told that this one is committed.",
        "REPORTING": "Consumer groups are told how far the query has read.",
        "IDLE": "The batch is finished; the next one has not begun.",
        "ABORTING": "The batch could not be prepared; its prepared transactions are aborted.",
        "STOPPED": "The query has stopped.",
    }
)
"""A sentence for each phase, in the order of a driver's life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Faults that share a mark.

    Attributes:
        title: The words of the legend.
        mark: An SVG path around the point where it begins, 10 wide.
        faults: The faults.
    """

    title: str
    mark: str
    faults: frozenset[Fault]


FAMILIES = (
    Family(
        title="the query's processes",
        mark="m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
        faults=OF_THE_QUERY - {Fault.CLOCK_JUMPED, Fault.LOG_DISK_FULL},
    ),
    Family(
        title="a server",
        mark="m-4.5-4.5h9v9h-9z",
        faults=frozenset({Fault.SERVER_KILLED, Fault.SERVER_PAUSED, Fault.COORDINATOR_MOVED}),
    ),
    Family(
        title="connections",
        mark="m0-5.5l5.5 10h-11z",
        faults=frozenset(
            {Fault.CUT, Fault.SLOWED, Fault.BLACK_HOLE, Fault.REQUESTS_SWALLOWED, Fault.REPLIES_SWALLOWED}
        ),
    ),
    Family(title="one request", mark="m0 5.5l5.5-10h-11z", faults=OF_REQUESTS),
    Family(
        title="a disk or the clock",
        mark="m0-6l6 6l-6 6l-6-6z",
        faults=frozenset({Fault.CLOCK_JUMPED, Fault.LOG_DISK_FULL, Fault.TARGET_DISK_FULL}),
    ),
)


def family(fault: str) -> Family:
    """Returns the family of a fault; the first one for an unknown fault."""
    return next((one for one in FAMILIES if fault in one.faults), FAMILIES[0])


def fault_words(fault: str) -> str:
    """Returns the effect of a fault; the name of an unknown fault."""
    try:
        return Fault(fault).words
    except ValueError:
        return fault


def phase_name(text: object) -> str:
    """Returns the name of a phase that a history gives by name or by value.

    Returns:
        `NO_DRIVER` for nothing; anything unknown unchanged, as text.
    """
    if text is None or text == "":
        return NO_DRIVER
    return _NAMES.get(str(text), str(text))


def phase_title(name: str) -> str:
    """Returns a phase's name in the page's form."""
    return {NO_DRIVER: "no driver", STARTING: "starting"}.get(name, name.lower().replace("_", " "))


def in_order(phases: set[str]) -> list[str]:
    """Returns phases in the order of a driver's life, unknown ones last."""
    order = list(PHASES)
    return sorted(phases, key=lambda name: (order.index(name) if name in PHASES else len(order), name))
