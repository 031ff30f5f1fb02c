"""The whole page: one file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkonce.verify.history import History
from sparkonce.verify.report import charts, judgement, tables
from sparkonce.verify.report.figures import of_story
from sparkonce.verify.report.markup import Html, el, join
from sparkonce.verify.report.steps import steps
from sparkonce.verify.report.story import Story
from sparkonce.verify.report.style import SCRIPT, STYLE
from sparkonce.verify.report.text import clock, duration, listed, number, times
from sparkonce.verify.report.timeline import GUTTER, WIDTH, Timeline, legend
from sparkonce.verify.report.words import NO_DRIVER, PHASES, STARTING, TERMS, fault_words, phase_title
from sparkonce.verify.verdicts import Verdict

HTML = "report.html"
JSON = "report.json"

_WORD = {
    judgement.PASSED: "✓ Passed",
    judgement.FAILED: "✗ Failed",
    judgement.UNFINISHED: "Not finished",
    judgement.NOTHING_PROVED: "Nothing proved",
}


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
    sections = (
        ("run", "What was run", _run(figures)),
        ("done", "What was done to it", _done(figures)),
        ("found", "What was found", _found(figures)),
        ("timeline", "What happened when", _timeline(timeline)),
        ("recovery", "How long recovery took", _recovery(figures)),
        ("drivers", "Drivers and batches", _drivers(figures)),
        ("steps", "Every step", _steps(story, figures, timeline)),
        ("resources", "What it used", charts.resources(story, figures)),
        ("appendix", "Appendix", _appendix(story, figures)),
    )
    shown = [(name, title, part) for name, title, part in sections if part]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"sparkonce verify, seed {figures['run']['seed']}: {figures['verdict']['outcome']}"),
        el("style", Html(STYLE)),
    )
    body = el(
        "body",
        _top(figures, [(name, title) for name, title, _ in shown]),
        el("main", *(el("section", el("h2", title, id=name), part) for name, title, part in shown)),
        el("footer", "Made by sparkonce verify from what was recorded; nothing on this page is loaded from elsewhere."),
        el("script", _moments(story), type="application/json", id="moments"),
        el("script", Html(SCRIPT)),
    )
    return f"<!DOCTYPE html>\n{el('html', head, body, lang='en')}\n"


def _top(figures: Mapping[str, Any], sections: Sequence[tuple[str, str]]) -> Html:
    verdict, run = figures["verdict"], figures["run"]
    blind = verdict["checks_on_nothing"]
    checks = f"{times(verdict['checks'], 'check')} of what must not be"
    checks += f"; {number(blind)} of them had nothing to look at." if blind else "."
    title = f"sparkonce verify: a Spark query that writes to {listed(run['systems']) or 'nothing'}, seed {run['seed']}"
    return el(
        "header",
        el("h1", title),
        el(
            "div",
            el("b", _WORD[verdict["outcome"]]),
            el("p", verdict["sentence"]),
            el("p", checks),
            class_=f"verdict {verdict['outcome'].split()[0]}",
        ),
        _tiles(figures),
        el("nav", *(el("a", title, href=f"#{name}") for name, title in sections), aria_label="on this page"),
    )


def _tiles(figures: Mapping[str, Any]) -> Html:
    rows, batches, faults = figures["rows"], figures["batches"], figures["faults"]
    gap = batches["longest_gap"]
    slowest = max((one["max"] for one in faults["recovery_ms"].values() if one["max"] is not None), default=None)
    medians = sorted(step["recovery_ms"] for step in faults["steps"] if step["recovery_ms"] is not None)
    usual = medians[(len(medians) - 1) // 2] if medians else None
    tiles = [
        (
            "rows in the source",
            number(rows["source"]),
            f"{number(sum(rows['expected'].values()))} expected in each system",
        ),
        ("batches", number(batches["distinct"]), f"{number(batches['transactions'])} transactions"),
        (
            "faults that struck",
            number(faults["struck"]),
            f"of {number(faults['asked'])}; {number(len(faults['skipped']))} skipped",
        ),
        (
            "drivers started",
            number(figures["drivers"]["started"]),
            f"{number(batches['recovered'])} batches taken over",
        ),
        ("length of the run", duration(figures["run"]["length_ms"]), "from first to last event"),
        ("usual recovery", duration(usual), f"the slowest: {duration(slowest)}"),
        (
            "longest wait for a batch",
            duration(gap and gap["length_ms"]),
            f"from {clock(gap['from_ms'])}" if gap else "",
        ),
    ]
    return el(
        "dl",
        *(el("div", el("dt", name), el("dd", value, el("small", note))) for name, value, note in tiles),
        class_="tiles",
    )


def _run(figures: Mapping[str, Any]) -> Html:
    run, source = figures["run"], figures["rows"]["source"]
    workload = run["workload"] if isinstance(run["workload"], dict) else {}
    made = [
        "A real Spark Structured Streaming query read rows from a Kafka topic"
        + (f" of {times(workload['partitions'], 'partition')}" if "partitions" in workload else "")
        + (f", {number(source)} in all" if source is not None else "")
        + (f", written at {number(workload['rows_per_second'])} a second" if "rows_per_second" in workload else "")
        + (f", of {times(workload['keys'], 'key')}" if "keys" in workload else "")
        + ". Every row carries its number within its key.",
        "The query passes each row on (kind “row”) and adds the rows' amounts up by key and window of "
        + (f"{duration(workload['window_ms'])} of " if "window_ms" in workload else "")
        + "event time (kind “sum”). So what must come out is known, row by row, and can be computed without Spark.",
    ]
    unit = "to all of them as one unit" if len(run["systems"]) > 1 else "there"
    asked = f"It wrote to {listed(run['systems']) or 'no system'}, {unit}"
    made.append(f"{asked}, with the guarantee “{run['guarantee'] or 'not recorded'}”.")
    kinds = list(figures["rows"]["expected"])
    found = figures["rows"]["found"]
    kinds += sorted({kind for one in found.values() for kind in one} - set(kinds))
    rows = [[tables.head("expected"), *(figures["rows"]["expected"].get(kind, 0) for kind in kinds)]]
    rows += [[tables.head(f"found in {name}"), *(one.get(kind, 0) for kind in kinds)] for name, one in found.items()]
    counted = tables.table(["rows", *(tables.column(f"kind {kind}") for kind in kinds)], rows) if kinds else None
    lists = [tables.named(run["versions"], "versions, machine"), tables.named(workload, "workload")]
    return join(
        el("p", " ".join(made)),
        counted,
        el("div", *lists, tables.named(run["limits"], "limits"), class_="pair"),
    )


def _done(figures: Mapping[str, Any]) -> Html:
    faults, run = figures["faults"], figures["run"]
    text = (
        f"{times(faults['asked'], 'fault')} {'was' if faults['asked'] == 1 else 'were'} drawn from seed {run['seed']}, to be "
        f"injected one after the other while the query works. {number(faults['struck'])} struck, {number(faults['as_aimed'])} of "
        f"them in the phase they were aimed at; in {number(faults['held'])} cases the driver was held there until it had happened."
    )
    skipped = [
        [tables.right(one["step"]), one["fault"], one["system"] or "the query", one["why"]] for one in faults["skipped"]
    ]
    return join(
        el("p", text),
        el(
            "p",
            "How often each fault struck in each phase of a batch (point at a name to see what it means, or look below):",
        ),
        tables.matrix(figures),
        el("h3", "Not injected") if skipped else None,
        tables.table([tables.column("step"), "fault", "of", "why"], skipped) if skipped else None,
    )


def _found(figures: Mapping[str, Any]) -> Html:
    text = (
        "When the query had done its work, every system was read by a connection of its own, without the product, and compared "
        "with what must be there. Other readers looked on all the while. Each field says how often something was found, and "
        "how many things were looked at for it."
    )
    return join(el("p", text), tables.anomalies(figures))


def _timeline(timeline: Timeline) -> Html:
    text = (
        "From left to right and line by line. Faults carry the number of their step; a click leads to it. A red cross is "
        "the end of a driver that did not end in order. Phases that are too short for this scale are to be seen in the steps."
    )
    return join(el("p", text), legend(), el("div", *timeline.strips(), class_="wide"))


def _recovery(figures: Mapping[str, Any]) -> Html:
    text = (
        "From the end of a fault (for what happens in an instant: from the fault) to the next batch that was finished. Where a "
        "driver had to be started again, that is mostly the start of Spark. A dot is a step, the line their median; the axis "
        "grows by factors of ten."
    )
    return join(el("p", text), charts.recovery(figures))


def _drivers(figures: Mapping[str, Any]) -> Html:
    drivers, gap = figures["drivers"], figures["batches"]["longest_gap"]
    ends = [[name, count] for name, count in sorted(drivers["ends"].items(), key=lambda end: -end[1])]
    each = [
        [
            one["driver"],
            tables.right(clock(one["began_ms"])),
            one["slots"],
            one["batches"],
            f"{one['end']} {one['message']}",
        ]
        for one in drivers["each"]
    ]
    waited = None
    if gap:
        during = (
            f", during {times(len(gap['steps']), 'step')} {listed([str(n) for n in gap['steps']])}"
            if gap["steps"]
            else ""
        )
        waited = (
            f"The longest time without a finished batch was {duration(gap['length_ms'])}, from {clock(gap['from_ms'])} to "
            f"{clock(gap['to_ms'])}{during}."
        )
    return join(
        el("p", waited) if waited else None,
        el(
            "div",
            tables.table(["how drivers ended", tables.column("drivers")], ends),
            tables.durations(figures),
            class_="pair",
        ),
        el(
            "details",
            el("summary", f"Every driver ({number(drivers['started'])})"),
            tables.table(
                [tables.column(name) for name in ("driver", "started", "slots", "batches")] + ["how it ended"], each
            ),
        ),
    )


def _steps(story: Story, figures: Mapping[str, Any], timeline: Timeline) -> Html | None:
    if not story.steps:
        return None
    faults = sorted({step.fault for step in story.steps})
    options = [el("option", "every fault", value=""), *(el("option", fault, value=fault) for fault in faults)]
    which = el("label", "Show ", el("select", *options, id="which"), class_="filter")
    return join(
        el("p", "Open a step to see what was planned, and the time around it enlarged."), which, steps(story, timeline)
    )


def _appendix(story: Story, figures: Mapping[str, Any]) -> Html:
    schedule = story.asked.get("schedule") or []
    lines = ",\n".join(json.dumps(step, default=str) for step in schedule)
    faults = {name: fault_words(name) for name in sorted({step.fault for step in story.steps})}
    phases = {phase_title(name): words for name, words in PHASES.items() if name not in (NO_DRIVER, STARTING)}
    again = "The same rows and the same schedule again, from the folder in which this page stands:"
    return join(
        el("h3", "Run it again"),
        el("p", again),
        el("pre", "sparkonce verify --replay DIR"),
        el("details", el("summary", f"The schedule as JSON ({times(len(schedule), 'step')})"), el("pre", f"[{lines}]")),
        el("h3", "Words"),
        _terms(TERMS),
        el("h3", "Phases of a batch"),
        _terms(phases),
        el("h3", "Faults of this run") if faults else None,
        _terms(faults) if faults else None,
    )


def _terms(terms: Mapping[str, str]) -> Html:
    return el("dl", *(join(el("dt", term), el("dd", words)) for term, words in terms.items()), class_="terms")


def _moments(story: Story) -> Html:
    """For the script: every driver's phases, as differences, so that an hour of them stays small."""
    phases = sorted({phase for driver in story.drivers for _, phase, _ in driver.phases})
    drivers = []
    for driver in story.drivers:
        apart, batches, last, batch = [], [], driver.began_ms, 0
        for at, _, number_ in driver.phases:
            apart.append(at - last)
            batches.append(number_ - batch)
            last, batch = at, number_
        names = [phases.index(phase) for _, phase, _ in driver.phases]
        ended = story.end_ms if driver.ended_ms is None else driver.ended_ms
        drivers.append([driver.number, driver.began_ms, ended, apart, names, batches])
    data = {
        "drivers": drivers,
        "phases": [phase_title(phase) for phase in phases],
        "starting": phase_title(STARTING),
        "gutter": GUTTER,
        "width": WIDTH,
    }
    return Html(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))
