"""Runs the two ends of a batch, before and after its tasks, in two processes of Spark's driver.

The processes of one Spark driver share a run through a file with the run's claim. Only one process can lock the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from sparkonce.decision_log import DecisionLog
from sparkonce.driver.outage import Timing
from sparkonce.driver.split_run import Handover, SplitRun, TasksEnded, continued, resumed
from sparkonce.driver.start import read_log
from sparkonce.errors import PrepareError, SupersededError
from sparkonce.protocol import codec
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import State
from sparkonce.protocol.view import Claim
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.formats.task import SlotWritten
from sparkonce.version import __version__

_ABORT_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The settings that both ends of a batch share.

    Attributes:
        sink: The sink, with checked columns.
        run_key: The name under which this driver stores the run; see `run_key`.
        moved: True if the user confirms that the log was moved here, not copied.
    """

    sink: TwoPhaseCommitSink
    log: DecisionLog
    query: str
    run_key: str | None = None
    moved: bool = False
    patience_s: float = 300.0

    def begin(self, asked: BatchAsked) -> Handover | None:
        """Claims the log, unless this driver has already done so, and judges the batch. Finishes a decided batch.

        Returns:
            The batch for its tasks; None if they must not write it.
        """
        with StoredRun(self.run_key) as stored, closing(self._run(self._known(stored))) as run:
            handover = run.begin_batch(asked)
            self._keep(stored, run)
            return handover

    def finish(self, handover: Handover, written: Sequence[SlotWritten]) -> None:
        """Decides and commits what the tasks have prepared."""
        handles = [one.handle for one in written if one.handle is not None]
        if len(handles) != len(written):
            raise PrepareError(f"Batch {handover.batch} was written by {len(handles)} of {len(written)} tasks.")
        with StoredRun(self.run_key) as stored:
            run = self._run(resumed(handover, self.log))
            try:
                run.finish_batch(handover, handles, loser_possible=any(one.tried > 0 for one in written))
                self._keep(stored, run)
            finally:
                run.end()

    def check_decided(self, batch: int) -> None:
        """Checks that a batch whose rows were discarded is decided."""
        if read_log(self.log).decision(batch) is None:
            raise PrepareError(f"Batch {batch} was not written, and is not decided.")

    def abort(self, asked: BatchAsked, handover: Handover | None) -> None:
        """Aborts what a batch has prepared, unless it is decided, in which case it is finished.

        Spark calls this whenever a task or the end of a batch has failed, even after the decision, and even in a driver
        that another one has superseded. A superseded driver aborts nothing, and leaves the batch to the newer one.
        """
        with StoredRun(self.run_key) as stored:
            token = (
                handover.state.token if handover is not None else stored.found[1] if stored.found is not None else None
            )
            newest = read_log(self.log).newest_run
            stored.forget()
            if token is None or newest is None or newest.token != token:
                return
            run = self._run(None, patience_s=_ABORT_WITHIN_S)
            try:
                run.run_batch(asked, TasksEnded())
            except (PrepareError, SupersededError) as error:
                if not isinstance(error, SupersededError) and TasksEnded.NO_MORE_TASKS not in error.message:
                    raise
            finally:
                run.close()

    def _known(self, stored: StoredRun) -> State | None:
        if stored.found is None:
            return None
        claim, token = stored.found
        return continued(claim, token, read_log(self.log), (self.sink.name,), moved=self.moved)

    def _keep(self, stored: StoredRun, run: SplitRun) -> None:
        if run.may_reuse_names:
            stored.keep(*run.owned)
        else:
            stored.forget()

    def _run(self, known: State | None, *, patience_s: float | None = None) -> SplitRun:
        return SplitRun(
            run=str(uuid.uuid4()),  # Spark's run id is not known here
            query=self.query,
            sinks={self.sink.name: self.sink},
            log=self.log,
            # A format cannot find out whether there are speculative task attempts, so it sweeps after each batch.
            timing=Timing(outage_patience_s=patience_s or self.patience_s, sweep_every_s=0),
            library=__version__,
            moved=self.moved,
            known=known,
        )


logger = logging.getLogger("sparkonce")

_LOCKED_WITHIN_S = 10.0

_CHECK_EVERY_S = 0.05


def run_key(options: Mapping[str, str]) -> str | None:
    """Returns a name for a run, from its driver's JVM and the query's options.

    Returns None if the JVM cannot be distinguished from a later one. Two runs of one query in one JVM have the same
    key. They cannot be active at the same time, because Spark runs a query only once, and a process that is left over
    from the first run holds the lock.
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
    """Returns a process's name, its parent, and its start time, in ticks since boot.

    Raises:
        OSError, ValueError, IndexError: If the process has ended.
    """
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, int(fields[1]), int(fields[19])


class StoredRun:
    """The claim of a run, in a file on the driver's host, for as long as its JVM lives. The context locks the file.

    A process that holds the lock for too long, for example because it is suspended, loses the file. The next process
    creates a new file, finds no claim in it, and claims the log again, which fences the first process.

    Args:
        key: See `run_key`. With None, no claim is stored, and each batch claims the log again.

    Attributes:
        found: The claim and its token; None if there is none.
    """

    def __init__(self, key: str | None) -> None:
        folder = None if key is None else _folder()
        self._path = None if folder is None else folder / f"{key}.run"
        self._descriptor = -1
        self.found: tuple[Claim, Token] | None = None

    def __enter__(self) -> StoredRun:
        """Locks the file and reads it."""
        if self._path is None:
            return self
        give_up_at = time.monotonic() + _LOCKED_WITHIN_S
        try:
            while not self._lock(self._path):
                if time.monotonic() >= give_up_at:
                    self._path.unlink(missing_ok=True)
                    give_up_at += _LOCKED_WITHIN_S
                time.sleep(_CHECK_EVERY_S)
        except OSError as error:  # The disk is full, for example.
            logger.debug("The batch makes a new claim: %s", error)
            self._path = None
            return self
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
        """Unlocks the file. After an error the run is over, and the next batch claims the log again."""
        if kind is not None:
            self.forget()
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def keep(self, claim: Claim, token: Token) -> None:
        """Stores a claim for the next process."""
        if self._path is not None and self.found != (claim, token):
            os.ftruncate(self._descriptor, 0)
            with suppress(OSError):  # If the disk is full, the next process finds no claim, and makes a new one.
                os.pwrite(self._descriptor, b"%d\n" % token.position + codec.encode_record(claim, at_ms=0), 0)
                self.found = claim, token

    def forget(self) -> None:
        """Ends the run for later processes."""
        if self._path is not None:
            os.ftruncate(self._descriptor, 0)

    def _lock(self, path: Path) -> bool:
        """Opens and locks the file. Returns False if another process holds the lock, or has replaced the file."""
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
    """Deletes the files of drivers that are gone, because nobody will read them again."""
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
    """Returns a folder on this host that only this user can write to; None if there is none."""
    try:
        folder = Path(tempfile.gettempdir(), f"sparkonce-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        is_own = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
    except OSError as error:
        logger.debug("Each batch makes a new claim, since there is no folder for temporary files: %s", error)
        return None
    return folder if is_own and os.access(folder, os.W_OK | os.X_OK) else None
