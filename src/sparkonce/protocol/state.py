"""What the coordinator of one run knows, and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sparkonce.protocol.effects import Stop
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.records import Claim, Record
from sparkonce.protocol.view import Decision, LogView


class Phase(str, Enum):
    """What the coordinator waits for."""

    IDLE = "idle"
    READING = "reading the log"
    CLAIMING = "claiming"
    SWEEPING = "sweeping what older runs left open"
    WRITING = "preparing every slot"
    DECIDING = "deciding"
    RESOLVING = "settling a decision whose reply was lost"
    FINISHING = "finishing"
    JUDGING = "judging a loss"
    REPLAYING = "running a decided batch into nothing"
    DELIVERING = "writing to the at-most-once sinks"
    SWEEPING_OWN = "sweeping losers"
    RAISING_FLOOR = "raising the floor"
    TIDYING = "deleting below the floor"
    ABORTING = "undoing its own"
    STOPPED = "stopped"


class BadTransition(RuntimeError):  # noqa: N818 - it is what it says
    """An event came that the phase does not expect: a fault of the caller, never of a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What Spark asked for. See `events.BatchAsked`."""

    number: int
    offsets: tuple[str, ...]
    previous_offsets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything the coordinator of one run knows. Hashable, so that a model checker can enumerate it.

    Attributes:
        claim: What this run puts into the log to claim it.
        moved: Whether the user says that the log was moved here, not copied.
        transactional: The sinks whose writes are transactions (EXACTLY_ONCE).
        direct: The sinks that write before the decision, without one (AT_LEAST_ONCE).
        after: The sinks that write after the decision, once at most (AT_MOST_ONCE).
        phase: What it waits for.
        view: The log as last read, with its own records.
        token: Its claim, once that stands.
        swept: Whether what older runs left open has been swept.
        batch: The batch at work.
        decided: The decision at work, or the decided batch being healed.
        putting: The record whose put is under way.
        doubts: Replies of puts lost in a row.
        pending: Handles whose outcome is not final yet.
        committed: Keys of the decided handles known to be committed.
        lost: Keys of the decided handles known to be lost.
        healing: The (sink, slot) keys being written again, or None when the whole batch is written.
        healings: How often the batch's lost transactions have been written again in this run.
        replayed: Whether the batch's plan has run in this run, so that Spark's state store has its version.
        recovering: Whether the batch had been decided before this run asked.
        verdict: How the run will stop, once its own is undone.
    """

    claim: Claim
    moved: bool = False
    transactional: tuple[str, ...] = ()
    direct: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    phase: Phase = Phase.IDLE
    view: LogView = LogView()
    token: Token | None = None
    swept: bool = False
    batch: Batch | None = None
    decided: Decision | None = None
    putting: Record | None = None
    doubts: int = 0
    pending: tuple[Handle, ...] = ()
    committed: frozenset[tuple[str, int]] = frozenset()
    lost: frozenset[tuple[str, int]] = frozenset()
    healing: frozenset[tuple[str, int]] | None = None
    healings: int = 0
    replayed: bool = False
    recovering: bool = False
    verdict: Stop | None = None
