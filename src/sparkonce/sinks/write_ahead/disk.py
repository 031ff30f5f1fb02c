"""Rows that wait on a disk which the driver and all executors see.

The subfolder of a transaction's file is its state, and a rename from one to the next is atomic::

    open/NAME        being written
    prepared/NAME    sealed: its writer has let go of it, and an abort may delete it
    started/NAME     a commit of it has begun: no abort touches it any more
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.write_ahead.entry import Entry
from sparkonce.sinks.write_ahead.folder import RowsState, WriteAheadFolder
from sparkonce.sinks.write_ahead.ledger import Ledger
from sparkonce.storage.local import LocalFiles, sync_folder


class DiskFolder(WriteAheadFolder):
    """See `WriteAheadFolder`.

    Args:
        root: The path of the folder.
        ledger: The ledger of the same sink.
    """

    folders = tuple(state.value for state in RowsState)

    def __init__(self, root: Path, ledger: Ledger) -> None:
        super().__init__(LocalFiles(root), ledger)
        self.root = root

    def path(self, state: RowsState, name: TransactionName) -> Path:
        """Returns the path of a transaction's file in this state."""
        return self.root / state.value / str(name)

    def create(self, name: TransactionName) -> BinaryIO:
        """See `WriteAheadFolder.create`."""
        return create_file(self.path(RowsState.OPEN, name))

    def hide(self, name: TransactionName) -> None:
        """See `WriteAheadFolder.hide`."""
        self.path(RowsState.OPEN, name).unlink(missing_ok=True)

    def keep(self, name: TransactionName, file: BinaryIO) -> bool:
        """See `WriteAheadFolder.keep`."""
        os.fsync(file.fileno())
        kept = self._move(name, RowsState.OPEN, RowsState.PREPARED)
        sync_folder(self.root / RowsState.PREPARED.value)
        return kept

    def take(self, name: TransactionName) -> bool:
        """See `WriteAheadFolder.take`."""
        return self._move(name, RowsState.PREPARED, RowsState.STARTED)

    def sync_taken(self) -> None:
        """See `WriteAheadFolder.sync_taken`."""
        sync_folder(self.root / RowsState.STARTED.value)

    def find(self, name: TransactionName) -> RowsState | None:
        """See `WriteAheadFolder.find`."""
        # In the order of the states: a file that is moved meanwhile is found in its next one.
        states = (RowsState.PREPARED, RowsState.STARTED, RowsState.DONE)
        for state in states:
            if _exists(self.path(state, name)):
                return state
        # Listed, too: a network file system may remember for a while that a name was not there.
        return next((state for state in states if str(name) in os.listdir(self.root / state.value)), None)  # noqa: PTH208

    def discard(self, name: TransactionName) -> RowsState | None:
        """See `WriteAheadFolder.discard`."""
        # In this order: a writer that wakes up cannot prepare a file that is no longer open.
        for state in (RowsState.OPEN, RowsState.PREPARED):
            self.path(state, name).unlink(missing_ok=True)
        return self.find(name)

    def lingering(self, wanted: Callable[[TransactionName], bool]) -> list[TransactionName]:
        """See `WriteAheadFolder.lingering`."""
        names = [name for state in (RowsState.OPEN, RowsState.PREPARED) for name in self.names(state.value)]
        return [name for name in names if wanted(name)]

    def url(self, name: TransactionName, state: RowsState = RowsState.STARTED) -> str:
        """See `WriteAheadFolder.url`. Names this disk, not the cluster's default file system."""
        return f"file://{self.path(state, name)}"

    def open(self, name: TransactionName, state: RowsState = RowsState.STARTED) -> BinaryIO:
        """See `WriteAheadFolder.open`."""
        path = self.path(state, name)
        try:  # network file systems lock only what is open for writing
            return path.open("r+b")
        except PermissionError:
            return path.open("rb")

    def delete_rows(self, entries: Sequence[Entry]) -> None:
        """See `WriteAheadFolder.delete_rows`."""
        for entry in entries:
            self.path(RowsState.STARTED, entry.name).unlink(missing_ok=True)

    def _move(self, name: TransactionName, before: RowsState, after: RowsState) -> bool:
        try:
            self.path(before, name).rename(self.path(after, name))
        except FileNotFoundError:
            return False
        return True


def create_file(path: Path) -> BinaryIO:
    """Creates a file, which must not exist, for writing and reading."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640), "w+b")


def _exists(path: Path) -> bool:
    try:  # Path.exists takes a broken disk for an absent file in some versions of Python
        path.stat()
    except FileNotFoundError:
        return False
    return True
