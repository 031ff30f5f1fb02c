"""Aborts what nobody will decide: what older runs left open, and what copies of this run that lost have opened."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from sparkonce import errors
from sparkonce.protocol.outcomes import FINAL, Finished, Outcome
from sparkonce.protocol.view import Run
from sparkonce.sink import Owner, SinkCommitter

logger = logging.getLogger("sparkonce")

LOSERS_END_WITHIN_S = 5.0
"""Spark kills a loser's Python worker some 4 s after the batch. Until then it may open a transaction."""
_SWEEP_TAKES_S = 1.0
_ASK_AGAIN_S = 0.5
LONGEST_PAUSE_S = 300.0
"""A sink that does not say what is open is asked less and less often, up to this."""


class Sweeper:
    """Sweeps the sinks of one run: before its first batch as long as it takes, after its batches as well as it can.

    What a loser has open holds back readers and locks rows, also while the query is idle. So a thread of its own sweeps
    after a batch. It works while no batch does (rule 6), and a batch does not wait for what it has not begun yet.

    Args:
        names: The sinks that are swept after a batch.
        committer: Gives a sink's driver half.
        owner: A run as a sink sees it.
        at_work: Held while a batch is at work.
        every_s: How often the run's own are looked for when nothing says that there are any; 0: at the end of each
            batch, which waits for it.
        in_background: Whether there is a thread. Without one, what is due is swept at the end of a batch.
    """

    def __init__(
        self,
        names: Sequence[str],
        committer: Callable[[str], SinkCommitter],
        owner: Callable[[str, Run], Owner],
        at_work: threading.RLock,
        *,
        every_s: float,
        in_background: bool,
    ) -> None:
        self._names = tuple(names)
        self._committer = committer
        self._owner = owner
        self._at_work = at_work
        self._every_s = every_s
        self._in_background = in_background and every_s > 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._runs: tuple[Run, ...] = ()
        self._due: list[float] = []
        self._expected = self._loser_possible = False
        self._failures = 0
        self._swept_at = time.monotonic()
        self._generations: dict[str, int] = {}

    def generation(self, name: str) -> int:
        """See `sparkonce.sink.Owner`."""
        return self._generations.get(name, 0)

    def leave_names(self, name: str) -> None:
        """Makes writers begin with other names: a request to end transactions under the old ones may still arrive."""
        self._generations[name] = self._generations.get(name, 0) + 1

    def expect_losers(self) -> None:
        """Notes that a copy of the batch at work may lose."""
        self._expected = self._loser_possible = True

    def sweep_older(self, names: Sequence[str], runs: Sequence[Run], until: float) -> None:
        """Aborts all that these runs left open, and waits for servers that are away: it may hold back every reader.

        Raises:
            UnknownOutcomeError: if something is not surely aborted at the deadline, by `time.monotonic`.
        """
        for name in names:
            self._sweep(name, runs, until)

    def sweep_now(self, runs: Sequence[Run]) -> None:
        """Aborts what these runs have open, in one attempt for each sink: the rest is swept later."""
        self._runs = tuple(runs)
        done = [self._try(name) for name in self._names]
        now = self._swept_at = time.monotonic()
        if all(done):
            self._failures = 0
            self._due = [at for at in self._due if at > now]
            if self._expected:
                self._expected = False
                self._due.append(now + LOSERS_END_WITHIN_S)
            self._loser_possible = bool(self._due)
            return
        self._failures += 1
        self._due = [now + min(LONGEST_PAUSE_S, max(1.0, self._every_s) * 2.0 ** min(self._failures, 8))]

    def batch_done(self, runs: Sequence[Run]) -> None:
        """Sweeps after a batch, or has the thread do it."""
        self._runs = tuple(runs)
        now = time.monotonic()
        if not self._failures:
            if self._expected:
                self._expected = False
                self._due = [min([now, *self._due]), now + LOSERS_END_WITHIN_S]
            elif not self._due:
                self._due = [max(now, self._swept_at + self._every_s)]
        if not self._in_background:
            self.sweep_due()
            return
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._keep_sweeping, name="sparkonce-sweeper", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def sweep_due(self) -> None:
        """Sweeps if the time for it has come. No batch may be at work."""
        if not self._closed and self._due and time.monotonic() >= self._due[0]:
            self.sweep_now(self._runs)

    def let_losers_end(self) -> None:
        """Waits until the thread has swept behind copies of the last batch that may have lost: some seconds at most."""
        with self._changed:
            if self._thread is not None:
                self._changed.wait_for(self._is_swept, LOSERS_END_WITHIN_S + _SWEEP_TAKES_S)

    def _is_swept(self) -> bool:
        return self._closed or self._failures > 0 or not self._loser_possible

    def close(self, *, sweep: bool) -> None:
        """Ends the thread. Sweeps once more if a copy of the last batch may have lost, unless told not to."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if sweep and self._loser_possible and self._due:
            self.sweep_now(self._runs)

    def _keep_sweeping(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                self._changed.notify_all()
                self._changed.wait(max(0.0, self._due[0] - time.monotonic()) if self._due else None)
            with self._at_work:
                self.sweep_due()

    def _try(self, name: str) -> bool:
        try:
            self._sweep(name, self._runs, until=0.0)
        except Exception as error:  # noqa: BLE001 - the rows are safe either way, and the other sinks are swept
            logger.warning("could not sweep what this run left open in %s: %s", name, _first_line(error))
            return False
        return True

    def _sweep(self, name: str, runs: Sequence[Run], until: float) -> None:
        owners = [self._owner(name, run) for run in runs if name in dict(run.sinks)]
        waited = False
        while owners:
            waiting = self._sweep_once(name, owners, until)
            if not waiting:
                return
            if time.monotonic() >= until:
                raise errors.UnknownOutcomeError(
                    f"{len(waiting)} transactions that earlier runs left open could not be aborted: "
                    f"{waiting[0].reason}",
                    next_step="see whether the server can be reached, then start the query again.",
                )
            if not waited:
                logger.info("sink=%s: waiting until what is open can be aborted: %s", name, waiting[0].reason)
            waited = True
            time.sleep(_ASK_AGAIN_S)

    def _sweep_once(self, name: str, owners: Sequence[Owner], until: float) -> list[Finished]:
        """Lists and aborts what these have open. Returns the answers that are not final."""
        try:
            lingering = self._committer(name).list_lingering(owners)
        except errors.UnknownOutcomeError as error:
            if time.monotonic() >= until:
                raise
            return [Finished(outcome=Outcome.RETRY, reason=error.message)]
        if not lingering:
            return []
        try:
            answers = self._committer(name).abort(lingering)
        except Exception:
            self.leave_names(name)
            raise
        for handle, answer in zip(lingering, answers, strict=True):
            fields = " ".join(f"{field}={value}" for field, value in handle.transaction)
            logger.info("swept %s sink=%s %s: %s", answer.outcome.value, name, fields, answer.reason or "ok")
        if any(answer.in_flight for answer in answers):
            self.leave_names(name)
        return [answer for answer in answers if answer.outcome not in FINAL]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
