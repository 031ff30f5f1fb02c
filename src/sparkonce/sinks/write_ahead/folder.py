"""The files of rows, on a disk that the driver and all executors see.

The subfolder of a transaction's file is its state, and a rename from one to the next is atomic::

    open/NAME        being written
    prepared/NAME    sealed: its writer has let go of it, and an abort may delete it
    started/NAME     a commit of it has begun: no abort touches it any more
    done/NAME        a small marker: the rows were applied; their file is deleted
    identity         tells this folder from another one that is mounted in its place

NAME is a `TransactionName`. Nothing is overwritten: a name belongs to one copy of one slot. The `Ledger` tells what the
absence of a file means.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path

from sparkonce.durable import delete_stale_temporaries, make_folder, sync_folder
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.write_ahead.entry import Entry
from sparkonce.sinks.write_ahead.ledger import Ledger, entries_of, make_identity, put, read_identity, text_of


class RowsState(str, Enum):
    """A transaction's state, in the order in which it goes through them; the value is the subfolder's name."""

    OPEN = "open"
    PREPARED = "prepared"
    STARTED = "started"
    DONE = "done"


class WriteAheadFolder:
    """One sink's folder. Holds nothing open; pickled to the workers.

    Args:
        root: The path of the folder.
        ledger: The ledger of the same sink.
    """

    def __init__(self, root: Path, ledger: Ledger) -> None:
        self.root = root
        self.ledger = ledger

    def make(self) -> None:
        """Makes the folders that are missing, the ledger's too.

        Raises:
            OSError: if it cannot be made or written to.
        """
        for folder in (self.root, *(self.root / state.value for state in RowsState)):
            make_folder(folder)
        make_identity(self.root)
        self.ledger.make()

    def identity(self) -> str:
        """Returns the identity that tells this folder from another.

        Raises:
            OSError: if it is not there.
        """
        return read_identity(self.root)

    def path(self, state: RowsState, name: TransactionName) -> Path:
        """Returns the path of a transaction's file in this state."""
        return self.root / state.value / str(name)

    def move(self, name: TransactionName, before: RowsState, after: RowsState) -> bool:
        """Takes a file from one state to the next, durable after `sync`. False if it was not there."""
        try:
            self.path(before, name).rename(self.path(after, name))
        except FileNotFoundError:
            return False
        return True

    def sync(self, state: RowsState) -> None:
        """Makes durable which files are in this state."""
        sync_folder(self.root / state.value)

    def find(self, name: TransactionName) -> RowsState | None:
        """Returns the state of a prepared transaction; None if it surely has no file.

        Raises:
            OSError: if the state cannot be read.
        """
        # In the order of the states: a file that is moved meanwhile is found in its next one.
        states = (RowsState.PREPARED, RowsState.STARTED, RowsState.DONE)
        for state in states:
            if _exists(self.path(state, name)):
                return state
        # Listed, too: a network file system may remember for a while that a name was not there.
        return next((state for state in states if str(name) in os.listdir(self.root / state.value)), None)  # noqa: PTH208

    def discard(self, name: TransactionName) -> RowsState | None:
        """Deletes a file that no commit has begun with, and returns its state afterwards."""
        # In this order: a writer that wakes up cannot prepare a file that is no longer open.
        for state in (RowsState.OPEN, RowsState.PREPARED):
            self.path(state, name).unlink(missing_ok=True)
        return self.find(name)

    def names(self, state: RowsState) -> list[TransactionName]:
        """Lists the transactions in this state."""
        found = (TransactionName.parse(text) for text in os.listdir(self.root / state.value))  # noqa: PTH208
        return [name for name in found if name is not None]

    def note_done(self, entries: Sequence[Entry]) -> None:
        """Notes durably that the rows of these entries, of one call, were applied. The first entry names the call."""
        path = self.path(RowsState.DONE, entries[0].name)
        with suppress(FileExistsError):
            put(path, text_of(entries))

    def done(self, name: TransactionName) -> list[Entry]:
        """Returns the entries that were applied in one call, by its name; none if there is no such marker."""
        try:
            return entries_of(self.path(RowsState.DONE, name))
        except FileNotFoundError:
            return []

    def delete_rows(self, entries: Sequence[Entry]) -> None:
        """Deletes the files of rows that are noted as applied."""
        for entry in entries:
            self.path(RowsState.STARTED, entry.name).unlink(missing_ok=True)

    def forget(self, query: str, up_to: int) -> None:
        """Deletes the markers and notes of a query's batches up to this one, once it has noted that it does."""
        self.ledger.begin_to_forget(query, up_to)
        for name in self.names(RowsState.DONE):
            if name.query == query and name.batch <= up_to:
                self.path(RowsState.DONE, name).unlink(missing_ok=True)
        self.ledger.forget(query, up_to)
        for folder in (self.root, self.root / RowsState.DONE.value):
            delete_stale_temporaries(folder)


def _exists(path: Path) -> bool:
    try:  # Path.exists takes a broken disk for an absent file in some versions of Python
        path.stat()
    except FileNotFoundError:
        return False
    return True
