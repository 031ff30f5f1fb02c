"""The geometry of the timeline: faults, drivers and their phases, batches and readers on one axis of time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from sparkonce_lab.history import EventKind
from sparkonce_lab.report.drawing import Drawing, Path, Strip, Text
from sparkonce_lab.report.story import ReportedDriver, ReportedStep, Story
from sparkonce_lab.report.text import clock, duration
from sparkonce_lab.report.words import STAGE_OF, family, phase_title

GUTTER = 86
"""The width of the lanes' names, in units of the drawing."""
WIDTH = 1_000
"""The width of the axis, in units of the drawing; a phase shorter than one unit may not show."""

_MOST_STRIPS = 12
_STRIPS_MS = tuple(1_000 * s for s in (10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400))
_TICKS_MS = (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000)
_AXIS, _FAULT, _DRIVER, _BATCHES, _READER = 16, 21, 25, 22, 16

_Lane = tuple[str, int, list[Drawing]]
"""Name, height and contents."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The stretch of time that a strip shows."""

    from_ms: int
    to_ms: int

    def x(self, at_ms: float) -> int:
        """Returns the place of a moment; moments outside lie on the edge."""
        inside = (at_ms - self.from_ms) / (self.to_ms - self.from_ms)
        return GUTTER + round(WIDTH * min(1.0, max(0.0, inside)))

    def shows(self, from_ms: float, to_ms: float) -> bool:
        """Returns true if any part of a stretch of time is visible."""
        return from_ms < self.to_ms and to_ms >= self.from_ms

    def holds(self, at_ms: float) -> bool:
        """Returns true if a moment is visible."""
        return self.from_ms <= at_ms < self.to_ms


class Timeline:
    """Draws a story.

    Args:
        story: The run to draw.
    """

    def __init__(self, story: Story) -> None:
        self._story = story
        self._struck = [(step, step.fault_ms, story.after(step)) for step in story.steps if step.fault_ms is not None]
        self._row_of = dict(zip((d.number for d in story.drivers), _pack(map(story.life, story.drivers)), strict=True))
        self._stages = {driver.number: _stages(story, driver) for driver in story.drivers}
        self._finished = [batch.at_ms for batch in story.batches]
        self._seen: dict[str, dict[bool, list[int]]] = {system: {False: [], True: []} for system in story.systems}
        for event in story.history.of(EventKind.SEEN):
            early = (event.fields.get("batch") or 0) > (event.fields.get("decided") or 0)
            self._seen[str(event.fields.get("system"))][early].append(event.at_ms)

    def strips(self) -> list[Strip]:
        """Returns the whole run, cut into a dozen strips at most."""
        end = max(1, self._story.end_ms)
        long = next((ms for ms in _STRIPS_MS if end <= ms * _MOST_STRIPS), -(-end // _MOST_STRIPS))
        return [self._strip(Scale(from_ms, from_ms + long)) for from_ms in range(0, end, long)]

    def around(self, step: ReportedStep) -> Strip | None:
        """Returns the time around a step; None if it did not strike."""
        if step.fault_ms is None:
            return None
        until = self._story.after(step)
        margin = max(500, (until - step.fault_ms) // 6)
        return self._strip(Scale(max(0, step.fault_ms - margin), until + margin))

    def _strip(self, scale: Scale) -> Strip:
        y = _AXIS
        names: list[Text] = []
        lanes = []
        for name, height, parts in self._lanes(scale):
            names.append(("lane", 0, y + min(height, _FAULT) - 6, name if len(name) <= 14 else name[:13] + "…"))
            lanes.append(Drawing(y=y, parts=parts))
            y += height
        grid, times = _axis(scale, y)
        return Strip(
            title=f"Timeline from {clock(scale.from_ms)} to {clock(scale.to_ms)}",
            from_ms=scale.from_ms,
            to_ms=scale.to_ms,
            width=GUTTER + WIDTH + 26,
            height=y + 4,
            paths=[("grid", grid)],
            texts=[*times, *names],
            parts=lanes,
        )

    def _lanes(self, scale: Scale) -> Iterator[_Lane]:
        struck = [one for one in self._struck if scale.shows(*one[1:])]
        rows = _pack(_room(*one, scale) for one in struck)
        faults = [_fault(*one, scale, _FAULT * row) for one, row in zip(struck, rows, strict=True)]
        yield "faults", _FAULT * (max(rows, default=0) + 1), faults
        drivers = [driver for driver in self._story.drivers if scale.shows(*self._story.life(driver))]
        used = sorted({self._row_of[driver.number] for driver in drivers})
        lives = [self._driver(one, scale, _DRIVER * used.index(self._row_of[one.number])) for one in drivers]
        yield "drivers", _DRIVER * max(1, len(used)), lives
        yield "batches", _BATCHES, [self._batches(scale)]
        for system, seen in self._seen.items():
            paths = [_base(13), *_ticks("seen", seen[False], scale, 3, 10), *_ticks("early", seen[True], scale, 0, 16)]
            yield f"in {system}", _READER, [Drawing(paths=paths)]

    def _driver(self, driver: ReportedDriver, scale: Scale, y: int) -> Drawing:
        began, ended = self._story.life(driver)
        left, right = scale.x(began), scale.x(ended)
        paths = list(_phases(self._stages[driver.number], ended, scale))
        paths.append(("life", f"M{left} 11h{max(1, right - left)}v11H{left}z"))
        if driver.ended_ms is not None and scale.holds(driver.ended_ms) and driver.code != 0:
            paths.append(("death", f"M{right - 4} 12.5l8 8m0-8l-8 8"))
        fits = right - left > 7 * len(str(driver.number))
        title = f"driver {driver.number}, {clock(began)} to {clock(ended)}: {driver.end}"
        return Drawing(title=title, y=y, paths=paths, texts=[("no", left, 9, driver.number)] if fits else [])

    def _batches(self, scale: Scale) -> Drawing:
        inside = self._story.batches[_visible(self._finished, scale)]
        numbers: list[Text] = []
        for batch in inside:
            x = scale.x(batch.at_ms)
            if x < GUTTER + WIDTH - 10 and (not numbers or numbers[-1][1] + 100 <= x):
                numbers.append(("batch", x, 9, batch.number))
        done = _ticks("done", [batch.at_ms for batch in inside if not batch.recovered], scale, 11, 8)
        again = _ticks("again", [batch.at_ms for batch in inside if batch.recovered], scale, 9, 10)
        return Drawing(paths=[_base(19), *done, *again], texts=numbers)


def _stages(story: Story, driver: ReportedDriver) -> list[tuple[int, str]]:
    """Returns a driver's changes of colour: the moment and the new stage."""
    coloured = [(at_ms, STAGE_OF.get(phase, "idle")) for at_ms, phase, _ in story.stages(driver)]
    return [next(alike) for _, alike in groupby(coloured, key=lambda one: one[1])]


def _phases(stages: Sequence[tuple[int, str]], ended: int, scale: Scale) -> Iterator[Path]:
    """Yields one path for each colour. A phase that rounds to no width is left out."""
    first = max(0, bisect_right(stages, scale.from_ms, key=lambda one: one[0]) - 1)
    last = bisect_left(stages, min(ended, scale.to_ms), key=lambda one: one[0])
    drawn: dict[str, list[str]] = {}
    for (began, stage), (over, _) in pairwise([*stages[first:last], (ended, "")]):
        left, right = scale.x(began), scale.x(over)
        if right > left:
            drawn.setdefault(stage, []).append(f"M{left} 16.5h{right - left}")
    for stage, path in drawn.items():
        yield f"phase s-{stage}", "".join(path)


def _fault(step: ReportedStep, began: int, until: int, scale: Scale, y: int) -> Drawing:
    """Returns a step's mark and number, above bars for its outage and for its recovery."""
    over = began if step.over_ms is None else step.over_ms
    paths: list[Path] = []
    texts: list[Text] = []
    for name, from_ms, to_ms in (("outage", began, over), ("recovery", over, until)):
        if to_ms > from_ms and scale.shows(from_ms, to_ms):
            left = scale.x(from_ms)
            paths.append((name, f"M{left} 14h{max(1, scale.x(to_ms) - left)}v5H{left}z"))
    if scale.holds(began):
        paths.append(("mark", f"M{scale.x(began)} 6{family(step.fault).mark}"))
        texts.append(("no", scale.x(began) + 8, 10, step.number))
    return Drawing(title=_told(step), step=step.number, y=y, paths=paths, texts=texts)


def _told(step: ReportedStep) -> str:
    """Returns a step in a line."""
    where = f" of {step.system}" if step.system else ""
    batch = f" of batch {step.batch}" if step.batch is not None else ""
    text = f"step {step.number}: {step.fault}{where} at {clock(step.fault_ms or 0)}, {phase_title(step.hit)}{batch}"
    if step.outage_ms is not None:
        text += f"; lasted {duration(step.outage_ms)}"
    return text + (f"; then {duration(step.recovery_ms)} until a batch" if step.recovery_ms is not None else "")


def _pack(times: Iterable[tuple[float, float]]) -> list[int]:
    """Returns the first free row for each stretch of time, in the order of their beginnings."""
    free: list[float] = []
    rows = []
    for began, ended in times:
        row = next((number for number, end in enumerate(free) if end <= began), len(free))
        free[row : row + 1] = [ended]
        rows.append(row)
    return rows


def _room(step: ReportedStep, began: int, until: int, scale: Scale) -> tuple[float, float]:
    """Returns the left and right edge of a step's mark, number and bars."""
    x = scale.x(began)
    return x - 6, max(scale.x(until) + 2, x + 10 + 6 * len(str(step.number)))


def _visible(moments: Sequence[int], scale: Scale) -> slice:
    return slice(bisect_left(moments, scale.from_ms), bisect_left(moments, scale.to_ms))


def _ticks(name: str, moments: Sequence[int], scale: Scale, y: int, height: int) -> list[Path]:
    places = sorted({scale.x(at) for at in moments[_visible(moments, scale)]})
    return [(f"tick {name}", "".join(f"M{x} {y}v{height}" for x in places))] if places else []


def _base(y: int) -> Path:
    return "base", f"M{GUTTER} {y}h{WIDTH}"


def _axis(scale: Scale, height: int) -> tuple[str, list[Text]]:
    """Returns the grid's path and the times above it."""
    long = scale.to_ms - scale.from_ms
    apart = next((ms for ms in _TICKS_MS if long <= ms * 11), long // 6)
    first = -(-scale.from_ms // apart) * apart
    moments = [at for at in range(first, scale.to_ms, apart) if scale.x(at) < GUTTER + WIDTH - 24]
    names = [f"{at / 1_000:.2f}" if apart < 100 else clock(at, tenths=apart < 1_000) for at in moments]
    times: list[Text] = [("time", scale.x(at), 10, name) for at, name in zip(moments, names, strict=True)]
    return "".join(f"M{scale.x(at)} 12V{height}" for at in moments), times
