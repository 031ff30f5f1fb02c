"""The decision log: the records of one query in its checkpoint, in whatever store that is.

Layout, under ``<checkpoint>/sparkonce``::

    records/00000000000000000007    one file per record
    floors/00000000000000000000     one file per floor, all but the highest deleted in time
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
"""The log's subfolder of the checkpoint."""
MOST_READS = 100
"""The attempts to read the log, each of which restarts because another driver raised the floor meanwhile."""
_RECORDS = "records"
_FLOORS = "floors"
_READ_AT_ONCE = 8


class DecisionLog:
    """The records of one query, by position, each put once; and floors, of which the highest counts.

    Positions count from 0. A put is atomic (no reader sees a part of it), exclusive (of several at one position one
    lands), and durable before it is answered. Records are read and written as values, or as the bytes of their files.

    Args:
        checkpoint: The files of the query's checkpoint; the log is in the subfolder ``sparkonce``.
        make: False for readers, which make no folder that is missing.
        decides: True for a run that decides batches: Spark's files in the checkpoint are made durable before each
            decision.

    Raises:
        OSError: if the folders cannot be made.
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
            for folder in ("", _RECORDS, _FLOORS):  # one by one, so that a kill between them leaves no name unsynced
                self._files.make(folder)

    @property
    def location(self) -> str:
        """The folder of the log, with links followed: the same for every path that leads to it."""
        return self._files.resolved

    # --- values -----------------------------------------------------------------------------------------------------

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
                for data in self.read_bytes(view.end):
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
            f"The floor of the decision log {self.location} rose {MOST_READS} times while it was read.",
            next_step="Find out which other driver runs on this checkpoint.",
        )

    def put(self, position: int, record: Record) -> Record | None:
        """Puts a record if the position is free. Returns None if it landed, else the record that stands there.

        Raises:
            PutUnknownError: if it is not known whether it landed.
            OSError: if it surely did not land.
        """
        if self._decides and isinstance(record, Commit):
            # Spark renames its files into place, and never calls fsync. A decision that outlives them in a crash of
            # the machine would name offsets and files that nobody has any more.
            self._checkpoint.sync_spark()
        answer = self.put_bytes(position, codec.encode_record(record, at_ms=time.time_ns() // 1_000_000))
        return self._record(position, answer.standing) if isinstance(answer, Taken) else None

    def standing(self, position: int) -> Record | None:
        """Returns the record at a position, once it is durable; None if there is none."""
        found = self.read_bytes(position)
        return self._record(position, found[0]) if found else None

    def floor(self) -> Floor:
        """Returns the highest floor."""
        data = self.floor_bytes()
        # The floor is read after every put, may be large, and seldom changes.
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
        self.raise_floor_bytes(floor.position, codec.encode_floor(floor))

    # --- bytes ------------------------------------------------------------------------------------------------------

    def put_bytes(self, position: int, data: bytes) -> Landed | Taken:
        """Puts the bytes of a record if the position is free.

        Raises:
            PutUnknownError: if it is not known whether they landed.
            OSError: if they surely did not land (disk full, no permission).
        """
        return self._put(_RECORDS, position, data)

    def read_bytes(self, position: int) -> Sequence[bytes]:
        """Returns the records from the position up to the first free one, once they are durable."""
        first = self._read(position)
        if first is None:
            return []
        found = [first, *(self._listed(position + 1) if self._files.is_remote else ())]
        while (data := self._read(position + len(found))) is not None:
            found.append(data)
        # A record is visible before its name is durable. A power cut could take it back: nobody may act on it before.
        self._files.sync(_RECORDS)
        return found

    def floor_bytes(self) -> bytes | None:
        """Returns the floor with the highest position; None if none was ever raised."""
        while True:
            newest = max(_positions(self._files, _FLOORS), default=None)
            if newest is None:
                return None
            if newest != self._read_floor[0]:
                data = self._files.read(f"{_FLOORS}/{record_name(newest)}")
                if data is not None:  # else it was deleted since, because there is a higher one
                    self._files.sync(_FLOORS)
                    self._read_floor = newest, data
            if newest == self._read_floor[0]:
                return self._read_floor[1]

    def raise_floor_bytes(self, position: int, data: bytes) -> None:
        """Adds a floor, durably. A floor is never lowered: a lower one that arrives late changes nothing."""
        self._put(_FLOORS, position, data)

    def delete_below(self, position: int) -> None:
        """Deletes records below the position, and floors below the highest."""
        highest = max(_positions(self._files, _FLOORS), default=0)
        for folder, limit in ((_RECORDS, position), (_FLOORS, highest)):
            below = [one for one in _positions(self._files, folder) if one < limit]
            self._files.delete([f"{folder}/{record_name(one)}" for one in below])
            self._files.tidy(folder)

    def _put(self, folder: str, position: int, data: bytes) -> Landed | Taken:
        # A disk that was unmounted leaves an empty folder in its place: a record there would be lost with it.
        self._files.require(folder)
        return self._files.put(f"{folder}/{record_name(position)}", data)

    def _read(self, position: int) -> bytes | None:
        return self._files.read(f"{_RECORDS}/{record_name(position)}")

    def _listed(self, position: int) -> Sequence[bytes]:
        """Returns the records from the position on that a listing shows, some at once: each takes a round trip."""
        there = _positions(self._files, _RECORDS)
        wanted: list[int] = []
        while position + len(wanted) in there:
            wanted.append(position + len(wanted))
        if not wanted:
            return []
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            read = list(pool.map(self._read, wanted))
        # One that was deleted since ends what was found; the reader sees the floor that has risen.
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
            next_step="Restore the file from a copy of the checkpoint. Deleting it could double or lose a batch.",
        )

    def _too_new(self, what: str, error: Exception) -> NewerFormatError:
        return NewerFormatError(
            f"{what} of the decision log {self.location}: {error}.",
            next_step="Run the newer version of sparkonce again, or upgrade this one.",
        )


def check_whole(files: CheckpointFiles) -> None:
    """Refuses a log that lacks a record before its last one, as an incomplete copy does: it would seem to end earlier.

    Records are put one after the other, and deleted only below the floor.

    Args:
        files: The files of the checkpoint.

    Raises:
        CorruptRecordError: if a record is missing.
        OSError: if the store cannot be read.
    """
    log = files.inside(FOLDER)
    for _ in range(MOST_READS):
        floor = max(_positions(log, _FLOORS), default=0)
        there = _positions(log, _RECORDS)
        # A listing may show a record that was put meanwhile, and not the one before it.
        missing = (
            one
            for one in range(floor, max(there, default=floor))
            if one not in there and not log.exists(f"{_RECORDS}/{record_name(one)}")
        )
        if (first := next(missing, None)) is None:
            return
        if floor == max(_positions(log, _FLOORS), default=0):  # else a driver has deleted them meanwhile
            raise CorruptRecordError(
                f"The decision log of {files.location!r} has record {max(there)}, and not record {first}.",
                next_step="Restore the checkpoint and the log together, from one whole copy.",
            )


def record_name(position: int) -> str:
    """Returns the name of the file that keeps a record or a floor."""
    return f"{position:020d}"


def _positions(log: CheckpointFiles, folder: str) -> set[int]:
    return {int(name) for name in log.names(folder) if len(name) == len(record_name(0)) and name.isdigit()}
