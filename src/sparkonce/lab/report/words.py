"""What the page's words mean, for a reader who has never seen the product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sparkonce.lab.faults import OF_REQUESTS, OF_THE_QUERY, Fault
from sparkonce.protocol.state import Phase

NO_DRIVER = "NO_DRIVER"
"""Stands for a phase where no driver was at work."""
STARTING = "STARTING"
"""Stands for a phase before a driver's first one: Spark itself starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Phases that are drawn alike.

    Attributes:
        name: Of its colour, in the style sheet.
        title: For the legend.
        phases: Names of phases.
    """

    name: str
    title: str
    phases: tuple[str, ...]


STAGES = (
    Stage(name="starting", title="Spark starts", phases=(STARTING,)),
    Stage(name="claiming", title="taking the log over", phases=("READING", "CLAIMING", "SWEEPING")),
    Stage(name="replaying", title="repeating a decided batch", phases=("REPLAYING",)),
    Stage(name="writing", title="writing and preparing", phases=("WRITING",)),
    Stage(name="deciding", title="deciding", phases=("DECIDING", "RESOLVING")),
    Stage(name="finishing", title="committing", phases=("FINISHING", "JUDGING", "DELIVERING")),
    Stage(name="tidying", title="tidying", phases=("SWEEPING_OWN", "RAISING_FLOOR", "TIDYING")),
    Stage(name="undoing", title="undoing, stopped", phases=("ABORTING", "STOPPED")),
    Stage(name="idle", title="between two batches", phases=("IDLE",)),
)
_NAMES = {phase.value: phase.name for phase in Phase}
STAGE_OF: Mapping[str, str] = MappingProxyType({phase: stage.name for stage in STAGES for phase in stage.phases})

PHASES: Mapping[str, str] = MappingProxyType(
    {
        NO_DRIVER: "No driver was at work, or it had not come to a batch yet.",
        STARTING: "The driver's process runs and Spark starts; it has not come to a batch yet.",
        "READING": "The driver reads the decision log: what has been decided before it came?",
        "CLAIMING": "It writes into the log that from now on it is the one that decides. Older drivers are shut out.",
        "SWEEPING": "It aborts what older drivers left open in the systems.",
        "REPLAYING": "A batch that was decided before is committed already, or now is. Spark computes it again to have "
        "its state, and nothing of it is written.",
        "WRITING": "Workers write the batch's rows to every system and prepare them: complete, durable, invisible.",
        "DECIDING": "One record is put into the decision log. Before it the batch can only be undone, after it only "
        "be carried through.",
        "RESOLVING": "The reply to that put was lost; the driver finds out what stands in the log.",
        "FINISHING": "Every prepared transaction of the decided batch is committed: rows become visible.",
        "JUDGING": "A system says that a transaction is gone; the driver makes sure before it writes it again.",
        "DELIVERING": "Rows go to systems that were asked for no more than at-most-once.",
        "SWEEPING_OWN": "What lost its race inside this driver (repeated tasks) is aborted.",
        "RAISING_FLOOR": "Old decisions are about to be deleted; first the log notes up to where.",
        "TIDYING": "Old decisions are deleted.",
        "IDLE": "The batch is done; the next one has not begun.",
        "ABORTING": "A batch could not be prepared; what was prepared of it is aborted.",
        "STOPPED": "The query has stopped.",
    }
)
"""A sentence for each phase, in the order of a driver's life."""

TERMS: Mapping[str, str] = MappingProxyType(
    {
        "query": "The program under test: Spark Structured Streaming reads rows from a Kafka topic, in batches, for as "
        "long as it runs, and sparkonce writes what comes out to the systems.",
        "system": "A server, or a folder, that the query writes to.",
        "driver": "The process that runs the query. When one dies, or is replaced, another one with the next number "
        "goes on from the checkpoint.",
        "worker, executor": "Processes of a driver that compute and write rows.",
        "batch": "The rows that Spark takes from the source at one time. All that comes of a batch becomes visible, "
        "in every system, or nothing of it does.",
        "slot": "One of the tasks in which a batch is written at the same time.",
        "checkpoint": "The folder in which Spark and sparkonce remember how far the query is.",
        "decision log": "The part of the checkpoint in which every batch is decided, by one record that is put there "
        "once.",
        "prepare, decide, commit": "Two-phase commit: first every system confirms that it can keep the rows for "
        "good, then the decision is written down, then every system is told to show them.",
        "transaction": "What one slot writes to one system in one batch.",
        "reader": "A connection of the verifier's own to a system, without the product, that sees only what is "
        "committed.",
        "step": "One fault of the schedule: what is done, where, and in which phase of the driver.",
        "seed": "The number that the whole schedule and all rows are drawn from: the same seed draws them again.",
        "SIGKILL, SIGSTOP, SIGCONT": "A process is ended at once, without a chance to tidy up; is frozen; goes on.",
        "median, p95": "Of values in order the one in the middle, and the smallest one that 95% of them do not exceed.",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Faults that are drawn alike.

    Attributes:
        title: For the legend.
        mark: An SVG path around (0, 0), 10 wide.
        faults: Which.
    """

    title: str
    mark: str
    faults: frozenset[Fault]


FAMILIES = (
    Family(
        title="the query's processes",
        mark="M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
        faults=OF_THE_QUERY - {Fault.CLOCK_JUMPED, Fault.LOG_DISK_FULL},
    ),
    Family(
        title="a server",
        mark="M-4.5-4.5h9v9h-9z",
        faults=frozenset({Fault.SERVER_KILLED, Fault.SERVER_PAUSED, Fault.COORDINATOR_MOVED}),
    ),
    Family(
        title="connections",
        mark="M0-5.5L5.5 4.5h-11z",
        faults=frozenset(
            {Fault.CUT, Fault.SLOWED, Fault.BLACK_HOLE, Fault.REQUESTS_SWALLOWED, Fault.REPLIES_SWALLOWED}
        ),
    ),
    Family(title="one request", mark="M0 5.5L5.5-4.5h-11z", faults=OF_REQUESTS),
    Family(
        title="a disk or the clock",
        mark="M0-6L6 0L0 6L-6 0z",
        faults=frozenset({Fault.CLOCK_JUMPED, Fault.LOG_DISK_FULL, Fault.TARGET_DISK_FULL}),
    ),
)


def family(fault: str) -> Family:
    """The family of a fault; the first one for a fault that is not known."""
    return next((one for one in FAMILIES if fault in one.faults), FAMILIES[0])


def fault_words(fault: str) -> str:
    """What a fault does; its name again if it is not known."""
    try:
        return Fault(fault).words
    except ValueError:
        return fault


def phase_name(text: object) -> str:
    """The name of a phase that is given by name or by value, as it stands in a history.

    Returns:
        Whatever else is given, as text; `NO_DRIVER` for nothing.
    """
    if text is None or text == "":
        return NO_DRIVER
    return _NAMES.get(str(text), str(text))


def phase_title(name: str) -> str:
    """A phase's name as the page shows it."""
    return {NO_DRIVER: "no driver", STARTING: "starting"}.get(name, name.lower().replace("_", " "))


def in_order(phases: set[str]) -> list[str]:
    """Phases in the order of a driver's life, unknown ones at the end."""
    order = list(PHASES)
    return sorted(phases, key=lambda name: (order.index(name) if name in PHASES else len(order), name))
