"""Gets a batch written and prepared, again where a system was away or the batch outlived its transactions."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sparkonce import errors
from sparkonce.driver.ages import Life, Pace
from sparkonce.driver.outage import Outage, is_outage
from sparkonce.driver.put import LogWriter
from sparkonce.driver.same_target import check_same_target
from sparkonce.driver.sinks import RunSinks
from sparkonce.driver.stops import Trouble
from sparkonce.driver.sweeper import Sweeper
from sparkonce.driver.validate import Validator
from sparkonce.driver.work import BatchWork, LargerRowsError, check_handles
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.state import State, token_of
from sparkonce.sink import Owner

logger = logging.getLogger("sparkonce")


class BatchWriter:
    """Carries out WRITING, VALIDATING and DELIVERING.

    Args:
        sinks: Of the run.
        sweeper: Undoes what a failed write left open.
        log: Says if a newer run has claimed.
        validator: Asks for objections.
        patience_s: How long systems that are away, or full, are waited for in all.
        trouble: Takes in what a write failed by.

    Attributes:
        rows_asked: How many rows of input the batch has, as far as its offsets say so.
    """

    def __init__(
        self,
        sinks: RunSinks,
        sweeper: Sweeper,
        log: LogWriter,
        validator: Validator,
        patience_s: float,
        trouble: Trouble,
    ) -> None:
        self._sinks = sinks
        self._sweeper = sweeper
        self._log = log
        self._validator = validator
        self._patience_s = patience_s
        self._trouble = trouble
        self._pace = Pace()
        self._outage = Outage(0.0)
        self._reason = ""
        self._began_s = self._started_s = 0.0
        self._life: Life | None = None
        self._computed_first = self._is_computing = False
        self._slow_s: float | None = None
        """How long the attempt before took, if it is repeated because it outlived its transactions."""
        self.rows_asked: int | None = None

    def write(self, effect: do.Write, state: State, work: BatchWork) -> on.Event:
        """Runs the plan once and prepares every slot. Before it is written again, the last write is undone.

        Raises:
            ConfigurationError: if lost rows would be written elsewhere than the rest of their batch.
        """
        if not effect.sinks:
            return on.Prepared(handles=())
        check_same_target(state, self._sinks.facts)
        if effect.attempt is do.Attempt.FIRST:
            self._outage, self._slow_s = Outage(self._patience_s), None
        elif effect.attempt is do.Attempt.AGAIN and (verdict := self._undo(effect, state, work)) is not None:
            return verdict
        self._started_s = time.monotonic()
        if effect.attempt is do.Attempt.ELSEWHERE:
            return self._prepare(effect, state, work)
        if self._slow_s is None:
            self._began_s, self._life = self._started_s, self._shortest_life(effect.sinks)
            expected_s = self._pace.expected_s(self.rows_asked)
            self._computed_first = self._life is not None and expected_s * 2 > self._life.seconds
        else:
            self._live_longest(effect.sinks)
            self._life, self._computed_first = self._shortest_life(effect.sinks) or self._life, True
        return self._prepare(effect, state, work)

    def _prepare(self, effect: do.Write, state: State, work: BatchWork) -> on.Event:
        self._trouble.clear()
        self._validator.opened_s = self._started_s
        self._is_computing = self._computed_first
        owners = self.owners(effect.sinks, state)
        try:
            handles, loser_possible = work.write(owners, effect.only, self._computed if self._computed_first else None)
        except Exception as error:  # noqa: BLE001 - whatever the engine raises, the batch is not prepared
            failed = on.PrepareFailed(reason=self._trouble.note(error), superseded=self._log.went_on(state.view))
            was_stopped = isinstance(error, errors.SparkonceError) and bool(error.details.get("stopped"))
            return failed if was_stopped or failed.superseded else self._verdict(failed)
        if loser_possible:
            self._sweeper.expect_losers()
        wrong = check_handles(handles, effect.sinks)
        return self._verdict(on.PrepareFailed(reason=wrong)) if wrong else on.Prepared(handles=tuple(handles))

    def _computed(self) -> None:
        """Notes that all rows are computed: from now on transactions are opened."""
        self._validator.opened_s, self._is_computing = time.monotonic(), False

    def validate(self, effect: do.Validate) -> on.Event:
        """Asks for objections to what is prepared."""
        if not effect.sinks:
            return on.Validated()
        answer = self._validator.validate(effect)
        event = answer if isinstance(answer, on.Validated) else self._verdict(answer)
        if isinstance(event, on.Validated | on.TooOld):
            self._outage.is_over()
            if self._life is not None:
                self._pace.note(time.monotonic() - self._began_s, self.rows_asked)
        return event

    def _verdict(self, event: on.PrepareFailed | on.Objected | on.TooOld) -> on.Event:
        """Asks for the batch to be written again if that may help."""
        took_s = time.monotonic() - self._started_s
        if self._life is not None and self._outlived(event, took_s, self._life):
            if self._slow_s is None and not self._computed_first:
                self._slow_s = took_s
                _say_too_slow(took_s, self._life)
                self._sweeper.expect_losers()
                return on.Unready(undo=True)
            if self._slow_s is not None and not isinstance(event, on.TooOld):
                self._trouble.advice = ""
                late = f"it took {self._slow_s:.0f} s, and {took_s:.0f} s with all rows computed first"
                lives = f"transactions of sink {self._life.sink} live {self._life.seconds:.0f} s"
                return replace(event, too_old=f"{late}; {lives}")
        elif is_outage(self._trouble.cause) or isinstance(self._trouble.cause, LargerRowsError):
            self._slow_s, self._reason = None, event.reason
            return on.Unready()
        return event

    def _outlived(self, event: on.PrepareFailed | on.Objected | on.TooOld, took_s: float, life: Life) -> bool:
        """Tells if a batch was not prepared, perhaps because its transactions were lost to their age meanwhile."""
        if isinstance(event, on.TooOld):
            return True
        # What waits for brokers that are away lasts as long as a transaction, too.
        return took_s >= life.seconds and not is_outage(self._trouble.cause)

    def _live_longest(self, names: Sequence[str]) -> None:
        """Lets transactions live as long as each system allows.

        Workers' transactional ids have a timeout each: they begin with new ones where it changes.
        """
        before = {name: self._sinks.facts(name) for name in names}
        self._sinks.live_longest()
        for name in names:
            if self._sinks.facts(name) != before[name]:
                self._sweeper.leave_names(name)

    def _shortest_life(self, names: Sequence[str]) -> Life | None:
        return min(self._sinks.lives(names), key=lambda life: life.seconds, default=None)

    def _undo(self, effect: do.Write, state: State, work: BatchWork) -> on.Event | None:
        """Undoes what a failed write left open: its locks and names would be in the next one's way.

        That also asks whether the servers are back, which costs less than to run the plan.
        """
        if self._slow_s is not None:
            return None  # the coordinator has had it undone
        self._sweeper.expect_losers()
        if work.is_stopped():
            return None  # the write says so, in Spark's words
        cause = self._trouble.cause
        is_away = not isinstance(cause, LargerRowsError)
        if is_away and not self._outage.pause(str(cause) if isinstance(cause, errors.SparkonceError) else self._reason):
            return on.PrepareFailed(reason=f"{self._reason} ({self._outage.in_vain()})")
        if self._log.went_on(state.view):
            return on.PrepareFailed(reason=self._reason, superseded=True)
        own = [run for run in state.view.runs if run.token == state.token]
        try:
            self._sweeper.sweep_older([name for name in effect.sinks if name in state.transactional], own, 0.0)
        except errors.UnknownOutcomeError as error:
            logger.debug("What the failed write left open is not undone yet: %s", error.message)
            self._trouble.cause = error  # so the next try waits, whatever made this write fail
            return on.Unready()
        return None

    def deliver(self, effect: do.Deliver, state: State, work: BatchWork) -> on.Event:
        """Writes a decided batch to sinks that take it once at most."""
        try:
            work.write(self.owners(effect.sinks, state), None)
        except Exception as error:  # noqa: BLE001 - whatever the engine raises, the run says that rows may be missing
            reason = self._trouble.note(error)
            self._trouble.advice = "remove the cause and start the query again: it goes on behind this batch."
            return on.PrepareFailed(reason=reason)
        return on.Prepared(handles=())

    @property
    def opened_s(self) -> float | None:
        """The time when the batch's first transaction may have been opened, by `time.monotonic`; None before."""
        return None if self._is_computing else self._validator.opened_s

    def opened_at(self, at_s: float) -> None:
        """Notes when the first transaction may have been opened, by `time.monotonic`, if this is not for it to see."""
        self._validator.opened_s = at_s

    def owners(self, names: Sequence[str], state: State) -> Mapping[str, Owner]:
        """Returns the run as each of these sinks is to know it."""
        return {name: self._sinks.owner(name, token_of(state), self._sweeper.generation(name)) for name in names}


def _say_too_slow(took_s: float, life: Life) -> None:
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
