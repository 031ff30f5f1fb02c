"""The geometry of the small charts: recovery times by fault, and the resources of processes and folders."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkonce_lab.history import EventKind
from sparkonce_lab.report.drawing import Drawing
from sparkonce_lab.report.story import Story
from sparkonce_lab.report.text import duration

_WIDTH, _HEIGHT, _COURSE = 420, 24, 32
_EDGE = 24
_POINTS = 600
_FOLDERS = {"log": "decision log"}


def recovery(figures: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns recovery times on a logarithmic axis.

    Returns:
        The ``axis`` and the ``rows``, slowest first, each with ``fault``, ``struck``, ``spread`` and its ``dots``; None
        if nothing recovered.
    """
    steps = [step for step in figures["faults"]["steps"] if step["fault_ms"] is not None]
    times = [step["recovery_ms"] for step in steps if step["recovery_ms"] is not None]
    if not times:
        return None
    low = math.floor(math.log10(max(1, min(times))))
    high = max(low + 1, math.ceil(math.log10(max(1, max(times)))))
    decades = [10**power for power in range(low, high + 1)]

    def x(ms: float) -> float:
        inside = (math.log10(max(ms, decades[0])) - low) / (high - low)
        return round(_EDGE + (_WIDTH - 2 * _EDGE) * inside, 1)

    rows = []
    for fault, spread in figures["faults"]["recovery_ms"]["by_fault"].items():
        mine = [step for step in steps if step["fault"] == fault]
        dots = [
            Drawing(
                title=f"step {step['step']}: {duration(step['recovery_ms'])}",
                step=step["step"],
                paths=[("dot", f"M{x(step['recovery_ms']):g} {_HEIGHT // 2}m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z")],
            )
            for step in mine
            if step["recovery_ms"] is not None
        ]
        median = [("median", f"M{x(spread['median']):g} 3V{_HEIGHT - 3}")] if len(dots) > 1 else []
        drawing = Drawing(
            title=f"{len(dots)} recovery times",
            width=_WIDTH,
            height=_HEIGHT,
            paths=[("grid", "".join(f"M{x(ms):g} 0V{_HEIGHT}" for ms in decades))],
            parts=[*dots, Drawing(paths=median)],
        )
        rows.append({"fault": fault, "struck": len(mine), "spread": spread, "dots": drawing})
    ticks = [("mid", x(ms), 14, f"{ms} ms" if ms < 1_000 else f"{ms // 1_000:,} s") for ms in decades]
    axis = Drawing(title="axis of time", width=_WIDTH, height=18, texts=ticks)
    return {"axis": axis, "rows": sorted(rows, key=lambda row: -(row["spread"]["median"] or 0))}


def resources(story: Story, figures: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields memory and open files of each role, then the size of each folder, over the whole run.

    Yields:
        The ``name``, the values at ``first``, at ``last`` and at ``most``, and the ``line``.
    """
    for field, unit in (("rss_mib", "MiB of memory"), ("handles", "open files")):
        for role in sorted(figures["resources"][field]):
            events = (e for e in story.history.of(EventKind.RESOURCES) if str(e.fields.get("role", "")) == role)
            points = [(e.at_ms, e.fields.get(field), e.fields.get("pid")) for e in events]
            yield {"name": f"{role}: {unit}", **_course(points, story.end_ms)}
    for name in sorted(figures["resources"]["folders"]):
        folders = (e for e in story.history.of(EventKind.FOLDER) if str(e.fields.get("name", "")) == name)
        sizes = [(e.at_ms, int(e.fields["bytes"]) / 1024, None) for e in folders if "bytes" in e.fields]
        if sizes:
            yield {"name": f"{_FOLDERS.get(name, name)}: KiB on disk", **_course(sizes, story.end_ms)}


def _course(measured: Sequence[tuple[int, float | None, Any]], end_ms: int) -> dict[str, Any]:
    """Returns the values, and a path with a line for each process."""
    points = [(at_ms, value, process) for at_ms, value, process in measured if value is not None]
    most = max(value for _, value, _ in points) or 1
    lines: dict[Any, list[str]] = {}
    for at_ms, value, process in points:
        place = f"{_WIDTH * at_ms / max(1, end_ms):.1f} {_COURSE - 2 - (_COURSE - 4) * value / most:.1f}"
        lines.setdefault(process, []).append(place)
    # More points than the drawing has room for would only make the page large.
    every = max(1, len(points) // _POINTS)
    path = "".join(f"M{'L'.join(places[::every])}h1" for places in lines.values())
    line = Drawing(title="course over the run", width=_WIDTH, height=_COURSE, paths=[("line", path)])
    return {"first": points[0][1], "last": points[-1][1], "most": most, "line": line}
