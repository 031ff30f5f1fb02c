"""One run of a query: asks the coordinator what to do, does it, and tells it what came of it."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from sparkonce import errors
from sparkonce.driver.ages import Life, Pace, lives, offsets_between, shortest_life, too_old
from sparkonce.driver.lookouts import Lookouts
from sparkonce.driver.outage import Outage, doubled, is_outage
from sparkonce.driver.positions import PositionReporter, Positions
from sparkonce.driver.progress import BatchProgress, Stopwatch, rows_by_sink
from sparkonce.driver.replay import as_recorded, found_again, where_lost
from sparkonce.driver.start import look_around, read_log, recorded_topics, warn_if_not_moved
from sparkonce.driver.stops import advice_of, stop_error, taken_away, then_start_again
from sparkonce.driver.sweeper import Sweeper
from sparkonce.driver.went_back import check_servers
from sparkonce.durable import is_outage as is_disk_outage
from sparkonce.executor import check_handles
from sparkonce.guarantees import Guarantee
from sparkonce.log.base import DecisionLog, PutUnknownError
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.coordinator import step
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.records import Claim, Commit, Void
from sparkonce.protocol.state import Phase, State
from sparkonce.protocol.view import LogViolation, Run
from sparkonce.sink import Facts, Lookout, Owner, SinkCommitter, TwoPhaseCommitSink

logger = logging.getLogger("sparkonce")

KEPT_PROGRESS = 100

Listener = Callable[[Phase, int], None]
"""Told of each phase that the run enters, and the batch, before anything is done in it."""


class BatchWork(Protocol):
    """What the engine can do with a batch's plan."""

    def write(
        self,
        sinks: Mapping[str, Owner],
        only: frozenset[tuple[str, int]] | None,
        computed: Callable[[], None] | None = None,
    ) -> tuple[Sequence[Handle], bool]:
        """Runs the plan and prepares every slot.

        Args:
            sinks: The sinks to write to, by name, each with the run as it is to know it.
            only: See `effects.Write.only`.
            computed: If given, all rows are computed and kept first; it is called before the first transaction opens.

        Returns:
            The handles, and whether a copy may have lost: a task or its whole stage tried again, a speculative task.
        """

    def run_into_nothing(self) -> None:
        """Runs the plan and throws its rows away."""

    def is_stopped(self) -> bool:
        """Tells if the query was stopped meanwhile: nothing is waited for then, and the next `write` raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long to wait for what.

    Attributes:
        outage_patience_s: How long a system that cannot be reached, or has no room, is waited for before the query
            stops, in each phase of a batch: while it is written, decided and committed. Nothing is lost by stopping:
            the next run goes on. A run that starts waits for sinks to say what they remember, for a minute at most.
        sweep_every_s: How often the run's own losers are looked for when nothing says that there are any; 0: at the
            end of each batch.
        sweep_in_background: Whether a thread looks for them, so that batches do not wait for it.
        look_out_every_s: How often a thread has sinks look at what others do to their readers; 0: never.
    """

    outage_patience_s: float = 300.0
    sweep_every_s: float = 10.0
    sweep_in_background: bool = False
    look_out_every_s: float = 0.0


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
    """

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
    ) -> None:
        self._sinks = dict(sinks)
        self._log = log
        self._timing = timing or Timing()
        self._accept_lost = dict(accept_lost or {})
        self._servers_checked = False
        self._listener = listener
        self._committers: dict[str, SinkCommitter] = {}
        self._at_work = threading.RLock()
        self._positions = Positions(reporters)
        self._sources: tuple[str, ...] = ()
        self._pace = Pace()
        self._rows_asked: int | None = None
        self._live_long = False
        self._cause: BaseException | None = None
        self._advice = ""
        self._grown_old: Callable[[], str] = str
        self._finish_until = 0.0
        self._finish_waits = False
        self._lost: dict[str, Finished] = {}
        self._sweeper = Sweeper(
            [name for name, sink in self._sinks.items() if sink.guarantee is Guarantee.EXACTLY_ONCE],
            self._committer,
            self._owner,
            self._at_work,
            every_s=self._timing.sweep_every_s,
            in_background=self._timing.sweep_in_background,
        )
        self._lookouts = Lookouts(self._make_lookouts, self._timing.look_out_every_s)
        self.progress: deque[BatchProgress] = deque(maxlen=KEPT_PROGRESS)
        names: dict[Guarantee, list[str]] = {guarantee: [] for guarantee in Guarantee}
        for name, sink in self._sinks.items():
            names[sink.guarantee].append(name)
        try:
            view, facts = look_around(
                self._sinks, self._committer, log, short_query(query), self._timing.outage_patience_s
            )
            self._positions.check({name: dict(known) for name, known in facts})
            kept = topics(recorded_topics(view))
        except BaseException:
            self._close(sweep=False)
            raise
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
        self.state = State(
            claim=claim,
            moved=moved,
            transactional=tuple(names[Guarantee.EXACTLY_ONCE]),
            direct=tuple(names[Guarantee.AT_LEAST_ONCE]),
            after=tuple(names[Guarantee.AT_MOST_ONCE]),
            view=view,
        )
        self._lookouts.start()

    def run_batch(self, asked: on.BatchAsked, work: BatchWork) -> BatchProgress:
        """Takes a batch from wherever it stands to committed.

        Raises:
            SparkonceError: if the run must stop; see `sparkonce.errors`.
        """
        with self._at_work:
            return self._run_batch(asked, work)

    def _run_batch(self, asked: on.BatchAsked, work: BatchWork) -> BatchProgress:
        watch = Stopwatch()
        handles: tuple[Handle, ...] = ()
        recovered, healed = False, 0
        self._sources, self._lost = asked.offsets, {}
        self._rows_asked = offsets_between(asked.previous_offsets, asked.offsets)
        try:
            self.state, effect = step(self.state, asked)
            while not isinstance(effect, do.Done | do.Stop):
                phase = self.state.phase
                self._check_servers(asked.batch)
                self._tell(phase, asked.batch)
                event = self._perform(effect, work)
                watch.spent(phase)
                self.state, effect = step(self.state, event)
                if self.state.decided is not None:
                    handles, recovered = self.state.decided.handles, self.state.recovering
                if isinstance(event, on.LogRead) and self.state.phase is Phase.WRITING:
                    healed += len(self.state.lost)
        except BaseException:
            self._die()
            raise
        if isinstance(effect, do.Stop):
            cause, self._cause = self._cause, None
            self._die()
            if isinstance(cause, errors.StaleServerError):
                raise cause  # a sink found it before the decision: it says what to do, and what was open is aborted
            raise stop_error(effect, asked.batch, self._advice) from cause
        try:
            self._conclude(asked.batch, handles)
        except BaseException:
            self._die()
            raise
        watch.spent(Phase.FINISHING)
        if self._positions:
            self._positions.after_finish(self._sources)
            watch.spent(Phase.IDLE)
        transactions = [handle for handle in handles if handle.transaction]
        done = BatchProgress(
            batch=asked.batch,
            rows=rows_by_sink(handles, (*self.state.transactional, *self.state.direct)),
            transactions=len(transactions),
            recovered=recovered,
            healed=healed,
            seconds=watch.seconds,
            finished_at_ms=time.time_ns() // 1_000_000,
        )
        self.progress.append(done)
        self._lookouts.batch_s = done.total_seconds
        self._tell(Phase.IDLE, asked.batch)
        return done

    def _check_servers(self, batch: int) -> None:
        """Once, after the claim and before anything is finished, swept or written."""
        if self._servers_checked or self.state.token is None:
            return
        self._servers_checked = True
        check_servers(
            self.state.view,
            batch,
            self.state.transactional,
            self._committer,
            self._accept_lost,
            self._timing.outage_patience_s,
        )

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
            committers, self._committers = self._committers, {}
            self._positions.close()
            for name, committer in committers.items():
                _close(name, committer)

    def _die(self) -> None:
        """However a run ended, it does not go on: what it had under way belongs to the next run's recovery."""
        batch, self.state = self.state.batch, State(claim=self.state.claim, phase=Phase.STOPPED)
        logger.info("run %s stopped at batch %s", self.state.claim.run, batch.number if batch else "-")
        self.close()

    def _tell(self, phase: Phase, batch: int) -> None:
        logger.debug("batch %d: %s", batch, phase.value)
        if self._listener is not None:
            self._listener(phase, batch)

    # --- effects ----------------------------------------------------------------------------------------------------

    def _perform(self, effect: do.Effect, work: BatchWork) -> on.Event:
        match effect:
            case do.ReadLog(view=view):
                return on.LogRead(view=read_log(self._log, view))
            case do.Put():
                return self._put(effect, work)
            case do.Write():
                return self._write(effect, work)
            case do.Deliver(sinks=sinks):
                return self._deliver(sinks, work)
            case do.Finish():
                return self._finish(effect)
            case do.Sweep():
                return self._sweep(effect)
            case do.Abort(handles=handles):
                return self._abort(handles)
            case do.RunIntoNothing():
                work.run_into_nothing()
                return on.PlanRun()
            case do.RaiseFloor(floor=floor):
                self._tidy(partial(self._log.raise_floor, floor), work)
                return on.FloorRaised(floor=floor)
            case do.DeleteBelow(position=position):
                self._tidy(partial(self._log.store.delete_below, position), work)
                return on.Deleted()
            case _:
                raise TypeError(f"no way to perform {effect!r}")

    def _tidy(self, call: Callable[[], None], work: BatchWork) -> None:
        """Nothing is deleted under a floor that may not be durable."""
        outage = self._outage()
        while True:
            try:
                call()
            except (OSError, PutUnknownError) as error:
                text = f"old records of the decision log {self._log.store.location} could not be tidied away: {error}"
                if _is_full(error) and not work.is_stopped() and outage.pause(text):
                    continue
                raise errors.LogError(
                    text, next_step="make the checkpoint's disk writable and start the query again; no row is lost."
                ) from error
            outage.is_over()
            return

    def _outage(self) -> Outage:
        return Outage(self._timing.outage_patience_s)

    def _put(self, effect: do.Put, work: BatchWork) -> on.Event:
        if effect.contested >= _CONTESTED:
            self._back_off(effect.contested)
        self._cause = None
        outage = self._outage()
        while True:
            try:
                standing = self._log.put(effect.position, effect.record)
            except PutUnknownError as error:
                return on.PutUnknown(position=effect.position, reason=str(error))
            except OSError as error:
                self._cause = error
                answer = self._wait_to_put(effect, error, outage, work)
                if answer is not None:
                    return answer
                continue
            outage.is_over()
            self._cause = None
            break
        # Rule of the log: after every put the floor is read again before anything is done.
        try:
            floor = self._log.floor()
        except OSError as error:
            reason = f"the floor could not be read behind it: {error}"
            return on.PutUnknown(position=effect.position, reason=reason)
        if standing is not None:
            return on.PutTaken(position=effect.position, standing=standing, floor=floor)
        if isinstance(effect.record, Commit):
            logger.debug("batch %d is decided at position %d", effect.record.batch, effect.position)
        return on.PutLanded(position=effect.position, floor=floor)

    def _wait_to_put(self, effect: do.Put, error: OSError, outage: Outage, work: BatchWork) -> on.Event | None:
        """Waits for room after a put that surely did not land. None to put it again: the position may still be free."""
        refused = on.PutRefused(position=effect.position, reason=str(error))
        what = f"record {effect.position} of the decision log could not be written: {error}"
        if not _is_full(error) or work.is_stopped() or not outage.pause(what):
            return refused
        if self._log_went_on() and (standing := self._log.standing(effect.position)) is not None:
            return on.PutTaken(position=effect.position, standing=standing, floor=self._log.floor())
        if isinstance(effect.record, Claim | Void):
            return None
        try:
            late = self._grown_old()
        except errors.UnknownOutcomeError as unknown:
            late = _first_line(unknown)
        return replace(refused, reason=f"{error}; meanwhile {late}") if late else None

    @staticmethod
    def _back_off(contested: int) -> None:
        wait_s = doubled(1.0, contested - _CONTESTED, _LONGEST_BACK_OFF_S) * random.uniform(0.5, 1.0)  # noqa: S311
        logger.warning(
            "%d runs have claimed this query without committing a batch; waiting %.1f s before the next claim. Two "
            "supervised drivers on one checkpoint depose each other: stop one of them.",
            contested,
            wait_s,
        )
        time.sleep(wait_s)

    def _write(self, effect: do.Write, work: BatchWork) -> on.Event:
        if not effect.sinks:
            return on.Prepared(handles=())
        outage = self._outage()
        while True:
            event = self._write_once(effect, work)
            if not isinstance(event, on.PrepareFailed) or not is_outage(self._cause) or _is_final(event):
                if isinstance(event, on.Prepared):
                    outage.is_over()
                return event
            verdict = self._wait_to_write(effect, event, outage, work)
            if verdict is not None:
                return verdict

    def _wait_to_write(
        self, effect: do.Write, event: on.PrepareFailed, outage: Outage, work: BatchWork
    ) -> on.PrepareFailed | None:
        """Waits until what a failed write left open is undone: its locks and names would be in the next one's way.

        That also asks whether the servers are back, which costs less than to run the plan.
        """
        self._sweeper.expect_losers()
        own = [run for run in self.state.view.runs if run.token == self.state.token]
        while not work.is_stopped():
            if not outage.pause(event.reason):
                return replace(event, reason=f"{event.reason} ({outage.in_vain()})")
            if self._log_went_on():
                return replace(event, superseded=True)
            try:
                self._sweeper.sweep_older([name for name in effect.sinks if name in self.state.transactional], own, 0.0)
            except errors.UnknownOutcomeError as error:
                logger.debug("what the failed write left open is not undone yet: %s", error.message)
            else:
                return None
        return None

    def _write_once(self, effect: do.Write, work: BatchWork) -> on.Event:
        began, life = time.monotonic(), shortest_life(effect.sinks, self._sinks, self._facts)
        computed_first = life is not None and self._pace.expected_s(self._rows_asked) * 2 > life.seconds
        event = self._prepare(effect, work, computed_first=computed_first)
        took_s = time.monotonic() - began
        if life is not None and not computed_first and self._outlived(event, took_s, life):
            event = self._prepare_quickly(effect, work, event, took_s, life)
        if life is not None and isinstance(event, on.Prepared):
            self._pace.note(time.monotonic() - began, self._rows_asked)
        return event

    def _prepare_quickly(
        self, effect: do.Write, work: BatchWork, event: on.Event, took_s: float, life: Life
    ) -> on.Event:
        """Writes once more a batch that took longer than its transactions live, all rows computed before the first."""
        logger.warning(
            "Preparing the batch took %.0f s, and transactions of sink %s live %.0f s: what it wrote is undone, and it "
            "is written again, with all rows computed and kept on the executors' disks first, and with transactions "
            "that live as long as each system allows, from now on. Next: to have later batches smaller, bound them by "
            "max_offsets_per_trigger (Spark's maxOffsetsPerTrigger), or raise transaction.timeout.ms where the sink "
            "has it.",
            took_s,
            life.sink,
            life.seconds,
        )
        self._sweeper.expect_losers()
        if isinstance(event, on.Prepared):
            self._abort(tuple(handle for handle in event.handles if handle.transaction))
        self._live_longest(effect.sinks)
        life = shortest_life(effect.sinks, self._sinks, self._facts) or life
        began = time.monotonic()
        event = self._prepare(effect, work, computed_first=True)
        again_s = time.monotonic() - began
        if isinstance(event, on.PrepareFailed) and self._outlived(event, again_s, life):
            self._advice = ""
            late = f"it took {took_s:.0f} s, and {again_s:.0f} s with all rows computed first"
            return replace(event, too_old=f"{late}; transactions of sink {life.sink} live {life.seconds:.0f} s")
        return event

    def _outlived(self, event: on.Event, took_s: float, life: Life) -> bool:
        """Tells if a batch was not prepared, perhaps because its transactions were lost to their age meanwhile."""
        if isinstance(event, on.Prepared):
            return bool(event.too_old)
        if not isinstance(event, on.PrepareFailed) or event.stopped or event.superseded:
            return False
        # What waits for brokers that are away lasts as long as a transaction, too.
        return took_s >= life.seconds and not is_outage(self._cause)

    def _live_longest(self, names: Sequence[str]) -> None:
        """Workers' transactional ids have a timeout each: they begin with new ones where it changes."""
        before = {name: self._facts(name) for name in names}
        self._live_long = True
        for name in names:
            if self._facts(name) != before[name]:
                self._sweeper.leave_names(name)

    def _prepare(self, effect: do.Write, work: BatchWork, *, computed_first: bool) -> on.Event:
        """Runs the plan once and prepares every slot."""
        self._cause, self._advice = None, ""
        opened = time.monotonic()

        def computed() -> None:
            nonlocal opened
            opened = time.monotonic()

        write = partial(work.write, computed=computed if computed_first else None)
        try:
            if effect.only is None:
                handles, loser_possible = write(self._owners(effect.sinks), None)
            else:
                handles, loser_possible = self._write_lost(effect.only, effect.sinks, write)
        except Exception as error:  # noqa: BLE001 - whatever the engine raises, the batch is not prepared
            self._cause, self._advice = error, then_start_again(error)
            reason = _reason(error)
            stopped = isinstance(error, errors.SparkonceError) and bool(error.details.get("stopped"))
            return on.PrepareFailed(reason=reason, stopped=stopped, superseded=self._log_went_on())
        if loser_possible:
            self._sweeper.expect_losers()
        wrong = check_handles(handles, effect.sinks)
        if wrong:
            return on.PrepareFailed(reason=wrong)
        if reason := self._objection(effect.sinks) or self._positions.before_decision(handles, self._sources):
            return on.PrepareFailed(reason=reason)
        self._grown_old = lambda: self._too_old(handles, effect.sinks, time.monotonic() - opened)
        try:
            late = self._grown_old()
        except errors.UnknownOutcomeError as error:
            self._cause, self._advice = error, then_start_again(error)
            return on.PrepareFailed(reason=_reason(error))
        return on.Prepared(handles=tuple(handles), too_old=late)

    def _too_old(self, handles: Sequence[Handle], names: Sequence[str], took_s: float) -> str:
        for life in lives(names, self._sinks, self._facts):
            own = [handle for handle in handles if handle.sink == life.sink and handle.transaction]
            if late := too_old(own, took_s, time.time(), life, self._committer(life.sink).begun_ms):
                return late
        return ""

    def _deliver(self, sinks: Sequence[str], work: BatchWork) -> on.Event:
        try:
            work.write(self._owners(sinks), None)
        except Exception as error:  # noqa: BLE001 - whatever the engine raises, the run says that rows may be missing
            self._cause = error
            self._advice = "remove the cause and start the query again: it goes on behind this batch."
            return on.PrepareFailed(reason=_reason(error))
        return on.Prepared(handles=())

    def _log_went_on(self) -> bool:
        """Whether a newer run has claimed; False if the log cannot be read now."""
        try:
            return self._log.read(self.state.view).end > self.state.view.end
        except (OSError, LogViolation, errors.LogError) as error:
            logger.warning("the decision log could not be read: %s", error)
            return False

    def _objection(self, written: Sequence[str]) -> str:
        """What a sink has against the decision; empty if none has anything. An error counts as an objection."""
        told = (
            self._committer(name).before_decision(self._facts(name))
            for name in self.state.transactional
            if name in written
        )
        try:
            return next(filter(None, told), "")
        except Exception as error:  # noqa: BLE001 - every transaction is prepared, and has to be aborted first
            self._cause, self._advice = error, then_start_again(error)
            return _reason(error)

    def _write_lost(
        self,
        lost: frozenset[tuple[str, int]],
        sinks: Sequence[str],
        write: Callable[[Mapping[str, Owner], frozenset[tuple[str, int]]], tuple[Sequence[Handle], bool]],
    ) -> tuple[Sequence[Handle], bool]:
        """Writes the lost slots of a decided batch, wherever the replay has their rows."""
        recorded = self.state.decided.handles if self.state.decided is not None else ()
        handles, loser_possible = write(self._owners(sinks), lost)
        there = where_lost(lost, recorded, handles)
        if there is not None and there != lost:
            logger.info("the slots of the replay are other ones: writing %s for %s", sorted(there), sorted(lost))
            self._abort(tuple(handle for handle in handles if handle.transaction))
            handles, again = write(self._owners(sinks), there)
            loser_possible |= again
            if where_lost(lost, recorded, handles) not in (there, None):
                raise errors.PrepareError("the batch's slots came in another order each time it was run")
        return as_recorded(handles, found_again(recorded, handles)), loser_possible

    def _finish(self, effect: do.Finish) -> on.Event:
        if effect.attempt == 0:
            self._finish_until = time.monotonic() + self._timing.outage_patience_s
            self._finish_waits = False
        else:
            wait_s = doubled(_FIRST_RETRY_S, effect.attempt - 1, _LONGEST_RETRY_S)
            time.sleep(max(0.0, min(wait_s, self._finish_until - time.monotonic())))
        void = frozenset(effect.void)
        answers = self._by_sink(effect.handles, lambda committer, handles: _commit_or_abort(committer, handles, void))
        for handle, answer in answers:
            self._report(effect.batch, handle, answer)
            if answer.outcome in _TO_BE_HEALED:
                self._check_can_heal(effect.batch, handle)
                self._lost.setdefault(handle.sink, answer)
            if answer.in_flight:
                self._sweeper.leave_names(handle.sink)
        late = time.monotonic() >= self._finish_until
        waiting = [answer for _, answer in answers if answer.outcome in _NOT_FINAL]
        reasons = sorted({answer.reason for answer in waiting})
        self._advice = advice_of(waiting) if waiting else self._advice_if_lost()
        self._say_finish_waits(effect.batch, reasons)
        return on.Finished(
            outcomes=tuple(answer.outcome for _, answer in answers),
            attempt=effect.attempt,
            deadline_passed=f"after {self._timing.outage_patience_s:.0f} s: {'; '.join(reasons)}" if late else "",
        )

    def _advice_if_lost(self) -> str:
        """Says what to do about lost transactions; empty if all they need is to live longer."""
        times_out = {life.sink for life in lives([*self._lost], self._sinks, self._facts)}
        taken = [one for name, one in self._lost.items() if name not in times_out or one.outcome is Outcome.DAMAGED]
        return taken_away(one.next_step or one.reason for one in taken) if taken else ""

    def _say_finish_waits(self, batch: int, reasons: Sequence[str]) -> None:
        """Once, and not of what is answered soon: many a server asks for a moment's patience."""
        waited_s = time.monotonic() - (self._finish_until - self._timing.outage_patience_s)
        if self._finish_waits and not reasons:
            logger.warning("batch %d: going on after %.0f s", batch, waited_s)
        if not self._finish_waits and reasons and waited_s >= _LONGEST_RETRY_S:
            self._finish_waits = True
            logger.warning(
                "batch %d is decided; waiting for at most %.0f s until the rest of it can be committed: %s",
                *(batch, self._timing.outage_patience_s, "; ".join(reasons)),
            )

    def _check_can_heal(self, batch: int, handle: Handle) -> None:
        """Only transactions can replace lost ones: without this, an amendment would name the lost one for ever."""
        if handle.sink in self.state.transactional:
            return
        guarantee = self._sinks[handle.sink].guarantee.value
        raise errors.ConfigurationError(
            f"batch {batch} was decided when sink {handle.sink!r} was {Guarantee.EXACTLY_ONCE.value}, and slot "
            f"{handle.slot} is lost; the sink is now guarantee={guarantee!r}, at which it cannot be written again",
            next_step=f"run the sink at {Guarantee.EXACTLY_ONCE.value} again until this batch is committed.",
        )

    def _report(self, batch: int, handle: Handle, answer: Finished) -> None:
        fields = " ".join(f"{name}={value}" for name, value in handle.transaction)
        level = logging.DEBUG if answer.outcome in _NOT_FINAL else logging.INFO
        level = logging.WARNING if answer.outcome in (Outcome.LOST, Outcome.DAMAGED) else level
        logger.log(
            level,
            "batch=%d sink=%s slot=%d %s rows=%d %s: %s",
            batch,
            handle.sink,
            handle.slot,
            answer.outcome.value.replace(" ", "-"),
            handle.rows,
            fields,
            answer.reason or "ok",
        )

    def _sweep(self, effect: do.Sweep) -> on.Event:
        if effect.optional:
            self._sweeper.batch_done(effect.runs)
        elif effect.best_effort:
            self._sweeper.sweep_now(effect.runs)
        else:
            # Also what a sink left open that has been EXACTLY_ONCE until now.
            once = {name for run in effect.runs for name, facts in run.sinks if dict(facts).get("prefix")}
            names = [name for name in self._sinks if name in once or name in self.state.transactional]
            self._sweeper.sweep_older(names, effect.runs, time.monotonic() + self._timing.outage_patience_s)
        return on.Swept()

    def _abort(self, handles: tuple[Handle, ...]) -> on.Event:
        try:
            for handle, answer in self._by_sink(handles, lambda committer, some: committer.abort(some)):
                logger.info("aborted sink=%s slot=%d: %s", handle.sink, handle.slot, answer.outcome.value)
                if answer.in_flight:
                    self._sweeper.leave_names(handle.sink)
        except Exception as error:  # noqa: BLE001 - the run stops with a better reason; the next run sweeps
            logger.warning("could not abort %d transactions of this run: %s", len(handles), _first_line(error))
            for name in {handle.sink for handle in handles}:
                self._sweeper.leave_names(name)
        return on.Aborted()

    def _conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """Tells each sink that the whole batch is committed; servers that are away for a while are waited for."""
        outage = self._outage()
        # Also one that has been EXACTLY_ONCE until now: what it had prepared then is committed by two phases.
        told = dict.fromkeys((*self.state.transactional, *(handle.sink for handle in handles if handle.transaction)))
        for name in told:
            own = [handle for handle in handles if handle.sink == name]
            if own:
                doing = f"batch {batch} is committed, and sink {name} cannot be told"
                outage.retry(partial(self._committer(name).conclude, batch, own), doing)

    # --- sinks ------------------------------------------------------------------------------------------------------

    def _by_sink(
        self, handles: Sequence[Handle], call: Callable[[SinkCommitter, list[Handle]], Sequence[Finished]]
    ) -> list[tuple[Handle, Finished]]:
        """Asks all sinks at once, and gives the answers in the order of the handles."""
        groups: dict[str, list[Handle]] = {}
        for handle in handles:
            groups.setdefault(handle.sink, []).append(handle)
        for name in groups:
            if name not in self._sinks:
                raise errors.ConfigurationError(
                    f"a decided batch holds transactions of sink {name!r}, and the query has only "
                    f"{sorted(self._sinks)}",
                    next_step="give the sink again, under this name, until its last batch is finished.",
                )
        if len(groups) == 1:
            ((name, group),) = groups.items()
            answers = {name: call(self._committer(name), group)}
        else:
            with ThreadPoolExecutor(max_workers=len(groups)) as pool:
                futures = {name: pool.submit(call, self._committer(name), group) for name, group in groups.items()}
                answers = {name: future.result() for name, future in futures.items()}
        found = {
            handle: answer
            for name, group in groups.items()
            for handle, answer in zip(group, answers[name], strict=True)
        }
        return [(handle, found[handle]) for handle in handles]

    def _committer(self, name: str) -> SinkCommitter:
        if name not in self._committers:
            self._committers[name] = self._sinks[name].committer()
        return self._committers[name]

    def _make_lookouts(self) -> list[Lookout]:
        query = short_query(self.state.claim.query)
        made = [sink.lookout(query, self._facts(name)) for name, sink in self._sinks.items()]
        return [one for one in made if one is not None]

    def _facts(self, name: str) -> Facts:
        facts = dict(dict(self.state.claim.sinks)[name])
        return self._sinks[name].longest_lived(facts) if self._live_long else facts

    def _owners(self, names: Sequence[str]) -> Mapping[str, Owner]:
        return {name: self._owner(name) for name in names}

    def _owner(self, name: str, run: Run | None = None) -> Owner:
        """A run as a sink sees it; by default this run."""
        if run is not None:
            return Owner(query=short_query(run.query), token=run.token, facts=dict(dict(run.sinks)[name]))
        if self.state.token is None:
            raise RuntimeError("a run writes only after it has claimed")
        return Owner(
            query=short_query(self.state.claim.query),
            token=self.state.token,
            facts=self._facts(name),
            generation=self._sweeper.generation(name),
        )


_CONTESTED = 4
_LONGEST_BACK_OFF_S = 30.0
_FIRST_RETRY_S = 0.02
_LONGEST_RETRY_S = 2.0
_TO_BE_HEALED = frozenset({Outcome.LOST, Outcome.DAMAGED, Outcome.ABORTED})
_NOT_FINAL = frozenset({Outcome.RETRY, Outcome.UNKNOWN})


def _is_final(event: on.PrepareFailed) -> bool:
    """Tells if there is nothing to be waited for, whatever a write has failed by."""
    return event.stopped or event.superseded or bool(event.too_old)


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and is_disk_outage(error)


def _close(name: str, committer: SinkCommitter) -> None:
    try:
        committer.close()
    except Exception as error:  # the others have connections too, and the run has an end of its own
        logger.warning("sink=%s: its connections could not be closed: %s", name, error, exc_info=True)


def _commit_or_abort(
    committer: SinkCommitter, handles: Sequence[Handle], void: frozenset[tuple[str, int]]
) -> Sequence[Finished]:
    """Commits the handles, but aborts those that a record of the log has made void."""
    aborted = [handle for handle in handles if handle.key in void]
    committed = [handle for handle in handles if handle.key not in void]
    answers: dict[Handle, Finished] = {}
    for some, end in ((aborted, committer.abort), (committed, committer.commit)):
        if some:
            answers.update(zip(some, end(some), strict=True))
    return [answers[handle] for handle in handles]


def _reason(error: BaseException) -> str:
    return error.message if isinstance(error, errors.SparkonceError) else _first_line(error)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
