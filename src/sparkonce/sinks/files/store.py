"""What the files sink needs of a place for files: hold one back, publish it once, find what is held back."""

from __future__ import annotations

import abc
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO

from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName

Fields = Mapping[str, str | int]
"""What finishes one file from anywhere, as plain values.

`HeldFile.seal` gives always ``path`` (where it is to be published, relative), ``size`` (bytes) and ``checksum`` (a text
such as ``crc32:1c291ca3`` or an ETag), and beside them what the store needs, for example an upload's id.
`Held.fields` need not: of a file that was never sealed less is known.
"""

HIDDEN = ".sparkonce"
"""The folder, or prefix of keys, for what no reader is to see."""

ID = f"{HIDDEN}/id"
"""The file that tells a folder from another one at its path."""

TEMPORARY = re.compile(r"(put|id|probe)-[0-9a-f]{12}")
"""Names of what a start tries out, and of small files that are not whole yet. A kill may leave one behind."""

STALE_S = 86_400.0
"""How long a temporary file must have been there until a start deletes it: nobody can be at work on it any more."""

_SHORTEN = "Shorten the values of the columns in partition_by, or do not partition by them."
_FILE = re.compile(r"part-(?P<name>.+)-[0-9]+((\.[a-z0-9]+){1,2})", re.DOTALL)


def file_path(folder: str, name: TransactionName, number: int, extension: str) -> str:
    """Where a transaction's file is published, relative: ``<folder>/part-<name>-<number><extension>``.

    Args:
        folder: The partition, such as ``a=1/b=x``; empty if there is none.
        name: The transaction's.
        number: Of the file within the transaction, from 0: no two files of a transaction have the same.
        extension: With its dot, such as ``.parquet`` or ``.csv.gz``.
    """
    base = f"part-{name}-{number}{extension}"
    return f"{folder}/{base}" if folder else base


def check_lengths(paths: Iterable[str], longest_name: int, longest_path: int) -> None:
    """Refuses a file that could not be published when the batch is decided.

    Args:
        paths: All that it is to have, absolute.
        longest_name: How many bytes the file system allows for one name.
        longest_path: And for a whole path.

    Raises:
        PrepareError: naming the folder or file.
    """
    for path in paths:
        for name in path.split("/"):
            if (size := len(os.fsencode(name))) > longest_name:
                raise PrepareError(
                    f"A folder or file would be called {name[:60]!r}…, which has {size} bytes, and the file system "
                    f"allows {longest_name}.",
                    next_step=_SHORTEN,
                )
        if (size := len(os.fsencode(path))) > longest_path:
            raise PrepareError(
                f"The path of a file would be {path[:60]!r}…, which has {size} bytes, and the file system allows "
                f"{longest_path}.",
                next_step=_SHORTEN,
            )


def name_in(path: str) -> TransactionName | None:
    """The transaction that a file of `file_path` belongs to, or None if it is not one of ours."""
    match = _FILE.fullmatch(path.rpartition("/")[2])
    return None if match is None else TransactionName.parse(match["name"])


class Standing(str, Enum):
    """Where a file stands between held back and published."""

    HELD = "held"
    """It is held back and whole, and can be published."""
    PUBLISHED = "published"
    """It stands at its path, with its size and checksum."""
    GONE = "gone"
    """Surely neither: it will never be published."""
    DAMAGED = "damaged"
    """It is held back and surely not published, and not as it was sealed: it can never be published whole."""
    UNKNOWN = "unknown"
    """Nobody can say, now or ever; for example something else stands at its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A file that is held back, as a store finds it again.

    Attributes:
        name: The transaction that it belongs to.
        fields: What `FileStore.discard` needs.
    """

    name: TransactionName
    fields: Fields


class HeldFile(abc.ABC):
    """A file being written that no reader sees."""

    @property
    @abc.abstractmethod
    def stream(self) -> BinaryIO:
        """Where pyarrow writes to."""

    @abc.abstractmethod
    def size(self) -> int:
        """How many bytes have been written so far."""

    @abc.abstractmethod
    def seal(self) -> Fields:
        """Makes it durable and complete, and returns what publishes or discards it.

        Raises:
            PrepareError: if it may not be whole.
        """

    @abc.abstractmethod
    def discard(self) -> None:
        """Gives it up, sealed or not."""


class FileStore(abc.ABC):
    """A folder of a file system, or a prefix of a bucket. Pickled to the workers. Paths are relative, with ``/``.

    Attributes:
        keeps_manifests: Whether a manifest that is gone says that the whole place went back. Not in a bucket: its rules
            may delete what is old.
    """

    keeps_manifests = True

    location: str

    @abc.abstractmethod
    def check(self) -> Mapping[str, str]:
        """Sees that it is there and can be written to, and returns what identifies it.

        A run is refused whose place gives another value for any of these than that of the last run.

        Raises:
            PreflightError: naming the setting and its value.
        """

    @abc.abstractmethod
    def hold(self, name: TransactionName, path: str) -> HeldFile:
        """Begins a file that is to be published at a path, of which the text of the name is a part."""

    @abc.abstractmethod
    def look(self, files: Sequence[Fields]) -> Sequence[Standing]:
        """Where sealed files stand. Asked before `publish` where a transaction has several: it shows all or none."""

    @abc.abstractmethod
    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """Publishes each file once, in parallel; idempotent. As `SinkCommitter.commit`, one answer a file."""

    @abc.abstractmethod
    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """Gives each file up; ALREADY_COMMITTED if it came too late. As `SinkCommitter.abort`, one answer a file."""

    @abc.abstractmethod
    def list_held(self) -> Iterable[Held]:
        """Every file of ours, of any query, that is held back and not published."""

    @abc.abstractmethod
    def put(self, path: str, content: bytes) -> None:
        """Puts a small file in one step, over one that stands there. Durable when it returns.

        Raises:
            UnknownOutcomeError: if that is not sure.
        """

    @abc.abstractmethod
    def get(self, path: str) -> bytes | None:
        """What was put there; None if surely nothing is there.

        Raises:
            UnknownOutcomeError: if it cannot be asked now.
        """

    @abc.abstractmethod
    def list_names(self, folder: str) -> Sequence[str]:
        """The names of the files right in a folder, without its path; none if there is no such folder.

        Raises:
            UnknownOutcomeError: if it cannot be asked now.
        """

    @abc.abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Deletes files, those that are gone already among them."""

    def doubt(self, folder: str) -> Finished | None:
        """None if this is still the place that `check` found, else what is to be said of every file in it.

        A disk may have been unmounted, or a host may see another folder: what is not found there is not lost.

        Args:
            folder: What `check` returned under this name.
        """
        try:
            found = self.get(ID)
        except UnknownOutcomeError as error:
            return Finished(outcome=Outcome.RETRY, reason=error.message)
        if found is not None and found.decode(errors="replace").strip() == folder:
            return None
        says = "is not there" if found is None else f"says {found[:40]!r}"
        reason = f"{self.location} is not the folder {folder} that was written to: {ID} {says}. Is its disk mounted?"
        if found is None:
            reason += f" Only if somebody deleted that file: write {folder} into it."
        return Finished(outcome=Outcome.UNKNOWN, reason=reason)

    def folds_names(self) -> bool:
        """Whether two names that differ, for example in upper and lower case, may be one there.

        Raises:
            UnknownOutcomeError: if it cannot be tried now.
        """
        return False

    def timeout_s(self) -> float | None:
        """How long a file may be held back before the place itself gives it up; None if it never does."""
        return None

    def conditions(self) -> Sequence[str]:
        """What must be true of the place for the promise to hold, a sentence each; more of them after `check`."""
        return ()

    def close(self) -> None:  # noqa: B027 - optional
        """Frees connections."""
