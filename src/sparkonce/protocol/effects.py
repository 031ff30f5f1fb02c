"""The effects that the coordinator asks the driver to carry out.

Each is answered by one event, except `Done` and `Stop`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.view import Floor, LogView, Record, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLog:
    """Read the log to its end, starting at the end of ``view``, or at the floor if the floor is higher."""

    view: LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Put the record durably at the position if that is free, then read the floor.

    Attributes:
        contested: For a claim, the number of claims since the last decision. If it is high, drivers keep superseding
            each other, and this one waits before its put.
    """

    position: int
    record: Record
    contested: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckServers:
    """Check that no server was restored from a backup older than the newest finished batch."""

    batch: int
    sinks: tuple[str, ...]
    view: LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Abort every open transaction of exactly these runs.

    Attributes:
        best_effort: True if the run may continue even if some transactions could not be aborted.
        optional: True if the sweep may be postponed while there is no sign of a losing task attempt.
    """

    runs: tuple[Run, ...]
    best_effort: bool = False
    optional: bool = False


class Attempt(str, Enum):
    """The reason why a batch is written now."""

    FIRST = "first"
    """The first write of the batch or, during healing, of its lost rows."""
    ELSEWHERE = "elsewhere"
    """A replay has shown that the lost rows are now in different slots. Time limits still count from that replay."""
    AGAIN = "again"
    """An earlier write failed because a system was unreachable or the write took too long. Its open transactions are
    aborted first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Run the batch's plan, write its rows, and prepare every slot.

    Attributes:
        only: If not None, write only these (sink, slot) pairs, and only count and fingerprint the others.
        attempt: Why the batch is written now.
    """

    batch: int
    sinks: tuple[str, ...]
    only: frozenset[tuple[str, int]] | None = None
    attempt: Attempt = Attempt.FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate:
    """Ask the sinks and position reporters for objections to the decision, and check the transactions' age."""

    sinks: tuple[str, ...]
    handles: tuple[Handle, ...]
    offsets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Write a decided batch's rows to these sinks at most once, without transactions."""

    batch: int
    sinks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Commit the handles, in parallel, and abort those that are void.

    Attributes:
        handles: The handles, all of them named by the decision.
        attempt: The number of the attempt, from 0. Attempt 0 restarts the time limit for retries.
        void: The (sink, slot) keys of the handles to abort.
    """

    batch: int
    handles: tuple[Handle, ...]
    attempt: int
    void: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Abort exactly these handles. No decision names them."""

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
    """Tell these sinks that the whole batch is committed."""

    batch: int
    sinks: tuple[str, ...]
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report these end offsets to the position reporters."""

    offsets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The batch is committed. Spark may continue.

    Attributes:
        recovered: True if the batch was already decided when Spark passed it to this run.
        healed: The number of lost transactions that were written again.
    """

    batch: int
    handles: tuple[Handle, ...] = ()
    recovered: bool = False
    healed: int = 0


class StopReason(str, Enum):
    """The reasons why a run stops."""

    STALE = "a later batch is decided"
    MISMATCH = "the log and the checkpoint do not belong together"
    SUPERSEDED = "a newer run has claimed the query"
    PREPARE_FAILED = "a slot could not prepare"
    TOO_OLD = "the batch took longer than its transactions may live"
    UNKNOWN = "an outcome could not be learned"
    LOST = "decided rows are lost"
    LOG_VIOLATION = "the log contains what no correct run can have written"
    UNWRITABLE = "the log cannot be written"
    STOPPED = "the run had stopped before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The run is over. Only a new run can continue."""

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
