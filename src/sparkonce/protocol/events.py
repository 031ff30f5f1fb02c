"""The events that the coordinator reacts to. Each except `BatchAsked` answers one effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.view import Floor, LogView, Record


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
    """The record is at the position, durably. ``floor`` was read after the put."""

    position: int
    floor: Floor


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTaken:
    """Another put came first; ``standing`` is its record. ``floor`` was read after the put."""

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
class ServersChecked:
    """The servers have what was committed there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Transactions that the runs left open have been aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The slots have prepared. ``handles`` has one for each sink and slot, also for slots without rows."""

    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareFailed:
    """A slot, or more, could not prepare.

    Attributes:
        reason: Why.
        too_old: A message if the reason may be that transactions outlived their timeout; empty otherwise.
        superseded: True if the log, read afterwards, has a newer run's claim.
    """

    reason: str
    too_old: str = ""
    superseded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unready:
    """The batch cannot be decided, but may be once it is written again.

    A system was unreachable or full, or its transactions would have expired before their commit.

    Attributes:
        undo: True if the prepared transactions can be aborted by name now; otherwise the next attempt finds them.
    """

    undo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """The decision meets no objection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objected:
    """The decision meets an objection.

    Attributes:
        reason: The objection, in the words of the sink or the position reporter that raises it.
        too_old: See `PrepareFailed`.
    """

    reason: str
    too_old: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooOld:
    """A prepared transaction is, or may be, older than its system lets it live. ``reason`` says so."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlesFinished:
    """The outcomes of an `effects.Finish`, in the order of its handles.

    Attributes:
        outcomes: One for each handle.
        attempt: The attempt of the `effects.Finish`.
        deadline_passed: Why the rest is not final; not empty if there is no time left to retry.
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
    """The records below the floor are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluded:
    """Every sink has been told that the whole batch is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The positions were reported, as far as their receivers answered."""


Event: TypeAlias = (
    BatchAsked
    | LogRead
    | PutLanded
    | PutTaken
    | PutUnknown
    | PutRefused
    | ServersChecked
    | Swept
    | Prepared
    | PrepareFailed
    | Unready
    | Validated
    | Objected
    | TooOld
    | HandlesFinished
    | Aborted
    | PlanRun
    | FloorRaised
    | Deleted
    | Concluded
    | Reported
)
