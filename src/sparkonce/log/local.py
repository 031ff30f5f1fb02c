"""The decision log on a local or mounted POSIX disk.

Layout, under ``<checkpoint>/sparkonce``::

    records/00000000000000000007    one file a record
    floors/00000000000000000000     one file a floor, all but the highest deleted in time
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sparkonce.log.base import FOLDER, LogStore, record_name
from sparkonce.storage.files import Landed, Taken
from sparkonce.storage.local import delete_stale_temporaries, make_folder, put_by_link, sync_folder

_NAME = re.compile("[0-9]{20}")


class LocalLogStore(LogStore):
    """A `LogStore` in a folder.

    Args:
        checkpoint: Spark's checkpoint folder; the log is kept in its subfolder ``sparkonce``.
        make: False for readers, which make no folder that is missing.

    Raises:
        OSError: if the folder cannot be made.
    """

    def __init__(self, checkpoint: Path, *, make: bool = True) -> None:
        self._folder = checkpoint / FOLDER
        self._records = self._folder / "records"
        self._floors = self._folder / "floors"
        self._read_floor = -1, b""
        if not make or (self._records.is_dir() and self._floors.is_dir()):
            return
        for folder in (self._folder, self._records, self._floors):
            make_folder(folder)

    @property
    def location(self) -> str:
        """The folder of the log, with links followed."""
        return str(self._folder.resolve())

    def put(self, position: int, data: bytes) -> Landed | Taken:
        """See `LogStore.put`."""
        return self._put(self._records, position, data)

    def read(self, position: int) -> Sequence[bytes]:
        """See `LogStore.read`."""
        found: list[bytes] = []
        with suppress(FileNotFoundError):
            while True:
                found.append(_path(self._records, position + len(found)).read_bytes())
        # A record is visible before its name is durable. A power cut could take it back: nobody may act on it before.
        if found:
            sync_folder(self._records)
        return found

    def floor(self) -> bytes | None:
        """See `LogStore.floor`."""
        while True:
            newest = max(self._names(self._floors), default=None)
            if newest is None:
                return None
            if newest != self._read_floor[0]:
                with suppress(FileNotFoundError):  # deleted since, because there is a higher one
                    data = _path(self._floors, newest).read_bytes()
                    sync_folder(self._floors)
                    self._read_floor = newest, data
            if newest == self._read_floor[0]:
                return self._read_floor[1]

    def raise_floor(self, position: int, data: bytes) -> None:
        """See `LogStore.raise_floor`."""
        self._put(self._floors, position, data)

    def delete_below(self, position: int) -> None:
        """See `LogStore.delete_below`."""
        highest = max(self._names(self._floors), default=0)
        for folder, limit in ((self._records, position), (self._floors, highest)):
            for name in self._names(folder):
                if name < limit:
                    _path(folder, name).unlink(missing_ok=True)
            delete_stale_temporaries(folder)

    def _put(self, folder: Path, position: int, data: bytes) -> Landed | Taken:
        return put_by_link(_path(folder, position), data)

    @staticmethod
    def _names(folder: Path) -> list[int]:
        with suppress(FileNotFoundError):
            return [int(entry.name) for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]
        return []


def _path(folder: Path, position: int) -> Path:
    return folder / record_name(position)
