"""The page's content as plain values: figures arranged in tables, steps with what the drivers did, words of the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkonce_lab.report import charts
from sparkonce_lab.report.story import ReportedStep, Story
from sparkonce_lab.report.timeline import GUTTER, WIDTH, Timeline
from sparkonce_lab.report.words import NO_DRIVER, PHASES, STARTING, fault_words, in_order, phase_title
from sparkonce_lab.schedule import EVERY_BATCH, FIRST_BATCH
from sparkonce_lab.verdicts import Anomaly

Figures = Mapping[str, Any]

_EXAMPLES = 10
_MESSAGES = 6


def content(story: Story, figures: Figures) -> dict[str, Any]:
    """Returns everything that the template shows, by the names it uses."""
    timeline = Timeline(story)
    workload = figures["run"]["workload"]
    seconds = figures["batches"]["seconds"]
    asked = {name: value for name, value in story.asked.items() if name != "schedule"}
    return {
        **figures,
        "workload": workload if isinstance(workload, Mapping) else {},
        "checked": anomalies(figures),
        "counted": _counted(figures["rows"]),
        "matrix": matrix(figures),
        "phase_seconds": [*((phase, seconds[phase]) for phase in seconds if phase != "whole"), ("", seconds["whole"])],
        "strips": timeline.strips(),
        "chart": charts.recovery(figures),
        "steps": [_step(story, timeline, step) for step in story.steps],
        "courses": list(charts.resources(story, figures)),
        "asked": json.dumps(asked, indent=1, default=str),
        "schedule": [json.dumps(step, default=str) for step in story.asked.get("schedule") or ()],
        "phase_terms": {phase_title(name): PHASES[name] for name in PHASES if name not in (NO_DRIVER, STARTING)},
        "fault_terms": {name: fault_words(name) for name in sorted({step.fault for step in story.steps})},
        "moments": _moments(story),
    }


def anomalies(figures: Figures) -> dict[str, Any]:
    """Returns the table of anomalies.

    Returns:
        The ``heads`` of its columns; ``rows`` of an `Anomaly`, true if it was checked anywhere, and for each column the
        ``count`` and the number ``looked_at``, or None; the ``found`` verdicts, with ``examples`` to show and the
        number of ``more``; the names of the ``blind`` checks.
    """
    verdicts = figures["anomalies"]
    told = {one["system"] for one in verdicts}
    systems = [*(one for one in figures["run"]["systems"] if one in told)]
    systems += sorted(told - set(systems) - {""})
    places = [*systems, *([""] if "" in told or not systems else [])]
    rows = []
    for anomaly in Anomaly:
        mine = [one for one in verdicts if one["anomaly"] == anomaly.value]
        rows.append((anomaly, bool(mine), [_sum([one for one in mine if one["system"] == place]) for place in places]))
    return {
        "heads": [f"in {place or 'the whole run'}" for place in places],
        "rows": rows,
        "found": [_shortened(one) for one in verdicts if one["count"]],
        "blind": [_named(one) for one in verdicts if not one["looked_at"]],
    }


def _sum(verdicts: Sequence[Figures]) -> dict[str, int] | None:
    return {name: sum(one[name] for one in verdicts) for name in ("count", "looked_at")} if verdicts else None


def _named(verdict: Figures) -> str:
    return f"{verdict['anomaly']}{' in ' if verdict['system'] else ''}{verdict['system']}"


def _shortened(verdict: Figures) -> dict[str, Any]:
    shown = verdict["examples"][:_EXAMPLES]
    more = verdict["count"] - len(shown) if shown else 0
    name = _named(verdict)
    return {**verdict, "name": name[:1].upper() + name[1:], "examples": shown, "more": more}


def _counted(rows: Figures) -> dict[str, Any]:
    """Returns the ``heads`` and ``rows`` of the table of row counts by kind: expected, and found in each system."""
    holders = {"expected": rows["expected"], **{f"found in {name}": found for name, found in rows["found"].items()}}
    kinds = list(dict.fromkeys(kind for counts in holders.values() for kind in counts))
    return {
        "heads": [f"of kind “{kind}”" for kind in kinds],
        "rows": [(name, [counts.get(kind, 0) for kind in kinds]) for name, counts in holders.items()],
    }


def matrix(figures: Figures) -> dict[str, Any]:
    """Returns the table of faults by phase: ``phases``, ``rows`` of a fault and its counts, ``sums``, and ``most``."""
    by_phase = figures["faults"]["by_phase"]
    hit = {phase for hits in by_phase.values() for phase in hits}
    phases = in_order(hit | {phase.name for phase in EVERY_BATCH + FIRST_BATCH})
    rows = [(fault, [hits.get(phase, 0) for phase in phases]) for fault, hits in by_phase.items()]
    counts = [counts for _, counts in rows]
    return {
        "phases": phases,
        "rows": rows,
        "sums": [sum(column) for column in zip(*counts, strict=True)],
        "most": max((count for row in counts for count in row), default=1),
    }


def _step(story: Story, timeline: Timeline, step: ReportedStep) -> dict[str, Any]:
    planned = step.planned
    from_ms, until_ms = step.fault_ms, story.after(step)
    messages = [(at, text) for at, text in story.messages if from_ms is not None and from_ms <= at <= until_ms]
    return {
        "told": step,
        "did": list(_did(story, step)),
        "delay_ms": int(planned.get("delay_ms") or 0),
        "batches": int(planned.get("batches") or 0),
        "messages": messages[:_MESSAGES],
        "more": len(messages[_MESSAGES:]),
        "strip": timeline.around(step),
    }


def _did(story: Story, step: ReportedStep) -> Iterator[str]:
    """Yields the starts and ends of drivers from a step's fault to its recovery."""
    began, until = step.fault_ms or 0, story.after(step)
    happened: list[tuple[int, str]] = []
    for driver in story.drivers:
        if driver.stopped_ms is not None and began <= driver.stopped_ms <= until:
            happened.append((driver.stopped_ms, f"driver {driver.number} stopped with {driver.error}"))
        elif driver.ended_ms is not None and began <= driver.ended_ms <= until and driver.code:
            end = driver.end.replace("killed: ", "was killed by ")
            happened.append((driver.ended_ms, f"driver {driver.number} {end}"))
        if began <= driver.began_ms <= until:
            happened.append((driver.began_ms, f"driver {driver.number} was started"))
    if not happened and step.driver is not None:
        yield f"driver {step.driver} kept running"
    yield from (what for _, what in sorted(happened))


def _moments(story: Story) -> dict[str, Any]:
    """Returns every driver's life and phases, for the script that names them under the pointer."""
    phases = sorted({phase for driver in story.drivers for _, phase, _ in driver.phases})
    drivers = [
        [driver.number, *story.life(driver), [(at, phases.index(phase), batch) for at, phase, batch in driver.phases]]
        for driver in story.drivers
    ]
    titles = [phase_title(phase) for phase in phases]
    return {"drivers": drivers, "phases": titles, "starting": phase_title(STARTING), "gutter": GUTTER, "width": WIDTH}
