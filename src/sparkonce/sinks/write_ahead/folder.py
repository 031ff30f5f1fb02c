"""Where each file of rows stands, on a disk that the driver and all executors see.

The subfolder that a transaction's file is in is its state, and a rename from one to the next is atomic::

    open/NAME        being written
    prepared/NAME    sealed: its writer has let go of it, and an abort may delete it
    started/NAME     a commit of it has begun: no abort touches it any more
    done/NAME        a small marker: the rows were applied; their file is deleted
    identity         tells this folder from another one that is mounted in its place

NAME is a `TransactionName`. Nothing is overwritten: a name belongs to one copy of one slot. What a file's absence means
is said by the `Ledger`.
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


class Stand(str, Enum):
    """Where a transaction stands; the value is the subfolder's name, and the order is the one it goes through them."""

    OPEN = "open"
    PREPARED = "prepared"
    STARTED = "started"
    DONE = "done"


class WriteAheadFolder:
    """One sink's folder. Holds nothing open; pickled to the workers.

    Args:
        root: The folder.
        ledger: Of the same sink.
    """

    def __init__(self, root: Path, ledger: Ledger) -> None:
        self.root = root
        self.ledger = ledger

    def make(self) -> None:
        """Makes what is missing, of the ledger too.

        Raises:
            OSError: if it cannot be made or written to.
        """
        for folder in (self.root, *(self.root / stand.value for stand in Stand)):
            make_folder(folder)
        make_identity(self.root)
        self.ledger.make()

    def identity(self) -> str:
        """What tells this folder from another.

        Raises:
            OSError: if it is not there.
        """
        return read_identity(self.root)

    def path(self, stand: Stand, name: TransactionName) -> Path:
        """Where the file is if the transaction stands there."""
        return self.root / stand.value / str(name)

    def move(self, name: TransactionName, before: Stand, after: Stand) -> bool:
        """Takes a file from one state to the next, durable after `sync`. False if it was not there."""
        try:
            self.path(before, name).rename(self.path(after, name))
        except FileNotFoundError:
            return False
        return True

    def sync(self, stand: Stand) -> None:
        """Makes durable that files stand there."""
        sync_folder(self.root / stand.value)

    def find(self, name: TransactionName) -> Stand | None:
        """Where a prepared transaction stands; None if surely nowhere.

        They go through the states in one direction, and are looked for in that direction: what moves on meanwhile is
        found further on. Before the answer is None the folders are listed: a network file system may remember for a
        while that a name was not there.

        Raises:
            OSError: if that cannot be said.
        """
        stands = (Stand.PREPARED, Stand.STARTED, Stand.DONE)
        for stand in stands:
            if _exists(self.path(stand, name)):
                return stand
        return next((stand for stand in stands if str(name) in os.listdir(self.root / stand.value)), None)  # noqa: PTH208

    def discard(self, name: TransactionName) -> Stand | None:
        """Deletes a file that no commit has begun with. Returns where it stands afterwards.

        In this order: a writer that wakes up cannot prepare what is no longer open.
        """
        for stand in (Stand.OPEN, Stand.PREPARED):
            self.path(stand, name).unlink(missing_ok=True)
        return self.find(name)

    def names(self, stand: Stand) -> list[TransactionName]:
        """All that stand there."""
        found = (TransactionName.parse(text) for text in os.listdir(self.root / stand.value))  # noqa: PTH208
        return [name for name in found if name is not None]

    def note_done(self, entries: Sequence[Entry]) -> None:
        """Notes durably that these entries' rows, given in one call, were applied. Their first names the call."""
        path = self.path(Stand.DONE, entries[0].name)
        with suppress(FileExistsError):
            put(path, text_of(entries))

    def done(self, name: TransactionName) -> list[Entry]:
        """What was applied in one call, by its first's name; nothing if there is no such marker."""
        try:
            return entries_of(self.path(Stand.DONE, name))
        except FileNotFoundError:
            return []

    def delete_rows(self, entries: Sequence[Entry]) -> None:
        """Deletes files whose rows are noted as applied."""
        for entry in entries:
            self.path(Stand.STARTED, entry.name).unlink(missing_ok=True)

    def forget(self, query: str, up_to: int) -> None:
        """Deletes what is kept of a query's batches up to this one, and says first that it does."""
        self.ledger.begin_to_forget(query, up_to)
        for name in self.names(Stand.DONE):
            if name.query == query and name.batch <= up_to:
                self.path(Stand.DONE, name).unlink(missing_ok=True)
        self.ledger.forget(query, up_to)
        for folder in (self.root, self.root / Stand.DONE.value):
            delete_stale_temporaries(folder)


def _exists(path: Path) -> bool:
    """As `Path.exists`, which takes a broken disk for an absent file in some versions of Python."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True
