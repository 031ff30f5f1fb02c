"""What happened when: drivers and their phases, faults, finished batches, and what readers saw, on one axis of time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sparkonce.lab.history import Kind
from sparkonce.lab.report.markup import Html, el, join
from sparkonce.lab.report.story import Driver, Step, Story
from sparkonce.lab.report.text import clock, duration
from sparkonce.lab.report.words import FAMILIES, STAGE_OF, STAGES, family, phase_title

GUTTER = 86
WIDTH = 1_000
"""Of the part with time in it, in units of the drawing; a phase shorter than one unit may not show."""
_FULL = GUTTER + WIDTH + 26

_MOST_STRIPS = 12
_STRIPS_MS = tuple(1_000 * s for s in (10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400))
_TICKS_MS = (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000)

_Stages = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""When a driver came to which of `STAGES`, by its place there."""

_AXIS = 16
_FAULT = 21
_DRIVER = 25
_BATCHES = 22
_SYSTEM = 16


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a moment is drawn."""

    from_ms: float
    to_ms: float

    def x(self, at_ms: float) -> int:
        """From left, in units of the drawing; moments outside are at the edge."""
        inside = (at_ms - self.from_ms) / (self.to_ms - self.from_ms)
        return GUTTER + round(WIDTH * min(1.0, max(0.0, inside)))

    def shows(self, from_ms: float, to_ms: float) -> bool:
        """Whether any of a time is to be seen."""
        return from_ms < self.to_ms and to_ms >= self.from_ms

    def holds(self, at_ms: float) -> bool:
        """Whether a moment is to be seen."""
        return self.from_ms <= at_ms < self.to_ms

    def held(self, moments: Sequence[float]) -> slice:
        """Which of many moments, in their order, are to be seen."""
        return slice(bisect_left(moments, self.from_ms), bisect_left(moments, self.to_ms))


class Timeline:
    """Draws a story.

    Args:
        story: What happened.
    """

    def __init__(self, story: Story) -> None:
        self._story = story
        self._struck = [(step, step.fault_ms, story.after(step)) for step in story.steps if step.fault_ms is not None]
        self._lane_of = dict(zip((d.number for d in story.drivers), _pack(map(story.life, story.drivers)), strict=True))
        self._stages = {driver.number: _numbered(story.stages(driver)) for driver in story.drivers}
        self._usual: dict[str, list[int]] = {system: [] for system in story.systems}
        self._early: dict[str, list[int]] = {system: [] for system in story.systems}
        for event in story.history.of(Kind.SEEN):
            early = (event.fields.get("batch") or 0) > (event.fields.get("decided") or 0)
            (self._early if early else self._usual)[str(event.fields.get("system"))].append(event.at_ms)
        self._finished = [batch.at_ms for batch in story.batches]

    def strips(self) -> list[Html]:
        """The whole run, cut into a dozen strips at most."""
        end = max(1, self._story.end_ms)
        long = next((ms for ms in _STRIPS_MS if end <= ms * _MOST_STRIPS), -(-end // _MOST_STRIPS))
        return [self.strip(from_ms, from_ms + long) for from_ms in range(0, end, long)]

    def around(self, step: Step) -> Html:
        """The time around a step that struck."""
        began = step.fault_ms or 0
        margin = max(500, (self._story.after(step) - began) // 6)
        return self.strip(max(0, began - margin), self._story.after(step) + margin)

    def strip(self, from_ms: int, to_ms: int) -> Html:
        """One stretch of time."""
        scale = Scale(from_ms, to_ms)
        y = _AXIS
        parts: list[Html] = []
        names: list[Html] = []
        for name, height, drawn in self._lanes(scale, y):
            names.append(el("text", name, class_="lane", x=0, y=y + min(height, _FAULT) - 6))
            parts += drawn
            y += height
        what = f"Timeline from {clock(from_ms)} to {clock(to_ms)}"
        grid = _axis(scale, y)
        return el(
            "svg",
            *grid,
            *names,
            *parts,
            class_="strip",
            role="img",
            aria_label=what,
            viewBox=f"0 0 {_FULL} {y + 4}",
            data_from=from_ms,
            data_to=to_ms,
        )

    def _lanes(self, scale: Scale, y: int) -> Iterator[tuple[str, int, list[Html]]]:
        struck = [step for step, began, until in self._struck if scale.shows(began, until)]
        rows = _pack(_shown(step, self._story.after(step), scale) for step in struck)
        height = _FAULT * (max(rows, default=0) + 1)
        at = [y + _FAULT * row for row in rows]
        yield "faults", height, [self._fault(step, scale, top) for step, top in zip(struck, at, strict=True)]
        y += height
        drivers = [driver for driver in self._story.drivers if scale.shows(*self._story.life(driver))]
        lanes = sorted({self._lane_of[driver.number] for driver in drivers})
        height = _DRIVER * max(1, len(lanes))
        tops = {driver.number: y + _DRIVER * lanes.index(self._lane_of[driver.number]) for driver in drivers}
        yield "drivers", height, [part for one in drivers for part in self._driver(one, scale, tops[one.number])]
        y += height
        yield "batches", _BATCHES, self._batches(scale, y)
        y += _BATCHES
        for system, seen in self._usual.items():
            usual = _ticks("seen", seen, scale, y + 3, _SYSTEM - 6)
            wrong = _ticks("early", self._early[system], scale, y, _SYSTEM)
            yield _short(f"in {system}"), _SYSTEM, [_base(y + _SYSTEM - 3), *usual, *wrong]
            y += _SYSTEM

    def _fault(self, step: Step, scale: Scale, y: int) -> Html:
        began = step.fault_ms or 0
        over = began if step.over_ms is None else step.over_ms
        bars = [_bar("outage", began, over, scale, y), _bar("recovery", over, self._story.after(step), scale, y)]
        if scale.holds(began):
            place = f"translate({scale.x(began)} {y + 6})"
            bars.append(el("path", class_="mark", d=family(step.fault).mark, transform=place))
            bars.append(el("text", step.number, class_="no", x=scale.x(began) + 8, y=y + 10))
        return el("a", el("title", told(step)), *bars, href=f"#step-{step.number}")

    def _driver(self, driver: Driver, scale: Scale, y: int) -> list[Html]:
        began, ended = self._story.life(driver)
        top = y + 11
        parts = list(_phases(self._stages[driver.number], ended, scale, top + 5.5))
        x, end = scale.x(began), scale.x(ended)
        tip = f"driver {driver.number}, {clock(began)} to {clock(ended)}: {driver.end}"
        frame = el("rect", el("title", tip), class_="life", x=x, y=top, width=max(1, end - x), height=11)
        fits = end - x > 7 * len(str(driver.number))
        name = el("text", driver.number, class_="no", x=x, y=top - 2) if fits else None
        died = driver.ended_ms is not None and scale.holds(driver.ended_ms) and driver.code != 0
        cross = el("path", class_="death", d=f"M{end - 4} {top + 1.5}l8 8m0-8l-8 8")
        return [*parts, frame, join(name), *([cross] if died else [])]

    def _batches(self, scale: Scale, y: int) -> list[Html]:
        inside = self._story.batches[scale.held(self._finished)]
        names, last = [], -100
        for batch in inside:
            if last + 100 <= scale.x(batch.at_ms) < GUTTER + WIDTH - 10:
                last = scale.x(batch.at_ms)
                names.append(el("text", batch.number, class_="batch", x=last, y=y + 9))
        usual = _ticks("done", [batch.at_ms for batch in inside if not batch.recovered], scale, y + 11, 8)
        again = _ticks("again", [batch.at_ms for batch in inside if batch.recovered], scale, y + 9, 10)
        return [_base(y + 19), *usual, *again, *names]


def legend() -> Html:
    """What the colours and marks mean."""
    stages = [el("li", el("i", class_=f"swatch s-{stage.name}"), stage.title) for stage in STAGES]
    families = [
        el("li", el("svg", el("path", class_="mark", d=one.mark), class_="key", viewBox="-7 -7 14 14"), one.title)
        for one in FAMILIES
    ]
    bars = [
        el("li", el("i", class_="swatch outage"), "the fault lasts"),
        el("li", el("i", class_="swatch recovery"), "over; no batch finished yet"),
    ]
    ticks = [
        el("li", el("i", class_="tick done"), "a batch is finished"),
        el("li", el("i", class_="tick again"), "one that an earlier driver had decided"),
        el("li", el("i", class_="tick seen"), "a reader sees a batch"),
    ]
    groups = [("driver's phases", stages), ("fault of", families), ("bars below it", bars), ("ticks", ticks)]
    return el(
        "div",
        *(el("div", el("b", title), el("ul", *items)) for title, items in groups),
        class_="legend",
    )


def told(step: Step) -> str:
    """A step in a line."""
    where = f" of {step.system}" if step.system else ""
    batch = f" of batch {step.batch}" if step.batch is not None else ""
    text = f"step {step.number}: {step.fault}{where} at {clock(step.fault_ms or 0)}, {phase_title(step.hit)}{batch}"
    if step.outage_ms is not None:
        text += f"; lasted {duration(step.outage_ms)}"
    return text + (f"; then {duration(step.recovery_ms)} until a batch" if step.recovery_ms is not None else "")


def _pack(times: Iterable[tuple[float, float]]) -> list[int]:
    """For each time, in the order of their beginnings, the first lane that is free then."""
    free: list[float] = []
    lanes = []
    for began, ended in times:
        lane = next((number for number, end in enumerate(free) if end <= began), len(free))
        free[lane : lane + 1] = [ended]
        lanes.append(lane)
    return lanes


def _shown(step: Step, until: int, scale: Scale) -> tuple[float, float]:
    """How much room a step's mark, number and bars take."""
    x = scale.x(step.fault_ms or 0)
    return x - 6, max(scale.x(until) + 2, x + 10 + 6 * len(str(step.number)))


def _phases(stages: _Stages, ended: int, scale: Scale, y: float) -> Iterator[Html]:
    """A driver's phases: of each unit of the drawing what was going on in its middle."""
    begun, known = stages
    middles = scale.from_ms + (np.arange(WIDTH) + 0.5) * (scale.to_ms - scale.from_ms) / WIDTH
    alive = np.flatnonzero((middles >= begun[0]) & (middles < ended))
    if not len(alive):
        return
    codes = known[np.searchsorted(begun, middles[alive], side="right") - 1]
    edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    drawn: dict[str, list[str]] = {}
    for left, right in pairwise(edges):
        path = drawn.setdefault(STAGES[int(codes[left])].name, [])
        path.append(f"M{GUTTER + int(alive[left])} {y:g}h{right - left}")
    for name, path in drawn.items():
        yield el("path", class_=f"phase s-{name}", d="".join(path))


def _numbered(stages: Sequence[tuple[int, str, int | None]]) -> _Stages:
    names = [stage.name for stage in STAGES]
    codes = [names.index(STAGE_OF.get(phase, "idle")) for _, phase, _ in stages]
    return np.array([at_ms for at_ms, _, _ in stages], dtype=np.int64), np.array(codes, dtype=np.int64)


def _bar(name: str, from_ms: int, to_ms: int, scale: Scale, y: int) -> Html | None:
    left, right = scale.x(from_ms), scale.x(to_ms)
    if to_ms <= from_ms or not scale.shows(from_ms, to_ms):
        return None
    return el("rect", class_=name, x=left, y=y + 14, width=max(1, right - left), height=5)


def _ticks(name: str, moments: Sequence[int], scale: Scale, y: int, height: int) -> list[Html]:
    places = sorted({scale.x(at) for at in moments[scale.held(moments)]})
    path = "".join(f"M{x} {y}v{height}" for x in places)
    return [el("path", class_=f"tick {name}", d=path)] if path else []


def _base(y: int) -> Html:
    return el("path", class_="base", d=f"M{GUTTER} {y}h{WIDTH}")


def _axis(scale: Scale, height: int) -> list[Html]:
    long = scale.to_ms - scale.from_ms
    apart = next((ms for ms in _TICKS_MS if long <= ms * 11), long / 6)
    first = -(-scale.from_ms // apart) * apart
    moments = [at for at in np.arange(first, scale.to_ms, apart).tolist() if scale.x(at) < GUTTER + WIDTH - 24]
    path = "".join(f"M{scale.x(at)} 12V{height}" for at in moments)
    digits = 2 if apart < 100 else 1
    names = [clock(at, tenths=apart < 1_000) if digits == 1 else f"{at / 1_000:.2f}" for at in moments]
    texts = [el("text", name, class_="time", x=scale.x(at), y=10) for at, name in zip(moments, names, strict=True)]
    return [el("path", class_="grid", d=path), *texts]


def _short(name: str) -> str:
    return name if len(name) <= 14 else name[:13] + "…"
