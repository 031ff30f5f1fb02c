"""Carries out the sweeps that `sparkonce.protocol.sweeping` requests, in a thread or at the end of a batch."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from sparkonce import errors
from sparkonce.driver import stops
from sparkonce.driver.outage import Outage, never
from sparkonce.protocol import sweeping
from sparkonce.protocol.handles import FINAL, Outcome
from sparkonce.protocol.view import Run
from sparkonce.sink import Owner, SinkCommitter

logger = logging.getLogger("sparkonce")
_SWEEP_TAKES_S = 1.0
_SILENT_S = 2.0
"""The time after which a wait is logged. Servers often need only a moment."""


class Sweeper:
    """Sweeps the sinks of one run: thoroughly before its first batch, and on a best-effort basis after each batch.

    After a batch, a background thread sweeps, but only while no batch is in progress. A new batch waits only for a
    sweep that has already started.

    Args:
        names: The sinks that are swept after a batch.
        at_work: The lock that is held while a batch is in progress.
        every_s: The time between two sweeps if there is no sign of a losing attempt, in seconds. With 0, each batch
            ends with a sweep.
        in_background: True to sweep in a thread; False to carry out a due sweep at the end of a batch.

    Attributes:
        swept: The number of aborted transactions.
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
        self._in_background = in_background and every_s > 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._state = sweeping.Sweeping(every_s=every_s, swept_s=time.monotonic())
        self.swept = 0

    def generation(self, name: str) -> int:
        """See `sparkonce.sink.Owner`."""
        return self._state.generation(name)

    def retire_names(self, name: str) -> None:
        """Makes writers use new transaction names, because a request to end the old ones may still arrive."""
        self._step(sweeping.AbortUnanswered(sink=name))

    def expect_losers(self) -> None:
        """Records that the current batch may have a losing task attempt."""
        self._step(sweeping.LosersExpected())

    def sweep_older(
        self, names: Sequence[str], runs: Sequence[Run], until: float, *, is_stopped: Callable[[], bool] = never
    ) -> None:
        """Aborts all open transactions of these runs, which may block readers. Waits for unreachable servers.

        Raises:
            UnknownOutcomeError: If a transaction may still be open at ``until``, a time by `time.monotonic`.
        """
        outage = Outage(until - time.monotonic(), is_stopped=is_stopped, silent_s=_SILENT_S)
        for name in names:
            outage.retry(partial(self._sweep, name, runs), f"what was left open in sink {name!r} is to be aborted")

    def sweep_now(self, runs: Sequence[Run]) -> None:
        """Aborts open transactions of these runs, with one attempt per sink. Those that remain are swept later."""
        self._step(sweeping.BatchFailed(runs=tuple(runs)))

    def batch_done(self, runs: Sequence[Run]) -> None:
        """Sweeps after a batch, or lets the thread do it."""
        self._step(sweeping.BatchDone(runs=tuple(runs), at_s=time.monotonic()))
        if not self._in_background:
            self.sweep_due()
        elif self._thread is None and not self._state.closed:
            self._thread = threading.Thread(target=self._keep_sweeping, name="sparkonce-sweeper", daemon=True)
            self._thread.start()

    def sweep_due(self) -> None:
        """Sweeps if a sweep is due. No batch may be in progress."""
        self._step(sweeping.TimePassed(at_s=time.monotonic()))

    def let_losers_end(self) -> None:
        """Waits, a few seconds at most, until the thread has swept after the last batch's losing attempts ended."""
        with self._changed:
            if self._thread is not None:
                self._changed.wait_for(
                    lambda: not self._state.waits_for_losers, sweeping.LOSERS_END_WITHIN_S + _SWEEP_TAKES_S
                )

    def close(self, *, sweep: bool) -> None:
        """Ends the thread. With ``sweep``, sweeps once more if the last batch may have had a losing attempt."""
        self._step(sweeping.Closed(in_order=sweep))

    def _step(self, event: sweeping.Event) -> None:
        """Feeds the state machine, and carries out the sweep that it requests. The caller holds `at_work`."""
        with self._changed:
            self._state, effect = sweeping.step(self._state, event)
            self._changed.notify_all()
        if effect is not None:
            began_s = time.monotonic()
            done = [self._try(name, effect.runs) for name in self._names]
            self._step(sweeping.SweepEnded(began_s=began_s, at_s=time.monotonic(), failed=not all(done)))

    def _keep_sweeping(self) -> None:
        while True:
            with self._changed:
                if self._state.closed:
                    return
                due_s = self._state.next_s
                self._changed.wait(None if due_s is None else max(0.0, due_s - time.monotonic()))
            with self._at_work:
                self.sweep_due()

    def _try(self, name: str, runs: Sequence[Run]) -> bool:
        try:
            self._sweep(name, runs)
        except Exception as error:  # noqa: BLE001 - the rows are safe in any case, and the other sinks must be swept
            logger.warning("What this run left open in sink %r could not be aborted: %s", name, stops.first_line(error))
            return False
        return True

    def _sweep(self, name: str, runs: Sequence[Run]) -> None:
        """Lists and aborts the open transactions of these runs in a sink, in one attempt.

        Raises:
            UnknownOutcomeError: If a transaction may still be open.
        """
        owners = [self._owner(name, run) for run in runs if name in dict(run.sinks)]
        lingering = self._committer(name).list_lingering(owners) if owners else ()
        if not lingering:
            return
        try:
            answers = self._committer(name).abort(lingering)
        except Exception:
            self.retire_names(name)
            raise
        for handle, answer in zip(lingering, answers, strict=True):
            fields = " ".join(f"{field}={value}" for field, value in handle.transaction)
            logger.info("Swept %s sink=%s %s: %s", answer.outcome.value, name, fields, answer.reason or "ok")
        self.swept += sum(answer.outcome is Outcome.ABORTED for answer in answers)
        if any(answer.in_flight for answer in answers):
            self.retire_names(name)
        if waiting := [answer for answer in answers if answer.outcome not in FINAL]:
            raise errors.UnknownOutcomeError(
                f"{len(waiting)} transactions that were left open in sink {name!r} could not be aborted: "
                f"{waiting[0].reason}",
                next_step="Check whether the server can be reached, then start the query again.",
            )
