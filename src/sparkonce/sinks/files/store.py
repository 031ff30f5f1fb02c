"""The contract of a store: stage a file, publish it once, list what is staged; put and get small files."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.files.names import ID

Fields = Mapping[str, str | int]
"""The plain values that finish one file from anywhere.

`StagedFile.seal` always returns ``path`` (where the file is to be published, relative), ``size`` (bytes) and
``checksum`` (a text such as ``crc32:1c291ca3``, or an ETag). Beside them stand the store's own, such as an upload's id.
`Staged.fields` may lack all three: less is known of a file that was never sealed.
"""


class FileState(str, Enum):
    """A file's state between staged and published."""

    STAGED = "staged"
    """Staged and whole: it can be published."""
    PUBLISHED = "published"
    """Published: the file is at its path, with its size and checksum."""
    GONE = "gone"
    """Surely neither staged nor published: it never will be published."""
    DAMAGED = "damaged"
    """Staged, surely not published, and different from the sealed file: it can never be published whole."""
    UNKNOWN = "unknown"
    """A state that nobody can determine, now or ever; for example another file is at its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A staged file, as a store lists it.

    Attributes:
        name: The transaction that it belongs to.
        fields: The fields that `FileStore.discard` needs.
    """

    name: TransactionName
    fields: Fields


class StagedFile(abc.ABC):
    """A file that is being written, which no reader sees."""

    @property
    @abc.abstractmethod
    def stream(self) -> BinaryIO:
        """The stream that pyarrow writes to."""

    @abc.abstractmethod
    def size(self) -> int:
        """Returns how many bytes have been written so far."""

    @abc.abstractmethod
    def seal(self) -> Fields:
        """Makes the file durable and complete, and returns the fields that publish or discard it.

        Raises:
            PrepareError: if it may not be whole.
        """

    @abc.abstractmethod
    def discard(self) -> None:
        """Discards the file, sealed or not."""


class FileStore(abc.ABC):
    """A folder of a file system, or a prefix of a bucket. Pickled to the workers. Paths are relative, with ``/``.

    Attributes:
        location: The store's full path or URL, for readers and messages.
        keeps_manifests: Whether a missing manifest shows that the whole store went back to an older state. False for a
            bucket, whose rules may delete what is old.
    """

    keeps_manifests = True

    location: str

    # --- at a start -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def check(self) -> Mapping[str, str]:
        """Tries what the sink does here, and returns what identifies the store.

        A run is refused if one of these values differs from that of the last run.

        Raises:
            PreflightError: naming the setting and its value.
        """

    def folds_names(self) -> bool:
        """Returns whether two names that differ, for example in upper and lower case, may be one file here.

        Raises:
            UnknownOutcomeError: if it cannot be tried now.
        """
        return False

    def timeout_s(self) -> float | None:
        """Returns after how many seconds the store itself gives up a staged file; None if it never does."""
        return None

    def conditions(self) -> Sequence[str]:
        """Returns what must be true of the store for the promise to hold, a sentence each; more after `check`."""
        return ()

    # --- files ------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def stage(self, name: TransactionName, path: str) -> StagedFile:
        """Begins a staged file that is to be published at a path; the path contains the text of the name."""

    @abc.abstractmethod
    def look(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """Returns the state of each sealed file.

        Asked before `publish` if a transaction has several files: readers get all of them or none.

        Raises:
            UnknownOutcomeError: if it cannot be asked now.
        """

    @abc.abstractmethod
    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """Publishes each file once, in parallel; idempotent. As `SinkCommitter.commit`, one answer a file."""

    @abc.abstractmethod
    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """Discards each file; ALREADY_COMMITTED if it came too late. As `SinkCommitter.abort`, one answer a file."""

    @abc.abstractmethod
    def list_staged(self) -> Iterable[Staged]:
        """Lists every file of ours, of any query, that is staged and not published.

        Raises:
            UnknownOutcomeError: if it cannot be asked now.
        """

    def doubt(self, folder: str) -> Finished | None:
        """Returns None if this is still the folder that `check` found, else the answer for every file in it.

        A disk may have been unmounted, or a host may see another folder: a file that is not found there is not lost.

        Args:
            folder: The value that `check` returned under this name.
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

    # --- small files ------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def put(self, path: str, content: bytes) -> None:
        """Puts a small file in one step, replacing an older one. Durable when it returns.

        Raises:
            UnknownOutcomeError: if that is not sure.
        """

    def put_new(self, path: str, content: bytes) -> bool:
        """Puts a small file if there is none of its name; returns whether the file there now has this content.

        Raises:
            UnknownOutcomeError: if that is not sure.
        """
        # Asked, and not told by the answer: a request may have been sent twice, the second time in vain.
        self._create(path, content)
        return self.get(path) == content

    @abc.abstractmethod
    def _create(self, path: str, content: bytes) -> None:
        """Puts a small file in one step, and durable, unless one of its name is there."""

    @abc.abstractmethod
    def get(self, path: str) -> bytes | None:
        """Returns the content of a small file; None if there is surely none.

        Raises:
            UnknownOutcomeError: if it cannot be asked now.
        """

    @abc.abstractmethod
    def list_names(self, folder: str) -> Sequence[str]:
        """Lists the names of the files directly in a folder, without its path; none if there is no such folder.

        Raises:
            UnknownOutcomeError: if it cannot be asked now.
        """

    @abc.abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Deletes files; one that is already gone is no error.

        Raises:
            UnknownOutcomeError: if one of them may still be there.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Frees connections."""
