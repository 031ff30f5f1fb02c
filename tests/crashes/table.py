"""The counts of the cells that were carried out, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from crashes.cells import AT_POINTS, AT_REQUESTS, Cell
from crashes.life import Late, Verdict

RESULTS: list[tuple[str, Cell, Verdict]] = []
"""Of this process."""

HEAD = ("sink", "fault", "cells", "runs", "stopped", "missing", "doubled", "strange", "early", "lingering", "seconds")


def table(results: Sequence[tuple[str, Cell, Verdict]]) -> str:
    """One line for each sink and fault, and one for all of a sink."""
    lines = [HEAD, tuple("---" for _ in HEAD)]
    for name in dict.fromkeys(name for name, _, _ in results):
        own = [(cell, verdict) for target, cell, verdict in results if target == name]
        for fault in (*AT_POINTS, *AT_REQUESTS):
            some = [verdict for cell, verdict in own if cell.fault == fault]
            if some:
                lines.append(_line(name, fault, some))
        lines.append(_line(name, "**all**", [verdict for _, verdict in own]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def late_table(results: Sequence[tuple[str, Cell, Verdict]]) -> str:
    """What the requests did that were delivered late, one line for each sink and kind of request."""
    lines = [("sink", "late request", *Late), tuple("---" for _ in range(2 + len(Late)))]
    counts = Counter((name, cell.point, verdict.late) for name, cell, verdict in results)
    for name, point in dict.fromkeys((name, cell.point) for name, cell, verdict in results if verdict.late):
        lines.append((name, point, *(str(counts[name, point, late]) for late in Late)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(name: str, fault: str, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    counts = (
        len(verdicts),
        sum(verdict.runs for verdict in verdicts),
        sum(len(verdict.stopped) for verdict in verdicts),
        sum(verdict.missing for verdict in verdicts),
        sum(verdict.doubled for verdict in verdicts),
        sum(verdict.strange for verdict in verdicts),
        sum(verdict.early for verdict in verdicts),
        sum(len(verdict.lingering) for verdict in verdicts),
        round(sum(verdict.seconds for verdict in verdicts)),
    )
    return (name, fault, *map(str, counts))
