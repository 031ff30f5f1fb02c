"""Judges a history: pure functions of it, without files, servers or clocks.

``multisets`` compares rows with rows, ``order`` looks where they stand, ``events`` at what happened, ``stops`` at why
queries stopped, ``growth`` at memory, handles and files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkonce.verify.checkers import events, growth, multisets, order, stops
from sparkonce.verify.checkers.tables import plain
from sparkonce.verify.history import OBSERVED, Kind

if TYPE_CHECKING:
    from sparkonce.verify.history import History
    from sparkonce.verify.verdicts import Verdict


def judge(history: History) -> tuple[Verdict, ...]:
    """What all checkers say: for each system, then of the whole run. See `sparkonce.verify.verdicts.passed`.

    A system that `Kind.BEGAN` names and that nobody has read is judged like an empty one.
    """
    verdicts: list[Verdict] = []
    expected = plain(history.expected)
    undisturbed = None if history.undisturbed is None else plain(history.undisturbed)
    calm = None if undisturbed is None else multisets.difference(expected, undisturbed)
    batches: dict[str, order.Batches] = {}
    for system in _systems(history):
        found = plain(history.observed.get(system, OBSERVED.empty_table()))
        difference = multisets.difference(expected, found)
        verdicts += multisets.check_rows(system, expected, found, difference)
        verdicts += order.check_order(system, found)
        verdicts += events.check_early(history, system, found)
        verdicts += events.check_lingering(history, system)
        if undisturbed is not None and calm is not None:
            # What equals the expected rows differs from others as these do.
            other = multisets.difference(undisturbed, found) if calm.count else difference
            verdicts += multisets.check_undisturbed(system, undisturbed, found, other)
        batches[system] = order.batches_of(found)
    verdicts += order.check_torn(batches)
    verdicts += events.check_state(history, calm)
    verdicts += events.check_stuck(history)
    verdicts += stops.check_stops(history)
    verdicts += growth.check_growth(history)
    return tuple(verdicts)


def _systems(history: History) -> list[str]:
    began = history.first(Kind.BEGAN)
    named = set(began.fields.get("systems", ())) if began is not None else set()
    return sorted(named | set(history.observed)) or [""]
