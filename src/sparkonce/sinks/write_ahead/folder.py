"""The folder in which rows wait: on a disk, or on a store without atomic renames.

Each transaction has a state. If its rows are missing, the `Ledger` shows whether they were applied. Every folder has::

    done/NAME    a small marker: the rows were applied; their file is deleted
    identity     distinguishes this folder from another one at the same path

NAME is a `TransactionName`. Each task attempt has its own names, so no file is ever overwritten.

On a disk that the driver and all executors share, the state of a transaction is the subfolder that contains its file. A
rename moves the file to the next state atomically::

    open/NAME        being written
    prepared/NAME    sealed: its writer has closed it, and an abort may delete it
    started/NAME     a commit has begun: no abort deletes it anymore

On an object store or HDFS, a transaction's state is decided by a put that succeeds only if its name is free::

    rows/NAME    the rows, whole: put when their writer has sealed them
    fate/NAME    ``started``, put by a commit, or ``discarded``, put by an abort: only the first of them succeeds

A writer fills a temporary file on its own machine, so unsealed rows leave nothing on the store for a sweep to find. If
rows arrive on the store after they were discarded, no commit uses the rows. The rows' writer, the next sweep, or the
cleanup of the batch's markers deletes them.
"""

from __future__ import annotations

import abc
import errno
import os
import tempfile
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.write_ahead.ledger import (
    Entry,
    Ledger,
    entries_of,
    make_identity,
    put_note,
    read_identity,
    text_of,
)
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles, sync_folder

_DONE = "done"


class RowsState(str, Enum):
    """A transaction's states, in the order it passes through them."""

    OPEN = "open"
    PREPARED = "prepared"
    STARTED = "started"
    DONE = _DONE


class WriteAheadFolder(abc.ABC):
    """One sink's folder. Keeps no files open, and is pickled for the workers.

    Every method raises OSError if the folder is unreachable.
    """

    folders: Sequence[str]
    """The subfolders."""

    def __init__(self, files: CheckpointFiles, ledger: Ledger) -> None:
        self.files = files
        self.ledger = ledger

    @property
    def location(self) -> str:
        return self.files.location

    def make(self) -> None:
        """Creates the missing subfolders, the identity and the ledger."""
        for folder in ("", *self.folders):
            self.files.make(folder)
        make_identity(self.files)
        self.ledger.make()

    def identity(self) -> str:
        """Returns the identity that distinguishes this folder from others; raises OSError if the folder has none."""
        return read_identity(self.files)

    # --- a writer's -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def create(self, name: TransactionName) -> BinaryIO:
        """Creates a file that a writer can fill and read."""

    @abc.abstractmethod
    def hide(self, name: TransactionName) -> None:
        """Removes the name of a file that is being filled; the file can be used until it is closed."""

    @abc.abstractmethod
    def keep(self, name: TransactionName, file: BinaryIO) -> bool:
        """Stores a filled file durably where a driver finds it. Returns False if it has been aborted since."""

    # --- a driver's -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def take(self, name: TransactionName) -> bool:
        """Marks prepared rows as started, so that no abort can delete them. The mark is durable after `sync_taken`.

        Returns False if the rows do not exist or are in a different state.
        """

    def sync_taken(self) -> None:  # noqa: B027 - some stores have nothing to do here
        """Makes the marks of previous calls of `take` durable."""

    @abc.abstractmethod
    def find(self, name: TransactionName) -> RowsState | None:
        """Returns the state of a prepared transaction; None if its rows definitely do not exist or were discarded."""

    @abc.abstractmethod
    def discard(self, name: TransactionName) -> RowsState | None:
        """Deletes rows permanently, unless a commit has started with them. Returns their state afterward."""

    @abc.abstractmethod
    def lingering(self, wanted: Callable[[TransactionName], bool]) -> list[TransactionName]:
        """Lists which of these transactions are open, prepared, or discarded but not yet deleted."""

    @abc.abstractmethod
    def url(self, name: TransactionName, state: RowsState = RowsState.STARTED) -> str:
        """Returns the URL of rows in this state, as Spark reads them."""

    @abc.abstractmethod
    def open(self, name: TransactionName, state: RowsState = RowsState.STARTED) -> BinaryIO:
        """Opens rows in this state. Raises FileNotFoundError if they are definitely gone."""

    @abc.abstractmethod
    def delete_rows(self, entries: Sequence[Entry]) -> None:
        """Deletes rows that are recorded as applied."""

    def note_done(self, entries: Sequence[Entry]) -> None:
        """Durably records that the rows of these entries, of one call, were applied. The first entry names the call."""
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
        """Deletes the markers and notes of a query's batches up to this one, after recording that they may be gone."""
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


class DiskFolder(WriteAheadFolder):
    """The folder on a disk that the driver and all executors share."""

    folders = tuple(state.value for state in RowsState)

    def __init__(self, root: Path, ledger: Ledger) -> None:
        super().__init__(LocalFiles(root), ledger)
        self.root = root

    def path(self, state: RowsState, name: TransactionName) -> Path:
        return self.root / state.value / str(name)

    def create(self, name: TransactionName) -> BinaryIO:
        return create_file(self.path(RowsState.OPEN, name))

    def hide(self, name: TransactionName) -> None:
        self.path(RowsState.OPEN, name).unlink(missing_ok=True)

    def keep(self, name: TransactionName, file: BinaryIO) -> bool:
        os.fsync(file.fileno())
        moved = self._move(name, RowsState.OPEN, RowsState.PREPARED)
        sync_folder(self.root / RowsState.PREPARED.value)
        return moved

    def take(self, name: TransactionName) -> bool:
        return self._move(name, RowsState.PREPARED, RowsState.STARTED)

    def sync_taken(self) -> None:
        sync_folder(self.root / RowsState.STARTED.value)

    def find(self, name: TransactionName) -> RowsState | None:
        # Check the states in the order in which a file passes through them, so that a file that moves on meanwhile is
        # found in its next state.
        states = (RowsState.PREPARED, RowsState.STARTED, RowsState.DONE)
        for state in states:
            if _exists(self.path(state, name)):
                return state
        # Also list the folders, because a network file system may cache for a while that a name does not exist.
        return next((state for state in states if str(name) in os.listdir(self.root / state.value)), None)  # noqa: PTH208

    def discard(self, name: TransactionName) -> RowsState | None:
        # Delete the open file first: a paused writer that continues cannot prepare a file that is no longer open.
        for state in (RowsState.OPEN, RowsState.PREPARED):
            self.path(state, name).unlink(missing_ok=True)
        return self.find(name)

    def lingering(self, wanted: Callable[[TransactionName], bool]) -> list[TransactionName]:
        names = [name for state in (RowsState.OPEN, RowsState.PREPARED) for name in self.names(state.value)]
        return [name for name in names if wanted(name)]

    def url(self, name: TransactionName, state: RowsState = RowsState.STARTED) -> str:
        """Returns a URL that names this disk, not the cluster's default file system."""
        return f"file://{self.path(state, name)}"

    def open(self, name: TransactionName, state: RowsState = RowsState.STARTED) -> BinaryIO:
        path = self.path(state, name)
        try:  # Network file systems only lock files that are open for writing.
            return path.open("r+b")
        except PermissionError:
            return path.open("rb")

    def delete_rows(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.path(RowsState.STARTED, entry.name).unlink(missing_ok=True)

    def _move(self, name: TransactionName, before: RowsState, after: RowsState) -> bool:
        try:
            self.path(before, name).rename(self.path(after, name))
        except FileNotFoundError:
            return False
        return True


def create_file(path: Path) -> BinaryIO:
    """Creates a file, which must not exist yet, for writing and reading."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640), "w+b")


def _exists(path: Path) -> bool:
    try:  # In some versions of Python, Path.exists returns False for a broken disk.
        path.stat()
    except FileNotFoundError:
        return False
    return True


_ROWS, _FATE = "rows", "fate"
_STARTED, _DISCARDED = b"started", b"discarded"


class StoredFolder(WriteAheadFolder):
    """The folder on an object store or HDFS."""

    folders = (_ROWS, _FATE, RowsState.DONE.value)

    def create(self, name: TransactionName) -> BinaryIO:  # noqa: ARG002 - it needs no name yet
        return tempfile.TemporaryFile("w+b", prefix="sparkonce-")

    def hide(self, name: TransactionName) -> None:
        """Does nothing, because the file has no name."""

    def keep(self, name: TransactionName, file: BinaryIO) -> bool:
        file.seek(0)
        self.files.put_large(_rows(name), file)
        # Check for an abort after the put. If the abort is not visible here, it comes after the put, and deletes the
        # rows.
        if self._fate(name) != _DISCARDED:
            return True
        self.files.delete([_rows(name)])
        return False

    def take(self, name: TransactionName) -> bool:
        # Do not mark missing rows as started: rows without a mark count as lost.
        return self.files.exists(_rows(name)) and put_note(self.files, _fate_of(name), _STARTED)

    def find(self, name: TransactionName) -> RowsState | None:
        # Read the mark last: a process that deletes the rows puts its mark first.
        if self.files.exists(_rows(name)):
            fate = self._fate(name)
            if fate != _DISCARDED:
                return RowsState.PREPARED if fate is None else RowsState.STARTED
        return RowsState.DONE if self.done(name) else None

    def discard(self, name: TransactionName) -> RowsState | None:
        if put_note(self.files, _fate_of(name), _DISCARDED) or self._fate(name) == _DISCARDED:
            self.files.delete([_rows(name)])
        return self.find(name)

    def lingering(self, wanted: Callable[[TransactionName], bool]) -> list[TransactionName]:
        return [name for name in self.names(_ROWS) if wanted(name) and self._fate(name) != _STARTED]

    def url(self, name: TransactionName, state: RowsState = RowsState.STARTED) -> str:  # noqa: ARG002
        """Returns the URL of the rows, which stay where they are in all states."""
        return f"{self.location}/{_rows(name)}"

    def open(self, name: TransactionName, state: RowsState = RowsState.STARTED) -> BinaryIO:  # noqa: ARG002
        """Opens the rows, which stay where they are in all states."""
        file = self.files.open(_rows(name))
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url(name))
        return file

    def delete_rows(self, entries: Sequence[Entry]) -> None:
        self.files.delete(_rows(entry.name) for entry in entries)
        # The marks are no longer needed, because the ledger and the ``done`` marker record the same.
        self.files.delete(_fate_of(entry.name) for entry in entries)

    def forget(self, query: str, up_to: int) -> None:
        """Also deletes rows and fates that killed processes have left behind."""
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
