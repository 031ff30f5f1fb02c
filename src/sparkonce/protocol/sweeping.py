"""A small state machine that decides when a run sweeps, that is, aborts transactions of losing task attempts.

A losing task attempt may open a transaction at any time until Spark kills its worker. Such a transaction blocks readers
and locks rows, even while the query is idle. The run therefore sweeps right after a batch that may have had losing
attempts, and again once those have ended. It also sweeps periodically, even without a sign of a losing attempt. A
failed sweep is retried with growing pauses.

`step` is the only entry point. Events carry the time, in seconds of a monotonic clock. The caller carries out the
sweeps, and makes sure that no batch is in progress during a sweep (rule 6 of docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from sparkonce.protocol.effects import Sweep
from sparkonce.protocol.view import Run

LOSERS_END_WITHIN_S = 5.0
"""Spark kills a losing attempt's Python worker about 4 s after the batch. Until then, it may open a transaction."""
LONGEST_PAUSE_S = 300.0
"""The longest pause before a failed sweep is retried."""
_SHORTEST_PAUSE_S = 1.0
_MOST_DOUBLINGS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LosersExpected:
    """The current batch may have a losing task attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed:
    """A batch could not be prepared. Open transactions of these runs, which include this one, are swept immediately."""

    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """A batch is committed. From now on, open transactions of these runs, which include this one, may be swept."""

    runs: tuple[Run, ...]
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """Time has passed, and no batch is in progress."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEnded:
    """A sweep has ended. It failed if some transaction may still be open."""

    began_s: float
    at_s: float
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortUnanswered:
    """A request to end transactions of this run in a sink got no answer. It may still reach the server."""

    sink: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The run ends. ``in_order`` is True if it ends between two batches and knows of no newer run."""

    in_order: bool


Event: TypeAlias = LosersExpected | BatchFailed | BatchDone | TimePassed | SweepEnded | AbortUnanswered | Closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeping:
    """The state: which transactions may be open, and when the next sweep is due.

    Attributes:
        every_s: The time between two sweeps if there is no sign of a losing attempt.
        runs: The runs whose transactions are swept.
        next_s: When the next sweep is due; None if no sweep is due before the next batch.
        loser_possible: True if the current batch may have a losing task attempt.
        losers_end_s: When the last losing attempts of finished batches end; None once a sweep has started after that.
        failures: The number of failed sweeps since the last successful one.
        swept_s: When the last successful sweep ended; before the first one, when the run began.
        unanswered: The number of unanswered requests to end transactions, by sink.
        closed: True once the run has ended.
    """

    every_s: float
    swept_s: float
    runs: tuple[Run, ...] = ()
    next_s: float | None = None
    loser_possible: bool = False
    losers_end_s: float | None = None
    failures: int = 0
    unanswered: tuple[tuple[str, int], ...] = ()
    closed: bool = False

    def generation(self, sink: str) -> int:
        """Returns the number that distinguishes new transactions' names from old ones; see `sparkonce.sink.Owner`."""
        return dict(self.unanswered).get(sink, 0)

    @property
    def waits_for_losers(self) -> bool:
        """True if another sweep is expected soon."""
        return self.losers_end_s is not None and not self.failures and not self.closed


Step: TypeAlias = tuple[Sweeping, Sweep | None]


def step(state: Sweeping, event: Event) -> Step:
    """Returns the state after an event, and the sweep to carry out now; None if no sweep is due."""
    return TRANSITIONS[type(event)](state, event)


def _losers_expected(state: Sweeping, _event: LosersExpected) -> Step:
    return replace(state, loser_possible=True), None


def _batch_failed(state: Sweeping, event: BatchFailed) -> Step:
    return _sweep(replace(state, runs=event.runs))


def _batch_done(state: Sweeping, event: BatchDone) -> Step:
    state = replace(state, runs=event.runs)
    due_s = max(event.at_s, state.swept_s + state.every_s)
    if state.loser_possible:
        due_s = event.at_s
        state = replace(state, loser_possible=False, losers_end_s=event.at_s + LOSERS_END_WITHIN_S)
    if state.failures:
        return state, None  # While a sink is unreachable, do not sweep with every batch, only with the retries.
    return replace(state, next_s=due_s if state.next_s is None else min(due_s, state.next_s)), None


def _time_passed(state: Sweeping, event: TimePassed) -> Step:
    if state.closed or state.next_s is None or event.at_s < state.next_s:
        return state, None
    return _sweep(state)


def _swept(state: Sweeping, event: SweepEnded) -> Step:
    if event.failed:
        failures = state.failures + 1
        pause_s = max(_SHORTEST_PAUSE_S, state.every_s) * 2.0 ** min(failures, _MOST_DOUBLINGS)
        return replace(state, failures=failures, next_s=event.at_s + min(LONGEST_PAUSE_S, pause_s)), None
    # A sweep may miss a transaction opened while it runs, so another sweep must start once the losing attempts have
    # ended.
    ended = state.losers_end_s is None or event.began_s >= state.losers_end_s
    losers_end_s = None if ended else state.losers_end_s
    return replace(state, failures=0, swept_s=event.at_s, losers_end_s=losers_end_s, next_s=losers_end_s), None


def _abort_unanswered(state: Sweeping, event: AbortUnanswered) -> Step:
    counted = {**dict(state.unanswered), event.sink: state.generation(event.sink) + 1}
    return replace(state, unanswered=tuple(sorted(counted.items()))), None


def _closed(state: Sweeping, event: Closed) -> Step:
    state = replace(state, closed=True)
    return _sweep(state) if event.in_order and state.losers_end_s is not None else (state, None)


def _sweep(state: Sweeping) -> Step:
    return state, Sweep(runs=state.runs, best_effort=True)


TRANSITIONS: Mapping[type, Callable[..., Step]] = {
    LosersExpected: _losers_expected,
    BatchFailed: _batch_failed,
    BatchDone: _batch_done,
    TimePassed: _time_passed,
    SweepEnded: _swept,
    AbortUnanswered: _abort_unanswered,
    Closed: _closed,
}
"""The handler of each event."""
