"""Counts a run, as plain values for JSON. The page shows these numbers and no others."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow.compute as pc

from sparkonce_lab.history import EventKind, History
from sparkonce_lab.report.judgement import judge
from sparkonce_lab.report.story import Story
from sparkonce_lab.report.words import in_order
from sparkonce_lab.verdicts import Verdict

_OF_A_DRIVER = ("began_ms", "ended_ms", "slots", "batches", "end", "error", "message")
_OF_A_STEP = (
    *("fault", "system", "request", "aimed", "hit", "batch", "driver", "held"),
    *("fault_ms", "over_ms", "recovered_ms", "outage_ms", "recovery_ms", "skipped", "stuck"),
)


def summary(history: History, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Returns the numbers of a run.

    Times are milliseconds since the run began, lengths of time milliseconds, unless a name says ``seconds``. Unknown
    values are None. Phases are names of `sparkonce.protocol.state.Phase`, or ``NO_DRIVER``. A *spread* is
    ``{count, min, median, p95, max}``; p95 is the smallest value that 95% do not exceed; without values all but
    ``count`` are None.

    Returns:
        A dictionary with

        - ``verdict``: ``outcome`` (``failed``: an anomaly was found; ``unfinished``: none was, but the run broke off
          or got stuck; ``nothing proved``: a check had nothing to look at, or no fault struck; ``passed``), its
          ``words`` and ``sentence``, and the numbers of ``anomalies``, ``checks``, ``checks_on_nothing``;
        - ``run``: ``seed``, ``workload``, ``systems``, ``versions``, ``guarantee``, ``limits`` as requested,
          ``length_ms``, ``finished``, and the lists ``stuck`` of ``{step, what}`` and ``unread`` of ``{what, why}``;
        - ``rows``: their number in the ``source``; ``expected`` by kind; ``found`` by system and kind; ``written`` by
          system, as the drivers reported it;
        - ``batches``: ``finished``, repeats included; ``distinct``; ``recovered``, those that an earlier driver
          decided; ``healed``, those of which a lost transaction was written again; ``transactions``; ``longest_gap``,
          the longest time without a finished batch, as ``{length_ms, from_ms, to_ms, steps}``, of an unfinished run up
          to its end; ``seconds``, the spread over the batches by phase and as ``whole``;
        - ``drivers``: ``started``; ``ends``, the number of each way to end; ``each``, a list of ``{driver, began_ms,
          ended_ms, slots, batches, end, error, message}``;
        - ``faults``: ``asked``, ``struck``, ``as_aimed`` (in the phase that they were aimed at), ``held``,
          ``recovered``; ``by_phase``, the number of strikes by fault and phase; ``skipped``, a list of ``{step, fault,
          system, why}``; ``recovery_ms``, the spread of ``all`` and of each ``by_fault``; ``steps``, a list of ``{step,
          fault, system, request, aimed, hit, batch, driver, held, fault_ms, over_ms, recovered_ms, outage_ms,
          recovery_ms, skipped, stuck}``. ``recovery_ms`` of a step is the time from the end of the outage, or else from
          the fault, to the first batch that was finished after that;
        - ``anomalies``: a list of ``{anomaly, words, system, looked_at, count, examples}``, one for each verdict;
        - ``resources``: ``rss_mib``, the largest memory by role, ``handles`` likewise, ``folders``, the last and the
          largest ``{files, bytes, largest_bytes}`` by name.
    """
    story = Story(history)
    return of_story(story, verdicts)


def of_story(story: Story, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Returns the same for a history that is put together already."""
    made = {
        "run": _run(story),
        "rows": _rows(story),
        "batches": _batches(story),
        "drivers": _drivers(story),
        "faults": _faults(story),
        "anomalies": [
            {
                "anomaly": one.anomaly.value,
                "words": one.anomaly.words,
                "system": one.system,
                "looked_at": one.looked_at,
                "count": one.count,
                "examples": list(one.examples),
            }
            for one in verdicts
        ],
        "resources": _resources(story),
    }
    return {"verdict": judge(made, verdicts), **made}


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Returns the spread of values, see `summary`."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0, "min": None, "median": None, "p95": None, "max": None}
    return {
        "count": len(ordered),
        "min": ordered[0],
        "median": statistics.median(ordered),
        "p95": ordered[math.ceil(0.95 * len(ordered)) - 1],
        "max": ordered[-1],
    }


def _run(story: Story) -> dict[str, Any]:
    asked = story.asked
    unread = story.history.of(EventKind.UNREAD)
    return {
        "seed": asked.get("seed"),
        "workload": asked.get("workload"),
        "systems": story.systems,
        "versions": asked.get("versions"),
        "guarantee": asked.get("guarantee"),
        "limits": asked.get("limits"),
        "length_ms": story.end_ms,
        "finished": story.finished,
        "stuck": [{"step": step, "what": what} for step, what in story.stuck],
        "unread": [{name: event.fields.get(name) for name in ("what", "why")} for event in unread],
    }


def _rows(story: Story) -> dict[str, Any]:
    history = story.history
    fed = [event.fields.get("rows") for event in history.of(EventKind.FED)]
    written: Counter[str] = Counter()
    for batch in story.batches:
        written.update({system: int(rows) for system, rows in batch.rows.items()})
    return {
        "source": fed[-1] if fed else None,
        "expected": _kinds(history.expected),
        "found": {system: _kinds(table) for system, table in history.observed.items()},
        "written": dict(written),
    }


def _kinds(table: Any) -> dict[str, int]:
    counted = pc.value_counts(table["kind"])
    return {str(one["values"]): int(one["counts"]) for one in counted.to_pylist()}


def _batches(story: Story) -> dict[str, Any]:
    batches = story.batches
    phases = {phase for batch in batches for phase in batch.seconds}
    by_phase = {
        phase: spread(round(batch.seconds[phase], 3) for batch in batches if phase in batch.seconds)
        for phase in in_order(phases)
    }
    return {
        "finished": len(batches),
        "distinct": len({batch.number for batch in batches}),
        "recovered": sum(batch.recovered for batch in batches),
        "healed": sum(batch.healed > 0 for batch in batches),
        "transactions": sum(batch.transactions for batch in batches),
        "longest_gap": _longest_gap(story),
        "seconds": {"whole": spread(round(sum(batch.seconds.values()), 3) for batch in batches), **by_phase},
    }


def _longest_gap(story: Story) -> dict[str, Any] | None:
    moments = [batch.at_ms for batch in story.batches]
    if not story.finished:
        moments = [*(moments or [0]), story.end_ms]
    if len(moments) < 2:
        return None
    length, from_ms = max((later - earlier, earlier) for earlier, later in pairwise(moments))
    to_ms = from_ms + length
    steps = [step.number for step in story.steps if step.fault_ms is not None and from_ms <= step.fault_ms < to_ms]
    return {"length_ms": length, "from_ms": from_ms, "to_ms": to_ms, "steps": steps}


def _drivers(story: Story) -> dict[str, Any]:
    return {
        "started": len(story.drivers),
        "ends": dict(Counter(driver.end for driver in story.drivers)),
        "each": [
            {"driver": driver.number, **{name: getattr(driver, name) for name in _OF_A_DRIVER}}
            for driver in story.drivers
        ],
    }


def _faults(story: Story) -> dict[str, Any]:
    struck = [step for step in story.steps if step.fault_ms is not None]
    faults = sorted({step.fault for step in story.steps})
    by_phase = {fault: Counter(step.hit for step in struck if step.fault == fault) for fault in faults}
    recovered = {
        fault: [step.recovery_ms for step in struck if step.fault == fault and step.recovery_ms is not None]
        for fault in faults
    }
    return {
        "asked": len(story.steps),
        "struck": len(struck),
        "as_aimed": sum(step.hit == step.aimed for step in struck),
        "held": sum(step.held for step in struck),
        "recovered": sum(step.recovered_ms is not None for step in struck),
        "by_phase": {
            fault: {phase: hits[phase] for phase in in_order(set(hits))} for fault, hits in by_phase.items() if hits
        },
        "skipped": [
            {"step": step.number, "fault": step.fault, "system": step.system, "why": step.skipped}
            for step in story.steps
            if step.skipped
        ],
        "recovery_ms": {
            "all": spread(ms for times in recovered.values() for ms in times),
            "by_fault": {fault: spread(times) for fault, times in recovered.items() if by_phase[fault]},
        },
        "steps": [{"step": step.number, **{name: getattr(step, name) for name in _OF_A_STEP}} for step in story.steps],
    }


def _resources(story: Story) -> dict[str, Any]:
    largest: dict[str, dict[str, float]] = {"rss_mib": {}, "handles": {}}
    for event in story.history.of(EventKind.RESOURCES):
        role = str(event.fields.get("role", ""))
        for name, by_role in largest.items():
            value = event.fields.get(name)
            if value is not None:
                by_role[role] = max(by_role.get(role, value), value)
    folders: dict[str, dict[str, int]] = {}
    for event in story.history.of(EventKind.FOLDER):
        name, size = str(event.fields.get("name", "")), int(event.fields.get("bytes") or 0)
        before = folders.get(name, {}).get("largest_bytes", 0)
        folders[name] = {
            "files": int(event.fields.get("files") or 0),
            "bytes": size,
            "largest_bytes": max(before, size),
        }
    return {**largest, "folders": folders}
