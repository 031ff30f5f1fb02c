"""The folder in which rows wait, as its two kinds have it in common.

Each transaction has a state; the `Ledger` tells what the absence of its rows means. In every folder there are::

    done/NAME    a small marker: the rows were applied; their file is deleted
    identity     tells this folder from another one in its place

NAME is a `TransactionName`. Nothing is overwritten: a name belongs to one copy of one slot.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from enum import Enum
from typing import BinaryIO

from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.write_ahead.entry import Entry
from sparkonce.sinks.write_ahead.ledger import Ledger, entries_of, make_identity, put_note, read_identity, text_of
from sparkonce.storage.files import CheckpointFiles

_DONE = "done"


class RowsState(str, Enum):
    """A transaction's state, in the order in which it goes through them."""

    OPEN = "open"
    PREPARED = "prepared"
    STARTED = "started"
    DONE = _DONE


class WriteAheadFolder(abc.ABC):
    """One sink's folder. Holds nothing open; pickled to the workers.

    Every method raises OSError if the folder cannot be asked.

    Args:
        files: The files of the folder.
        ledger: The ledger of the same sink.
    """

    folders: Sequence[str]
    """The subfolders."""

    def __init__(self, files: CheckpointFiles, ledger: Ledger) -> None:
        self.files = files
        self.ledger = ledger

    @property
    def location(self) -> str:
        """The folder's path or URL."""
        return self.files.location

    def make(self) -> None:
        """Makes what is missing, the ledger too."""
        for folder in ("", *self.folders):
            self.files.make(folder)
        make_identity(self.files)
        self.ledger.make()

    def identity(self) -> str:
        """Returns the identity that tells this folder from another. Raises OSError if it is not there."""
        return read_identity(self.files)

    # --- a writer's -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def create(self, name: TransactionName) -> BinaryIO:
        """Creates the file that a writer fills, and can read."""

    @abc.abstractmethod
    def hide(self, name: TransactionName) -> None:
        """Takes away the name of a file that is being filled; the file can be used until it is closed."""

    @abc.abstractmethod
    def keep(self, name: TransactionName, file: BinaryIO) -> bool:
        """Keeps a file that is filled, durably, where a driver finds it. False if it was aborted meanwhile."""

    # --- a driver's -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def take(self, name: TransactionName) -> bool:
        """Takes prepared rows, so that no abort can delete them; durable after `sync_taken`.

        False if they were not there, or not in this state.
        """

    def sync_taken(self) -> None:  # noqa: B027 - not every store has something to do
        """Makes durable what was taken."""

    @abc.abstractmethod
    def find(self, name: TransactionName) -> RowsState | None:
        """Returns the state of a prepared transaction; None if it surely has no rows, or they were discarded."""

    @abc.abstractmethod
    def discard(self, name: TransactionName) -> RowsState | None:
        """Deletes rows that no commit has begun with, for good, and returns their state afterwards."""

    @abc.abstractmethod
    def lingering(self, wanted: Callable[[TransactionName], bool]) -> list[TransactionName]:
        """Lists those of these transactions that are open, prepared, or discarded and not yet deleted."""

    @abc.abstractmethod
    def url(self, name: TransactionName, state: RowsState = RowsState.STARTED) -> str:
        """Returns the URL of rows in this state, as Spark reads them."""

    @abc.abstractmethod
    def open(self, name: TransactionName, state: RowsState = RowsState.STARTED) -> BinaryIO:
        """Opens rows in this state. Raises FileNotFoundError if they surely are gone."""

    @abc.abstractmethod
    def delete_rows(self, entries: Sequence[Entry]) -> None:
        """Deletes rows that are noted as applied."""

    def note_done(self, entries: Sequence[Entry]) -> None:
        """Notes durably that the rows of these entries, of one call, were applied. The first entry names the call."""
        put_note(self.files, _done(entries[0].name), text_of(entries))

    def done(self, name: TransactionName) -> list[Entry]:
        """Returns the entries that were applied in one call, by its name; none if there is no such marker."""
        data = self.files.read(_done(name))
        return [] if data is None else entries_of(data, f"{self.location}/{_done(name)}")

    def names(self, folder: str) -> list[TransactionName]:
        """Lists the transactions that have a file in a subfolder."""
        texts = self.files.names(folder)
        if not texts:
            self.files.require(folder)
        return [name for text in texts if (name := TransactionName.parse(text)) is not None]

    def forget(self, query: str, up_to: int) -> None:
        """Deletes the markers and notes of a query's batches up to this one, once it has noted that it does."""
        self.ledger.begin_to_forget(query, up_to)
        self._forget(query, up_to, _DONE)
        self.ledger.forget(query, up_to)
        for folder in ("", _DONE):
            self.files.tidy(folder)

    def _forget(self, query: str, up_to: int, folder: str) -> None:
        old = (name for name in self.names(folder) if name.query == query and name.batch <= up_to)
        self.files.delete(f"{folder}/{name}" for name in old)


def _done(name: TransactionName) -> str:
    return f"{_DONE}/{name}"
