"""The decision log in a checkpoint that is not on a local disk, and the choice between the two stores.

The layout is the one of `sparkonce.log.local`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sparkonce.log.base import FOLDER, LogStore, record_name
from sparkonce.log.local import LocalLogStore
from sparkonce.storage.files import CheckpointFiles, Landed, Taken
from sparkonce.storage.local import LocalFiles

_RECORDS = "records"
_FLOORS = "floors"
_READ_AT_ONCE = 8


def log_store(checkpoint: CheckpointFiles, *, make: bool = True) -> LogStore:
    """Returns the store of a checkpoint's decision log. Readers make no folder that is missing.

    Raises:
        OSError: if its folder cannot be made.
    """
    if isinstance(checkpoint, LocalFiles):
        return LocalLogStore(checkpoint.folder, make=make)
    return FilesLogStore(checkpoint)


class FilesLogStore(LogStore):
    """A `LogStore` in a checkpoint's files.

    Args:
        checkpoint: The checkpoint's files; the log is kept in the subfolder ``sparkonce``.
    """

    def __init__(self, checkpoint: CheckpointFiles) -> None:
        self._files = checkpoint.inside(FOLDER)
        self._read_floor = -1, b""

    @property
    def location(self) -> str:
        """The folder of the log."""
        return self._files.location

    def put(self, position: int, data: bytes) -> Landed | Taken:
        """See `LogStore.put`."""
        return self._files.put(f"{_RECORDS}/{record_name(position)}", data)

    def read(self, position: int) -> Sequence[bytes]:
        """See `LogStore.read`."""
        first = self._record(position)
        if first is None:
            return []
        found = [first, *self._listed(position + 1)]
        while (data := self._record(position + len(found))) is not None:
            found.append(data)
        self._files.sync(_RECORDS)
        return found

    def floor(self) -> bytes | None:
        """See `LogStore.floor`."""
        while True:
            newest = max(self._positions(_FLOORS), default=None)
            if newest is None:
                return None
            if newest != self._read_floor[0]:
                data = self._files.read(f"{_FLOORS}/{record_name(newest)}")
                if data is not None:  # else it was deleted since, because there is a higher one
                    self._files.sync(_FLOORS)
                    self._read_floor = newest, data
            if newest == self._read_floor[0]:
                return self._read_floor[1]

    def raise_floor(self, position: int, data: bytes) -> None:
        """See `LogStore.raise_floor`."""
        self._files.put(f"{_FLOORS}/{record_name(position)}", data)

    def delete_below(self, position: int) -> None:
        """See `LogStore.delete_below`."""
        highest = max(self._positions(_FLOORS), default=0)
        for folder, limit in ((_RECORDS, position), (_FLOORS, highest)):
            self._files.delete([f"{folder}/{record_name(one)}" for one in self._positions(folder) if one < limit])
            self._files.tidy(folder)

    def _record(self, position: int) -> bytes | None:
        return self._files.read(f"{_RECORDS}/{record_name(position)}")

    def _listed(self, position: int) -> Sequence[bytes]:
        """Returns the records from the position on that a listing shows, some at once: each takes a round trip."""
        there = set(self._positions(_RECORDS))
        wanted: list[int] = []
        while position + len(wanted) in there:
            wanted.append(position + len(wanted))
        if not wanted:
            return []
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            read = list(pool.map(self._record, wanted))
        # One that was deleted since ends what was found; the reader sees the floor that has risen.
        return [data for number, data in enumerate(read) if data is not None and None not in read[:number]]

    def _positions(self, folder: str) -> list[int]:
        return [int(name) for name in self._files.names(folder) if len(name) == len(record_name(0)) and name.isdigit()]
