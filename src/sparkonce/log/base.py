"""The decision log: the contract of the store that keeps it, and its records as they are read and appended."""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence

from sparkonce.errors import CorruptRecordError, NewerFormatError
from sparkonce.protocol import codec
from sparkonce.protocol.view import Commit, Floor, LogView, LogViolation, Record
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.files import Landed as Landed
from sparkonce.storage.files import PutUnknownError as PutUnknownError
from sparkonce.storage.files import Taken as Taken

FOLDER = "sparkonce"
"""The log's subfolder of the checkpoint."""
MOST_READS = 100
"""The tries of a reading, each of which starts again because another driver raised the floor meanwhile."""


class LogStore(abc.ABC):
    """Keeps records by position, each put once, and floors, of which the highest counts. Positions count from 0.

    A put is atomic (no reader sees a part of it), exclusive (of several at one position one lands), and durable before
    it is answered.
    """

    @abc.abstractmethod
    def put(self, position: int, data: bytes) -> Landed | Taken:
        """Puts the bytes if the position is free.

        Raises:
            PutUnknownError: if it is not known whether they landed.
            OSError: if they surely did not land (disk full, no permission).
        """

    @abc.abstractmethod
    def read(self, position: int) -> Sequence[bytes]:
        """Returns the records from the position up to the first free one, once they are durable."""

    @abc.abstractmethod
    def floor(self) -> bytes | None:
        """Returns the floor with the highest position; None if none was ever raised."""

    @abc.abstractmethod
    def raise_floor(self, position: int, data: bytes) -> None:
        """Adds a floor, durably. A floor is never taken back: a lower one that comes late changes nothing."""

    @abc.abstractmethod
    def delete_below(self, position: int) -> None:
        """Deletes records below the position, and floors below the highest."""

    @property
    @abc.abstractmethod
    def location(self) -> str:
        """The place of the log, for messages and for claims."""


class DecisionLog:
    """The records of one query, in a `LogStore`.

    Args:
        store: The store.
        checkpoint: The query's checkpoint, for a run that decides batches: Spark's files in it are made durable before
            each decision.
    """

    def __init__(self, store: LogStore, checkpoint: CheckpointFiles | None = None) -> None:
        self.store = store
        self._checkpoint = checkpoint
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
            f"The floor of the decision log {self.store.location} rose {MOST_READS} times while it was read.",
            next_step="Find out which other driver runs on this checkpoint.",
        )

    def put(self, position: int, record: Record) -> Record | None:
        """Puts a record if the position is free. Returns None if it landed, else the record that stands there.

        Raises:
            PutUnknownError: if it is not known whether it landed.
            OSError: if it surely did not land.
        """
        if self._checkpoint is not None and isinstance(record, Commit):
            # Spark renames its files into place, and never calls fsync. A decision that outlives them in a crash of
            # the machine would name offsets and files that nobody has any more.
            self._checkpoint.sync_spark()
        answer = self.store.put(position, codec.encode_record(record, at_ms=time.time_ns() // 1_000_000))
        return self._record(position, answer.standing) if isinstance(answer, Taken) else None

    def standing(self, position: int) -> Record | None:
        """Returns the record at a position, once it is durable; None if there is none."""
        found = self.store.read(position)
        return self._record(position, found[0]) if found else None

    def floor(self) -> Floor:
        """Returns the highest floor."""
        data = self.store.floor()
        # It is asked for after every put, may be large, and seldom is a new one.
        if data is not None and data != self._known_floor[0]:
            try:
                self._known_floor = data, codec.decode_floor(data)
            except codec.Unreadable as error:
                raise self._corrupt("The floor", error) from error
            except codec.TooNew as error:
                raise self._too_new("The floor", error) from error
        return self._known_floor[1]

    def raise_floor(self, floor: Floor) -> None:
        """Makes a floor durable."""
        self.store.raise_floor(floor.position, codec.encode_floor(floor))

    def _record(self, position: int, data: bytes) -> Record:
        try:
            return codec.decode_record(data)
        except codec.Unreadable as error:
            raise self._corrupt(f"Record {position}", error) from error
        except codec.TooNew as error:
            raise self._too_new(f"Record {position}", error) from error

    def _corrupt(self, what: str, error: Exception) -> CorruptRecordError:
        return CorruptRecordError(
            f"{what} of the decision log {self.store.location} cannot be read: {error}.",
            next_step="Restore the file from a copy of the checkpoint. Deleting it could double or lose a batch.",
        )

    def _too_new(self, what: str, error: Exception) -> NewerFormatError:
        return NewerFormatError(
            f"{what} of the decision log {self.store.location}: {error}.",
            next_step="Run the newer version of sparkonce again, or upgrade this one.",
        )


def record_name(position: int) -> str:
    """Returns the name of the file that keeps a record or a floor."""
    return f"{position:020d}"
