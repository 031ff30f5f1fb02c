"""Puts by renaming, on a store whose rename fails if the name is taken, and is carried out in one step.

A put writes a temporary file beside the final one, and renames it. A rename whose answer is lost is asked for again:
the two names tell how it ended.
"""

from __future__ import annotations

import abc
import errno
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from sparkonce.checkpoint.deadlines import PAUSE_S, TRIES_S
from sparkonce.checkpoint.files import CheckpointFiles, Landed, PutUnknownError, Taken
from sparkonce.checkpoint.parts import PART_BYTES

_STALE_S = 3600
_MAY_PASS = (errno.EHOSTDOWN, errno.ETIMEDOUT)
"""Errors without an answer of the store. All others are refusals, which it is of no use to ask for again at once."""


class RenamingFiles(CheckpointFiles):
    """The calls that are made of renames. Each of its own calls raises OSError if the store cannot be asked."""

    @abc.abstractmethod
    def _write(self, path: str, pieces: Iterable[bytes]) -> None:
        """Writes a new file whose content is durable, and makes missing folders."""

    @abc.abstractmethod
    def _rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Renames a file, durably. Without `overwrite` errno EEXIST says that the target is taken."""

    @abc.abstractmethod
    def _delete(self, path: str) -> bool:
        """Deletes a file, durably. Returns True if there was one."""

    @abc.abstractmethod
    def _read(self, path: str) -> bytes | None:
        """Returns a file's bytes; None if there surely is no such file."""

    @abc.abstractmethod
    def _exists(self, path: str) -> bool:
        """Tells if there is such a file or folder."""

    @abc.abstractmethod
    def _sync(self, folder: str) -> None:
        """Makes every name durable that a reader sees in a subfolder."""

    def _put(self, path: str, data: bytes, begin: Callable[[], object] = lambda: None) -> Landed | Taken:
        """Puts a file: see `CheckpointFiles.put`. Calls `begin`, which may raise OSError, before it first renames."""
        with self._written(path, [data]) as temporary:
            begin()
        until = time.monotonic() + TRIES_S
        while True:
            try:
                self._rename(temporary, path)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return self._standing(path, "its temporary file is gone")
                if error.errno == errno.EEXIST:
                    taken = self._standing(path, "its name is taken")
                    self._discard(temporary)
                    return taken
                if error.errno not in _MAY_PASS or time.monotonic() > until:
                    return self._settled(temporary, path, error)
            else:
                return Landed()
            time.sleep(PAUSE_S)

    def _replace(self, path: str, pieces: Iterable[bytes]) -> None:
        """Puts a file in place of any that is there."""
        with self._written(path, pieces) as temporary:
            try:
                self._rename(temporary, path, overwrite=True)
            except OSError as error:
                # The store's own client asks again if an answer is lost. The second time there is nothing to rename.
                if error.errno != errno.ENOENT or not self._exists(path):
                    raise

    @contextmanager
    def _written(self, path: str, pieces: Iterable[bytes]) -> Iterator[str]:
        """Writes a temporary file beside another one, and deletes it upon an error. Gives its path."""
        temporary = f"{_folder(path)}/.{uuid.uuid4().hex}.tmp".lstrip("/")
        try:
            self._write(temporary, pieces)
            yield temporary
        except OSError as error:
            if error.errno != errno.ETIMEDOUT:  # else it is waited for in vain once more
                self._discard(temporary)
            raise

    def _settled(self, temporary: str, path: str, failed: OSError) -> Taken:
        """Makes sure of a rename that may have been carried out, by deleting what it would rename.

        Raises:
            OSError: `failed`, if the rename was not carried out; it cannot be any more.
            PutUnknownError: if that cannot be learned.
        """
        try:
            deleted = self._delete(temporary)
        except OSError as error:
            raise PutUnknownError(
                f"rename to {self.location}/{path}: {failed.strerror}; then {error.strerror}"
            ) from failed
        if deleted:
            raise failed
        return self._standing(path, "its temporary file is gone")

    def _standing(self, path: str, why: str) -> Taken:
        """Returns the file under a name that is taken, once it is durable. It may be this very put's.

        Raises:
            PutUnknownError: if it cannot be read.
        """
        try:
            standing = self._read(path)
            if standing is not None:
                self._sync(_folder(path))
                return Taken(standing=standing)
            reason = "nothing stands there"
        except OSError as error:
            reason = str(error.strerror)
        raise PutUnknownError(f"{self.location}/{path}: {why}, and it could not be read: {reason}")

    def _discard(self, temporary: str) -> None:
        with suppress(OSError):  # `tidy` deletes it later
            self._delete(temporary)


def is_stale(name: str, modified_ms: int) -> bool:
    """Tells if a file is a temporary one of a writer that was killed."""
    return name.startswith(".") and name.endswith(".tmp") and time.time() - modified_ms / 1000 > _STALE_S


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """Yields what is left of an open file."""
    while piece := file.read(PART_BYTES):
        yield piece


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
