"""The parts of the page, each with what it says in sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparkonce.lab.report import charts, tables
from sparkonce.lab.report.markup import Html, el, join
from sparkonce.lab.report.steps import steps
from sparkonce.lab.report.story import Story
from sparkonce.lab.report.text import clock, duration, listed, number, times
from sparkonce.lab.report.timeline import Timeline, legend
from sparkonce.lab.report.words import NO_DRIVER, PHASES, STARTING, TERMS, fault_words, phase_title

Figures = Mapping[str, Any]


def run(figures: Figures) -> Html:
    """What was run."""
    asked = figures["run"]
    workload = asked["workload"] if isinstance(asked["workload"], Mapping) else {}
    unit = "to all of them as one unit" if len(asked["systems"]) > 1 else "there"
    written = f"It wrote to {listed(asked['systems']) or 'no system'}, {unit}"
    lists = [tables.named(asked["versions"], "versions, machine"), tables.named(asked["limits"], "limits")]
    return join(
        el("p", _query(workload, figures["rows"]["source"])),
        el("p", f"{written}, with the guarantee “{asked['guarantee'] or 'not recorded'}”."),
        el("div", *lists, class_="pair"),
    )


def _query(workload: Mapping[str, Any], source: int | None) -> str:
    parts = [
        "A real Spark Structured Streaming query read rows from a Kafka topic",
        f" of {times(workload['partitions'], 'partition')}" if "partitions" in workload else "",
        f", {number(source)} in all" if source is not None else "",
        f", written at {number(workload['rows_per_second'])} a second" if "rows_per_second" in workload else "",
        f", of {times(workload['keys'], 'key')}" if "keys" in workload else "",
        ". Every row carries its number within its key. The query passes each row on (kind “row”) and adds the rows' "
        "amounts up by key and window of ",
        f"{workload['window_ms'] / 1_000:g} s of " if "window_ms" in workload else "",
        "event time (kind “sum”). So what must come out is known, row by row, and can be computed without Spark.",
    ]
    return "".join(parts)


def done(figures: Figures) -> Html:
    """What was done to it."""
    faults = figures["faults"]
    asked = f"{times(faults['asked'], 'fault')} {'was' if faults['asked'] == 1 else 'were'} drawn from the seed"
    text = (
        f"{asked}, to be injected one after the other while the query works. {number(faults['struck'])} struck, "
        f"{number(faults['as_aimed'])} of them in the phase that they were aimed at; in "
        f"{times(faults['held'], 'case')} the driver was held there until it had happened."
    )
    skipped = [
        [tables.right(one["step"]), one["fault"], one["system"] or "the query", one["why"]] for one in faults["skipped"]
    ]
    where = (
        "How often each fault struck in each phase of a batch, from those of a driver's start to those of every batch. "
    )
    return join(
        el("p", text),
        el("p", where, el("a", "What the phases mean", href="#phases"), ".") if faults["struck"] else None,
        tables.matrix(figures) if faults["struck"] else None,
        el("h3", "Not injected") if skipped else None,
        tables.table([tables.column("step"), "fault", "of", "why"], skipped) if skipped else None,
    )


def found(figures: Figures) -> Html:
    """What was found."""
    rows = figures["rows"]
    text = (
        "When the query had done its work, every system was read by a connection of its own, without the product, and "
        "compared with what must be there."
        if rows["found"]
        else "The run did not come to the point at which every system is read and compared with what must be there."
    )
    text += (
        " Other readers looked on all the while. Each field says how often something was found, and how many things "
        "were looked at for it."
    )
    holders = {"must be there": rows["expected"], **{f"found in {name}": one for name, one in rows["found"].items()}}
    kinds = list(dict.fromkeys(kind for one in holders.values() for kind in one))
    counted = [[tables.head(name), *(one.get(kind, 0) for kind in kinds)] for name, one in holders.items()]
    columns = [tables.column(f"of kind “{kind}”") for kind in kinds]
    return join(
        el("p", text),
        tables.anomalies(figures),
        el("h3", "Rows, counted") if kinds else None,
        tables.table(["rows", *columns], counted) if kinds else None,
    )


def whole_timeline(timeline: Timeline) -> Html:
    """What happened when."""
    text = (
        "From left to right and line by line. A fault carries the number of its step; a click leads to it. A red cross "
        "is the end of a driver that did not end in order. A phase too short for this scale may not show here; each "
        "step is drawn enlarged below."
    )
    return join(el("p", text), legend(), el("div", *timeline.strips(), class_="wide"))


def recovery(figures: Figures) -> Html:
    """How long recovery took."""
    text = (
        "From the end of a fault (for what happens in an instant: from the fault) to the next batch that was finished. "
        "Where a driver had to be started again, the start of Spark is in it. Each dot is a step, the line their "
        "median; the axis grows by factors of ten."
    )
    return join(el("p", text), charts.recovery(figures))


def drivers(figures: Figures) -> Html:
    """Drivers and batches."""
    told = figures["drivers"]
    ends = [[name, count] for name, count in sorted(told["ends"].items(), key=lambda end: -end[1])]
    columns = [tables.column(name) for name in ("driver", "started", "slots", "batches")]
    each = [
        [one["driver"], tables.right(clock(one["began_ms"])), one["slots"] or "the plan's", one["batches"], _end(one)]
        for one in told["each"]
    ]
    pair = [tables.table(["how drivers ended", tables.column("drivers")], ends), tables.durations(figures)]
    return join(
        _waited(figures),
        el("div", *pair, class_="pair"),
        el(
            "details",
            el("summary", f"Every driver ({number(told['started'])})"),
            tables.table([*columns, "how it ended"], each),
        ),
    )


def _end(driver: Mapping[str, Any]) -> Html:
    message = el("div", driver["message"], class_="words") if driver["message"] else None
    return el("td", driver["end"], message)


def _waited(figures: Figures) -> Html | None:
    gap = figures["batches"]["longest_gap"]
    if not gap:
        return None
    numbers = listed([str(number) for number in gap["steps"]])
    during = f", during step{'s' if len(gap['steps']) > 1 else ''} {numbers}" if gap["steps"] else ""
    between = f"from {clock(gap['from_ms'])} to {clock(gap['to_ms'])}{during}"
    return el("p", f"The longest time without a finished batch was {duration(gap['length_ms'])}, {between}.")


def every_step(story: Story, timeline: Timeline) -> Html | None:
    """Every step; None if there is none."""
    if not story.steps:
        return None
    faults = sorted({step.fault for step in story.steps})
    options = [el("option", "every fault", value=""), *(el("option", fault, value=fault) for fault in faults)]
    which = el("label", "Show ", el("select", *options, id="which"), class_="filter")
    text = "Open a step to see what was planned, and the time around it enlarged."
    return join(el("p", text), which, steps(story, timeline))


def appendix(story: Story) -> Html:
    """The schedule, how to run it again, and what the words mean."""
    schedule = story.asked.get("schedule") or []
    lines = ",\n".join(json.dumps(step, default=str) for step in schedule)
    asked = json.dumps(
        {name: value for name, value in story.asked.items() if name != "schedule"}, indent=1, default=str
    )
    faults = {name: fault_words(name) for name in sorted({step.fault for step in story.steps})}
    phases = {phase_title(name): words for name, words in PHASES.items() if name not in (NO_DRIVER, STARTING)}
    again = "The same rows and the same schedule again; DIR is the folder that this run was recorded in:"
    return join(
        el("h3", "Run it again"),
        el("p", again),
        el("pre", "sparkonce verify --replay DIR"),
        el("details", el("summary", "What was asked for, as JSON"), el("pre", asked)),
        el("details", el("summary", f"The schedule as JSON ({times(len(schedule), 'step')})"), el("pre", f"[{lines}]")),
        el("h3", "Words"),
        _terms(TERMS),
        el("h3", "Phases of a batch", id="phases"),
        _terms(phases),
        el("h3", "Faults of this run") if faults else None,
        _terms(faults) if faults else None,
    )


def _terms(terms: Mapping[str, str]) -> Html:
    return el("dl", *(join(el("dt", term), el("dd", words)) for term, words in terms.items()), class_="terms")
