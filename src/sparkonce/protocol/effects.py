"""Effects: what the coordinator asks to be done. Each but `Done` and `Stop` is answered by one event."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.records import Record
from sparkonce.protocol.view import Floor, LogView, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLog:
    """Go through the log to its end, on from ``view``, or from the floor, if that has risen above it."""

    view: LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Put the record at the position if that is free, durably; then read the floor.

    Attributes:
        position: Where.
        record: What.
        contested: Claims in a row before this one: drivers that depose each other must back off.
    """

    position: int
    record: Record
    contested: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckServers:
    """Check that no server went back to a state from before the newest finished batch.

    Attributes:
        batch: Spark's batch id: all batches before it are finished.
        sinks: The sinks to ask.
        view: The log.
    """

    batch: int
    sinks: tuple[str, ...]
    view: LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Abort every open transaction of exactly these runs.

    Attributes:
        runs: Whose.
        best_effort: What is still open afterwards can wait for a later sweep, the next run, or its timeout.
        optional: May be left out where nothing says that a copy lost; a later sweep will do.
    """

    runs: tuple[Run, ...]
    best_effort: bool = False
    optional: bool = False


class Attempt(str, Enum):
    """The reason why a batch is to be written now."""

    FIRST = "first"
    """Begins to write the batch, or what was lost of it."""
    ELSEWHERE = "elsewhere"
    """Follows a replay that has shown the lost rows to be in other slots. All else is as it was for that replay."""
    AGAIN = "again"
    """Follows a write that a system's absence, or its own length, has spoilt. What that left open is undone before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Run the batch's plan and prepare.

    Attributes:
        batch: Spark's batch id.
        sinks: The sinks to write to.
        only: If not None, write these (sink, slot)s only, and count and fingerprint the others.
        attempt: Why it is written now.
    """

    batch: int
    sinks: tuple[str, ...]
    only: frozenset[tuple[str, int]] | None = None
    attempt: Attempt = Attempt.FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate:
    """Ask whether anything speaks against deciding what is prepared: sinks, positions, the transactions' age.

    Attributes:
        sinks: The sinks that were written to.
        handles: What was prepared.
        offsets: The batch's end offsets, one JSON line a source.
    """

    sinks: tuple[str, ...]
    handles: tuple[Handle, ...]
    offsets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Write a decided batch's rows to these sinks, without transactions: once at most."""

    batch: int
    sinks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Commit the handles, in parallel, and abort those that are void.

    Attributes:
        batch: Spark's batch id.
        handles: Which. All are named by the decision.
        attempt: Counts from 0, which begins to wait with a patience of its own.
        void: The (sink, slot) keys of those to abort.
    """

    batch: int
    handles: tuple[Handle, ...]
    attempt: int
    void: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Abort exactly these handles. They are named by no decision."""

    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIntoNothing:
    """Run the plan of a decided batch and throw its rows away."""

    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseFloor:
    """Make the floor durable."""

    floor: Floor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteBelow:
    """Delete the records below the position."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude:
    """Tell these sinks that the whole batch is committed.

    Attributes:
        batch: Spark's batch id.
        sinks: Which.
        handles: All of the batch.
    """

    batch: int
    sinks: tuple[str, ...]
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report these end offsets to those who are told how far the query has read."""

    offsets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The batch is committed; Spark may go on.

    Attributes:
        batch: Spark's batch id.
        handles: All of the batch.
        recovered: Whether it had been decided before this run asked for it.
        healed: How many lost transactions were written again.
    """

    batch: int
    handles: tuple[Handle, ...] = ()
    recovered: bool = False
    healed: int = 0


class StopReason(str, Enum):
    """The reasons for which a run stops."""

    STALE = "a later batch is decided"
    MISMATCH = "the log and the checkpoint do not belong together"
    SUPERSEDED = "a newer run has claimed the query"
    PREPARE_FAILED = "a slot could not prepare"
    TOO_OLD = "the batch took longer than its transactions may live"
    UNKNOWN = "an outcome could not be learned"
    LOST = "decided rows are lost"
    LOG_VIOLATION = "the log holds what no correct run can have written"
    UNWRITABLE = "the log cannot be written"
    STOPPED = "the run had stopped before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The run is over. Only a new run can go on."""

    reason: StopReason
    message: str
    details: tuple[tuple[str, object], ...] = ()


Effect: TypeAlias = (
    ReadLog
    | Put
    | CheckServers
    | Sweep
    | Write
    | Validate
    | Finish
    | RunIntoNothing
    | Deliver
    | RaiseFloor
    | DeleteBelow
    | Conclude
    | Report
    | Abort
    | Done
    | Stop
)
