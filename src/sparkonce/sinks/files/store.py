"""The contract of a store, and what all stores share.

A store stages files, publishes each of them once, and lists those that are still staged. A store also has small files,
such as manifests. All stores share the following:

- the format of a transaction's handle, which contains the transaction's files or refers to a list of them
- the rules that derive a transaction's outcome from those of its files
- the stream that pyarrow writes to, which computes a file's size and checksum
"""

from __future__ import annotations

import abc
import errno
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, BinaryIO

from sparkonce.errors import OutageError, PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.files.names import HIDDEN, ID
from sparkonce.storage.files import PutUnknownError, SmallFiles, may_pass

Fields = Mapping[str, str | int]
"""The plain values that any process needs to finish one file.

`StagedFile.seal` always returns ``path`` (the relative path at which the file will be published), ``size`` (in bytes)
and ``checksum`` (a string such as ``crc32:1c291ca3``, or an ETag), along with the store's own fields, such as an
upload's ID. `Staged.fields` may lack all three, because less is known about a file that was never sealed.
"""


class FileState(str, Enum):
    """The states of a file."""

    STAGED = "staged"
    """Staged and whole: it can be published."""
    PUBLISHED = "published"
    """Published: the file is at its path, with its size and checksum."""
    GONE = "gone"
    """Neither staged nor published, and certain never to be published."""
    DAMAGED = "damaged"
    """Staged, certainly not published, and different from the sealed file, so it can never be published whole."""
    UNKNOWN = "unknown"
    """The state cannot be determined, for example because another file is at the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A staged file, as a store lists it, with the fields that `FileStore.discard` needs."""

    name: TransactionName
    fields: Fields


class StagedFile(abc.ABC):
    """A file that is being written, invisible to readers."""

    @property
    @abc.abstractmethod
    def stream(self) -> BinaryIO:
        """The stream that pyarrow writes to."""

    @abc.abstractmethod
    def size(self) -> int:
        """Returns the number of bytes written so far."""

    @abc.abstractmethod
    def seal(self) -> Fields:
        """Makes the file durable and complete, and returns the fields that are needed to publish or discard it."""

    @abc.abstractmethod
    def discard(self) -> None:
        """Discards the file, sealed or not."""


class FileStore(abc.ABC):
    """A folder of a file system, or a prefix of a bucket, pickled for the workers. Paths are relative, with ``/``.

    Attributes:
        location: The store's full path or URL, for readers and messages.
        small: The store's small files: manifests, file lists, and its ID.
        keeps_manifests: True if a missing manifest shows that the whole store was restored from an older state. False
            for a bucket, whose rules may delete old files.
        next_step: The advice if the store does not respond.
    """

    keeps_manifests = True
    next_step = "Check whether its disk can be read and written."

    location: str
    small: SmallFiles
    _made: frozenset[str] = frozenset()

    # --- at a start -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def check(self) -> Mapping[str, str]:
        """Tries everything that the sink does here, and returns values that identify the store.

        A run fails if one of these values differs from the last run's.

        Raises:
            PreflightError: If a check fails. The message names the setting and its value.
        """

    def folds_names(self) -> bool:
        """Returns True if two different names, for example in upper and lower case, may refer to the same file here."""
        return False

    def timeout_s(self) -> float | None:
        """Returns the number of seconds after which the store deletes a staged file; None if it never does."""
        return None

    def conditions(self) -> Sequence[str]:
        """Returns the conditions that the store must meet for exactly-once, one sentence each. `check` may add some."""
        return ()

    # --- files ------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def stage(self, name: TransactionName, path: str) -> StagedFile:
        """Begins a staged file that will be published at a path. The path contains the transaction's name."""

    @abc.abstractmethod
    def states(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """Returns the state of each sealed file.

        Called before `publish` if a transaction has several files: readers get all of them or none.
        """

    @abc.abstractmethod
    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """Publishes each file once, in parallel. Idempotent, like `SinkCommitter.commit`, with one answer per file."""

    @abc.abstractmethod
    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """Discards each file.

        Like `SinkCommitter.abort`, with one answer per file: ALREADY_COMMITTED if the file was already published.
        """

    @abc.abstractmethod
    def list_staged(self) -> Iterable[Staged]:
        """Lists all files of sparkonce that are staged and not published, of any query."""

    def doubt(self, folder: str) -> Finished | None:
        """Returns None if this is still the folder that `check` found; otherwise the answer for every file in it.

        A file that is missing from another folder is not lost: a disk may just be unmounted.
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

    def put(self, path: str, content: bytes) -> None:
        """Writes a small file atomically, replacing an older one. The file is durable on return."""
        with self.asking(path):
            self._make_folder(path)
            self.small.replace(path, content)

    def put_new(self, path: str, content: bytes) -> None:
        """Writes a small file if its name is free. The file is durable on return."""
        with self.asking(path):
            self._make_folder(path)
            self.small.put(path, content)

    def _make_folder(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if folder not in self._made:
            # Sync even an existing folder: the process that created it may have been killed before the folder was
            # durable.
            self.small.make(folder)
            self._made = self._made | {folder}

    def get(self, path: str) -> bytes | None:
        """Returns the content of a small file; None if the file certainly does not exist."""
        with self.asking(path):
            return self.small.read(path)

    def list_names(self, folder: str) -> Sequence[str]:
        """Lists the names of the files directly in a folder, without its path; none if there is no such folder."""
        with self.asking(folder):
            return self.small.names(folder)

    def delete(self, paths: Sequence[str]) -> None:
        """Deletes files. Files that do not exist are not an error."""
        with self.asking(paths[0] if paths else ""):
            self.small.delete(paths)

    @contextmanager
    def asking(self, path: object) -> Iterator[None]:
        """Converts an error of the store into an `UnknownOutcomeError` that names the path."""
        try:
            yield
        except (OSError, PutUnknownError) as error:
            where, reason = getattr(error, "filename", None), getattr(error, "strerror", None)
            raise UnknownOutcomeError(
                f"{where or f'{self.location}/{path}'}: {str(reason or error).rstrip('.')}.", next_step=self.next_step
            ) from error

    def close(self) -> None:  # noqa: B027 - optional
        """Frees connections."""


LONGEST_BYTES = 16_384
"""The maximum size of a handle's field. A slot with a hundred partitions fits; thousands would bloat the log."""

LISTS = f"{HIDDEN}/lists"

FIELDS = frozenset({"name", "begun_ms", "folder", "files", "list", "list_checksum"})
"""The fields of a handle, which has either ``files`` or the two fields of a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A parsed handle of the files sink.

    Attributes:
        name: The transaction's name.
        files: The fields of each file; None if they are in a list.
        list_path: The relative path of the list.
        list_checksum: The checksum of the list.
        begun_ms: When the transaction was started, by the executor's clock.
        folder: The id of the folder that the files were written to, see `FileStore.doubt`; empty if the handle has
            none.
    """

    name: TransactionName
    files: tuple[Fields, ...] | None
    list_path: str
    list_checksum: str
    begun_ms: int
    folder: str


def fields_of(
    name: TransactionName, files: Sequence[Fields], begun_ms: int, folder: str
) -> tuple[dict[str, str | int], bytes | None]:
    """Returns a handle's fields, and the content of its list if it has one."""
    fields: dict[str, str | int] = {"name": str(name), "begun_ms": begun_ms, "folder": folder}
    text = json.dumps([dict(one) for one in files], separators=(",", ":"), sort_keys=True)
    if len(text) <= LONGEST_BYTES:
        return {**fields, "files": text}, None
    content = text.encode()
    return {**fields, "list": f"{LISTS}/{name}", "list_checksum": _checksum(content)}, content


def read_handle(handle: Handle) -> Listed:
    """Reads a handle; raises ValueError if it does not belong to the files sink."""
    fields = dict(handle.transaction)
    name = TransactionName.parse(str(fields.get("name", "")))
    if name is None or not ("files" in fields or "list" in fields):
        raise ValueError(f"The handle {fields} does not belong to the files sink.")
    return Listed(
        name=name,
        files=tuple(json.loads(str(fields["files"]))) if "files" in fields else None,
        list_path=str(fields.get("list", "")),
        list_checksum=str(fields.get("list_checksum", "")),
        begun_ms=int(fields.get("begun_ms", 0)),
        folder=str(fields.get("folder", "")),
    )


def read_list(content: bytes, checksum: str) -> tuple[Fields, ...] | None:
    """Returns the files in a list; None if its checksum does not match the handle's."""
    if _checksum(content) != checksum:
        return None
    found: list[Mapping[str, str | int]] = json.loads(content)
    return tuple(found)


def _checksum(content: bytes) -> str:
    return f"crc32:{zlib.crc32(content):08x}"


FOREIGN = "Another file is there, which is never overwritten: compare it, and move it away."
FOLDER_GONE = "Somebody deleted its folder, which is recreated."
MISSING = "It is neither staged nor published: somebody deleted it."
DAMAGED = "It is staged, but not as it was written: its size or its end differs."

_LOST: Mapping[FileState, str] = {FileState.GONE: MISSING, FileState.DAMAGED: DAMAGED}
_COMMIT_ORDER = (Outcome.UNKNOWN, Outcome.RETRY, Outcome.LOST, Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)
_ABORT_ORDER = (Outcome.UNKNOWN, Outcome.RETRY, Outcome.ALREADY_COMMITTED, Outcome.ABORTED)


def before_publish(files: Sequence[Fields], states: Sequence[FileState]) -> Finished | None:
    """Returns the outcome of a transaction with several files before any is published; None if it should be published.

    Readers get all files of a transaction or none, so if one file is gone, no other is published.
    """
    found = [(one["path"], state) for one, state in zip(files, states, strict=True)]
    gone = [f"{path}: {_LOST[state]}" for path, state in found if state in _LOST]
    unknown = [path for path, state in found if state is FileState.UNKNOWN]
    published = [path for path, state in found if state is FileState.PUBLISHED]
    if unknown:
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{unknown[0]}: {FOREIGN}")
    if gone and published:
        reason = f"{gone[0]} {len(published)} of its transaction's {len(files)} files are published."
        return Finished(outcome=Outcome.UNKNOWN, reason=reason)
    if gone:
        return Finished(outcome=Outcome.LOST, reason=gone[0])
    if len(published) == len(files):
        return Finished(outcome=Outcome.ALREADY_COMMITTED)
    return None


def of_commit(files: Sequence[Finished]) -> Finished:
    """Combines the outcomes of publishing a transaction's files into one."""
    kinds = {one.outcome for one in files}
    if Outcome.LOST in kinds and len(kinds) > 1:
        lost = next(one for one in files if one.outcome is Outcome.LOST)
        return Finished(outcome=Outcome.UNKNOWN, reason=f"{lost.reason} Other files of its transaction are published.")
    return _weakest(files, _COMMIT_ORDER)


def of_abort(files: Sequence[Finished]) -> Finished:
    """Combines the outcomes of discarding a transaction's files into one."""
    return _weakest(files, _ABORT_ORDER)


def _weakest(files: Sequence[Finished], order: Sequence[Outcome]) -> Finished:
    return min(files, key=lambda one: order.index(one.outcome))


_SPACE = "Free some space, or raise the quota"
_GONE = "Find out what happened to the folder: it was deleted or moved, or its disk is not mounted on this host"
_RIGHT = "Let this user write to the folder"
_LOOK = "Check the kernel's log about this disk"
_STEPS = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.ENOENT: _GONE,
    errno.ENOTDIR: _GONE,
    errno.ESTALE: _GONE,
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
    errno.EROFS: "Mount the file system for writing",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.EFBIG: "Raise the limit of a file's size (ulimit -f)",
    errno.ENAMETOOLONG: "Choose a shorter path",
}


class ChecksumStream:
    """A file object for pyarrow that computes size and checksum. Messages name the file's path."""

    closed = False

    def __init__(self, file: Any, path: object) -> None:
        self.file = file
        self.size = 0
        self._crc = 0
        self._path = path

    @property
    def checksum(self) -> str:
        return f"crc32:{self._crc:08x}"

    def write(self, data: Any) -> int:
        with preparing(self._path):
            self.file.write(data)
        length = memoryview(data).nbytes
        self._crc = zlib.crc32(data, self._crc)
        self.size += length
        return length

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Does nothing: `StagedFile.seal` flushes."""

    def close(self) -> None:
        """Does nothing: `StagedFile.seal` closes."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


@contextmanager
def preparing(path: object) -> Iterator[None]:
    """Converts the file system's errors into a `PrepareError` that names the path."""
    try:
        yield
    except OSError as error:
        raise (OutageError if may_pass(error) else PrepareError)(
            f"{path} could not be written: {error.strerror or error}.",
            next_step=f"{_STEPS.get(error.errno or 0, _LOOK)}; none of the batch became visible.",
            path=str(path),
        ) from error
