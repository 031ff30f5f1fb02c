"""The state of one run's coordinator: the fields that every phase has, plus one value per group of phases."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sparkonce.protocol.effects import Attempt, Stop, Write
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Amend, Claim, Commit, Decision, LogView, Record, Void


class Phase(str, Enum):
    """The phases of the coordinator. In each, it waits for the answer to one effect."""

    IDLE = "idle"
    READING = "reading the log"
    CLAIMING = "claiming"
    CHECKING = "checking that no server was restored from an older state"
    SWEEPING = "sweeping what older runs left open"
    WRITING = "preparing every slot"
    VALIDATING = "asking for objections"
    DECIDING = "deciding"
    RESOLVING = "settling a decision whose reply was lost"
    FINISHING = "finishing"
    JUDGING = "judging a loss"
    REPLAYING = "running a decided batch into nothing"
    DELIVERING = "writing to the at-most-once sinks"
    SWEEPING_OWN = "sweeping losers"
    RAISING_FLOOR = "raising the floor"
    TIDYING = "deleting below the floor"
    CONCLUDING = "telling sinks that all is committed"
    REPORTING = "reporting positions"
    ABORTING = "undoing its own"
    STOPPED = "stopped"


class BadTransition(RuntimeError):  # noqa: N818 - the name describes it
    """The phase does not expect this event, which is a bug in the caller and never a server fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch that Spark asked for; see `events.BatchAsked`."""

    number: int
    offsets: tuple[str, ...]
    previous_offsets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """The write in progress, from WRITING until its decision is put.

    Attributes:
        only: See `effects.Write.only`.
        attempt: Why the batch is being written.
        handles: The handles that the record will name, once all of them are prepared.
    """

    only: frozenset[tuple[str, int]] | None = None
    attempt: Attempt = Attempt.FIRST
    handles: tuple[Handle, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Putting:
    """The put in progress, in CLAIMING, DECIDING and RESOLVING."""

    record: Record
    doubts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finishing:
    """The decided batch, from its decision until it is done.

    Attributes:
        decision: The newest decision of the batch, including amendments.
        pending: The handles whose outcome is not final yet.
        committed: The keys of the committed handles.
        lost: The keys of the lost handles.
        healings: The number of times that the run has rewritten lost transactions.
        healed: The number of rewritten transactions.
        replayed: True if the plan has run in this run, which means that Spark's state store has the batch's version.
        recovering: True if the batch was already decided when Spark passed it to this run.
    """

    decision: Decision
    pending: tuple[Handle, ...] = ()
    committed: frozenset[tuple[str, int]] = frozenset()
    lost: frozenset[tuple[str, int]] = frozenset()
    healings: int = 0
    healed: int = 0
    replayed: bool = True
    recovering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything that the coordinator of one run knows. Hashable, so that a model checker can enumerate it.

    Attributes:
        claim: The record that this run puts to claim the log.
        moved: True if the user confirmed that the log was moved here, not copied.
        transactional: The sinks whose writes are transactions (EXACTLY_ONCE).
        direct: The sinks that write before the decision, without transactions (AT_LEAST_ONCE).
        after: The sinks that write after the decision (AT_MOST_ONCE).
        reports: True if the query reports its positions.
        view: The log as last read, plus the run's own records.
        token: The run's token, once its claim is in the log.
        swept: True once the transactions that older runs left open have been swept.
        finishing: The current batch, once it is decided.
        then: The effect that follows once the run's own transactions are undone.
    """

    claim: Claim
    moved: bool = False
    transactional: tuple[str, ...] = ()
    direct: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    reports: bool = False
    phase: Phase = Phase.IDLE
    view: LogView = LogView()
    token: Token | None = None
    swept: bool = False
    batch: Batch | None = None
    writing: Writing | None = None
    putting: Putting | None = None
    finishing: Finishing | None = None
    then: Stop | Write | None = None


def batch_of(state: State) -> Batch:
    """Returns the current batch."""
    if state.batch is None:
        raise BadTransition("no batch is at work")
    return state.batch


def token_of(state: State) -> Token:
    """Returns the run's token."""
    if state.token is None:
        raise BadTransition("the run has not claimed yet")
    return state.token


def writing_of(state: State) -> Writing:
    """Returns the write in progress."""
    if state.writing is None:
        raise BadTransition("nothing is being written")
    return state.writing


def putting_of(state: State) -> Putting:
    """Returns the put in progress."""
    if state.putting is None:
        raise BadTransition("nothing is being put")
    return state.putting


def record_of(state: State) -> Commit | Amend | Void:
    """Returns the decision being put."""
    record = putting_of(state).record
    if isinstance(record, Claim):
        raise BadTransition("no decision is being put")
    return record


def finishing_of(state: State) -> Finishing:
    """Returns the decided batch in progress."""
    if state.finishing is None:
        raise BadTransition("no decision is at work")
    return state.finishing
