"""Runs a query's batches: asks the coordinator what to do, has it done, and tells the coordinator what came of it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkonce import errors
from sparkonce.driver.ages import offsets_between
from sparkonce.driver.lookouts import Lookouts
from sparkonce.driver.perform import Performer
from sparkonce.driver.positions import PositionReporter, Positions
from sparkonce.driver.progress import BatchProgress, Stopwatch
from sparkonce.driver.sinks import RunSinks
from sparkonce.driver.start import look_around, recorded_topics, warn_if_not_moved
from sparkonce.driver.stops import stop_error
from sparkonce.driver.sweeper import Sweeper
from sparkonce.driver.timing import Timing
from sparkonce.driver.work import BatchWork
from sparkonce.log.base import DecisionLog
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
"""The listener is told of each phase that the run enters, and the batch, before anything is done in it."""


class RunDriver:
    """Carries out the coordinator's effects for one run.

    Args:
        run: Spark's run id.
        query: Spark's query id.
        sinks: The sinks, by name.
        log: The decision log.
        timing: Deadlines.
        listener: Told of each phase.
        library: The library's version, for the claim.
        moved: Whether the log was moved here, not copied.
        accept_lost: Of each sink the newest batch that its server may have lost.
        reporters: Told how far the query has read.
        topics: Given the ids that the log knows of the topics that the query reads, says which to keep.
        known: The state of a run that another process has begun; by default the run begins here.

    Attributes:
        state: The coordinator's.
        progress: Of the newest batches.
        has_all_sinks: False for a run that may be given some of the query's sinks alone.
        is_job: True for a batch job.
    """

    has_all_sinks = True
    is_job = False

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
        self._performer = Performer(
            self._sinks,
            log,
            self._sweeper,
            self._positions,
            patience_s=timing.outage_patience_s,
            accept_lost=accept_lost or {},
        )
        self._lookouts = Lookouts(self._sinks.lookouts, timing.look_out_every_s)
        self.progress: deque[BatchProgress] = deque(maxlen=KEPT_PROGRESS)
        try:
            self.state = known or self._first_state(
                log,
                run=run,
                query=query,
                library=library,
                moved=moved,
                topics=topics,
                timing=timing,
            )
        except BaseException:
            self._close(sweep=False)
            raise
        self._sinks.claim = self.state.claim
        self._lookouts.start()

    def _first_state(
        self,
        log: DecisionLog,
        *,
        run: str,
        query: str,
        library: str,
        moved: bool,
        topics: Callable[[Mapping[str, str]], Mapping[str, str]],
        timing: Timing,
    ) -> State:
        """Looks at log and servers, and returns the state of a run that has claimed nothing yet."""
        view, facts = look_around(
            self._sinks.by_name,
            self._sinks.committer,
            log,
            short_query(query),
            timing.outage_patience_s,
            all_given=self.has_all_sinks,
            is_job=self.is_job,
        )
        self._positions.check({name: dict(found) for name, found in facts})
        kept = topics(recorded_topics(view))
        if moved:
            warn_if_not_moved(view, log.store.location)
        claim = Claim(
            nonce=uuid.uuid4().hex[:8],
            run=run,
            query=query,
            host=socket.gethostname(),
            process=os.getpid(),
            library=library,
            location=log.store.location,
            sinks=facts,
            sources=tuple(sorted(kept.items())),
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
        """The number of transactions that this run has aborted since somebody had left them open."""
        return self._sweeper.swept

    @property
    def opened_s(self) -> float | None:
        """The time when the batch's first transaction may have been opened, by `time.monotonic`; None before."""
        return self._performer.writer.opened_s

    def lifetimes_s(self) -> dict[str, float]:
        """Returns how long the transactions of each sink may live, in seconds; without those that do not time out."""
        return {life.sink: life.seconds for life in self._sinks.lives(self._sinks.transactional)}

    def run_batch(self, asked: on.BatchAsked, work: BatchWork) -> BatchProgress:
        """Takes a batch from wherever it is to committed.

        Raises:
            SparkonceError: if the run must stop; see `sparkonce.errors`.
        """
        with self._at_work:
            watch = Stopwatch()
            self._performer.writer.rows_asked = offsets_between(asked.previous_offsets, asked.offsets)
            effect = self._carry_out(asked, asked.batch, work, watch)
            return self._note_done(effect, watch)

    def _carry_out(
        self,
        given: on.BatchAsked | do.Write,
        batch: int,
        work: BatchWork,
        watch: Stopwatch,
        until: tuple[type[do.Effect], ...] = (do.Done,),
    ) -> Any:
        """Does what the coordinator asks for, one thing after the other, until it asks for one of these.

        Args:
            given: What the run begins with: a new batch, or an effect that was asked for in another process.
            batch: Spark's batch id.
            work: The engine's.
            watch: Takes in the time of each phase.
            until: Where to stop; the last effect is returned.
        """
        try:
            if isinstance(given, on.BatchAsked):
                self.state, effect = step(self.state, given)
            else:
                effect = given
            while not isinstance(effect, (do.Stop, *until)):
                phase = self.state.phase
                self._tell(phase, batch)
                event = self._performer.perform(effect, self.state, work)
                watch.spent(phase)
                self.state, effect = step(self.state, event)
            if isinstance(effect, do.Stop):
                effect = self._performer.asked_again(effect, self.state, work)
        except BaseException:
            self._die()
            raise
        if isinstance(effect, do.Stop):
            cause = self._performer.trouble.cause
            self._die()
            if isinstance(cause, errors.StaleServerError):
                raise cause  # a sink found it before the decision: it says what to do, and what was open is aborted
            raise stop_error(effect, batch, self._performer.trouble.advice) from cause
        return effect

    def _note_done(self, effect: do.Done, watch: Stopwatch) -> BatchProgress:
        done = BatchProgress.of(effect, (*self.state.transactional, *self.state.direct), watch.seconds)
        self.progress.append(done)
        self._lookouts.batch_s = done.total_seconds
        self._tell(Phase.IDLE, effect.batch)
        return done

    def _tell(self, phase: Phase, batch: int) -> None:
        logger.debug("batch %d: %s", batch, phase.value)
        if self._listener is not None:
            self._listener(phase, batch)

    def close(self) -> None:
        """Frees connections, from any thread. A batch that is under way comes to its end first."""
        self._close(sweep=self.state.phase is Phase.IDLE)

    def end(self) -> None:
        """Closes as `close` does, but lets copies of the last batch that may have lost end before, some seconds."""
        self._sweeper.let_losers_end()
        self.close()

    def _close(self, *, sweep: bool) -> None:
        self._lookouts.close()
        with self._at_work:
            self._sweeper.close(sweep=sweep)
            self._positions.close()
            self._sinks.close()

    def _die(self) -> None:
        """Ends the run for good: what it had under way belongs to the next run's recovery."""
        batch, self.state = self.state.batch, State(claim=self.state.claim, phase=Phase.STOPPED)
        logger.info("Run %s has stopped at batch %s.", self.state.claim.run, batch.number if batch else "-")
        self.close()
