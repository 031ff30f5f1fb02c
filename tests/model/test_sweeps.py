"""Whatever losers leave open is swept while a run lives, and nothing that a batch needs: every order within a bound.

A check that finds nothing proves something only if it finds what is there: each mutant takes one rule out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import pytest

from model.sweeps import Broken, Sweeps, search
from sparkonce.protocol import sweeping as on

DEFAULT = Sweeps()
BOUNDS = {
    "a thread, as it is set by default": Sweeps(faults=1),
    "a thread that looks each second": Sweeps(every_s=1.0),
    "a sweep at the end of each batch": Sweeps(every_s=0.0, in_background=False),
    "no thread": Sweeps(faults=1, in_background=False),
    "one batch, and a sink that is away for long": Sweeps(batches=1, faults=3, late=1),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_what_losers_leave_open_is_swept_and_nothing_else(bound: str, say: Callable[[str], None]) -> None:
    worlds, way, broken = search(BOUNDS[bound])
    say(f"{bound}: {worlds:,} worlds")
    assert broken is None, f"{broken.value}: {'; '.join(way)}"


def _forgets(**values: Any) -> Callable[..., on.Step]:
    return lambda state, _event: (replace(state, **values), None)


def _done_once(state: on.Sweeping, event: on.BatchDone) -> on.Step:
    after, effect = on._batch_done(state, event)
    return replace(after, losers_end_s=None), effect


def _done_and_waits(state: on.Sweeping, event: on.BatchDone) -> on.Step:
    after, effect = on._batch_done(state, event)
    return replace(after, next_s=after.losers_end_s or after.next_s), effect


def _counts_from_its_end(state: on.Sweeping, event: on.SweepEnded) -> on.Step:
    return on._swept(state, replace(event, began_s=event.at_s))


def _counts_as_done(state: on.Sweeping, event: on.SweepEnded) -> on.Step:
    return on._swept(state, replace(event, failed=False))


def _gives_up(state: on.Sweeping, event: on.SweepEnded) -> on.Step:
    after, effect = on._swept(state, event)
    return (replace(after, next_s=None) if event.failed else after), effect


def _never_slower(state: on.Sweeping, event: on.SweepEnded) -> on.Step:
    after, effect = on._swept(state, event)
    return (replace(after, next_s=event.at_s + 20.0) if event.failed else after), effect


def _forgets_losers_when_it_fails(state: on.Sweeping, event: on.SweepEnded) -> on.Step:
    after, effect = on._swept(state, event)
    return (replace(after, losers_end_s=None) if event.failed else after), effect


def _forgets_older_runs(state: on.Sweeping, event: on.BatchDone) -> on.Step:
    return on._batch_done(state, replace(event, runs=event.runs[-1:]))


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A wrong machine, or wrong hands, and what it comes to."""

    name: str
    wanted: Broken
    table: Mapping[type, Any] = field(default_factory=dict)
    sweeps: Sweeps = DEFAULT


MUTANTS = (
    Mutant(name="no loser is expected", wanted=Broken.LEFT, table={on.LosersExpected: _forgets()}),
    Mutant(name="losers are looked for once", wanted=Broken.LEFT, table={on.BatchDone: _done_once}),
    Mutant(
        name="a slow sweep counts from its end",
        wanted=Broken.LEFT,
        table={on.SweepEnded: _counts_from_its_end},
    ),
    Mutant(name="a sweep that failed counts as done", wanted=Broken.LEFT, table={on.SweepEnded: _counts_as_done}),
    Mutant(name="a sweep that failed is not tried again", wanted=Broken.LEFT, table={on.SweepEnded: _gives_up}),
    Mutant(name="pauses do not grow", wanted=Broken.HURRIED, table={on.SweepEnded: _never_slower}),
    Mutant(
        name="a sweep that fails forgets that losers go on",
        wanted=Broken.LEFT,
        table={on.SweepEnded: _forgets_losers_when_it_fails},
        sweeps=Sweeps(every_s=1.0),
    ),
    Mutant(name="older runs are swept once", wanted=Broken.LEFT, table={on.BatchDone: _forgets_older_runs}),
    Mutant(
        name="writers go on with names that a late request means",
        wanted=Broken.TAKEN,
        table={on.AbortUnanswered: _forgets()},
    ),
    Mutant(name="the thread does not wait for the batch", wanted=Broken.TAKEN, sweeps=Sweeps(locked=False)),
    Mutant(
        name="a run that ends in order does not sweep",
        wanted=Broken.LEFT_AT_END,
        table={on.Closed: _forgets(closed=True)},
    ),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_sweeper_is_found(mutant: Mutant, say: Callable[[str], None]) -> None:
    with mock.patch.dict(on.TRANSITIONS, mutant.table):  # type: ignore[arg-type]
        worlds, way, broken = search(replace(mutant.sweeps, wanted=frozenset({mutant.wanted})))
    say(f"{mutant.name}: {worlds:,} worlds: {'; '.join(way)}")
    assert broken is mutant.wanted
