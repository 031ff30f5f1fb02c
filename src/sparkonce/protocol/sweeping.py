"""Decides when a run sweeps: a small state machine next to the coordinator, for transactions left open between batches.

A losing task attempt may open a transaction until Spark has killed its worker. Such a transaction holds back readers
and locks rows, even while the query is idle. So a run sweeps immediately after such a batch, and again when its losing
attempts have ended. It also sweeps now and then if nothing suggests a losing attempt. A failed sweep is retried after a
growing pause.

`step` is the only entrance. Events carry the time, in seconds of a monotonic clock. Whoever carries out a sweep makes
sure that no batch is at work meanwhile (rule 6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from sparkonce.protocol.effects import Sweep
from sparkonce.protocol.view import Run

LOSERS_END_WITHIN_S = 5.0
"""Spark kills the Python worker of a losing attempt about 4 s after the batch. Until then it may open a transaction."""
LONGEST_PAUSE_S = 300.0
"""The longest pause before a failed sweep is retried."""
_SHORTEST_PAUSE_S = 1.0
_MOST_DOUBLINGS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LosersExpected:
    """A task attempt of the batch at work may lose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed:
    """A batch could not be prepared. What these runs left open is to be swept at once; they include this run."""

    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """A batch is committed. What these runs leave open may be swept from now on; they include this run."""

    runs: tuple[Run, ...]
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """Time has passed, and no batch is at work."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEnded:
    """A sweep has ended. It failed if something in some sink is not surely aborted."""

    began_s: float
    at_s: float
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortUnanswered:
    """A request to end transactions of this run in a sink was not answered: it may still arrive."""

    sink: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The run ends; ``in_order`` if between two batches, with no newer run known."""

    in_order: bool


Event: TypeAlias = LosersExpected | BatchFailed | BatchDone | TimePassed | SweepEnded | AbortUnanswered | Closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeping:
    """The state: what may be open, and when the next sweep is due.

    Attributes:
        every_s: The time between two sweeps when nothing suggests a losing attempt.
        runs: The runs whose transactions are swept.
        next_s: When the next sweep is due; None if nothing is to be swept before the next batch.
        loser_possible: True if a task attempt of the batch at work may lose.
        losers_end_s: When the last losing attempts of finished batches end; None once a sweep has begun after that.
        failures: The number of sweeps that failed since the last success.
        swept_s: When the last successful sweep ended, or the run began.
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
        """Returns what keeps new transactions' names apart from older requests; see `sparkonce.sink.Owner`."""
        return dict(self.unanswered).get(sink, 0)

    @property
    def waits_for_losers(self) -> bool:
        """True if another sweep can be expected soon."""
        return self.losers_end_s is not None and not self.failures and not self.closed


Step: TypeAlias = tuple[Sweeping, Sweep | None]


def step(state: Sweeping, event: Event) -> Step:
    """Returns the state after an event, and the sweep that is to be carried out now, if one is."""
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
        return state, None  # An unreachable sink is not retried after each batch: the pause continues.
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
    # What a loser has opened while the sweep was under way may not have been listed: when it began counts.
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
