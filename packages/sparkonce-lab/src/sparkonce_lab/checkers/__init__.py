"""Judges a history with pure functions, without files, servers or clocks.

- ``rows`` compares the rows that must exist with those that readers found.
- ``events`` judges all other entries of the history.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkonce_lab.checkers import events, rows
from sparkonce_lab.checkers.rows import plain
from sparkonce_lab.history import OBSERVED, EventKind
from sparkonce_lab.verdicts import NEEDS_THE_END, Anomaly

if TYPE_CHECKING:
    from sparkonce_lab.history import History
    from sparkonce_lab.verdicts import Verdict

_OF_ROWS = frozenset({Anomaly.MISSING, Anomaly.DOUBLED, Anomaly.UNEXPECTED, Anomaly.STATE_DIFFERS})
"""The anomalies that are found by comparing a system's rows with others."""


def judge(history: History) -> tuple[Verdict, ...]:
    """Collects the verdicts of all checkers, first for each system and then for the whole run.

    A verdict is blank if there was nothing to examine: rows of a system that could not be read, or missing items in a
    run that did not finish (see `sparkonce_lab.verdicts.NEEDS_THE_END`).
    """
    verdicts: list[Verdict] = []
    expected = plain(history.expected)
    undisturbed = None if history.undisturbed is None else plain(history.undisturbed)
    calm = None if undisturbed is None else rows.difference(expected, undisturbed)
    batches: dict[str, rows.Batches] = {}
    for system in _systems(history):
        found = plain(history.observed.get(system, OBSERVED.empty_table()))
        difference = rows.difference(expected, found)
        verdicts += rows.check_rows(system, expected, found, difference)
        verdicts += rows.check_order(system, found)
        verdicts += events.check_early(history, system, found)
        verdicts += events.check_lingering(history, system)
        if undisturbed is not None and calm is not None:
            # If the undisturbed run produced exactly the expected rows, comparing with it would give the same
            # difference.
            other = rows.difference(undisturbed, found) if calm.count else difference
            verdicts += rows.check_undisturbed(system, undisturbed, found, other)
        if system in history.observed:
            batches[system] = rows.batches_of(found)
    verdicts += rows.check_torn(batches)
    verdicts += events.check_state(history, calm)
    verdicts += events.check_stuck(history)
    verdicts += events.check_stops(history)
    verdicts += events.check_growth(history)
    return tuple(
        verdict if _can_tell(history, verdict) else replace(verdict, looked_at=0, count=0, examples=())
        for verdict in verdicts
    )


def _can_tell(history: History, verdict: Verdict) -> bool:
    if verdict.anomaly in NEEDS_THE_END and not history.came_to_its_end:
        return False
    return verdict.anomaly not in _OF_ROWS or not verdict.system or verdict.system in history.observed


def _systems(history: History) -> list[str]:
    began = history.first(EventKind.BEGAN)
    named = set(began.fields.get("systems", ())) if began is not None else set()
    return sorted(named | set(history.observed)) or [""]
