"""Commits and aborts transactions, and tells the sinks that a whole batch is committed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from sparkonce import errors
from sparkonce.driver import stops
from sparkonce.driver.outage import Outage
from sparkonce.driver.sinks import RunSinks
from sparkonce.driver.stops import Failure, advice_of, taken_away
from sparkonce.driver.sweeper import Sweeper
from sparkonce.driver.work import BatchWork
from sparkonce.guarantees import Guarantee
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.sink import SinkCommitter

logger = logging.getLogger("sparkonce")
FIRST_RETRY_S = 0.02
LONGEST_RETRY_S = 2.0
_TO_BE_HEALED = frozenset({Outcome.LOST, Outcome.DAMAGED, Outcome.ABORTED})
_NOT_FINAL = frozenset({Outcome.RETRY, Outcome.UNKNOWN})


class BatchFinisher:
    """Carries out the effects of FINISHING, ABORTING and CONCLUDING."""

    def __init__(self, sinks: RunSinks, sweeper: Sweeper, patience_s: float, failure: Failure) -> None:
        self._sinks = sinks
        self._sweeper = sweeper
        self._patience_s = patience_s
        self._failure = failure
        self._outage = Outage(0.0)
        self._lost: dict[str, Finished] = {}
        self._batch: int | None = None

    def finish(self, effect: do.Finish) -> on.Event:
        """Tries once to commit the handles, and then pauses if some outcomes are not final.

        The time limit starts over after each `Void` and `Amend` of the batch.
        """
        if effect.batch != self._batch:
            self._batch, self._lost = effect.batch, {}
        if effect.attempt == 0:
            self._outage = Outage(
                self._patience_s, first_pause_s=FIRST_RETRY_S, longest_pause_s=LONGEST_RETRY_S, silent_s=LONGEST_RETRY_S
            )
        answers = self._sinks.ask(effect.handles, partial(_commit_or_abort, void=frozenset(effect.void)))
        for handle, answer in answers:
            if handle.key in effect.void:
                _check_aborted(handle, answer)
            self._note(effect.batch, handle, answer)
        waiting = [answer for _, answer in answers if answer.outcome in _NOT_FINAL]
        self._failure.advice = advice_of(waiting) if waiting else self._advice_if_lost()
        return on.HandlesFinished(
            outcomes=tuple(answer.outcome for _, answer in answers),
            attempt=effect.attempt,
            deadline_passed=self._wait(effect.batch, waiting),
        )

    def _wait(self, batch: int, waiting: Sequence[Finished]) -> str:
        """Pauses before the next attempt. Returns the reason to give up, or an empty string to continue."""
        if not waiting:
            self._outage.is_over()
            return ""
        reasons = "; ".join(sorted({answer.reason for answer in waiting}))
        if self._outage.pause(f"batch {batch} is decided, and the rest of it cannot be committed yet: {reasons}"):
            return ""
        return f"after {self._patience_s:.0f} s: {reasons}"

    def _note(self, batch: int, handle: Handle, answer: Finished) -> None:
        self._report(batch, handle, answer)
        if answer.outcome in _TO_BE_HEALED:
            self._check_can_heal(batch, handle)
            self._lost.setdefault(handle.sink, answer)
        if answer.in_flight:
            self._sweeper.retire_names(handle.sink)

    def _advice_if_lost(self) -> str:
        """Returns the next step for lost transactions; empty if they only need a longer timeout."""
        times_out = {life.sink for life in self._sinks.lives(self._lost)}
        taken = [one for name, one in self._lost.items() if name not in times_out or one.outcome is Outcome.DAMAGED]
        return taken_away(one.next_step or one.reason for one in taken) if taken else ""

    def _check_can_heal(self, batch: int, handle: Handle) -> None:
        """Refuses to heal a sink that is no longer EXACTLY_ONCE, since it cannot replace the lost transaction."""
        guarantee = self._sinks.by_name[handle.sink].guarantee
        if guarantee is Guarantee.EXACTLY_ONCE:
            return
        raise errors.ConfigurationError(
            f"batch {batch} was decided when sink {handle.sink!r} was {Guarantee.EXACTLY_ONCE.value}, and slot "
            f"{handle.slot} is lost; the sink is now guarantee={guarantee.value!r}, at which it cannot be written "
            "again",
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

    def abort(self, effect: do.Abort) -> on.Event:
        """Aborts handles that no decision names, on the servers that respond."""
        handles = effect.handles
        try:
            for handle, answer in self._sinks.ask(handles, lambda committer, some: committer.abort(some)):
                logger.info("sink=%s slot=%d aborted: %s", handle.sink, handle.slot, answer.outcome.value)
                if answer.in_flight:
                    self._sweeper.retire_names(handle.sink)
        except Exception as error:  # noqa: BLE001 - the run is stopping for another reason, and the next run sweeps
            logger.warning(
                "%d transactions of this run could not be aborted: %s", len(handles), stops.first_line(error)
            )
            for name in {handle.sink for handle in handles}:
                self._sweeper.retire_names(name)
        return on.Aborted()

    def conclude(self, effect: do.Conclude, work: BatchWork) -> on.Event:
        """Tells each sink that the whole batch is committed, waiting for unreachable servers."""
        outage = Outage(self._patience_s, is_stopped=work.is_stopped)
        for name in effect.sinks:
            own = [handle for handle in effect.handles if handle.sink == name]
            doing = f"batch {effect.batch} is committed, but sink {name} cannot be notified"
            outage.retry(partial(self._sinks.committer(name).conclude, effect.batch, own), doing)
        return on.Concluded()


def _check_aborted(handle: Handle, answer: Finished) -> None:
    """Rejects a sink that returns DAMAGED for an abort: its transaction would be voided and aborted endlessly."""
    if answer.outcome is Outcome.DAMAGED:
        raise errors.ConfigurationError(
            f"sink {handle.sink!r} returned DAMAGED for the abort of slot {handle.slot}, which only a commit may "
            f"return: {answer.reason}",
            next_step="Let SinkCommitter.abort return ABORTED, also for a transaction that has lost rows; see "
            "SinkConformance.",
        )


def _commit_or_abort(
    committer: SinkCommitter, handles: Sequence[Handle], void: frozenset[tuple[str, int]]
) -> Sequence[Finished]:
    """Commits the handles, but aborts those that are void."""
    aborted = [handle for handle in handles if handle.key in void]
    committed = [handle for handle in handles if handle.key not in void]
    answers: dict[Handle, Finished] = {}
    for some, end in ((aborted, committer.abort), (committed, committer.commit)):
        if some:
            answers.update(zip(some, end(some), strict=True))
    return [answers[handle] for handle in handles]
