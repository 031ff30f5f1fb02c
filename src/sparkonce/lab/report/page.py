"""The whole page: one file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from sparkonce.lab.history import History
from sparkonce.lab.report import charts, judgement, sections
from sparkonce.lab.report.figures import of_story
from sparkonce.lab.report.markup import Html, el
from sparkonce.lab.report.story import Story
from sparkonce.lab.report.text import clock, duration, listed, number, times
from sparkonce.lab.report.timeline import GUTTER, WIDTH, Timeline
from sparkonce.lab.report.words import STARTING, phase_title
from sparkonce.lab.verdicts import Verdict

HTML = "report.html"
JSON = "report.json"

_MARK = {judgement.PASSED: "✓ ", judgement.FAILED: "✗ "}


def write(folder: Path, history: History, verdicts: Sequence[Verdict]) -> tuple[Path, Path]:
    """Writes both forms into a folder, over those that are there.

    Args:
        folder: Where; it is made if it is not there.
        history: What was recorded.
        verdicts: What the checkers say of it.

    Returns:
        The paths of page and numbers.
    """
    story = Story(history)
    figures = of_story(story, verdicts)
    folder.mkdir(parents=True, exist_ok=True)
    html, numbers = folder / HTML, folder / JSON
    html.write_text(_page(story, figures), encoding="utf-8")
    numbers.write_text(json.dumps(figures, indent=1, default=str) + "\n", encoding="utf-8")
    return html, numbers


def render(history: History, verdicts: Sequence[Verdict]) -> str:
    """The page.

    Args:
        history: What was recorded; it may break off anywhere.
        verdicts: What the checkers say of it.
    """
    story = Story(history)
    return _page(story, of_story(story, verdicts))


def _page(story: Story, figures: Mapping[str, Any]) -> str:
    timeline = Timeline(story)
    parts = (
        ("run", "What was run", sections.run(figures)),
        ("done", "What was done to it", sections.done(figures)),
        ("found", "What was found", sections.found(figures)),
        ("timeline", "What happened when", sections.whole_timeline(timeline)),
        ("recovery", "How long recovery took", sections.recovery(figures)),
        ("drivers", "Drivers and batches", sections.drivers(figures)),
        ("steps", "Every step", sections.every_step(story, timeline)),
        ("resources", "What it used", charts.resources(story, figures)),
        ("appendix", "Appendix", sections.appendix(story)),
    )
    shown = [(name, title, part) for name, title, part in parts if part]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"sparkonce verify, seed {figures['run']['seed']}: {figures['verdict']['outcome']}"),
        el("style", _file("page.css")),
    )
    body = el(
        "body",
        _top(figures, [(name, title) for name, title, _ in shown]),
        el("main", *(el("section", el("h2", title, id=name), part) for name, title, part in shown)),
        el("footer", "Made by sparkonce verify from what was recorded; nothing on this page is loaded from elsewhere."),
        el("script", _moments(story), type="application/json", id="moments"),
        el("script", _file("page.js")),
    )
    return f"<!DOCTYPE html>\n{el('html', head, body, lang='en')}\n"


def _file(name: str) -> Html:
    return Html(files("sparkonce.lab.report").joinpath(name).read_text(encoding="utf-8"))


def _top(figures: Mapping[str, Any], parts: Sequence[tuple[str, str]]) -> Html:
    verdict, run = figures["verdict"], figures["run"]
    checks = f"{times(verdict['checks'], 'check')} of what must not be"
    if verdict["checks_on_nothing"]:
        blind = [
            one["anomaly"] + (f" in {one['system']}" if one["system"] else "")
            for one in figures["anomalies"]
            if not one["looked_at"]
        ]
        checks += f"; {number(len(blind))} had nothing to look at: {listed(blind)}"
    title = f"sparkonce verify: a Spark query that writes to {listed(run['systems']) or 'nothing'}, seed {run['seed']}"
    said = [el("b", _headline(verdict)), el("p", verdict["sentence"]), el("p", f"{checks}.")]
    return el(
        "header",
        el("h1", title),
        el("div", *said, class_=f"verdict {verdict['outcome'].split()[0]}"),
        _tiles(figures),
        el("nav", *(el("a", title, href=f"#{name}") for name, title in parts), aria_label="on this page"),
    )


def _headline(verdict: Mapping[str, Any]) -> str:
    words = verdict["words"]
    return f"{_MARK.get(verdict['outcome'], '')}{words[0].upper()}{words[1:]}"


def _tiles(figures: Mapping[str, Any]) -> Html:
    rows, batches, faults = figures["rows"], figures["batches"], figures["faults"]
    gap, usual = batches["longest_gap"], faults["recovery_ms"]["all"]
    struck = f"of {number(faults['asked'])}; {number(len(faults['skipped']))} skipped"
    tiles = [
        ("rows in the source", number(rows["source"]), f"{number(sum(rows['expected'].values()))} must come out"),
        ("batches", number(batches["distinct"]), f"{number(batches['transactions'])} transactions"),
        ("faults that struck", number(faults["struck"]), struck),
        (
            "drivers",
            number(figures["drivers"]["started"]),
            f"{times(batches['recovered'], 'batch', 'batches')} taken over",
        ),
        ("length of the run", duration(figures["run"]["length_ms"]), "from first to last event"),
        ("median recovery", duration(usual["median"]), f"the longest: {duration(usual['max'])}"),
        (
            "longest wait for a batch",
            duration(gap and gap["length_ms"]),
            f"from {clock(gap['from_ms'])}" if gap else "",
        ),
    ]
    shown = (el("div", el("dt", name), el("dd", value, el("small", note))) for name, value, note in tiles)
    return el("dl", *shown, class_="tiles")


def _moments(story: Story) -> Html:
    """For the script: every driver's phases, as differences, so that an hour of them stays small."""
    phases = sorted({phase for driver in story.drivers for _, phase, _ in driver.phases})
    drivers = []
    for driver in story.drivers:
        apart, batches, last_ms, last = [], [], driver.began_ms, 0
        for at_ms, _, batch in driver.phases:
            apart.append(at_ms - last_ms)
            batches.append(batch - last)
            last_ms, last = at_ms, batch
        names = [phases.index(phase) for _, phase, _ in driver.phases]
        drivers.append([driver.number, *story.life(driver), apart, names, batches])
    data = {
        "drivers": drivers,
        "phases": [phase_title(phase) for phase in phases],
        "starting": phase_title(STARTING),
        "gutter": GUTTER,
        "width": WIDTH,
    }
    return Html(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))
