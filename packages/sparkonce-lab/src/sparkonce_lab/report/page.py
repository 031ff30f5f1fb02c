"""Adds to the figures what only the page shows: the drawings, and what the drivers did at each step."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from sparkonce_lab.history import EventKind, History
from sparkonce_lab.report import words
from sparkonce_lab.report.figures import ReportedDriver, ReportedStep, Story, summary
from sparkonce_lab.report.words import NO_DRIVER, PHASES, STAGE_OF, STARTING, clock, duration, phase_title
from sparkonce_lab.schedule import EVERY_BATCH, FIRST_BATCH
from sparkonce_lab.verdicts import Anomaly, Verdict

_MOST_STRIPS = 12
_STRIPS_MS = tuple(1_000 * s for s in (10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400))
_TICKS_MS = (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000)

# Dimensions in the units of the drawing: the widths of the lane names and of the time axis, and the heights of the axis
# and of a lane.
GUTTER, WIDTH = 86, 1_000
_AXIS, _FAULT, _DRIVER, _BATCHES, _READER = 16, 21, 25, 22, 16


def write(folder: Path, history: History, verdicts: Sequence[Verdict]) -> tuple[Path, dict[str, Any]]:
    """Writes ``report.html`` and ``report.json`` into a folder, which is created if needed. Overwrites old files.

    Returns the path of the page, and the numbers; see `summary`.
    """
    story = Story(history)
    figures = summary(story, verdicts)
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    page.write_text(_render(story, figures), encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(figures, indent=1, default=str) + "\n", encoding="utf-8")
    return page, figures


def render(history: History, verdicts: Sequence[Verdict]) -> str:
    """Returns the page for a recording, which may be incomplete. The page is a single file that loads nothing else."""
    story = Story(history)
    return _render(story, summary(story, verdicts))


def _render(story: Story, figures: Mapping[str, Any]) -> str:
    # Escape everything but the template, because names and messages come from servers and errors.
    environment = Environment(
        loader=PackageLoader("sparkonce_lab.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (words.number, words.times, duration, clock, words.listed, words.fault_words, phase_title, words.family)
    environment.filters.update({one.__name__: one for one in filters})
    rows, seconds = figures["rows"], figures["batches"]["seconds"]
    faults, systems = figures["faults"], figures["run"]["systems"]
    told = {one["system"] for one in figures["anomalies"]}
    hit = {phase for hits in faults["by_phase"].values() for phase in hits}
    asked = {name: value for name, value in story.asked.items() if name != "schedule"}
    timeline = Timeline(story)
    return environment.get_template("report.html").render(
        **figures,
        workload=figures["run"]["workload"] if isinstance(figures["run"]["workload"], Mapping) else {},
        Anomaly=Anomaly,
        blind=[
            f"{one['anomaly']}{' in ' if one['system'] else ''}{one['system']}"
            for one in figures["anomalies"]
            if not one["looked_at"]
        ],
        places=[one for one in [*systems, *sorted(told - {*systems, ""}), ""] if one in told] or [""],
        STAGES=words.STAGES,
        STAGE_OF=STAGE_OF,
        FAMILIES=words.FAMILIES,
        PHASES=PHASES,
        kinds=list(dict.fromkeys(kind for counts in (rows["expected"], *rows["found"].values()) for kind in counts)),
        most=max((count for hits in faults["by_phase"].values() for count in hits.values()), default=1),
        phase_seconds=[*((phase, seconds[phase]) for phase in seconds if phase != "whole"), ("", seconds["whole"])],
        phases=words.in_order(hit | {phase.name for phase in EVERY_BATCH + FIRST_BATCH}),
        phase_terms={phase_title(name): PHASES[name] for name in PHASES if name not in (NO_DRIVER, STARTING)},
        fault_terms={name: words.fault_words(name) for name in sorted({step.fault for step in story.steps})},
        strips=timeline.strips(),
        steps=[_step(story, timeline, step) for step in story.steps],
        asked=json.dumps(asked, indent=1, default=str),
        schedule=[json.dumps(step, default=str) for step in story.asked.get("schedule") or ()],
    )


def _step(story: Story, timeline: Timeline, step: ReportedStep) -> dict[str, Any]:
    """Returns a step with its enlarged strip, and with messages, starts and ends of drivers until its recovery."""
    if step.fault_ms is None:
        return {"told": step, "did": [], "messages": [], "strip": None}
    began, until = step.fault_ms, story.after(step)
    happened: list[tuple[int, str]] = []
    for driver in story.drivers:
        if driver.stopped_ms is not None and began <= driver.stopped_ms <= until:
            happened.append((driver.stopped_ms, f"driver {driver.driver} stopped with {driver.error}"))
        elif driver.ended_ms is not None and began <= driver.ended_ms <= until and driver.code:
            end = driver.end.replace("killed: ", "was killed by ")
            happened.append((driver.ended_ms, f"driver {driver.driver} {end}"))
        if began <= driver.began_ms <= until:
            happened.append((driver.began_ms, f"driver {driver.driver} was started"))
    kept = [f"driver {step.driver} kept running"] if step.driver is not None else []
    margin = max(500, (until - began) // 6)
    return {
        "told": step,
        "did": [what for _, what in sorted(happened)] or kept,
        "messages": [(at_ms, text) for at_ms, text in story.messages if began <= at_ms <= until],
        "strip": timeline.strip(max(0, began - margin), until + margin),
    }


class Mark(NamedTuple):
    """Shapes in a drawing with a common tooltip, and the step that a click on them opens.

    `paths` has a class and data for each path, drawn below the texts, which have a class, x, y and words.
    """

    paths: Sequence[tuple[str, str]] = ()
    texts: Sequence[tuple[str, float, float, object]] = ()
    title: str = ""
    step: int | None = None


@dataclass(slots=True)
class Strip:
    """A drawing of a time range: faults, drivers, batches and readers on one axis."""

    from_ms: int
    to_ms: int
    marks: list[Mark] = field(default_factory=list)
    height: int = 0
    width: int = GUTTER + WIDTH + 26

    @property
    def title(self) -> str:
        return f"Timeline from {clock(self.from_ms)} to {clock(self.to_ms)}"

    def x(self, at_ms: float) -> int:
        """Returns the x coordinate of a time. A time outside of the range is at the edge."""
        inside = (at_ms - self.from_ms) / (self.to_ms - self.from_ms)
        return GUTTER + round(WIDTH * min(1.0, max(0.0, inside)))

    def shows(self, from_ms: float, to_ms: float) -> bool:
        return from_ms < self.to_ms and to_ms >= self.from_ms

    def ticks(self, name: str, moments: Sequence[int], y: int, height: int) -> list[tuple[str, str]]:
        """Returns a path with a line for each of the sorted times that is visible; empty if there is none."""
        visible = moments[bisect_left(moments, self.from_ms) : bisect_left(moments, self.to_ms)]
        places = sorted({self.x(at_ms) for at_ms in visible})
        return [(f"tick {name}", "".join(f"M{x} {y}v{height}" for x in places))] if places else []


class Timeline:
    """Draws a story, as a whole or in parts."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._struck = [(step, step.fault_ms, story.after(step)) for step in story.steps if step.fault_ms is not None]
        self._lives = {
            one.driver: (one.began_ms, story.end_ms if one.ended_ms is None else one.ended_ms) for one in story.drivers
        }
        self._row_of = dict(zip(self._lives, _pack(self._lives.values()), strict=True))
        self._seen: dict[str, tuple[list[int], list[int]]] = {system: ([], []) for system in story.systems}
        for event in story.history.of(EventKind.SEEN):
            early = (event.fields.get("batch") or 0) > (event.fields.get("decided") or 0)
            self._seen[str(event.fields.get("system"))][early].append(event.at_ms)

    def strips(self) -> list[Strip]:
        """Returns the whole run, divided into at most a dozen strips."""
        end = max(1, self._story.end_ms)
        long = next((ms for ms in _STRIPS_MS if end <= ms * _MOST_STRIPS), -(-end // _MOST_STRIPS))
        return [self.strip(from_ms, from_ms + long) for from_ms in range(0, end, long)]

    def strip(self, from_ms: int, to_ms: int) -> Strip:
        """Returns the strip for a time range of the run."""
        strip = Strip(from_ms, to_ms)
        lanes, y = [("faults", _AXIS + 15)], _AXIS
        struck = [one for one in self._struck if strip.shows(*one[1:])]
        rows = _pack(_room(strip, *one) for one in struck)
        strip.marks.extend(_fault(strip, *one, y + _FAULT * row) for one, row in zip(struck, rows, strict=True))
        y += _FAULT * (max(rows, default=0) + 1)

        lanes.append(("drivers", y + 15))
        drivers = [one for one in self._story.drivers if strip.shows(*self._lives[one.driver])]
        used = sorted({self._row_of[one.driver] for one in drivers})
        for driver in drivers:
            row = used.index(self._row_of[driver.driver])
            strip.marks.extend(_driver(strip, driver, *self._lives[driver.driver], y + _DRIVER * row))
        y += _DRIVER * max(1, len(used))

        lanes.append(("batches", y + 15))
        numbers: list[tuple[str, float, float, object]] = []
        for batch in self._story.batches:
            x = strip.x(batch.at_ms)
            apart = not numbers or numbers[-1][1] + 100 <= x
            if from_ms <= batch.at_ms < to_ms and x < GUTTER + WIDTH - 10 and apart:
                numbers.append(("batch", x, y + 9, batch.number))
        done = strip.ticks("done", [one.at_ms for one in self._story.batches if not one.recovered], y + 11, 8)
        again = strip.ticks("again", [one.at_ms for one in self._story.batches if one.recovered], y + 9, 10)
        strip.marks.append(Mark([("base", f"M{GUTTER} {y + 19}h{WIDTH}"), *done, *again], numbers))
        y += _BATCHES

        for system, (in_time, early) in self._seen.items():
            lanes.append((f"in {system}", y + 10))
            seen = [*strip.ticks("seen", in_time, y + 3, 10), *strip.ticks("early", early, y, 16)]
            strip.marks.append(Mark([("base", f"M{GUTTER} {y + 13}h{WIDTH}"), *seen]))
            y += _READER

        names = [("lane", 0, base, name if len(name) <= 14 else name[:13] + "…") for name, base in lanes]
        apart_ms = next((ms for ms in _TICKS_MS if to_ms - from_ms <= ms * 11), (to_ms - from_ms) // 6)
        for at_ms in range(-(-from_ms // apart_ms) * apart_ms, to_ms, apart_ms):
            if (x := strip.x(at_ms)) < GUTTER + WIDTH - 24:
                name = f"{at_ms / 1_000:.2f}" if apart_ms < 100 else clock(at_ms, tenths=apart_ms < 1_000)
                strip.marks.insert(0, Mark([("grid", f"M{x} 12V{y}")], [("time", x, 10, name)]))
        strip.marks.append(Mark(texts=names))
        strip.height = y + 4
        return strip


def _fault(strip: Strip, step: ReportedStep, began: int, until: int, y: int) -> Mark:
    """Returns the mark and number of a step, above bars for its outage and its recovery."""
    over = began if step.over_ms is None else step.over_ms
    paths, texts = [], []
    for name, from_ms, to_ms in (("outage", began, over), ("recovery", over, until)):
        if to_ms > from_ms and strip.shows(from_ms, to_ms):
            left = strip.x(from_ms)
            paths.append((name, f"M{left} {y + 14}h{max(1, strip.x(to_ms) - left)}v5H{left}z"))
    if strip.from_ms <= began < strip.to_ms:
        paths.append(("mark", f"M{strip.x(began)} {y + 6}{words.family(step.fault).mark}"))
        texts.append(("no", strip.x(began) + 8, y + 10, step.step))
    where = f" of {step.system}" if step.system else ""
    batch = f" of batch {step.batch}" if step.batch is not None else ""
    title = f"step {step.step}: {step.fault}{where} at {clock(began)}, {phase_title(step.hit)}{batch}"
    title += f"; lasted {duration(step.outage_ms)}" if step.outage_ms is not None else ""
    title += f"; then {duration(step.recovery_ms)} until a batch" if step.recovery_ms is not None else ""
    return Mark(paths, texts, title, step.step)


def _driver(strip: Strip, driver: ReportedDriver, began: int, ended: int, y: int) -> Iterator[Mark]:
    """Yields the lifetime of a driver, its visible phases, and its end. Omits phases too short to be visible."""
    left, right = strip.x(began), strip.x(ended)
    life = [("life", f"M{left} {y + 11}h{max(1, right - left)}v11H{left}z")]
    fits = right - left > 7 * len(str(driver.driver))
    title = f"driver {driver.driver}, {clock(began)} to {clock(ended)}: {driver.end}"
    yield Mark(life, [("no", left, y + 9, driver.driver)] if fits else [], title)

    end = f"M{right - 4} {y + 12.5}l8 8m0-8l-8 8"
    stages = [(began, STARTING, -1), *driver.phases]
    first = max(0, bisect_right(stages, strip.from_ms, key=lambda one: one[0]) - 1)
    last = bisect_left(stages, min(ended, strip.to_ms), key=lambda one: one[0])
    for (entered, phase, batch), (left_at, *_) in pairwise([*stages[first:last], (ended, "", -1)]):
        left, right = strip.x(entered), strip.x(left_at)
        if right > left:
            path = (f"phase s-{STAGE_OF.get(phase, 'idle')}", f"M{left} {y + 16.5}h{right - left}")
            of = f", batch {batch}" if batch >= 0 else ""
            yield Mark([path], title=f"driver {driver.driver}: {phase_title(phase)}{of}, from {clock(entered)}")
    if driver.ended_ms is not None and strip.from_ms <= driver.ended_ms < strip.to_ms and driver.code != 0:
        yield Mark([("death", end)], title=title)


def _pack(times: Iterable[tuple[float, float]]) -> list[int]:
    """Returns the first free row for each time range, in order of start time."""
    free: list[float] = []
    rows = []
    for began, ended in times:
        row = next((row for row, end in enumerate(free) if end <= began), len(free))
        free[row : row + 1] = [ended]
        rows.append(row)
    return rows


def _room(strip: Strip, step: ReportedStep, began: int, until: int) -> tuple[float, float]:
    """Returns the left and right edges of a step's mark, number and bars."""
    x = strip.x(began)
    return x - 6, max(strip.x(until) + 2, x + 10 + 6 * len(str(step.step)))
