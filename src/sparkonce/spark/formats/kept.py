"""Keeps a run for the processes of one Spark driver: its claim, in a file that one of them locks."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from sparkonce.protocol import codec
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim

logger = logging.getLogger("sparkonce")

_LOCKED_WITHIN_S = 10.0
_LOOK_EVERY_S = 0.05


def run_key(options: Mapping[str, str]) -> str | None:
    """Names a run by its driver's JVM and the query's options; None if the JVM cannot be told from a later one.

    Two runs of one query in one JVM have the same key. They cannot be at work at once: Spark runs a query once, and a
    process that is left over from the first run holds the lock.
    """
    with suppress(OSError, ValueError, IndexError):
        pid = os.getppid()
        while pid > 1:
            name, above, started = _process(pid)
            if name == "java":  # the nearest one above this process
                boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
                told = json.dumps([boot, sorted(options.items())])
                return f"{pid}-{started}-{hashlib.sha256(told.encode()).hexdigest()[:32]}"
            pid = above
    return None


def _process(pid: int) -> tuple[str, int, int]:
    """Returns a process's name, the one above it, and its start, in ticks since the machine's.

    Raises:
        OSError, ValueError, IndexError: if it is gone.
    """
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, int(fields[1]), int(fields[19])


class KeptRun:
    """The claim of a run, kept on the driver's host while its JVM lives. Use as a context manager, which locks it.

    A process that holds the lock for too long, such as one that stands still, loses the file: the next one makes a new
    file, finds no claim in it, and so claims anew, which fences the other.

    Args:
        key: See `run_key`. None keeps nothing: each batch then claims anew.

    Attributes:
        found: The claim and its token; None if there is none.
    """

    def __init__(self, key: str | None) -> None:
        folder = None if key is None else _folder()
        self._path = None if folder is None else folder / f"{key}.run"
        self._descriptor = -1
        self.found: tuple[Claim, Token] | None = None

    def __enter__(self) -> KeptRun:
        """Locks the file and reads it."""
        if self._path is None:
            return self
        give_up_at = time.monotonic() + _LOCKED_WITHIN_S
        while not self._lock(self._path):
            if time.monotonic() >= give_up_at:
                self._path.unlink(missing_ok=True)
                give_up_at += _LOCKED_WITHIN_S
            time.sleep(_LOOK_EVERY_S)
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            position, _, record = file.read().partition(b"\n")
        with suppress(ValueError, codec.Unreadable, codec.TooNew):
            claim = codec.decode_record(record)
            if isinstance(claim, Claim):
                self.found = claim, Token(int(position), claim.nonce)
        if self.found is None:
            _tidy(self._path.parent)
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        """Unlocks the file. After an error the run is over: the next batch claims anew."""
        if kind is not None:
            self.forget()
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def keep(self, claim: Claim, token: Token) -> None:
        """Keeps a claim for the next process."""
        if self._path is not None and self.found != (claim, token):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d\n" % token.position + codec.encode_record(claim, at_ms=0), 0)
            self.found = claim, token

    def forget(self) -> None:
        """Ends the run for later processes."""
        if self._path is not None:
            os.ftruncate(self._descriptor, 0)

    def _lock(self, path: Path) -> bool:
        """Opens and locks the file if it is free, and still has its name then."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                self._descriptor = descriptor
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return False


def _tidy(folder: Path) -> None:
    """Deletes what was kept for drivers that are gone: nobody asks for it again."""
    for path in folder.glob("*-*-*.run"):
        pid, started, _ = path.name.split("-", 2)
        try:
            is_gone = _process(int(pid))[2] != int(started)
        except (FileNotFoundError, ProcessLookupError):
            is_gone = True
        except (OSError, ValueError, IndexError):
            continue
        if is_gone:
            path.unlink(missing_ok=True)


def _folder() -> Path | None:
    """Returns a folder on this host that only this user writes to; None if there is none: nothing is kept then.

    Raises:
        PermissionError: if another user made it.
    """
    folder = Path(tempfile.gettempdir(), f"sparkonce-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        logger.debug("Each batch claims anew, since %s cannot be used: %s", folder, error)
        return None
    if found.st_uid != os.getuid() or folder.is_symlink():
        raise PermissionError(f"{folder} belongs to another user")
    return folder if os.access(folder, os.W_OK | os.X_OK) else None
