"""A folder, on a disk or in HDFS, as a store whose files get their final name in one step.

A file is staged under ``.sparkonce/held`` in the folder itself, without the extension that readers expect. The store
publishes the file by giving it its final name, which fails if that name is taken. A sealed file therefore always has
one of its two names or, for a moment on a disk, both. A file that has neither was deleted by somebody else.
"""

from __future__ import annotations

import abc
import errno
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from sparkonce.errors import SparkonceError, UnknownOutcomeError
from sparkonce.protocol.handles import COMMITTED, Finished, Outcome
from sparkonce.sinks.files import manifests
from sparkonce.sinks.files.names import HIDDEN, ID, name_in
from sparkonce.sinks.files.store import (
    DAMAGED,
    FOLDER_GONE,
    FOREIGN,
    LISTS,
    MISSING,
    Fields,
    FileState,
    FileStore,
    Staged,
)
from sparkonce.storage.files import CheckpointFiles

HELD = ".held"
"""The suffix of a staged file's name."""
HELD_FOLDER = f"{HIDDEN}/held"
CACHED = "It was not found, but its folder lists it: the mount's cache was stale."

Answer = TypeVar("Answer")
_DAMAGED_STATES = {
    Outcome.ALREADY_COMMITTED: FileState.STAGED,  # `publish` removes the file's held name.
    Outcome.UNKNOWN: FileState.UNKNOWN,
    Outcome.LOST: FileState.DAMAGED,
}


class RenamingStore(FileStore):
    """A `FileStore` whose hooks get the store's own paths as arguments, and raise the store's own errors."""

    small: CheckpointFiles
    held_kinds: Sequence[str] = (HELD,)
    """The suffixes of staged files' names, which a sweep looks for."""
    absent: str
    """A question for the operator if the whole folder is missing."""
    _root: Any
    _held: Any

    # --- hooks ------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _call_each(self, call: Callable[[Any], Answer], items: Sequence[Any]) -> list[Answer | BaseException]:
        """Returns what each call returned or raised."""

    @abc.abstractmethod
    def _of_error(self, error: BaseException, name: str) -> Finished:
        """Returns the answer for a file after an error."""

    @abc.abstractmethod
    def _path(self, path: str) -> Any:
        """Returns the path of a file in the folder."""

    @abc.abstractmethod
    def _is_there(self, path: Any) -> bool:
        """Returns True if there is a file or folder with this name."""

    @abc.abstractmethod
    def _is_whole(self, held: Any, fields: Fields) -> bool:
        """Returns True if a staged file is the one that was sealed. Raises FileNotFoundError if it does not exist."""

    @abc.abstractmethod
    def _matches(self, path: Any, fields: Fields) -> bool:
        """Returns True if a file has its size and its checksum."""

    def _is_own(self, held: Any, final: Any, fields: Fields) -> bool:  # noqa: ARG002 - for files with two names
        """Returns True if the file that has the final name is the staged one."""
        return False

    def _is_listed(self, path: str) -> bool:  # noqa: ARG002 - where nothing is cached
        """Returns True if the listing of a file's folder contains the file, bypassing a cache of names."""
        return False

    @abc.abstractmethod
    def _make(self, folder: Any) -> Finished:
        """Creates a partition's folder."""

    @abc.abstractmethod
    def _give_name(self, held: Any, final: Any, fields: Fields) -> None:
        """Gives a staged file its final name.

        Raises:
            FileExistsError: If the name is taken.
            FileNotFoundError: If the file or the folder does not exist.
        """

    @abc.abstractmethod
    def _discard(self, fields: Fields) -> Finished:
        """Deletes a staged file, then checks whether it was published."""

    def _settle(self, files: Sequence[Fields], answers: list[Finished]) -> list[Finished]:  # noqa: ARG002
        """Makes published files durable."""
        return answers

    # --- at a start -------------------------------------------------------------------------------------------------

    def _identity(self) -> str:
        """Returns the id that distinguishes this folder from another at the same path. The first start creates it."""
        if self.small.read(ID) is None:
            self.small.put(ID, uuid.uuid4().hex.encode())
        # Always sync: the process that created the folder may have been killed before the folder was durable.
        self.small.sync(HIDDEN)
        return (self.small.read(ID) or b"").decode().strip()  # An editor may have written the file.

    def _tidy(self) -> None:
        """Deletes files that killed processes have left and that nobody can still be using."""
        with suppress(OSError):  # The file may belong to another user, and the query can start without deleting it.
            for folder in (HELD_FOLDER, HIDDEN, LISTS, manifests.FOLDER):
                self.small.tidy(folder)

    def _make_folder(self, path: str) -> None:
        if not self._has_held_folder():  # The disk may not be mounted; mounting it would hide a new folder.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._held))
        super()._make_folder(path)

    # --- states -----------------------------------------------------------------------------------------------------

    def list_staged(self) -> Iterable[Staged]:
        for text in self.list_names(HELD_FOLDER):
            base, dot, kind = text.rpartition(".")
            name = name_in(base)
            if name is not None and dot + kind in self.held_kinds:
                yield Staged(name=name, fields={"held": base + HELD})

    def states(self, files: Sequence[Fields]) -> Sequence[FileState]:
        found = self._call_each(self._state, files)
        for one in found:
            if isinstance(one, SparkonceError):
                raise one
            if isinstance(one, BaseException):
                reason = self._of_error(one, HELD_FOLDER).reason
                raise UnknownOutcomeError(reason, next_step=self.next_step) from one
        return [one for one in found if isinstance(one, FileState)]

    def _state(self, fields: Fields) -> FileState:
        final = self._path(str(fields["path"]))
        with suppress(FileNotFoundError):
            if self._is_whole(self._held_path(fields), fields):
                return FileState.STAGED
            found = self._of_damaged(fields, final)
            if found.outcome is Outcome.RETRY:
                raise UnknownOutcomeError(found.reason)
            return _DAMAGED_STATES[found.outcome]
        if not self._is_there(final):
            found = self._without_both(fields, final)
            if found.outcome is not Outcome.LOST:
                raise UnknownOutcomeError(found.reason)
            return FileState.GONE
        return FileState.PUBLISHED if self._matches(final, fields) else FileState.UNKNOWN

    def _held_path(self, fields: Fields) -> Any:
        return self._path(f"{HELD_FOLDER}/{fields['held']}")

    def _of_damaged(self, fields: Fields, final: Any) -> Finished:
        """Returns the answer for a staged file whose bytes are not the sealed ones."""
        # If the file already has its final name, both names lead to the same bytes. If it does not, no reader has seen
        # the file.
        if self._is_there(final):
            if self._matches(final, fields):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        if self._is_listed(str(fields["path"])):
            return Finished(outcome=Outcome.RETRY, reason=f"{final}: {CACHED}")
        return Finished(outcome=Outcome.LOST, reason=f"{final}: {DAMAGED}")

    def _without_both(self, fields: Fields, final: Any) -> Finished:
        """Returns the answer for a file that has neither its held nor its final name."""
        if not self._has_held_folder():
            # If all files are missing, the disk may not be mounted, the folder may have been deleted, or this is a
            # different cluster.
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{self._held} is not there: {self.absent}")
        # Check the held name first, since another driver removes it last.
        if any(self._is_listed(path) for path in (f"{HELD_FOLDER}/{fields['held']}", str(fields["path"]))):
            return Finished(outcome=Outcome.RETRY, reason=f"{final}: {CACHED}")
        return Finished(outcome=Outcome.LOST, reason=f"{final}: {MISSING}")

    @abc.abstractmethod
    def _has_held_folder(self) -> bool:
        """Returns True if the folder of staged files exists."""

    # --- publish and discard ----------------------------------------------------------------------------------------

    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        paths = [str(one["path"]) for one in files]
        folders = sorted({path.rpartition("/")[0] for path in paths} - {""})
        made = dict(zip(folders, self._answers(self._make, folders, folders), strict=True))
        going = [
            number
            for number, path in enumerate(paths)
            if (folder := path.rpartition("/")[0]) not in made or made[folder].outcome in COMMITTED
        ]
        published = self._answers(self._publish, [files[number] for number in going], [paths[one] for one in going])
        answers = dict(zip(going, published, strict=True))
        found = [answers.get(number) or made[path.rpartition("/")[0]] for number, path in enumerate(paths)]
        return self._settle(files, found)

    def _publish(self, fields: Fields) -> Finished:
        held, final = self._held_path(fields), self._path(str(fields["path"]))
        try:
            if not self._is_whole(held, fields):
                return self._of_damaged(fields, final)
            self._give_name(held, final, fields)
        except FileExistsError:
            if self._is_own(held, final, fields):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        except FileNotFoundError:
            # Check the held name first: another driver removes it in the same step in which it gives the file its final
            # name, or later.
            if self._is_there(held):
                return Finished(outcome=Outcome.RETRY, reason=f"{final}: {FOLDER_GONE}")
            if not self._is_there(final):
                return self._without_both(fields, final)
            if self._matches(final, fields):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        return Finished(outcome=Outcome.COMMITTED)

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        return self._answers(self._discard, files, [str(one.get("path") or one["held"]) for one in files])

    def _answers(self, call: Callable[[Any], Finished], items: Sequence[Any], names: Sequence[str]) -> list[Finished]:
        """Returns the answer of each call, including calls that raised an error."""
        found = self._call_each(call, items)
        return [
            self._of_error(one, name) if isinstance(one, BaseException) else one
            for one, name in zip(found, names, strict=True)
        ]
