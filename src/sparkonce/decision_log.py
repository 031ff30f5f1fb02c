"""The decision log: the records of one query in its checkpoint, in any store.

Layout, under ``<checkpoint>/sparkonce``::

    records/00000000000000000007    one file per record
    floors/00000000000000000000     one file per floor; all but the highest are deleted eventually
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sparkonce.errors import CorruptRecordError, NewerFormatError
from sparkonce.protocol import codec
from sparkonce.protocol.view import Commit, Floor, LogView, LogViolation, Record
from sparkonce.storage.files import CheckpointFiles, Landed, Taken

FOLDER = "sparkonce"
MOST_READS = 100
"""The maximum number of attempts to read the log. A read restarts if another driver raises the floor meanwhile."""
_RECORDS = "records"
_FLOORS = "floors"
_READ_AT_ONCE = 8


class DecisionLog:
    """The records of one query by position, each written once, and floors, of which only the highest counts.

    Positions count from 0. A put is atomic (no reader sees a partial record), exclusive (if several writers put at the
    same position, only one succeeds), and durable before it is acknowledged. The methods whose names contain ``bytes``
    handle records as the bytes of their files; the others handle them as objects.

    Args:
        checkpoint: The files of the query's checkpoint. The log is in the subfolder ``sparkonce``.
        make: False for readers, which do not create missing folders.
        decides: True for a run that decides batches. Spark's files in the checkpoint are made durable before each
            decision.
    """

    _decides = False
    _known_floor: tuple[bytes | None, Floor] = (None, Floor())

    def __init__(self, checkpoint: CheckpointFiles, *, make: bool = True, decides: bool = False) -> None:
        self._checkpoint = checkpoint
        self._files = checkpoint.inside(FOLDER)
        self._decides = decides
        self._read_floor = -1, b""
        if not make:
            return
        try:
            self._files.require(_RECORDS)
            self._files.require(_FLOORS)
        except OSError:
            # Create parents first, so that a killed process leaves no folder whose own name is not durable.
            for folder in ("", _RECORDS, _FLOORS):
                self._files.make(folder)

    @property
    def location(self) -> str:
        """The log's folder with links resolved, which is the same for every path that leads to the folder."""
        return self._files.resolved

    # --- values -----------------------------------------------------------------------------------------------------

    def read(self, view: LogView) -> LogView:
        """Reads the log from the end of a view to the end of the log.

        Raises:
            CorruptRecordError: If a record's bytes are not what was written.
            NewerFormatError: If a newer version of the library wrote a record.
            LogViolation: If there is a record that no correct run can have written at its position.
        """
        for _ in range(MOST_READS):
            floor = self.floor()
            if floor.position > view.end:
                view = LogView.at(floor)
            elif floor.position > view.floor.position:
                view = view.above(floor)
            try:
                for data in self.read_bytes(view.end):
                    view = view.apply(view.end, self._record(view.end, data))
            except LogViolation:
                # If the floor has risen during this read, the record may be void because it was written below the
                # floor, too late.
                if self.floor().position <= floor.position:
                    raise
                view = LogView.at(self.floor())
                continue
            # A free position is the end of the log only if cleanup has not deleted the position's record during this
            # read.
            if self.floor().position <= view.floor.position:
                return view
        raise CorruptRecordError(
            f"The floor of the decision log {self.location} rose {MOST_READS} times while it was read.",
            next_step="Find out which other driver runs on this checkpoint.",
        )

    def sync_ahead(self) -> None:
        """Starts making Spark's files durable, so that the put of the decision has less to wait for.

        Called once Spark has written the batch's offsets.
        """
        if self._decides:
            self._checkpoint.sync_ahead()

    def put(self, position: int, record: Record) -> Record | None:
        """Puts a record if the position is free. Returns None on success, and otherwise the record at that position.

        Raises:
            PutUnknownError: If it is unknown whether the put succeeded.
            OSError: If the put definitely failed.
        """
        if self._decides and isinstance(record, Commit):
            # Spark renames its files into place and never calls fsync. After a machine crash that kept the decision but
            # lost these files, the decision would refer to offsets and files that no longer exist.
            self._checkpoint.sync_spark()
        answer = self.put_bytes(position, codec.encode_record(record, at_ms=time.time_ns() // 1_000_000))
        return self._record(position, answer.standing) if isinstance(answer, Taken) else None

    def standing(self, position: int) -> Record | None:
        """Returns the record at a position once it is durable, or None if there is none."""
        found = self.read_bytes(position)
        return self._record(position, found[0]) if found else None

    def floor(self) -> Floor:
        """Returns the highest floor."""
        data = self.floor_bytes()
        # The floor is read after every put and may be large, so decode it only if it has changed.
        if data is not None and data != self._known_floor[0]:
            try:
                self._known_floor = data, codec.decode_floor(data)
            except codec.Unreadable as error:
                raise self._corrupt("The floor", error) from error
            except codec.TooNew as error:
                raise self._too_new("The floor", error) from error
        return self._known_floor[1]

    def raise_floor(self, floor: Floor) -> None:
        """Raises the floor durably."""
        self.raise_floor_bytes(floor.position, codec.encode_floor(floor))

    # --- bytes ------------------------------------------------------------------------------------------------------

    def put_bytes(self, position: int, data: bytes) -> Landed | Taken:
        """Puts the bytes of a record if the position is free."""
        return self._put(_RECORDS, position, data)

    def read_bytes(self, position: int) -> Sequence[bytes]:
        """Returns the records from the position up to the first free position, once they are durable."""
        first = self._read(position)
        if first is None:
            return []
        found = [first, *(self._listed(position + 1) if self._files.is_remote else ())]
        while (data := self._read(position + len(found))) is not None:
            found.append(data)
        # A record becomes visible before its name is durable. Until then, a power failure could undo it.
        self._files.sync(_RECORDS)
        return found

    def floor_bytes(self) -> bytes | None:
        """Returns the floor with the highest position, or None if there is no floor yet."""
        while True:
            newest = max(_positions(self._files, _FLOORS), default=None)
            if newest is None:
                return None
            if newest != self._read_floor[0]:
                data = self._files.read(f"{_FLOORS}/{record_name(newest)}")
                if data is not None:  # If the file is missing, it was deleted because the floor was raised.
                    self._files.sync(_FLOORS)
                    self._read_floor = newest, data
            if newest == self._read_floor[0]:
                return self._read_floor[1]

    def raise_floor_bytes(self, position: int, data: bytes) -> None:
        """Adds a floor durably. A floor is never lowered, so a lower one that arrives late changes nothing."""
        self._put(_FLOORS, position, data)

    def delete_below(self, position: int) -> None:
        """Deletes the records below the position, and all floors but the highest."""
        highest = max(_positions(self._files, _FLOORS), default=0)
        for folder, limit in ((_RECORDS, position), (_FLOORS, highest)):
            below = [one for one in _positions(self._files, folder) if one < limit]
            self._files.delete([f"{folder}/{record_name(one)}" for one in below])
            self._files.tidy(folder)

    def _put(self, folder: str, position: int, data: bytes) -> Landed | Taken:
        # An unmounted disk leaves an empty folder in its place. A record written into that folder would be lost.
        self._files.require(folder)
        return self._files.put(f"{folder}/{record_name(position)}", data)

    def _read(self, position: int) -> bytes | None:
        return self._files.read(f"{_RECORDS}/{record_name(position)}")

    def _listed(self, position: int) -> Sequence[bytes]:
        """Returns the listed records, starting at the position. Reads in parallel, since each takes a round trip."""
        there = _positions(self._files, _RECORDS)
        wanted: list[int] = []
        while position + len(wanted) in there:
            wanted.append(position + len(wanted))
        if not wanted:
            return []
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            read = list(pool.map(self._read, wanted))
        # Stop at a record that has just been deleted. The caller then notices that the floor has risen.
        return [data for number, data in enumerate(read) if data is not None and None not in read[:number]]

    def _record(self, position: int, data: bytes) -> Record:
        try:
            return codec.decode_record(data)
        except codec.Unreadable as error:
            raise self._corrupt(f"Record {position}", error) from error
        except codec.TooNew as error:
            raise self._too_new(f"Record {position}", error) from error

    def _corrupt(self, what: str, error: Exception) -> CorruptRecordError:
        return CorruptRecordError(
            f"{what} of the decision log {self.location} cannot be read: {error}.",
            next_step="Restore the file from a copy of the checkpoint. Deleting it could duplicate or lose a batch.",
        )

    def _too_new(self, what: str, error: Exception) -> NewerFormatError:
        return NewerFormatError(
            f"{what} of the decision log {self.location}: {error}.",
            next_step="Run the newer version of sparkonce again, or upgrade this one.",
        )


def check_whole(files: CheckpointFiles) -> None:
    """Checks that no record before the last one is missing, since the log would then seem to end there.

    Records are missing from incomplete copies: a run writes them one after the other, and deletes them only below the
    floor.

    Raises:
        CorruptRecordError: If a record is missing.
    """
    log = files.inside(FOLDER)
    for _ in range(MOST_READS):
        floor = max(_positions(log, _FLOORS), default=0)
        there = _positions(log, _RECORDS)
        # A listing may include a record that was written while it ran, and still miss an earlier one.
        missing = (
            one
            for one in range(floor, max(there, default=floor))
            if one not in there and not log.exists(f"{_RECORDS}/{record_name(one)}")
        )
        if (first := next(missing, None)) is None:
            return
        if floor == max(_positions(log, _FLOORS), default=0):  # Otherwise, a driver has just deleted them.
            raise CorruptRecordError(
                f"The decision log of {files.location!r} has record {max(there)}, but not record {first}.",
                next_step="Restore the checkpoint and the log together, from one whole copy.",
            )


def record_name(position: int) -> str:
    """Returns the file name of a record or a floor."""
    return f"{position:020d}"


def _positions(log: CheckpointFiles, folder: str) -> set[int]:
    return {int(name) for name in log.names(folder) if len(name) == len(record_name(0)) and name.isdigit()}
