"""Small drawings: how long recovery took, and what the processes used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkonce.lab.history import Kind
from sparkonce.lab.report.markup import Html, el, join
from sparkonce.lab.report.story import Story
from sparkonce.lab.report.tables import column, head, right, table
from sparkonce.lab.report.text import duration, number
from sparkonce.lab.report.words import fault_words

_WIDE, _HIGH, _EDGE = 420, 24, 24
_POINTS = 600
_FOLDERS = {"log": "decision log"}


def recovery(figures: Mapping[str, Any]) -> Html:
    """Recovery times by fault: a dot for each step on an axis that grows by factors, and the usual numbers."""
    by_fault = figures["faults"]["recovery_ms"]["by_fault"]
    steps = [step for step in figures["faults"]["steps"] if step["fault_ms"] is not None]
    times = [step["recovery_ms"] for step in steps if step["recovery_ms"] is not None]
    if not times:
        return el("p", "Nothing has been recovered from.", class_="words")
    low, high = (function(math.log10(max(1, edge(times)))) for function, edge in ((math.floor, min), (math.ceil, max)))
    axis = _Logarithmic(low, max(high, low + 1))
    slowest = sorted(by_fault, key=lambda fault: -(by_fault[fault]["median"] or 0))
    rows = []
    for fault in slowest:
        spread = by_fault[fault]
        mine = [step for step in steps if step["fault"] == fault and step["recovery_ms"] is not None]
        struck = sum(step["fault"] == fault for step in steps)
        rows.append(
            [
                head(fault, title=fault_words(fault)),
                el("td", axis.dots(mine, spread["median"]), class_="dots"),
                right(number(struck) if struck == spread["count"] else f"{spread['count']} of {struck}"),
                *(right(duration(spread[name])) for name in ("min", "median", "p95", "max")),
            ]
        )
    columns = [column(name) for name in ("recovered", "shortest", "median", "p95", "longest")]
    return table(["fault", el("th", axis.names(), scope="col", class_="dots"), *columns], rows, class_="recovery")


class _Logarithmic:
    """An axis from ``10 ** low`` to ``10 ** high`` milliseconds."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high

    def _x(self, ms: float) -> float:
        inside = (math.log10(max(ms, 10**self._low)) - self._low) / (self._high - self._low)
        return round(_EDGE + (_WIDE - 2 * _EDGE) * inside, 1)

    def _decades(self) -> Iterable[int]:
        return (10**power for power in range(self._low, self._high + 1))

    def names(self) -> Html:
        """Its ticks."""
        texts = [el("text", _tick(ms), class_="time mid", x=self._x(ms), y=14) for ms in self._decades()]
        return el("svg", *texts, viewBox=f"0 0 {_WIDE} 18", class_="axis", role="img", aria_label="axis of time")

    def dots(self, steps: Sequence[Mapping[str, Any]], median: float | None) -> Html:
        """A dot for each step, and a line at the median."""
        grid = "".join(f"M{self._x(ms):g} 0V{_HIGH}" for ms in self._decades())
        parts = [el("path", class_="grid", d=grid)]
        for step in steps:
            title = f"step {step['step']}: {duration(step['recovery_ms'])}"
            dot = el("circle", el("title", title), class_="dot", cx=self._x(step["recovery_ms"]), cy=_HIGH // 2, r=4)
            parts.append(el("a", dot, href=f"#step-{step['step']}"))
        if median is not None and len(steps) > 1:
            parts.append(el("path", class_="median", d=f"M{self._x(median):g} 3V{_HIGH - 3}"))
        return el("svg", *parts, viewBox=f"0 0 {_WIDE} {_HIGH}", role="img", aria_label=f"{len(steps)} recovery times")


def _tick(ms: int) -> str:
    return f"{ms} ms" if ms < 1_000 else f"{ms // 1_000} s" if ms < 1_000_000 else f"{ms // 1_000:,} s"


def resources(story: Story, figures: Mapping[str, Any]) -> Html | None:
    """Memory and open files by role, and the size of folders, over the whole run; None if nothing was measured."""
    rows = []
    for field, unit in (("rss_mib", "MiB of memory"), ("handles", "open files")):
        for role in sorted(figures["resources"][field]):
            events = (e for e in story.history.of(Kind.RESOURCES) if str(e.fields.get("role", "")) == role)
            points = [(e.at_ms, e.fields[field], e.fields.get("pid")) for e in events if field in e.fields]
            rows.append([head(f"{role}: {unit}"), *_course(points, story.end_ms)])
    for name in sorted(figures["resources"]["folders"]):
        events = (e for e in story.history.of(Kind.FOLDER) if str(e.fields.get("name", "")) == name)
        points = [(e.at_ms, int(e.fields.get("bytes") or 0) / 1024, None) for e in events]
        rows.append([head(f"{_FOLDERS.get(name, name)}: KiB on disk"), *_course(points, story.end_ms)])
    if not rows:
        return None
    columns = [column("at first"), column("at last"), column("largest")]
    text = "From the beginning to the end of the run, each process a line of its own. The lowest value drawn is 0."
    return join(el("p", text), table(["of each process", el("th", "", class_="dots"), *columns], rows))


def _course(points: Sequence[tuple[int, float, Any]], end_ms: int) -> list[Html]:
    """A line for each process, and the numbers."""
    most = max(value for _, value, _ in points) or 1
    lines: dict[Any, list[str]] = {}
    for at_ms, value, process in points:
        place = f"{_WIDE * at_ms / max(1, end_ms):.1f} {_HIGH + 6 - (_HIGH + 4) * value / most:.1f}"
        lines.setdefault(process, []).append(place)
    # More points than the drawing has room for would only make the page large.
    every = max(1, len(points) // _POINTS)
    drawn = "".join(f"M{'L'.join(places[::every])}h1" for places in lines.values())
    line = el("path", class_="line", d=drawn)
    course = el("svg", line, viewBox=f"0 0 {_WIDE} {_HIGH + 8}", role="img", aria_label="course over the run")
    values = [points[0][1], points[-1][1], most]
    return [el("td", course, class_="dots"), *(right(number(round(value))) for value in values)]
