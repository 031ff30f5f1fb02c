"""Where each file of rows stands, on a disk that the driver and all executors see.

The subfolder that a transaction's file is in is its state, and a rename from one to the next is atomic::

    open/NAME        being written
    prepared/NAME    sealed: its writer has let go of it, and an abort may delete it
    started/NAME     a commit of it has begun: no abort touches it any more
    done/NAME        a small marker: the rows were applied; their file is deleted
    groups/…         which files were given to the function in one call, see `Groups`
    identity         tells this folder from another one that is mounted in its place
    forgotten/QUERY  up to which batch the markers of a query were tidied away

NAME is a `TransactionName`. Nothing is overwritten: a name belongs to one copy of one slot.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from sparkonce.durable import delete_stale_temporaries, sync_folder, temporary_file
from sparkonce.protocol.handles import Handle, Scalar
from sparkonce.protocol.ownership import TransactionName

_IDENTITY = "identity"
_GROUPS = "groups"
_FORGOTTEN = "forgotten"


class Stand(str, Enum):
    """Where a transaction stands; the value is the subfolder's name, and the order is the one it goes through them."""

    OPEN = "open"
    PREPARED = "prepared"
    STARTED = "started"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a handle says about a file of rows.

    Attributes:
        name: The transaction's.
        size_bytes: How long the file is.
        checksum: See `rows.check`.
        identity: Of the folder that it was written to.
        begun_ms: When, in milliseconds since the epoch, by the executor's clock.
    """

    name: TransactionName
    size_bytes: int
    checksum: str
    identity: str
    begun_ms: int

    def fields(self) -> dict[str, Scalar]:
        """As a handle keeps them."""
        return {**asdict(self), "name": str(self.name)}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Scalar]) -> Entry | None:
        """The entry, or None if these are not the fields of one."""
        name = TransactionName.parse(str(fields.get("name", "")))
        if name is None or set(fields) != {"name", "size_bytes", "checksum", "identity", "begun_ms"}:
            return None
        return cls(
            name=name,
            size_bytes=int(fields["size_bytes"]),
            checksum=str(fields["checksum"]),
            identity=str(fields["identity"]),
            begun_ms=int(fields["begun_ms"]),
        )

    @classmethod
    def of_handle(cls, handle: Handle) -> Entry | None:
        """The entry, or None if the handle is none of ours."""
        return cls.of_fields(dict(handle.transaction))


class WriteAheadFolder:
    """One sink's folder. Holds nothing open; pickled to the workers.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self) -> str:
        """Makes what is missing, and returns the folder's identity.

        Raises:
            OSError: if it cannot be made or written to.
        """
        for name in (*(stand.value for stand in Stand), _GROUPS, _FORGOTTEN):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            put(self.root / _IDENTITY, secrets.token_hex(8).encode())
        for folder in (self.root, self.root.parent):
            sync_folder(folder)
        return self.identity()

    def identity(self) -> str:
        """What tells this folder from another.

        Raises:
            OSError: if it is not there.
        """
        return (self.root / _IDENTITY).read_text()

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
            put(path, json.dumps([entry.fields() for entry in entries]).encode())

    def done(self, name: TransactionName) -> list[Entry]:
        """What was applied in one call, by its first's name; nothing if there is no such marker."""
        try:
            told = json.loads(self.path(Stand.DONE, name).read_text())
        except FileNotFoundError:
            return []
        return [entry for fields in told if (entry := Entry.of_fields(fields)) is not None]

    def delete_rows(self, entries: Sequence[Entry]) -> None:
        """Deletes files whose rows are noted as applied."""
        for entry in entries:
            self.path(Stand.STARTED, entry.name).unlink(missing_ok=True)

    # --- tidying ----------------------------------------------------------------------------------------------------

    def forgotten_up_to(self, query: str) -> int:
        """The last batch whose markers may be gone; -1 if there is none."""
        try:
            return int((self.root / _FORGOTTEN / query).read_text())
        except FileNotFoundError:
            return -1

    def forget(self, query: str, up_to: int) -> None:
        """Deletes the markers of a query's batches up to this one, and says first that it does."""
        if up_to <= self.forgotten_up_to(query):
            return
        put(self.root / _FORGOTTEN / query, str(up_to).encode(), overwrite=True)
        for name in self.names(Stand.DONE):
            if name.query == query and name.batch <= up_to:
                self.path(Stand.DONE, name).unlink(missing_ok=True)
        Groups(self, query).forget(up_to)
        for folder in (self.root, *(self.root / one for one in (Stand.DONE.value, _GROUPS, _FORGOTTEN))):
            delete_stale_temporaries(folder)


class Groups:
    """Which transactions are given to the function in one call: the same ones again, whatever happens in between.

    A short log for each batch, ``groups/QUERY.BATCH.NUMBER``, of which each record is put once, under the first free
    number: a transaction is in one group for ever, whoever commits it, and with whichever others.

    Args:
        folder: The sink's.
        query: The short form of the query's id.
    """

    def __init__(self, folder: WriteAheadFolder, query: str) -> None:
        self._folder = folder.root / _GROUPS
        self._query = query

    def read(self, batch: int) -> list[list[Entry]]:
        """The batch's groups, in the order in which they were formed."""
        groups: list[list[Entry]] = []
        with suppress(FileNotFoundError):
            while True:
                told = json.loads(self._path(batch, len(groups)).read_text())
                groups.append([entry for fields in told if (entry := Entry.of_fields(fields)) is not None])
        return groups

    def has(self, batch: int, number: int) -> bool:
        """Whether there is a group of this number, also where a file system remembers that there was none."""
        return self._path(batch, number).name in os.listdir(self._folder)  # noqa: PTH208

    def form(self, batch: int, number: int, entries: Sequence[Entry]) -> bool:
        """Makes a group of these, if it can be the batch's group of this number. False if there is one already."""
        try:
            put(self._path(batch, number), json.dumps([entry.fields() for entry in entries]).encode())
        except FileExistsError:
            return False
        return True

    def forget(self, up_to: int) -> None:
        """Deletes those of batches up to this one."""
        for path in self._folder.glob(f"{self._query}.*.*"):
            if int(path.name.split(".")[1]) <= up_to:
                path.unlink(missing_ok=True)

    def _path(self, batch: int, number: int) -> Path:
        return self._folder / f"{self._query}.{batch}.{number}"


def put(path: Path, data: bytes, *, overwrite: bool = False) -> None:
    """Puts a small file in one step, durably.

    Raises:
        FileExistsError: if there is one and it is not to be overwritten; that one is durable then.
    """
    with temporary_file(path.parent, data) as temporary:
        try:
            if overwrite:
                temporary.rename(path)
            else:
                os.link(temporary, path)
        finally:
            sync_folder(path.parent)


def _exists(path: Path) -> bool:
    """As `Path.exists`, which takes a broken disk for an absent file in some versions of Python."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True
