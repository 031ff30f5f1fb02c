"""What the coordinator is told. Each event but `BatchAsked` answers one effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import Outcome
from sparkonce.protocol.records import Record
from sparkonce.protocol.view import Floor, LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAsked:
    """Spark asks for a batch.

    Attributes:
        batch: Spark's batch id.
        offsets: The batch's end offsets, one JSON line a source, as in Spark's offset log.
        previous_offsets: Those of the batch before, or None if Spark no longer has them.
    """

    batch: int
    offsets: tuple[str, ...]
    previous_offsets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """The log has been read to its end."""

    view: LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class PutLanded:
    """The record stands at the position, durably. ``floor`` was read after the put."""

    position: int
    floor: Floor


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTaken:
    """Another put came first; ``standing`` is what stands there. ``floor`` was read after the put."""

    position: int
    standing: Record
    floor: Floor


@dataclass(frozen=True, slots=True, kw_only=True)
class PutUnknown:
    """The put's reply was lost: it may have landed, or land later."""

    position: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRefused:
    """The put surely did not land and never will, for example because the disk is full."""

    position: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What the runs left open has been aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Every slot has prepared.

    Attributes:
        handles: One for each sink and slot, also for slots without rows.
        too_old: Not empty if a transaction is, or may be, older than the system lets it live: says so.
    """

    handles: tuple[Handle, ...]
    too_old: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareFailed:
    """At least one slot could not prepare.

    Attributes:
        reason: Why.
        too_old: Not empty if it may be because transactions grew older than the system lets them live: says so.
        stopped: Whether the query was stopped by the user.
        superseded: Whether the log, read afterwards, has gone on.
    """

    reason: str
    too_old: str = ""
    stopped: bool = False
    superseded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The outcomes of a `effects.Finish`, in the order of its handles.

    Attributes:
        outcomes: One for each handle.
        attempt: The effect's.
        deadline_passed: Not empty if there is no more time to ask again: says why the rest is not final.
    """

    outcomes: tuple[Outcome, ...]
    attempt: int = 0
    deadline_passed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """The handles of an `effects.Abort` have been dealt with, as far as the servers answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRun:
    """The batch's plan ran, into nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorRaised:
    """The floor is durable."""

    floor: Floor


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """What lay below the floor is gone."""


Event: TypeAlias = (
    BatchAsked
    | LogRead
    | PutLanded
    | PutTaken
    | PutUnknown
    | PutRefused
    | Swept
    | Prepared
    | PrepareFailed
    | Finished
    | Aborted
    | PlanRun
    | FloorRaised
    | Deleted
)
