"""What a place for the decision log must be able to do, and reading it."""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sparkonce.errors import CorruptRecordError, NewerFormatError
from sparkonce.protocol import codec
from sparkonce.protocol.records import Record
from sparkonce.protocol.view import Floor, LogView, LogViolation

MOST_READS = 100
"""How often reading starts again because another driver raised the floor meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """The bytes stand at the position, durably."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Other bytes stand there already, or these same ones from an earlier put."""

    standing: bytes


class PutUnknownError(Exception):
    """The put's reply was lost: it may have landed, or land later."""


class LogStore(abc.ABC):
    """Keys that are put once. Positions count from 0; floors are keys of their own, and the highest one counts.

    An implementation must make a put atomic (no reader sees a part), exclusive (one of several concurrent puts at a
    position lands) and durable before it answers.
    """

    @abc.abstractmethod
    def put(self, position: int, data: bytes) -> Landed | Taken:
        """Puts the bytes if the position is free.

        Raises:
            PutUnknownError: if nobody can say whether they landed.
            OSError: if they surely did not land (disk full, no permission).
        """

    @abc.abstractmethod
    def read(self, position: int) -> Sequence[bytes]:
        """Returns what stands at the position and directly after it, up to the first free one, durably."""

    @abc.abstractmethod
    def floor(self) -> bytes | None:
        """The floor with the highest position, None if none was ever raised."""

    @abc.abstractmethod
    def raise_floor(self, position: int, data: bytes) -> None:
        """Adds a floor, durably. A floor is never taken back: a lower one that comes late changes nothing."""

    @abc.abstractmethod
    def delete_below(self, position: int) -> None:
        """Deletes records below the position, and floors below the highest."""

    @property
    @abc.abstractmethod
    def location(self) -> str:
        """Where the log is, for messages."""


class DecisionLog:
    """Records in a `LogStore`."""

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self._known_floor: tuple[bytes | None, Floor] = (None, Floor())

    def read(self, view: LogView) -> LogView:
        """Reads on from a view to the log's end.

        Raises:
            CorruptRecordError: if a record's bytes are not what was written.
            NewerFormatError: if a newer library wrote them.
            LogViolation: if a record stands where no correct run can have put it.
        """
        for _ in range(MOST_READS):
            floor = self.floor()
            if floor.position > view.end:
                view = LogView.at(floor)
            elif floor.position > view.floor.position:
                view = view.above(floor)
            try:
                for data in self.store.read(view.end):
                    view = view.apply(view.end, self._record(view.end, data))
            except LogViolation:
                # Below a floor that has risen meanwhile there may be a void record that landed late.
                if self.floor().position <= floor.position:
                    raise
                view = LogView.at(self.floor())
                continue
            # A free position is the log's end only if clean-up did not free it while this was reading.
            if self.floor().position <= view.floor.position:
                return view
        raise CorruptRecordError(
            f"the floor of the decision log {self.store.location} rose {MOST_READS} times while it was read",
            next_step="find out which other driver runs on this checkpoint.",
        )

    def put(self, position: int, record: Record) -> Record | None:
        """Puts a record if the position is free. Returns None if it landed, else the record that stands there.

        Raises:
            PutUnknownError: if nobody can say whether it landed.
        """
        answer = self.store.put(position, codec.encode_record(record, at_ms=time.time_ns() // 1_000_000))
        return self._record(position, answer.standing) if isinstance(answer, Taken) else None

    def standing(self, position: int) -> Record | None:
        """What stands at a position, durably; None if nothing does."""
        found = self.store.read(position)
        return self._record(position, found[0]) if found else None

    def floor(self) -> Floor:
        """The highest floor."""
        data = self.store.floor()
        # Asked for after every put: it may be large, and seldom is a new one.
        if data is not None and data != self._known_floor[0]:
            try:
                self._known_floor = data, codec.decode_floor(data)
            except codec.Unreadable as error:
                raise self._corrupt("the floor", error) from error
            except codec.TooNew as error:
                raise self._too_new("the floor", error) from error
        return self._known_floor[1]

    def raise_floor(self, floor: Floor) -> None:
        """Makes a floor durable."""
        self.store.raise_floor(floor.position, codec.encode_floor(floor))

    def _record(self, position: int, data: bytes) -> Record:
        try:
            return codec.decode_record(data)
        except codec.Unreadable as error:
            raise self._corrupt(f"record {position}", error) from error
        except codec.TooNew as error:
            raise self._too_new(f"record {position}", error) from error

    def _corrupt(self, what: str, error: Exception) -> CorruptRecordError:
        return CorruptRecordError(
            f"{what} of the decision log {self.store.location} cannot be read: {error}",
            next_step="restore the file from a copy of the checkpoint; deleting it could double or lose a batch.",
        )

    def _too_new(self, what: str, error: Exception) -> NewerFormatError:
        return NewerFormatError(
            f"{what} of the decision log {self.store.location}: {error}",
            next_step="run the newer version of sparkonce again, or upgrade this one.",
        )
