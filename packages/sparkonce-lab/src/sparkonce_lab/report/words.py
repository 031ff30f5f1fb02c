"""The page's words for phases and faults, for readers who have never seen the product, and formatted numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparkonce.protocol.state import Phase
from sparkonce_lab.faults import OF_REQUESTS, OF_THE_QUERY, Fault

NO_DRIVER = "NO_DRIVER"
"""The phase while no driver was running."""
STARTING = "STARTING"
"""The phase of a driver before its first batch, while Spark itself is starting."""

PHASES = {
    NO_DRIVER: "No driver was running, or none had reached a batch.",
    STARTING: "The driver's process runs and Spark starts; no batch has begun.",
    "READING": "The driver reads the decision log to learn what earlier drivers decided.",
    "CLAIMING": "The driver claims the log with a record. From then on, older drivers cannot decide anything.",
    "CHECKING": "The driver asks every system whether it still has the newest batch that was committed there.",
    "SWEEPING": "The driver aborts the transactions that older drivers left open.",
    "REPLAYING": (
        "A batch that was decided earlier is committed, if it was not already. Spark computes it again to restore "
        "its state, without writing any of it."
    ),
    "WRITING": "Workers write the batch's rows to every system and prepare them: complete, durable, invisible.",
    "VALIDATING": "The driver asks for objections to the decision, such as a topic that was recreated.",
    "DECIDING": (
        "The driver puts one record into the decision log. Before it, the batch can only be aborted; after it, "
        "only committed."
    ),
    "RESOLVING": "The reply to that put was lost; the driver reads the log to learn whether the record is there.",
    "FINISHING": "Every prepared transaction of the decided batch is committed: its rows become visible.",
    "JUDGING": "A system says that a transaction is gone; the driver confirms it before it writes the rows again.",
    "DELIVERING": "Rows are written to the systems whose guarantee is at-most-once.",
    "SWEEPING_OWN": "If a task ran more than once, the transactions of the losing attempts are aborted.",
    "RAISING_FLOOR": "Before old decisions are deleted, the log records up to which batch they will be.",
    "TIDYING": "Old decisions are deleted.",
    "CONCLUDING": "The batch is recorded as committed in systems that keep a list of whole batches.",
    "REPORTING": "The offsets up to which the query has read are committed to consumer groups.",
    "IDLE": "The batch is finished; the next one has not begun.",
    "ABORTING": "The batch could not be prepared; its prepared transactions are aborted.",
    "STOPPED": "The query has stopped.",
}
"""A sentence for each phase, in the order a driver passes through them."""
_NAMES = {"": NO_DRIVER, **{phase.value: phase.name for phase in Phase}}


class Stage(NamedTuple):
    """Phases that have the same color. The style sheet refers to them by name."""

    name: str
    title: str
    phases: tuple[str, ...]


STAGES = (
    Stage("starting", "Spark starts", (STARTING,)),
    Stage("claiming", "taking over the log", ("READING", "CLAIMING", "CHECKING", "SWEEPING")),
    Stage("replaying", "repeating a decided batch", ("REPLAYING",)),
    Stage("writing", "writing and preparing", ("WRITING", "VALIDATING")),
    Stage("deciding", "deciding", ("DECIDING", "RESOLVING")),
    Stage("finishing", "committing", ("FINISHING", "JUDGING", "DELIVERING")),
    Stage("tidying", "tidying", ("SWEEPING_OWN", "RAISING_FLOOR", "TIDYING", "CONCLUDING", "REPORTING")),
    Stage("undoing", "aborting, stopped", ("ABORTING", "STOPPED")),
    Stage("idle", "between two batches", ("IDLE",)),
)
STAGE_OF = {phase: stage.name for stage in STAGES for phase in stage.phases}


class Family(NamedTuple):
    """Faults that have the same mark: an SVG path around the point at which a fault begins, 10 units wide."""

    title: str
    mark: str
    faults: frozenset[Fault]


_OF_A_DISK_OR_THE_CLOCK = frozenset({Fault.CLOCK_JUMPED, Fault.LOG_DISK_FULL, Fault.TARGET_DISK_FULL})
_OF_A_SERVER = frozenset({Fault.SERVER_KILLED, Fault.SERVER_PAUSED, Fault.COORDINATOR_MOVED})
_OF_CONNECTIONS = frozenset(Fault) - OF_THE_QUERY - OF_REQUESTS - _OF_A_DISK_OR_THE_CLOCK - _OF_A_SERVER
FAMILIES = (
    Family("the query's processes", "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z", OF_THE_QUERY - _OF_A_DISK_OR_THE_CLOCK),
    Family("a server", "m-4.5-4.5h9v9h-9z", _OF_A_SERVER),
    Family("connections", "m0-5.5l5.5 10h-11z", _OF_CONNECTIONS),
    Family("one request", "m0 5.5l5.5-10h-11z", OF_REQUESTS),
    Family("a disk or the clock", "m0-6l6 6l-6 6l-6-6z", _OF_A_DISK_OR_THE_CLOCK),
)


def family(fault: str) -> Family:
    """Returns the family of a fault; the first one for an unknown fault."""
    return next((one for one in FAMILIES if fault in one.faults), FAMILIES[0])


def fault_words(fault: str) -> str:
    """Returns what a fault does, in words; the fault's name if it is unknown."""
    return Fault(fault).words if fault in list(Fault) else fault


def phase_name(told: object) -> str:
    """Returns the name of a phase that a history contains by name or by value; `NO_DRIVER` if there is none."""
    text = "" if told is None else str(told)
    return _NAMES.get(text, text)


def phase_title(name: str) -> str:
    """Returns the page's name for a phase."""
    return {NO_DRIVER: "no driver", STARTING: "starting"}.get(name, name.lower().replace("_", " "))


def in_order(phases: Iterable[str]) -> list[str]:
    """Returns phases in the order a driver passes through them, with unknown phases last."""
    order = list(PHASES)
    return sorted(phases, key=lambda name: (order.index(name) if name in PHASES else len(order), name))


def number(value: float | None) -> str:
    """Formats a number with thousands separators; None as a dash."""
    return "—" if value is None else f"{value:,}"


def times(count: int, one: str, many: str = "") -> str:
    """Formats a number with its noun, whose plural is formed with s by default: ``1 batch``, ``2 batches``."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def duration(ms: float | None) -> str:
    """Formats a duration in a suitable unit; None as a dash."""
    if ms is None:
        return "—"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 100_000:
        return f"{ms / 1_000:.1f} s"
    minutes, seconds = divmod(round(ms / 1_000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def clock(ms: float, *, tenths: bool = True) -> str:
    """Formats a time of the run as minutes and seconds since its beginning, with hours if needed."""
    units = round(ms / 100) if tenths else round(ms / 1_000) * 10
    seconds, tenth = divmod(units, 10)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{minutes:02d}:{seconds:02d}" + (f".{tenth}" if tenths else "")
    return f"{hours}:{text}" if hours else text


def listed(words: Sequence[object], last: str = "and") -> str:
    """Formats words as a list in a sentence: ``a, b and c``."""
    *first, end = map(str, words or [""])
    return f"{', '.join(first)} {last} {end}" if first else end
