"""The ledger: durable notes that tell an applied file from a lost one. It is in the checkpoint, wherever rows wait.

A file may be missing because its rows were applied. So a commit notes its files here before it calls the function, and
only a missing file without such a note counts as lost::

    begun/QUERY.BATCH.NUMBER  the files that a commit was about to give to the function, see `Ledger.begin`
    forgotten/QUERY           the last batch of a query whose notes and markers were deleted
    identity                  tells this ledger from another one in its place
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from sparkonce.durable import delete_stale_temporaries, make_folder, sync_folder, temporary_file
from sparkonce.protocol.plain import read_json
from sparkonce.sinks.write_ahead.entry import Entry

_IDENTITY = "identity"
_BEGUN = "begun"
_FORGOTTEN = "forgotten"


class Ledger:
    """One sink's notes. Holds nothing open.

    Every method raises OSError if the ledger cannot be read or written, and if it is missing: a missing ledger is never
    taken for an empty one.

    Args:
        root: The path of its folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self) -> None:
        """Makes the folders that are missing."""
        for folder in (self.root, self.root / _BEGUN, self.root / _FORGOTTEN):
            make_folder(folder)
        make_identity(self.root)

    def identity(self) -> str:
        """Returns the identity that tells this ledger from another."""
        return read_identity(self.root)

    def begun(self, query: str, batch: int) -> list[list[Entry]]:
        """Returns the groups of files that commits of a batch have begun with, in the order of their begin."""
        found: list[list[Entry]] = []
        while True:
            path = self._path(query, batch, len(found))
            try:
                found.append(entries_of(path))
            except FileNotFoundError:
                # A network file system may remember for a while that a name was not there.
                if path.name in os.listdir(path.parent):  # noqa: PTH208
                    raise
                return found

    def begin(self, query: str, batch: int, number: int, entries: Sequence[Entry]) -> bool:
        """Notes durably that a commit begins with these files, a group that never changes.

        The groups of a batch are a short log: each is put once, under the first free number. So a transaction is in one
        group, whichever driver commits it.

        Returns:
            False if there is a group of this number already.
        """
        try:
            put(self._path(query, batch, number), text_of(entries))
        except FileExistsError:
            return False
        return True

    def forgotten_up_to(self, query: str) -> int:
        """Returns the last batch whose notes or markers may be gone; -1 if there is none.

        Raises:
            OSError: also if the note is damaged, which does not mean that nothing is forgotten.
        """
        there = os.listdir(self.root / _FORGOTTEN)  # noqa: PTH208
        if query not in there:
            return -1
        try:
            return int((self.root / _FORGOTTEN / query).read_text())
        except ValueError as error:
            raise OSError(f"{self.root / _FORGOTTEN / query} does not contain a batch's number: {error}") from error

    def begin_to_forget(self, query: str, up_to: int) -> None:
        """Notes durably, before anything is deleted, that batches up to this one are forgotten."""
        put(self.root / _FORGOTTEN / query, str(up_to).encode(), overwrite=True)

    def forget(self, query: str, up_to: int) -> None:
        """Deletes the notes of batches up to this one."""
        for path in (self.root / _BEGUN).glob(f"{query}.*.*"):
            if int(path.name.split(".")[1]) <= up_to:
                path.unlink(missing_ok=True)
        for folder in (self.root, self.root / _BEGUN, self.root / _FORGOTTEN):
            delete_stale_temporaries(folder)

    def _path(self, query: str, batch: int, number: int) -> Path:
        return self.root / _BEGUN / f"{query}.{batch}.{number}"


def text_of(entries: Iterable[Entry]) -> bytes:
    """Returns entries as a small file keeps them."""
    return json.dumps([entry.fields() for entry in entries]).encode()


def entries_of(path: Path) -> list[Entry]:
    """Reads the entries of such a file.

    Raises:
        OSError: also if it is damaged or of another version, which does not mean that it names nothing.
    """
    try:
        found = read_json(path.read_bytes())
        if not isinstance(found, list):
            raise TypeError("It is no list.")
        entries = [Entry.of_fields(fields) for fields in found]
    except (ValueError, TypeError, AttributeError) as error:
        raise OSError(f"{path} is damaged: {error}") from error
    if None in entries:
        raise OSError(f"{path} has entries that this version does not know: it is damaged, or of another version")
    return [entry for entry in entries if entry is not None]


def make_identity(folder: Path) -> None:
    """Gives a folder an identity, durably, if it has none."""
    with suppress(FileExistsError):
        put(folder / _IDENTITY, secrets.token_hex(8).encode())


def read_identity(folder: Path) -> str:
    """Returns the identity that tells a folder from another.

    Raises:
        OSError: if it is not there.
    """
    return (folder / _IDENTITY).read_text()


def put(path: Path, data: bytes, *, overwrite: bool = False) -> None:
    """Puts a small file in one step, durably.

    Raises:
        FileExistsError: if there is one already, which is then durable, unless it is to be overwritten.
    """
    with temporary_file(path.parent, data) as temporary:
        try:
            if overwrite:
                temporary.rename(path)
            else:
                os.link(temporary, path)
        finally:
            sync_folder(path.parent)
