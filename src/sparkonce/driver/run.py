"""Runs a query's batches: carries out the effects that the coordinator requests, and reports the results back to it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkonce import errors
from sparkonce.decision_log import DecisionLog
from sparkonce.driver.finish import BatchFinisher
from sparkonce.driver.outage import Outage, Timing
from sparkonce.driver.positions import PositionReporter, Positions
from sparkonce.driver.prepare import BatchPreparer
from sparkonce.driver.progress import BatchProgress, Stopwatch
from sparkonce.driver.put import LogWriter
from sparkonce.driver.sinks import Monitors, RunSinks
from sparkonce.driver.start import check_before_claim, check_servers, read_log, recorded_topics, warn_if_not_moved
from sparkonce.driver.stops import Failure, stop_error
from sparkonce.driver.sweeper import Sweeper
from sparkonce.driver.work import BatchWork
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.coordinator import step
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.state import Phase, State
from sparkonce.protocol.view import Claim
from sparkonce.sink import TwoPhaseCommitSink

logger = logging.getLogger("sparkonce")
KEPT_PROGRESS = 100
Listener = Callable[[Phase, int], None]
"""Called with each phase that the run enters, and the batch, before anything is done in that phase."""


class RunDriver:
    """Carries out the coordinator's effects for one run.

    Args:
        accept_lost: For each sink, the newest batch that may be missing from its server.
        reporters: The reporters of the query's positions.
        topics: Maps the topic ids in the log to the topic ids to record in the claim.
        known: The state of a run that another process began. By default, the run begins here.

    Attributes:
        progress: The progress of the last 100 batches.
        has_all_sinks: False for a run that may have only some of the query's sinks.
    """

    has_all_sinks = True

    def __init__(
        self,
        *,
        run: str,
        query: str,
        sinks: Mapping[str, TwoPhaseCommitSink],
        log: DecisionLog,
        timing: Timing | None = None,
        listener: Listener | None = None,
        library: str = "",
        moved: bool = False,
        accept_lost: Mapping[str, int] | None = None,
        reporters: Sequence[PositionReporter] = (),
        topics: Callable[[Mapping[str, str]], Mapping[str, str]] = dict,
        known: State | None = None,
    ) -> None:
        timing = timing or Timing()
        self._listener = listener
        self._at_work = threading.RLock()
        self._sinks = RunSinks(sinks)
        self._positions = Positions(reporters)
        self._sweeper = Sweeper(
            self._sinks.transactional,
            self._sinks.committer,
            self._sinks.owner_of,
            self._at_work,
            every_s=timing.sweep_every_s,
            in_background=timing.sweep_in_background,
        )
        self._log = log
        self._patience_s = timing.outage_patience_s
        self._accept_lost = accept_lost or {}
        self._failure = Failure()
        self._log_writer = LogWriter(log, self._patience_s, self._failure, lambda: self._preparer.grown_old())
        self._finisher = BatchFinisher(self._sinks, self._sweeper, self._patience_s, self._failure)
        self._preparer = BatchPreparer(
            self._sinks, self._positions, self._sweeper, self._log_writer, self._patience_s, self._failure
        )
        self._monitors = Monitors(self._sinks.monitors, timing.monitor_every_s)
        self.progress: deque[BatchProgress] = deque(maxlen=KEPT_PROGRESS)
        try:
            self.state = known or self._first_state(run=run, query=query, library=library, moved=moved, topics=topics)
        except BaseException:
            self._close(sweep=False)
            raise
        self._sinks.claim = self.state.claim
        self._monitors.start()

    def _first_state(
        self,
        *,
        run: str,
        query: str,
        library: str,
        moved: bool,
        topics: Callable[[Mapping[str, str]], Mapping[str, str]],
    ) -> State:
        """Checks the log and the servers, and returns the state of a run that has not claimed the log yet."""
        view, facts = check_before_claim(
            self._sinks.by_name,
            self._sinks.committer,
            self._log,
            short_query(query),
            self._patience_s,
            has_all_sinks=self.has_all_sinks,
        )
        self._positions.check({name: dict(found) for name, found in facts})
        location, topic_ids = self._log.location, topics(recorded_topics(view))
        if moved:
            warn_if_not_moved(view, location)
        claim = Claim(
            nonce=uuid.uuid4().hex[:8],
            run=run,
            query=query,
            host=socket.gethostname(),
            process=os.getpid(),
            library=library,
            location=location,
            sinks=facts,
            sources=tuple(sorted(topic_ids.items())),
        )
        return State(
            claim=claim,
            moved=moved,
            transactional=self._sinks.transactional,
            direct=self._sinks.direct,
            after=self._sinks.after,
            reports=bool(self._positions),
            view=view,
        )

    @property
    def swept(self) -> int:
        """The number of open transactions, from this run or older ones, that this run has aborted."""
        return self._sweeper.swept

    @property
    def opened_s(self) -> float | None:
        """The earliest time (`time.monotonic`) at which the batch may have opened a transaction; None before that."""
        return self._preparer.opened_s

    def lifetimes_s(self) -> dict[str, float]:
        """Returns how long the transactions of each sink may live, in seconds. Sinks without a timeout are left out."""
        return {life.sink: life.seconds for life in self._sinks.lives(self._sinks.transactional)}

    def run_batch(self, asked: on.BatchAsked, work: BatchWork, rows: int | None = None) -> BatchProgress:
        """Commits a batch, whether it is new, decided or partly committed.

        Args:
            asked: The batch.
            work: Runs its plan.
            rows: The number of input rows, from which its duration is estimated; None if unknown.

        Raises:
            SparkonceError: If the run must stop; see `sparkonce.errors`.
        """
        with self._at_work:
            watch = Stopwatch()
            self._preparer.rows_asked = rows
            effect = self._carry_out(asked, asked.batch, work, watch)
            return self._note_done(effect, watch)

    def _carry_out(
        self,
        first: on.BatchAsked | do.Write,
        batch: int,
        work: BatchWork,
        watch: Stopwatch,
        until: tuple[type[do.Effect], ...] = (do.Done,),
    ) -> Any:
        """Carries out effects until the coordinator requests one of the types in ``until``, and returns that effect."""
        try:
            if isinstance(first, on.BatchAsked):
                self.state, effect = step(self.state, first)
            else:
                effect = first
            while not isinstance(effect, (do.Stop, *until)):
                phase = self.state.phase
                self._tell(phase, batch)
                event = self._perform(effect, work)
                watch.spent(phase)
                self.state, effect = step(self.state, event)
            if isinstance(effect, do.Stop):
                effect = self._confirmed(effect, work)
        except BaseException:
            self._die()
            raise
        if isinstance(effect, do.Stop):
            cause = self._failure.cause
            self._die()
            if isinstance(cause, errors.StaleServerError):
                # A sink raised this error before the decision. All open transactions are aborted. The next step in the
                # error is more specific than the general one.
                raise cause
            raise stop_error(effect, batch, self._failure.advice) from cause
        return effect

    def _perform(self, effect: do.Effect, work: BatchWork) -> on.Event:
        """Carries out one effect, and returns the event that answers it."""
        match effect:
            case do.ReadLog(view=view):
                outage = Outage(self._patience_s, is_stopped=work.is_stopped)
                return on.LogRead(view=read_log(self._log, view, outage))
            case do.Put():
                return self._log_writer.put(effect, self.state.view, work)
            case do.CheckServers():
                check_servers(effect, self._sinks.committer, self._accept_lost, self._patience_s, work.is_stopped)
                return on.ServersChecked()
            case do.Sweep():
                return self._sweep(effect, work)
            case do.Write():
                return self._preparer.write(effect, self.state, work)
            case do.Validate():
                return self._preparer.validate(effect)
            case do.Finish():
                return self._finisher.finish(effect)
            case do.RunIntoNothing():
                work.run_into_nothing()
                return on.PlanRun()
            case do.Deliver():
                return self._preparer.deliver(effect, self.state, work)
            case do.RaiseFloor() | do.DeleteBelow():
                return self._log_writer.tidy(effect, work)
            case do.Conclude():
                return self._finisher.conclude(effect, work)
            case do.Report(offsets=offsets):
                self._positions.after_finish(offsets)
                return on.Reported()
            case do.Abort():
                return self._finisher.abort(effect)
            case _:
                raise TypeError(f"no way to perform {effect!r}")

    def _confirmed(self, stop: do.Stop, work: BatchWork) -> do.Stop:
        """Reads the log again before rows are reported as lost, since a newer run may have healed the batch.

        Raises:
            LogError: If the log cannot be read.
        """
        if stop.reason is not do.StopReason.LOST:
            return stop
        read = self._perform(do.ReadLog(view=self.state.view), work)
        if isinstance(read, on.LogRead) and read.view.end == self.state.view.end:
            return stop
        message = f"a newer run has claimed the query, while this one considered rows lost: {stop.message}"
        return do.Stop(reason=do.StopReason.SUPERSEDED, message=message)

    def _sweep(self, effect: do.Sweep, work: BatchWork) -> on.Event:
        if effect.optional:
            self._sweeper.batch_done(effect.runs)
        elif effect.best_effort:
            self._sweeper.sweep_now(effect.runs)
        else:
            # Include sinks that were EXACTLY_ONCE in an earlier run, since they may have left transactions open.
            names = {name for run in effect.runs for name, facts in run.sinks if dict(facts).get("prefix")}
            names.update(self._sinks.transactional)
            known = [name for name in self._sinks.by_name if name in names]
            until_s = time.monotonic() + self._patience_s
            self._sweeper.sweep_older(known, effect.runs, until_s, is_stopped=work.is_stopped)
        return on.Swept()

    def _note_done(self, effect: do.Done, watch: Stopwatch) -> BatchProgress:
        done = BatchProgress.of(effect, (*self.state.transactional, *self.state.direct), watch.seconds)
        self.progress.append(done)
        self._monitors.batch_s = done.total_seconds
        self._tell(Phase.IDLE, effect.batch)
        return done

    def _tell(self, phase: Phase, batch: int) -> None:
        logger.debug("batch %d: %s", batch, phase.value)
        if self._listener is not None:
            self._listener(phase, batch)

    def close(self) -> None:
        """Releases connections. May be called from any thread; a batch in progress is completed first."""
        self._close(sweep=self.state.phase is Phase.IDLE)

    def end(self) -> None:
        """Closes the run, after waiting a few seconds for the last batch's losing task attempts to end."""
        self._sweeper.let_losers_end()
        self.close()

    def _close(self, *, sweep: bool) -> None:
        self._monitors.close()
        with self._at_work:
            self._sweeper.close(sweep=sweep)
            self._positions.close()
            self._sinks.close()

    def _die(self) -> None:
        """Ends the run permanently. Unfinished work is left to the next run's recovery."""
        batch, self.state = self.state.batch, State(claim=self.state.claim, phase=Phase.STOPPED)
        logger.info("Run %s has stopped at batch %s.", self.state.claim.run, batch.number if batch else "-")
        self.close()
