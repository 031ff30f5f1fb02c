"""The contract of a checkpoint's files, wherever they are kept, and what several stores share.

`within` makes calls that may hang, and waits for them as long as any of them answers. `opened` opens a file that is
read in parts.
"""

from __future__ import annotations

import abc
import errno
import io
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar, cast


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """The answer to a put that landed: the bytes stand under the name, durably."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The answer to a put that found the name taken, by other bytes or by the same ones from an earlier put."""

    standing: bytes


class PutUnknownError(Exception):
    """A put's reply was lost: it may have landed, or land later."""


_PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN}
)


def may_pass(error: OSError) -> bool:
    """Returns True if the error may pass: the store is full, or its server does not answer."""
    return error.errno in _PASSING


class CheckpointFiles(abc.ABC):
    """The files of one folder: small ones, each read and written whole.

    A path is relative to the folder, with ``/`` between its parts. Folders need not be made: a put makes those that are
    missing. Every call has a deadline, and may be made by several threads at once.

    Every method raises OSError if the store cannot be reached, or refuses. A missing file is an answer, and no error.

    Attributes:
        modules: The modules of the client, which a Python worker needs.
        is_remote: True if a read takes a round trip, so that several are better made at once.
    """

    modules: tuple[str, ...] = ()
    is_remote = True

    @property
    @abc.abstractmethod
    def location(self) -> str:
        """The folder: an absolute path of this machine, or a URL as Hadoop qualifies it, without a slash at its end."""

    @property
    def resolved(self) -> str:
        """The location with links followed: the same for every path that leads to the folder."""
        return self.location

    @property
    def endpoint(self) -> str | None:
        """The address of a store that must prove that it keeps `put`'s promise; None if all of its kind do."""
        return None

    @abc.abstractmethod
    def read(self, path: str) -> bytes | None:
        """Returns a file's bytes; None if there surely is no such file."""

    @abc.abstractmethod
    def names(self, folder: str) -> Sequence[str]:
        """Lists the names of the files in a subfolder, in no order; empty if there is no such folder.

        Names that begin with a dot, which temporary files have, are left out.
        """

    @abc.abstractmethod
    def put(self, path: str, data: bytes) -> Landed | Taken:
        """Puts a file if there is none of this name, in one step and durably: of several puts, one lands.

        Raises:
            PutUnknownError: if it is not known whether it landed.
            OSError: if it surely did not land, and never will.
        """

    @abc.abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Puts a file in one step, durably, and replaces any that is there."""

    @abc.abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Deletes files. One that is missing is deleted."""

    def exists(self, path: str) -> bool:
        """Returns True if there is such a file. A store that need not read it for that overrides this."""
        return self.read(path) is not None

    def open(self, path: str) -> BinaryIO | None:
        """Opens a file of any size, which can be sought in; None if there surely is no such file.

        A store that need not hold it in memory overrides this. What is read later raises OSError, too.
        """
        data = self.read(path)
        return None if data is None else io.BytesIO(data)

    def put_large(self, path: str, file: BinaryIO) -> None:
        """Puts a file of any size, from an open one's position on: durable, and never seen in part.

        Nobody else may use the name. A store that need not hold the file in memory overrides this.

        Raises:
            OSError: also if it is not known whether it landed; it may land later then.
        """
        try:
            self.put(path, file.read())
        except PutUnknownError as error:
            raise OSError(errno.ETIMEDOUT, f"It is not known whether it was put: {error}", path) from error

    def make(self, folder: str) -> None:  # noqa: B027 - not every store has folders
        """Makes a subfolder, durably, where the store has folders; nobody needs it there to put files."""

    def require(self, folder: str) -> None:  # noqa: B027 - not every store has folders
        """Raises OSError if a subfolder that was made is gone, where the store has folders.

        Without its disk a folder's files must not be taken for missing, nor put elsewhere.
        """

    def sync(self, folder: str) -> None:  # noqa: B027 - where a name that is seen is durable, nothing is to be done
        """Makes every name durable that a reader sees in a subfolder. Nobody may act on what it read before."""

    def sync_spark(self) -> None:  # noqa: B027 - where a file that is seen is durable, there is nothing to do
        """Makes durable what Spark has written to its checkpoint, which it does not: a decision rests on these files.

        Raises:
            OSError: if a file may not be durable.
        """

    def emptied(self) -> Sequence[str]:
        """Lists Spark's files without content, which a crash of the machine may leave on a local disk."""
        return ()

    def mending(self, name: str) -> str:  # noqa: ARG002 - for stores that can do more
        """Returns what an operator can do about a file of Spark's that cannot be read."""
        return "Restore the checkpoint from a copy."

    def tidy(self, folder: str) -> None:  # noqa: B027 - not every store needs temporary files
        """Deletes temporary files of writers that were killed, in a subfolder."""

    @abc.abstractmethod
    def check(self) -> None:
        """Checks that files can be put there. Leaves nothing behind.

        Raises:
            ConfigurationError: if not, with the store's reason.
        """

    @abc.abstractmethod
    def inside(self, folder: str) -> CheckpointFiles:
        """Returns the files of a subfolder."""

    def for_workers(self) -> CheckpointFiles:
        """Returns the same files for other processes: it can be pickled, and needs no JVM.

        Raises:
            ConfigurationError: if a Python worker cannot reach them as the driver does.
        """
        return self


TRIES_S = 15.0
"""The time for which a put whose outcome is not known is tried again."""
PAUSE_S = 0.2
_THREADS = 8
Answer = TypeVar("Answer")


def within(deadline_s: float, calls: Sequence[Callable[[], Answer]]) -> list[Answer | BaseException]:
    """Returns what each call returned or raised; `TimeoutError` for those without an answer when all are given up.

    Gives up when no call has answered for the length of the deadline, and begins no other from then on. So a server
    that hangs is waited for once, however many calls there are, and a slow one gets through all of them.

    The calls run beside each other in threads that do not keep the process alive.
    """
    answers: list[Answer | BaseException] = [TimeoutError(f"no answer within {deadline_s:g} s") for _ in calls]
    waiting: queue.SimpleQueue[tuple[int, Callable[[], Answer]]] = queue.SimpleQueue()
    answered: queue.SimpleQueue[tuple[int, Answer | BaseException]] = queue.SimpleQueue()
    given_up = threading.Event()
    for numbered in enumerate(calls):
        waiting.put(numbered)

    def work() -> None:
        while not given_up.is_set():
            try:
                number, call = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                answered.put((number, call()))
            except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
                answered.put((number, error))

    for _ in range(min(_THREADS, len(calls))):
        threading.Thread(target=work, name="within", daemon=True).start()
    try:
        for _ in calls:
            number, answer = answered.get(timeout=deadline_s)
            answers[number] = answer
    except queue.Empty:
        pass
    finally:
        given_up.set()
    return answers


PART_BYTES = 8 * 2**20


def opened(read_part: Callable[[int, int], bytes], size: int) -> BinaryIO:
    """Opens a file.

    Args:
        read_part: Returns the bytes from a position on, so many of them.
        size: The file's size.
    """
    return cast("BinaryIO", io.BufferedReader(_Parts(read_part, size), PART_BYTES))


class _Parts(io.RawIOBase):
    def __init__(self, read_part: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._read_part = read_part
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        part = self._read_part(self._at, length)
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)
