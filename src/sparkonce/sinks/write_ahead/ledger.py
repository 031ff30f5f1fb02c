"""The ledger: durable notes in the checkpoint that distinguish files whose rows were applied from lost files.

A file is deleted once its rows are applied, so a missing file may have been applied or lost. To tell which, a commit
records its files here before it calls the function: only a missing file without a note counts as lost. The ledger
contains::

    begun/QUERY.BATCH.NUMBER  files that a commit was about to pass to the function (`Ledger.begin`), or that no commit
                              ever will (`Ledger.give_up`)
    forgotten/QUERY           the last batch of a query whose notes and markers were deleted
    identity                  distinguishes this ledger from another one at the same path
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from sparkonce.protocol.codec import read_json
from sparkonce.protocol.handles import Handle, Scalar
from sparkonce.protocol.ownership import TransactionName
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError

_IDENTITY = "identity"
_BEGUN = "begun"
_FORGOTTEN = "forgotten"
LOST = b"lost "
"""The prefix of a note about files that no commit will ever pass to the function."""


@dataclass(frozen=True, slots=True)
class Group:
    """The files of one note. No commit will ever pass lost files to the function; for others, one has started to."""

    entries: list[Entry]
    is_lost: bool


class Ledger:
    """One sink's notes. Keeps no files open.

    Every method raises OSError if the ledger cannot be read or written, or is missing: a missing ledger is never
    treated as an empty one.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self.files = files

    def make(self) -> None:
        for folder in ("", _BEGUN, _FORGOTTEN):
            self.files.make(folder)
        make_identity(self.files)

    def identity(self) -> str:
        return read_identity(self.files)

    def begun(self, query: str, batch: int) -> list[list[Entry]]:
        """Returns the files that commits of a batch have started with, by the number of their group."""
        return [[] if group.is_lost else group.entries for group in self.groups(query, batch)]

    def groups(self, query: str, batch: int) -> list[Group]:
        """Returns a batch's groups of files, in the order of their notes."""
        found: list[Group] = []
        while True:
            path = _begun(query, batch, len(found))
            data = self.files.read(path)
            if data is None:
                # A network file system may cache for a while that a name does not exist.
                if path.rpartition("/")[2] not in self._names(_BEGUN):
                    return found
                if (data := self.files.read(path)) is None:
                    raise _missing(self.files, path)
            entries = entries_of(data.removeprefix(LOST), f"{self.files.location}/{path}")
            found.append(Group(entries, data.startswith(LOST)))

    def begin(self, query: str, batch: int, number: int, entries: Sequence[Entry]) -> bool:
        """Durably records that a commit starts with these files, a group that never changes.

        The groups of a batch form a short log: each group is recorded once, under the first free number. Each
        transaction is therefore in a single group, no matter which driver commits it. Returns False if the number is
        taken.
        """
        return put_note(self.files, _begun(query, batch, number), text_of(entries))

    def give_up(self, query: str, batch: int, number: int, entries: Sequence[Entry]) -> bool:
        """Durably records that no commit will ever start with these files, which form a group, like those of `begin`.

        Returns False if a group with this number already exists.
        """
        return put_note(self.files, _begun(query, batch, number), LOST + text_of(entries))

    def forgotten_up_to(self, query: str) -> int:
        """Returns the last batch whose notes or markers may be gone; -1 if there is none.

        Raises:
            OSError: If the note cannot be read. A damaged note is never treated as a missing one.
        """
        if query not in self._names(_FORGOTTEN):
            return -1
        path = f"{_FORGOTTEN}/{query}"
        data = self.files.read(path)
        if data is None:
            raise _missing(self.files, path)
        try:
            return int(data)
        except ValueError as error:
            raise OSError(f"{self.files.location}/{path} does not contain a batch's number: {error}") from error

    def begin_to_forget(self, query: str, up_to: int) -> None:
        """Durably records, before anything is deleted, that batches up to this one are forgotten."""
        self.files.require(_FORGOTTEN)
        self.files.replace(f"{_FORGOTTEN}/{query}", str(up_to).encode())

    def forget(self, query: str, up_to: int) -> None:
        parts = {name: name.split(".") for name in self._names(_BEGUN)}
        old = (name for name, (whose, batch, *_) in parts.items() if whose == query and int(batch) <= up_to)
        self.files.delete(f"{_BEGUN}/{name}" for name in old)
        for folder in ("", _BEGUN, _FORGOTTEN):
            self.files.tidy(folder)

    def _names(self, folder: str) -> Sequence[str]:
        names = self.files.names(folder)
        if not names:
            # An empty listing may also mean that the ledger is unreachable.
            self.files.require(folder)
            self.identity()
        return names


def _begun(query: str, batch: int, number: int) -> str:
    return f"{_BEGUN}/{query}.{batch}.{number}"


def text_of(entries: Iterable[Entry]) -> bytes:
    """Returns entries as the contents of a small file."""
    return json.dumps([entry.fields() for entry in entries]).encode()


def entries_of(data: bytes, where: str) -> list[Entry]:
    """Parses the result of `text_of`. Raises OSError for damaged data and for a different version."""
    try:
        found = read_json(data)
        if not isinstance(found, list):
            raise TypeError("It is not a list.")
        entries = [Entry.of_fields(fields) for fields in found]
    except (ValueError, TypeError, AttributeError) as error:
        raise OSError(f"{where} is damaged: {error}") from error
    if None in entries:
        raise OSError(f"{where} has entries that this version does not know: it is damaged, or of another version")
    return [entry for entry in entries if entry is not None]


def make_identity(files: CheckpointFiles) -> None:
    """Durably gives a folder an identity, if it has none."""
    put_note(files, _IDENTITY, secrets.token_hex(8).encode())


def read_identity(files: CheckpointFiles) -> str:
    """Returns the identity that distinguishes a folder from others; raises OSError if there is none."""
    data = files.read(_IDENTITY)
    if data is None:
        raise _missing(files, _IDENTITY)
    return data.decode()


def put_note(files: CheckpointFiles, path: str, data: bytes) -> bool:
    """Creates a small file durably. Returns False if the file already exists, in which case it is durable, too.

    Raises:
        OSError: If the file could not be created, or if it is unknown whether it was.
    """
    # Do not recreate a missing folder: perhaps its disk is only unmounted.
    files.require(path.rpartition("/")[0])
    try:
        return isinstance(files.put(path, data), Landed)
    except PutUnknownError as error:
        raise OSError(errno.ETIMEDOUT, f"It is not known whether it was put: {error}", path) from error


def _missing(files: CheckpointFiles, path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{files.location}/{path}")


FIELDS = frozenset({"name", "size_bytes", "checksum", "identity", "begun_ms", "parts"})
"""The fields of a handle. A handle may lack ``parts``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of rows.

    Attributes:
        name: The transaction's name.
        size_bytes: The size of the file.
        checksum: The checksum of the file, see `rows.check`.
        identity: The identity of the folder that the file was written to.
        begun_ms: When the file was started, in milliseconds since the epoch, by the executor's clock.
        parts: The number of rows for each part of the target, as text; empty if the target has no parts.
    """

    name: TransactionName
    size_bytes: int
    checksum: str
    identity: str
    begun_ms: int
    parts: str = ""

    def fields(self) -> dict[str, Scalar]:
        fields = {**asdict(self), "name": str(self.name)}
        return fields if self.parts else {name: one for name, one in fields.items() if name != "parts"}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Scalar]) -> Entry | None:
        """Returns the entry, or None if the fields do not form an entry."""
        name = TransactionName.parse(str(fields.get("name", "")))
        if name is None or set(fields) | {"parts"} != FIELDS:
            return None
        return cls(
            name=name,
            size_bytes=int(fields["size_bytes"]),
            checksum=str(fields["checksum"]),
            identity=str(fields["identity"]),
            begun_ms=int(fields["begun_ms"]),
            parts=str(fields.get("parts", "")),
        )

    @classmethod
    def of_handle(cls, handle: Handle) -> Entry | None:
        """Returns the entry, or None if the handle belongs to another sink."""
        return cls.of_fields(dict(handle.transaction))
