"""Counts the cells that were carried out, as a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from crashes.cells import AT_POINTS, AT_REQUESTS, Cell
from crashes.verdict import Late, Verdict

Result = tuple[str, Cell, Verdict]
PROPERTY = "cell"
"""A test records its result under this name, and pytest's reports carry it from xdist's workers."""
COUNTED = ("runs", "stopped", "missing", "doubled", "unexpected", "early", "lingering", "seconds")


def encode(target: str, cell: Cell, verdict: Verdict) -> str:
    return json.dumps([target, cell.point, cell.fault, asdict(verdict)])


def decode(text: str) -> Result:
    target, point, fault, verdict = json.loads(text)
    late = verdict.pop("late")
    return target, Cell(point, fault), Verdict(**verdict, late=Late(late) if late else None)


def reported(reports: Iterable[object]) -> list[Result]:
    """The results of all cells that were carried out, by target."""
    calls = [report for report in reports if getattr(report, "when", "") == "call"]
    properties = [one for report in calls for one in getattr(report, "user_properties", ())]
    return sorted((decode(text) for name, text in properties if name == PROPERTY), key=lambda result: result[0])


def table(results: Sequence[Result]) -> str:
    """One line per sink and fault, plus one for each whole sink."""
    lines = [("sink", "fault", "cells", *COUNTED)]
    for name in dict.fromkeys(name for name, _, _ in results):
        own = [(cell, verdict) for target, cell, verdict in results if target == name]
        for fault in (*AT_POINTS, *AT_REQUESTS, "**all**"):
            if some := [asdict(verdict) for cell, verdict in own if fault in (cell.fault, "**all**")]:
                counts = [
                    sum(len(one[key]) if isinstance(one[key], Sequence) else one[key] for one in some)
                    for key in COUNTED
                ]
                lines.append((name, fault, str(len(some)), *(f"{count:.0f}" for count in counts)))
    return _as_table(lines)


def late_table(results: Sequence[Result]) -> str:
    """What late requests did, one line per sink and kind of request."""
    lines = [("sink", "late request", *Late)]
    counts = Counter((name, cell.point, verdict.late) for name, cell, verdict in results)
    for name, point in dict.fromkeys((name, cell.point) for name, cell, verdict in results if verdict.late):
        lines.append((name, point, *(str(counts[name, point, late]) for late in Late)))
    return _as_table(lines)


def _as_table(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rest))
