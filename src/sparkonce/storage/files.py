"""The interface of a checkpoint's files, the test of a store, and code that several stores share.

`within` makes calls that may hang, and waits as long as any of them makes progress. `opened` opens a file that is read
in parts. `prove` tests a store before a log relies on it, by letting pairs of puts race: a store may ignore the
condition of a put, or check the condition and put the object in two steps. The file ``sparkonce/proved`` records a
passed test, together with the store's address, because the whole bucket, including this file, may be copied to another
store.
"""

from __future__ import annotations

import abc
import errno
import io
import json
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from threading import Barrier
from typing import Any, BinaryIO, TypeVar, cast

from sparkonce.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """The answer to a successful put: the bytes are stored under the name, durably."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The answer to a put whose name is taken, by different bytes or by the same ones from an earlier put."""

    standing: bytes


class PutUnknownError(Exception):
    """The reply to a put was lost. The put may have succeeded, or may still succeed later."""


_PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN}
)


def may_pass(error: OSError) -> bool:
    """Returns True if the error may be temporary: the store is full, or its server does not answer."""
    return error.errno in _PASSING


class SmallFiles(abc.ABC):
    """The small files of one folder, each read and written as a whole.

    A path is relative to the folder, with ``/`` as the separator. Missing folders are created by a put. Every call has
    a deadline, and may be made by several threads at the same time.

    Every method raises OSError if the store cannot be reached or rejects the request. A missing file is not an error.
    """

    @property
    @abc.abstractmethod
    def location(self) -> str:
        """The folder: an absolute path on this machine, or a URL as Hadoop qualifies it, without a trailing slash."""

    @abc.abstractmethod
    def read(self, path: str) -> bytes | None:
        """Returns a file's bytes, or None if the file definitely does not exist."""

    @abc.abstractmethod
    def names(self, folder: str) -> Sequence[str]:
        """Lists the names of the files in a subfolder, in no particular order. Empty if the folder does not exist.

        Names that begin with a dot, such as those of temporary files, are left out.
        """

    @abc.abstractmethod
    def put(self, path: str, data: bytes) -> Landed | Taken:
        """Creates a file atomically and durably if the name is free. Of several puts, only one succeeds.

        Raises:
            PutUnknownError: If it is unknown whether the put succeeded.
            OSError: If the put definitely failed and cannot succeed later.
        """

    @abc.abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Writes a file atomically and durably, and replaces an existing one."""

    @abc.abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Deletes files. Missing files are ignored."""

    def make(self, folder: str) -> None:  # noqa: B027 - not every store has folders
        """Creates a subfolder durably, if the store has folders. Puts do not depend on it."""


class CheckpointFiles(SmallFiles):
    """The files of a checkpoint's folder. Python workers need the client's `modules`.

    If `is_remote`, a read takes a round trip, so several reads should be made in parallel.
    """

    modules: tuple[str, ...] = ()
    is_remote = True

    @property
    def resolved(self) -> str:
        """The location with links resolved, which is the same for every path that leads to the folder."""
        return self.location

    @property
    def endpoint(self) -> str | None:
        """The address of a store that must be tested by `prove`; None if all stores of its kind support puts."""
        return None

    def exists(self, path: str) -> bool:
        """Returns True if the file exists. Stores that can check this without reading the file override the method."""
        return self.read(path) is not None

    def open(self, path: str) -> BinaryIO | None:
        """Opens a file of any size for seeking and reading. Returns None if the file definitely does not exist.

        Stores that need not hold the file in memory override this method. Later reads may raise OSError too.
        """
        data = self.read(path)
        return None if data is None else io.BytesIO(data)

    def put_large(self, path: str, file: BinaryIO) -> None:
        """Writes the rest of an open file of any size, durably and without partial states.

        No other process may use the name. Stores that need not hold the file in memory override this method.

        Raises:
            OSError: If the file was not written, or if the outcome is unknown, so that the file may still appear later.
        """
        try:
            self.put(path, file.read())
        except PutUnknownError as error:
            raise OSError(errno.ETIMEDOUT, f"It is not known whether it was put: {error}", path) from error

    def require(self, folder: str) -> None:
        """Raises OSError if the store has folders, and a subfolder that was created no longer exists.

        If a disk is not mounted, its files must not count as missing, and new files must not be written to another
        disk.
        """

    def sync(self, folder: str) -> None:
        """Makes every name that a reader sees in a subfolder durable. Readers call this before they act on a file."""

    def sync_ahead(self) -> None:
        """Starts making the current files durable in the background, so that the next `sync_spark` is fast."""

    def sync_spark(self) -> None:
        """Makes Spark's files in the checkpoint durable, since Spark does not do so and a decision depends on them.

        Raises:
            OSError: If a file may not be durable.
        """

    def emptied(self) -> Sequence[str]:
        """Lists Spark's empty files, which a machine crash may leave on a local disk."""
        return ()

    def mending(self, name: str) -> str:  # noqa: ARG002 - used by stores that can do more
        """Returns an operator's next step for one of Spark's files that cannot be read."""
        return "Restore the checkpoint from a copy."

    def tidy(self, folder: str) -> None:
        """Deletes the temporary files of killed writers in a subfolder."""

    @abc.abstractmethod
    def check(self) -> None:
        """Checks that files can be written to the folder. Leaves nothing behind."""

    @abc.abstractmethod
    def inside(self, folder: str) -> CheckpointFiles:
        """Returns the files of a subfolder."""

    def for_workers(self) -> CheckpointFiles:
        """Returns the same files for other processes, in a form that can be pickled and needs no JVM."""
        return self


TRIES_S = 15.0
"""How long a put with an unknown outcome is retried, in seconds."""

PAUSE_S = 0.2
_THREADS = 8

Answer = TypeVar("Answer")


def within(deadline_s: float, calls: Sequence[Callable[[], Answer]]) -> list[Answer | BaseException]:
    """Makes calls in parallel daemon threads. Returns each result or error; `TimeoutError` for an unanswered call.

    The deadline restarts with each answer. When it passes, no more calls are started. As a result, a slow server
    answers all calls, and a server that hangs costs only one deadline, no matter how many calls there are.
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
            except BaseException as error:  # noqa: BLE001 - passed to the waiting caller
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
    """Opens a file of this size, of which ``read_part`` returns bytes, given a position and a length."""
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


RACES = 20
PROVED = "sparkonce/proved"
_RACERS = 2
_TRIES = 3
"""How many times a race with an unknown outcome is repeated."""

_TOGETHER_WITHIN_S = 30.0


def prove(files: CheckpointFiles) -> None:
    """Tests a store by letting pairs of puts race, unless it needs no test or has passed it for this checkpoint.

    Raises:
        ConfigurationError: If a race has two winners or no known winner, or the store is unreachable.
    """
    if files.endpoint is None:
        return
    try:
        if not _is_proved(files):
            files.check()
            _prove(files)
    except OSError as error:
        raise ConfigurationError(
            f"checkpoint={files.location!r}: the store could not be asked to show that it can carry a decision log: "
            f"{error.strerror}.",
            next_step="Check whether the store runs, and allows to read, list, put and delete there.",
            setting="checkpoint",
        ) from None


def _prove(files: CheckpointFiles) -> None:
    folder = f"sparkonce/.races-{secrets.token_hex(6)}"
    names = [f"{folder}/{number:03d}" for number in range(RACES * _TRIES)]
    tried = iter(names)
    try:
        with ThreadPoolExecutor(_RACERS) as pool:
            for _ in range(RACES):
                _race(files, pool, [next(tried) for _ in range(_TRIES)])
    finally:
        with suppress(OSError):  # Leftover files are harmless, and the first error shows what is wrong.
            files.delete(names)
    proof = {**_proved_for(files), "races": RACES, "at_ms": time.time_ns() // 1_000_000}
    files.replace(PROVED, json.dumps(proof).encode())


def _proved_for(files: CheckpointFiles) -> dict[str, str | None]:
    return {"location": files.location, "client": type(files).__name__, "endpoint": files.endpoint}


def _is_proved(files: CheckpointFiles) -> bool:
    try:
        proof = json.loads(files.read(PROVED) or b"")
        return all(proof[name] == value for name, value in _proved_for(files).items())
    except (ValueError, KeyError, TypeError):
        return False


def _race(files: CheckpointFiles, pool: ThreadPoolExecutor, names: Sequence[str]) -> None:
    """Lets two puts of the same name race. If the outcome is unknown, the race is repeated under a different name."""
    reason = ""
    for name in names:
        start = Barrier(_RACERS)
        data = [secrets.token_bytes(16) for _ in range(_RACERS)]
        racing = [pool.submit(_put, files, name, one, start) for one in data]
        wait(racing)
        try:
            answers = [one.result() for one in racing]
        except PutUnknownError as error:
            reason = str(error)
            continue
        # If a put finds its own bytes, it was sent twice, and has succeeded.
        landed = [
            one
            for one, answer in zip(data, answers, strict=True)
            if isinstance(answer, Landed) or answer.standing == one
        ]
        if len(landed) != 1 or any(isinstance(one, Taken) and one.standing != landed[0] for one in answers):
            raise _refusal(files, f"{len(landed)} of {_RACERS} puts of {name!r} at the same time landed")
        if files.read(name) != landed[0]:
            raise _refusal(files, f"{name!r} does not hold the bytes of the put that landed")
        return
    raise ConfigurationError(
        f"checkpoint={files.location!r}: the store did not say which of two puts at the same time landed, in "
        f"{len(names)} tries: {reason}.",
        next_step="Check whether the store runs, and start again: nothing was written but the objects of this test.",
        setting="checkpoint",
    )


def _put(files: CheckpointFiles, name: str, data: bytes, start: Barrier) -> Landed | Taken:
    start.wait(_TOGETHER_WITHIN_S)
    return files.put(name, data)


def _refusal(files: CheckpointFiles, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"checkpoint={files.location!r}: this store cannot carry a decision log: {what}. Two drivers could both decide "
        "the same batch.",
        next_step="Use a store that supports If-None-Match, or a mounted disk: see docs/checkpoints.md.",
        setting="checkpoint",
    )
