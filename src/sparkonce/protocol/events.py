"""The events that the coordinator reacts to. Each one except `BatchAsked` answers an effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.view import Floor, LogView, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAsked:
    """Spark asks for a batch.

    Attributes:
        offsets: The batch's end offsets, one JSON line per source, as in Spark's offset log.
        previous_offsets: The end offsets of the previous batch, or None if Spark no longer has them.
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
    """The record is durable at the position. ``floor`` was read after the put."""

    position: int
    floor: Floor


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTaken:
    """The position was taken; ``standing`` is the record there. ``floor`` was read after the put."""

    position: int
    standing: Record
    floor: Floor


@dataclass(frozen=True, slots=True, kw_only=True)
class PutUnknown:
    """The put got no reply: it may have landed, or may land later."""

    position: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRefused:
    """The put did not land and never will, for example because the disk is full."""

    position: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersChecked:
    """The servers still have everything that was committed there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Transactions that the runs left open have been aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All slots have prepared. ``handles`` has one handle per sink and slot, including slots without rows."""

    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareFailed:
    """At least one slot could not prepare.

    Attributes:
        reason: The reason.
        too_old: A message if the reason may be that transactions outlived their timeout; empty otherwise.
        superseded: True if the log, read after the failure, contains a newer run's claim.
    """

    reason: str
    too_old: str = ""
    superseded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unready:
    """The batch cannot be decided yet. It may be once it has been written again.

    A system was unreachable or full, or its transactions would have expired before their commit.

    Attributes:
        undo: True to abort the prepared transactions now; False to leave that to the next attempt, for example because
            a server is unreachable.
    """

    undo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """The decision meets no objection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objected:
    """The decision meets an objection.

    Attributes:
        reason: The message of the sink or position reporter that objects.
        too_old: See `PrepareFailed`.
    """

    reason: str
    too_old: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooOld:
    """A prepared transaction has timed out, or may time out before its commit. ``reason`` has the details."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlesFinished:
    """The outcomes of an `effects.Finish`, in the same order as its handles.

    Attributes:
        deadline_passed: If the time for retries is up, the reason why some handles have no final outcome; empty
            otherwise.
    """

    outcomes: tuple[Outcome, ...]
    attempt: int = 0
    deadline_passed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """The handles of an `effects.Abort` have been processed, on the servers that responded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRun:
    """The batch's plan ran, and its rows were discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorRaised:
    """The floor is durable."""

    floor: Floor


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """The records below the floor are deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluded:
    """Every sink has been told that the whole batch is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The positions were reported to the receivers that responded."""


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
