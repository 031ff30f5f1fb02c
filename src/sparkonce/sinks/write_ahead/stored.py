"""Rows that wait on a store without atomic renames: an object store, or HDFS.

A put that lands only if there is none of its name decides a transaction's state::

    rows/NAME    the rows, whole: put when their writer has sealed them
    fate/NAME    `started` by a commit that begins, or `discarded` by an abort: the first one stands

A writer fills a temporary file of its own machine. So rows that are not sealed leave nothing on the store, and no sweep
sees them. Rows that are put late, after their fate, are not touched by any commit: they are deleted by their writer,
by the next sweep, or with their batch's markers.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import BinaryIO

from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.write_ahead.entry import Entry
from sparkonce.sinks.write_ahead.folder import RowsState, WriteAheadFolder
from sparkonce.sinks.write_ahead.ledger import put_note

_ROWS, _FATE = "rows", "fate"
_STARTED, _DISCARDED = b"started", b"discarded"


class StoredFolder(WriteAheadFolder):
    """See `WriteAheadFolder`."""

    folders = (_ROWS, _FATE, RowsState.DONE.value)

    def create(self, name: TransactionName) -> BinaryIO:  # noqa: ARG002 - it needs no name yet
        """See `WriteAheadFolder.create`."""
        return tempfile.TemporaryFile("w+b", prefix="sparkonce-")

    def hide(self, name: TransactionName) -> None:
        """See `WriteAheadFolder.hide`. The file has no name."""

    def keep(self, name: TransactionName, file: BinaryIO) -> bool:
        """See `WriteAheadFolder.keep`."""
        file.seek(0)
        self.files.put_large(_rows(name), file)
        # After the put: either this sees the abort, or the abort's delete sees the rows.
        if self._fate(name) != _DISCARDED:
            return True
        self.files.delete([_rows(name)])
        return False

    def take(self, name: TransactionName) -> bool:
        """See `WriteAheadFolder.take`."""
        # Rows that are gone are not taken: without a fate they count as lost, and not as begun with.
        return self.files.exists(_rows(name)) and put_note(self.files, _fate_of(name), _STARTED)

    def find(self, name: TransactionName) -> RowsState | None:
        """See `WriteAheadFolder.find`."""
        # The marker last: rows that are deleted meanwhile have one.
        if self.files.exists(_rows(name)):
            fate = self._fate(name)
            if fate != _DISCARDED:
                return RowsState.PREPARED if fate is None else RowsState.STARTED
        return RowsState.DONE if self.done(name) else None

    def discard(self, name: TransactionName) -> RowsState | None:
        """See `WriteAheadFolder.discard`."""
        if put_note(self.files, _fate_of(name), _DISCARDED) or self._fate(name) == _DISCARDED:
            self.files.delete([_rows(name)])
        return self.find(name)

    def lingering(self, wanted: Callable[[TransactionName], bool]) -> list[TransactionName]:
        """See `WriteAheadFolder.lingering`."""
        return [name for name in self.names(_ROWS) if wanted(name) and self._fate(name) != _STARTED]

    def url(self, name: TransactionName, state: RowsState = RowsState.STARTED) -> str:  # noqa: ARG002
        """See `WriteAheadFolder.url`. Rows stay where they are in all states."""
        return f"{self.location}/{_rows(name)}"

    def open(self, name: TransactionName, state: RowsState = RowsState.STARTED) -> BinaryIO:  # noqa: ARG002
        """See `WriteAheadFolder.open`. Rows stay where they are in all states."""
        file = self.files.open(_rows(name))
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url(name))
        return file

    def delete_rows(self, entries: Sequence[Entry]) -> None:
        """See `WriteAheadFolder.delete_rows`."""
        self.files.delete(_rows(entry.name) for entry in entries)
        # From here on the ledger and the marker say the same.
        self.files.delete(_fate_of(entry.name) for entry in entries)

    def forget(self, query: str, up_to: int) -> None:
        """See `WriteAheadFolder.forget`. Deletes also rows and fates that killed processes have left."""
        super().forget(query, up_to)
        for folder in (_ROWS, _FATE):
            self._forget(query, up_to, folder)
            self.files.tidy(folder)

    def _fate(self, name: TransactionName) -> bytes | None:
        fate = self.files.read(_fate_of(name))
        if fate not in (None, _STARTED, _DISCARDED):
            raise OSError(f"{self.location}/{_fate_of(name)} is damaged, or of another version: {fate[:20]!r}")
        return fate


def _rows(name: TransactionName) -> str:
    return f"{_ROWS}/{name}"


def _fate_of(name: TransactionName) -> str:
    return f"{_FATE}/{name}"
