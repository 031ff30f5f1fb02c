"""The user's function, and how it is called. A call is only repeated if its outcome is unknown.

The first part defines what the function receives, returns and raises, and what the function's author declares. The
second part makes the call. `Calls` runs several calls in parallel, and waits for them up to a deadline.
"""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

import pyarrow.parquet as pq

from sparkonce.protocol.handles import COMMITTED, Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.sinks.write_ahead.ledger import Entry
from sparkonce.sinks.write_ahead.rows import CorruptRowsError, check, read

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger("sparkonce")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """The settings of the calls.

    Attributes:
        apply: The user's function.
        is_applied: The user's second function, if there is one.
        applies: What a repeated call does to the target.
        per: What one call gets: one slot's rows, or those of all handles of a batch.
        parallel: How many calls run in parallel; with 1, they run in slot order.
        wait_s: How long one commit waits for its calls, in seconds.
    """

    apply: Apply
    is_applied: IsApplied | None
    applies: Applies
    per: Per
    parallel: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Unit:
    """The files whose rows the function gets in one call. The first file's transaction names the call.

    Attributes:
        entries: The files, each in `RowsState.STARTED`.
        repeated: True if an earlier commit may have called the function.
        number: The number of the ledger's note that records the start of the call; the same for each repeat.
    """

    entries: tuple[Entry, ...]
    repeated: bool
    number: int = 0

    @property
    def name(self) -> TransactionName:
        return self.entries[0].name


class Application:
    """Calls the function, and remembers why it has rejected rows or left them unread, by transaction name."""

    def __init__(self, folder: WriteAheadFolder, sink: str, settings: CallSettings) -> None:
        self._folder = folder
        self._sink = sink
        self._settings = settings
        self._not_before: dict[str, float] = {}
        self._called: set[str] = set()
        self._returned: set[str] = set()
        self.refused: dict[str, str] = {}

    def noted(self, entries: Sequence[Entry]) -> Finished | None:
        """Returns the answer for the rows of one call if they are recorded as applied; None if they must be applied."""
        return Finished(outcome=Outcome.ALREADY_COMMITTED) if self._folder.done(entries[0].name) else None

    def apply(self, unit: Unit) -> Finished:
        """Applies the rows unless they are already applied, and records that they are."""
        try:
            return self._apply(unit)
        # This error can only come from the folder, because the function's errors are returned as answers.
        except OSError as error:
            return Finished(outcome=Outcome.RETRY, reason=f"The folder {self._folder.location} cannot be used: {error}")

    def _apply(self, unit: Unit) -> Finished:
        name = str(unit.name)
        left_s = self._not_before.get(name, 0.0) - time.monotonic()
        if left_s > 0:
            return Finished(outcome=Outcome.RETRY, reason=f"The function asked not to be called for {left_s:.0f} s.")
        with ExitStack() as files:
            try:
                opened = [files.enter_context(self._folder.open(one.name)) for one in unit.entries]
            except FileNotFoundError as error:
                return self._gone(unit, error)
            if not _lock(opened[0]):
                return Finished(outcome=Outcome.RETRY, reason="Another driver is applying these rows now.")
            if (known := self.noted(unit.entries)) is not None:
                return known
            return self._apply_opened(unit, opened)

    def _gone(self, unit: Unit, error: OSError) -> Finished:
        """Returns the answer for missing rows: applied if another driver has recorded that, otherwise UNKNOWN."""
        if (known := self.noted(unit.entries)) is not None:
            return known
        reason = f"A commit had begun, and its rows are gone. They may have been applied: {error}"
        return Finished(outcome=Outcome.UNKNOWN, reason=reason)

    def _apply_opened(self, unit: Unit, opened: Sequence[BinaryIO]) -> Finished:
        name = str(unit.name)
        try:
            for entry, file in zip(unit.entries, opened, strict=True):
                check(file, entry.size_bytes, entry.checksum)
            rows = sum(pq.ParquetFile(file).metadata.num_rows for file in opened)
        except CorruptRowsError as error:
            reason = f"{self._folder.url(entry.name)} cannot be used: {error}"
            return Finished(outcome=Outcome.UNKNOWN, reason=reason)
        except OSError as error:
            # Another driver may have applied and deleted the rows since then, or the store does not respond.
            reason = f"{self._folder.url(entry.name)} cannot be read: {error}"
            return Finished(outcome=Outcome.RETRY, reason=reason)
        token = ApplyToken(
            id=name,
            query=unit.name.query,
            batch=unit.name.batch,
            slots=tuple(entry.name.slot for entry in unit.entries),
            rows=rows,
        )
        try:
            found = self._call(unit, token, opened)
        except RetryLaterError as error:
            self._not_before[name] = time.monotonic() + error.after_s
            return Finished(outcome=Outcome.RETRY, reason=f"The function reports: {error}")
        except RefusedError as error:
            return self._refuse(unit, f"The function refuses the rows: {error}")
        except UnreadRowsError as error:
            return self._refuse(unit, str(error))
        except Exception as error:  # noqa: BLE001 - the user's function may raise any error
            return Finished(outcome=Outcome.RETRY, reason=f"The function failed: {type(error).__name__}: {error}")
        return self._note(unit, found)

    def _refuse(self, unit: Unit, reason: str) -> Finished:
        self.refused.update({str(entry.name): reason for entry in unit.entries})
        return Finished(outcome=Outcome.UNKNOWN, reason=reason)

    def _call(self, unit: Unit, token: ApplyToken, opened: Sequence[BinaryIO]) -> Outcome:
        if token.id in self._returned:
            return Outcome.COMMITTED
        if unit.repeated or token.id in self._called:
            if self.is_applied(unit, token):
                return Outcome.ALREADY_COMMITTED
            if self._settings.applies is Applies.NEITHER:
                log.warning(
                    "batch=%d sink=%s slots=%s applied again: an earlier call was interrupted, and its %d rows may be "
                    "in the target twice; token %s",
                    token.batch,
                    self._sink,
                    ",".join(map(str, token.slots)),
                    token.rows,
                    token.id,
                )
        self._called.add(token.id)
        self.deliver(unit, token, opened)
        self._returned.add(token.id)
        return Outcome.COMMITTED

    def is_applied(self, unit: Unit, token: ApplyToken) -> bool:  # noqa: ARG002 - for those that override it
        """Returns True if the target already has these rows. Called before a repeat."""
        return self._settings.is_applied is not None and self._settings.is_applied(token)

    def deliver(self, unit: Unit, token: ApplyToken, opened: Sequence[BinaryIO]) -> None:  # noqa: ARG002
        """Writes the rows of checked files to the target."""
        give(self._settings.apply, opened, token)

    def _note(self, unit: Unit, found: Outcome) -> Finished:
        """Records that the rows are applied, and deletes them. If this step fails, the next call only repeats it."""
        try:
            self._folder.note_done(unit.entries)
            self._folder.delete_rows(unit.entries)
        except OSError as error:
            reason = f"The rows are applied, but that could not be recorded in {self._folder.location}: {error}"
            return Finished(outcome=Outcome.RETRY, reason=reason)
        for known in (self._called, self._returned):
            known.discard(str(unit.name))
        return Finished(outcome=found)


def _lock(file: BinaryIO) -> bool:
    """Locks a file until it is closed. Returns False if another driver holds the lock.

    On a file system without locks, only the function can prevent two drivers from applying the rows at the same time.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class Applies(str, Enum):
    """Says what a second call of the function with the same token does to the target.

    The function is called again whenever it is unknown whether the first call completed: the driver was killed during
    the call, the function's connection broke, or the call took too long.
    """

    TRANSACTIONAL = "transactional"
    """Changes nothing: the function stores ``token.id`` in the target with the rows, and returns `SKIPPED` if the id is
    there. Exactly-once."""
    IDEMPOTENT = "idempotent"
    """Leads to the same state: upserts by key, or an API that takes ``token.id`` as an idempotency key. Effectively
    once, under the conditions in `CONDITIONS`."""
    NEITHER = "neither"
    """Writes the rows twice. At-least-once; the log names each slot whose rows may be in the target twice."""


CONDITIONS = {
    Applies.TRANSACTIONAL: (
        "the function keeps token.id in the target in the transaction that writes the rows, and writes nothing when "
        "it is there already; the target keeps it as long as the query may be down"
    ),
    Applies.IDEMPOTENT: (
        "effectively once: the function leaves the target as it is when it is called again with the same token and "
        "rows; a call may come again after later batches, and until the replay has caught up readers may see older "
        "values"
    ),
    Applies.NEITHER: (
        "at least once: a slot whose function was interrupted is applied again; the log names it as 'applied again'"
    ),
}

Per = Literal["slot", "batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyToken:
    """The unique, permanent name of the rows of one call. The same rows have the same token in each call.

    Attributes:
        id: The token as text: at most 200 bytes of ASCII, safe in a URL, a header or a key. Store it in the target.
        query: The short form of the query's id.
        batch: Spark's batch id.
        slots: The slots of the rows, ascending; a single one, unless the sink is ``per="batch"``.
        rows: The number of rows.
    """

    id: str
    query: str
    batch: int
    slots: tuple[int, ...]
    rows: int

    @property
    def slot(self) -> int:
        """The slot, or the lowest of several."""
        return self.slots[0]


class Skipped(Enum):
    """The value that a user's function returns when it leaves rows unread on purpose."""

    SKIPPED = "skipped"


SKIPPED: Final = Skipped.SKIPPED
"""Return this from your function if it need not read the rest, for example because the target has the rows."""

Apply = Callable[["pa.RecordBatchReader", ApplyToken], object]
"""Writes rows to the target before it returns. `SKIPPED` is the only return value with a meaning.

The rows arrive as a ``pyarrow.RecordBatchReader``, which can be read once: iterate over it for one record batch at a
time, in bounded memory, or read everything with ``read_all()`` or ``read_pandas()``. The query stops if the function
returns before it has read all rows, and does not return `SKIPPED`.
"""

IsApplied = Callable[[ApplyToken], bool]
"""Returns True if the target has this token's rows. Called before a repeat, so that the rows need not be read again."""


class RetryLaterError(Exception):
    """Raise this in your function to be called again later. Any other exception has the same effect, without a delay.

    Args:
        message: The reason, for the operator.
        after_s: How long to wait before calling the function again for these rows, in seconds.
    """

    def __init__(self, message: str = "", *, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class RefusedError(Exception):
    """Raise this in your function if the target rejects these rows, and will keep rejecting them.

    The query stops immediately, with the reason. The rows are kept: once you have removed the cause and restarted the
    query, the function gets them again.
    """


class UnreadRowsError(Exception):
    """Raised if the user's function neither read all of its rows nor returned `SKIPPED`."""


def give(apply: Apply, files: Sequence[BinaryIO], token: ApplyToken) -> None:
    """Calls the user's function with the rows of checked files; raises UnreadRowsError if it leaves rows unread."""
    taken: list[int] = []
    returned = apply(read(files, taken), token)
    if sum(taken) < token.rows and returned is not SKIPPED:
        raise UnreadRowsError(
            f"The function returned after it had read {sum(taken)} of the {token.rows} rows of {token.id}: read them "
            "all, or return sparkonce.write_ahead.SKIPPED if the target has the others, or should do without them."
        )


Job = Callable[[], Finished]


class Calls:
    """Runs jobs by name, in threads that do not keep the process alive. A name has at most one running job.

    With ``parallel=1``, jobs run in order, and the first job that is not committed ends the run.
    """

    def __init__(self, parallel: int) -> None:
        self._parallel = parallel
        self._running: dict[str, Future[Finished]] = {}

    def run(self, jobs: Mapping[str, Job], wait_s: float) -> dict[str, Finished]:
        """Starts the jobs, except those that are already running under the same name, and waits for all of them.

        A job that is not finished after ``wait_s`` seconds continues, and the next call with its name waits for it
        again.
        """
        new = {name: Future[Finished]() for name in jobs if name not in self._running}
        free = self._parallel - sum(not future.done() for future in self._running.values())
        futures = {name: new.get(name) or self._running[name] for name in jobs}
        queue = deque((new[name], job) for name, job in jobs.items() if name in new)
        self._running.update(new)
        for _ in range(min(free, len(queue))):
            threading.Thread(target=self._work, args=(queue,), name="sparkonce-apply", daemon=True).start()
        wait(futures.values(), timeout=wait_s)
        return {name: self._answer(name, future, wait_s) for name, future in futures.items()}

    def _work(self, queue: deque[tuple[Future[Finished], Job]]) -> None:
        while queue:
            try:
                future, job = queue.popleft()
            except IndexError:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                answer = job()
            except BaseException as error:  # noqa: BLE001 - raised again by the call that waits for the result
                future.set_exception(error)
                _give_up(queue)
            else:
                future.set_result(answer)
                if self._parallel == 1 and answer.outcome not in COMMITTED:
                    _give_up(queue)

    def _answer(self, name: str, future: Future[Finished], wait_s: float) -> Finished:
        if future.cancel() or future.cancelled():
            del self._running[name]
            return Finished(outcome=Outcome.RETRY, reason="Not applied yet: it waits for those before it.")
        if not future.done():
            return Finished(
                outcome=Outcome.RETRY, reason=f"The function has not returned after {wait_s:g} s and is still running."
            )
        del self._running[name]
        return future.result()


def _give_up(queue: deque[tuple[Future[Finished], Job]]) -> None:
    """Cancels the jobs that have not started."""
    with suppress(IndexError):
        while True:
            future, _ = queue.popleft()
            future.cancel()
            future.set_running_or_notify_cancel()
