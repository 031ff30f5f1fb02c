"""Judges a history: pure functions of it, without files, servers or clocks.

- ``multisets`` compares rows with rows, ``order`` their places; ``tables`` has rows in a form that is quick to compare.
- ``events`` judges what happened, ``stops`` why queries stopped; ``steps`` has each fault with its part of the history.
- ``growth`` judges memory, handles and files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkonce_lab.checkers import events, growth, multisets, order, stops
from sparkonce_lab.checkers.tables import plain
from sparkonce_lab.history import OBSERVED, EventKind
from sparkonce_lab.verdicts import NEEDS_THE_END, Anomaly

if TYPE_CHECKING:
    from sparkonce_lab.history import History
    from sparkonce_lab.verdicts import Verdict

_OF_ROWS = frozenset({Anomaly.MISSING, Anomaly.DOUBLED, Anomaly.UNEXPECTED, Anomaly.STATE_DIFFERS})
"""The anomalies found by comparing a system's rows with others."""


def judge(history: History) -> tuple[Verdict, ...]:
    """Collects the verdicts of all checkers, for each system and then of the whole run.

    A verdict is blank where nothing could be looked at: rows of a system that could not be read, and missing things
    (see `sparkonce_lab.verdicts.NEEDS_THE_END`) in a run that did not come to its end.
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
        if system in history.observed:
            batches[system] = order.batches_of(found)
    verdicts += order.check_torn(batches)
    verdicts += events.check_state(history, calm)
    verdicts += events.check_stuck(history)
    verdicts += stops.check_stops(history)
    verdicts += growth.check_growth(history)
    return tuple(verdict if _can_tell(history, verdict) else _blank(verdict) for verdict in verdicts)


def _can_tell(history: History, verdict: Verdict) -> bool:
    if verdict.anomaly in NEEDS_THE_END and not history.came_to_its_end:
        return False
    return verdict.anomaly not in _OF_ROWS or not verdict.system or verdict.system in history.observed


def _blank(verdict: Verdict) -> Verdict:
    return replace(verdict, looked_at=0, count=0, examples=())


def _systems(history: History) -> list[str]:
    began = history.first(EventKind.BEGAN)
    named = set(began.fields.get("systems", ())) if began is not None else set()
    return sorted(named | set(history.observed)) or [""]
