"""The driver's part of a write: runs the batch's plan, and asks for objections before the batch is decided.

The plan's tasks write and prepare the rows (`sparkonce.executor`). A write is repeated if a system was unreachable or
the batch outlived its transactions. A batch is not decided if a sink or a position reporter objects, or if a
transaction is too old. Lost rows of a decided batch are never written to a different topic or table than its committed
rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sparkonce import errors
from sparkonce.driver.lifetimes import Lifetime, Pace, too_old, warn_of_outlived
from sparkonce.driver.outage import Outage, is_outage
from sparkonce.driver.positions import Positions
from sparkonce.driver.put import LogWriter
from sparkonce.driver.sinks import RunSinks
from sparkonce.driver.stops import Failure
from sparkonce.driver.sweeper import Sweeper
from sparkonce.driver.work import BatchWork, LargerRowsError, check_handles
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import State, token_of
from sparkonce.protocol.view import Run
from sparkonce.sink import Facts, Owner

logger = logging.getLogger("sparkonce")


class BatchPreparer:
    """Carries out the effects of WRITING, VALIDATING and DELIVERING.

    Attributes:
        rows_asked: The number of input rows of the batch; None if unknown.
        opened_s: The earliest time (`time.monotonic`) at which the batch may have opened a transaction; None before
            that.
    """

    def __init__(
        self,
        sinks: RunSinks,
        positions: Positions,
        sweeper: Sweeper,
        log: LogWriter,
        patience_s: float,
        failure: Failure,
    ) -> None:
        self._sinks = sinks
        self._positions = positions
        self._sweeper = sweeper
        self._log = log
        self._patience_s = patience_s
        self._failure = failure
        self._pace = Pace()
        self._outage = Outage(0.0)
        self._reason = ""
        self._began_s = self._started_s = 0.0
        self._life: Lifetime | None = None
        self._computed_first = False
        self._slow_s: float | None = None
        """The duration of the previous attempt, if it is repeated because it outlived its transactions."""
        self._handles: tuple[Handle, ...] = ()
        self._written: tuple[str, ...] = ()
        self.rows_asked: int | None = None
        self.opened_s: float | None = None

    def write(self, effect: do.Write, state: State, work: BatchWork) -> on.Event:
        """Runs the plan once and prepares every slot. A repeated write first undoes the previous one."""
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
        self._failure.clear()
        self.opened_s = None if self._computed_first else self._started_s
        owners = self.owners(effect.sinks, state)
        self._log.sync_ahead()
        try:
            handles, loser_possible = work.write(owners, effect.only, self._computed if self._computed_first else None)
        except Exception as error:  # noqa: BLE001 - after any error from the engine, the batch is not prepared
            failed = on.PrepareFailed(reason=self._failure.note(error), superseded=self._log.went_on(state.view))
            was_stopped = isinstance(error, errors.SparkonceError) and bool(error.details.get("stopped"))
            return failed if was_stopped or failed.superseded else self._verdict(failed)
        if loser_possible:
            self._sweeper.expect_losers()
        wrong = check_handles(handles, effect.sinks)
        return self._verdict(on.PrepareFailed(reason=wrong)) if wrong else on.Prepared(handles=tuple(handles))

    def _computed(self) -> None:
        """Records that all rows are computed, which means that transactions are opened from now on."""
        self.opened_s = time.monotonic()

    def validate(self, effect: do.Validate) -> on.Event:
        """Asks for objections to the decision."""
        if not effect.sinks:
            return on.Validated()
        answer = self._objection(effect)
        event = on.Validated() if answer is None else self._verdict(answer)
        if isinstance(event, on.Validated | on.TooOld):
            self._outage.is_over()
            if self._life is not None:
                self._pace.note(time.monotonic() - self._began_s, self.rows_asked)
        return event

    def _verdict(self, event: on.PrepareFailed | on.Objected | on.TooOld) -> on.Event:
        """Returns the event for a failed attempt: a request to write the batch again if that may help."""
        took_s = time.monotonic() - self._started_s
        if self._life is not None and self._outlived(event, took_s, self._life):
            if self._slow_s is None and not self._computed_first:
                self._slow_s = took_s
                warn_of_outlived(took_s, self._life)
                self._sweeper.expect_losers()
                return on.Unready(undo=True)
            if self._slow_s is not None and not isinstance(event, on.TooOld):
                self._failure.advice = ""
                late = f"it took {self._slow_s:.0f} s, and {took_s:.0f} s with all rows computed first"
                lives = f"transactions of sink {self._life.sink} live {self._life.seconds:.0f} s"
                return replace(event, too_old=f"{late}; {lives}")
        elif is_outage(self._failure.cause) or isinstance(self._failure.cause, LargerRowsError):
            self._slow_s, self._reason = None, event.reason
            return on.Unready()
        return event

    def _outlived(self, event: on.PrepareFailed | on.Objected | on.TooOld, took_s: float, life: Lifetime) -> bool:
        """Returns True if the batch may have failed because its transactions timed out."""
        if isinstance(event, on.TooOld):
            return True
        # Report an outage as such, even if waiting for brokers took longer than a transaction's lifetime.
        return took_s >= life.seconds and not is_outage(self._failure.cause)

    def _live_longest(self, names: Sequence[str]) -> None:
        """Lets transactions live as long as each system allows.

        A producer gets its timeout when it is initialized. If the timeout changes, workers use new transactional ids.
        """
        before = {name: self._sinks.facts(name) for name in names}
        self._sinks.live_longest()
        for name in names:
            if self._sinks.facts(name) != before[name]:
                self._sweeper.retire_names(name)

    def _shortest_life(self, names: Sequence[str]) -> Lifetime | None:
        return min(self._sinks.lives(names), key=lambda life: life.seconds, default=None)

    def _undo(self, effect: do.Write, state: State, work: BatchWork) -> on.Event | None:
        """Aborts a failed write's open transactions, whose locks and names would block the next write.

        This also shows whether the servers can be reached again, at less cost than running the plan.
        """
        if self._slow_s is not None:
            return None  # the coordinator has undone it
        self._sweeper.expect_losers()
        if work.is_stopped():
            return None  # The write itself reports the stop, with Spark's own message.
        cause = self._failure.cause
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
            self._failure.cause = error  # Whatever the reason for the failure, the next attempt waits first.
            return on.Unready()
        return None

    def deliver(self, effect: do.Deliver, state: State, work: BatchWork) -> on.Event:
        """Writes a decided batch to the at-most-once sinks."""
        try:
            work.write(self.owners(effect.sinks, state), None)
        except Exception as error:  # noqa: BLE001 - the run reports that rows may be missing
            reason = self._failure.note(error)
            self._failure.advice = "remove the cause and start the query again: it continues with the next batch."
            return on.PrepareFailed(reason=reason)
        return on.Prepared(handles=())

    def owners(self, names: Sequence[str], state: State) -> Mapping[str, Owner]:
        """Returns the owner of the transactions in each of these sinks."""
        return {name: self._sinks.owner(name, token_of(state), self._sweeper.generation(name)) for name in names}

    def _objection(self, effect: do.Validate) -> on.Objected | on.TooOld | None:
        """Asks the sinks and then the position reporters for objections, and finally checks the transactions' age.

        An error counts as an objection. Reporters come after the sinks because they add to the transactions. The age is
        checked last because the other steps take time.
        """
        self._handles, self._written = effect.handles, effect.sinks
        transactional = (name for name in self._sinks.transactional if name in self._written)
        try:
            reason = next(filter(None, map(self._objection_of, transactional)), "")
        except Exception as error:  # noqa: BLE001 - the transactions are prepared, and must be aborted first
            reason = self._failure.note(error)
        if reason := reason or self._positions.before_decision(effect.handles, effect.offsets):
            return on.Objected(reason=reason)
        try:
            late = self.grown_old()
        except errors.UnknownOutcomeError as error:
            return on.Objected(reason=self._failure.note(error))
        return on.TooOld(reason=late) if late else None

    def _objection_of(self, sink: str) -> str:
        committer = self._sinks.committer(sink)
        own = [handle for handle in self._handles if handle.sink == sink]
        return committer.before_decision(self._sinks.facts(sink)) or committer.check_prepared(own)

    def grown_old(self) -> str:
        """Returns a message if a transaction of the last validated batch has become too old; empty if none has.

        Raises:
            UnknownOutcomeError: If a server cannot be reached.
        """
        took_s = time.monotonic() - (self._started_s if self.opened_s is None else self.opened_s)
        for life in self._sinks.lives(self._written):
            own = [handle for handle in self._handles if handle.sink == life.sink and handle.transaction]
            if late := too_old(own, took_s, time.time(), life, self._sinks.committer(life.sink).begun_ms):
                return late
        return ""


_TARGET_FACTS = ("topic", "schema", "table")
"""The facts that identify the target of a sink's rows, and may change between runs."""


def check_same_target(state: State, facts: Callable[[str], Facts]) -> None:
    """Refuses to heal a sink if the rest of its batch was committed to a different target.

    A sink that has lost the whole batch may write it to any target.
    """
    healing = state.finishing
    if healing is None:
        return
    decision = healing.decision
    suffering = {sink for sink, _ in healing.lost}
    written = [one for one in decision.handles if one.sink in suffering and one.transaction]
    for handle in (one for one in written if one.key not in healing.lost):
        sink, before = handle.sink, _facts_of_its_run(handle, decision.token, state.view.runs)
        now = facts(sink)
        for name in _TARGET_FACTS:
            if name in before and before[name] != now.get(name):
                raise errors.ConfigurationError(
                    f"Sink {sink!r} has lost a part of batch {decision.batch}, which is decided, and the rest of it is "
                    f"committed in {name}={before[name]!r}; now the sink has {name}={now.get(name)!r}. The lost rows "
                    "would be written there, and the batch would be in two places.",
                    next_step=f"Start the query with {name}={before[name]!r} until batch {decision.batch} is "
                    "committed; then change it. If it was renamed, give it its old name until then.",
                    sink=sink,
                )


def _facts_of_its_run(handle: Handle, decided_by: Token, runs: Sequence[Run]) -> Facts:
    """Returns the sink's facts in the run that wrote a transaction.

    The transaction's name contains the run's token. The decision's token may belong to a later run that amended it.
    """

    def wrote(run: Run) -> bool:
        mark = f".{run.token.position}-{run.token.nonce}."
        return any(mark in str(value) for _, value in handle.transaction)

    writers = [*filter(wrote, runs), *(run for run in runs if run.token == decided_by)]
    return dict(dict(writers[0].sinks).get(handle.sink, ())) if writers else {}
