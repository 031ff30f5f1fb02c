"""Computes the numbers and the verdict of a recorded run, for ``report.json``. The page shows the same numbers."""

from __future__ import annotations

import math
import signal
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow.compute as pc

from sparkonce.guarantees import Guarantee
from sparkonce_lab.history import EventKind, History
from sparkonce_lab.report.words import NO_DRIVER, clock, duration, in_order, listed, number, phase_name, times
from sparkonce_lab.verdicts import Anomaly, Verdict, passed

FAILED, UNFINISHED, NOTHING_PROVED, PASSED = "failed", "unfinished", "nothing proved", "passed"
WORDS = {
    PASSED: "exactly once",
    FAILED: "NOT exactly once",
    UNFINISHED: "nothing proved: not finished",
    NOTHING_PROVED: "nothing proved",
}
"""The words for each outcome."""
EXIT_CODES = {PASSED: 0, FAILED: 1, UNFINISHED: 2, NOTHING_PROVED: 2}
"""The exit codes of ``sparkonce verify``."""

_PROMISED = {
    Guarantee.AT_MOST_ONCE: (Anomaly.DOUBLED, Anomaly.UNEXPECTED),
    Guarantee.AT_LEAST_ONCE: (Anomaly.MISSING, Anomaly.UNEXPECTED),
    Guarantee.EXACTLY_ONCE: (Anomaly.MISSING, Anomaly.DOUBLED, Anomaly.UNEXPECTED),
}
"""For each guarantee, the anomalies that must be checked in every system. Otherwise, the run proves nothing."""
_OF_A_DRIVER = ("driver", "began_ms", "ended_ms", "slots", "batches", "end", "error", "message")
_OF_A_STEP = (
    *("step", "fault", "system", "request", "aimed", "hit", "batch", "driver", "held"),
    *("fault_ms", "over_ms", "recovered_ms", "outage_ms", "recovery_ms", "skipped", "stuck"),
)


@dataclass(slots=True, kw_only=True)
class ReportedDriver:
    """One process of the query. A time or number is None if the history does not contain it.

    `code` is the exit code of the process, or the negative number of the signal that ended it. `error` is the class of
    the error that stopped the query at `stopped_ms`, or empty. `phases` has the times at which the process entered a
    phase of a batch.
    """

    driver: int
    began_ms: int
    ended_ms: int | None = None
    slots: int | None = None
    batches: int = 0
    code: int | None = None
    error: str = ""
    message: str = ""
    stopped_ms: int | None = None
    phases: list[tuple[int, str, int]] = field(default_factory=list)

    @property
    def end(self) -> str:
        """Describes how the driver ended, always in the same words."""
        if self.error:
            return f"stopped on its own: {self.error}"
        if self.ended_ms is None:
            return "still there when the recording ended"
        if self.code is not None and self.code < 0:
            known = -self.code in list(signal.Signals)
            return f"killed: {signal.Signals(-self.code).name if known else f'signal {-self.code}'}"
        return "ended normally" if self.code == 0 else f"ended with exit code {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedBatch:
    """A batch that a driver finished. The next driver may finish the same batch again."""

    at_ms: int
    number: int
    rows: Mapping[str, int]
    transactions: int
    recovered: bool
    healed: int
    seconds: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class ReportedStep:
    """One fault of the schedule and its effects; see `summary`. A time or number is None if there is none.

    `planned` is the step in the schedule, or empty if the schedule does not contain the step.
    """

    step: int
    fault: str = ""
    system: str = ""
    request: str = ""
    aimed: str = NO_DRIVER
    hit: str = NO_DRIVER
    batch: int | None = None
    driver: int | None = None
    held: bool = False
    planned: Mapping[str, Any] = field(default_factory=dict)
    fault_ms: int | None = None
    over_ms: int | None = None
    recovered_ms: int | None = None
    skipped: str = ""
    stuck: str = ""

    @property
    def outage_ms(self) -> int | None:
        """The duration of the outage; None for an instantaneous fault, or an outage that never ended."""
        return None if self.fault_ms is None or self.over_ms is None else self.over_ms - self.fault_ms

    @property
    def recovery_ms(self) -> int | None:
        """The time from the end of the outage (or from the fault, if there was none) to the next finished batch."""
        began = self.over_ms if self.over_ms is not None else self.fault_ms
        return None if began is None or self.recovered_ms is None else self.recovered_ms - began


class Story:
    """The course of a run, from a history that may be cut off anywhere.

    Attributes:
        history: The recording.
        asked: The fields of the run's first event, which describe the requested run.
        drivers: The drivers, by number.
        batches: The batches, in the order they finished.
        messages: The drivers' warnings and errors, each with its time.
        steps: The steps by number, including those that the run did not reach.
        end_ms: The time of the last event.
        finished: True if every step was carried out and every system was read.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        began = history.first(EventKind.BEGAN)
        self.asked: Mapping[str, Any] = began.fields if began else {}
        self.end_ms = max((event.at_ms for event in history.events), default=0)
        self.finished = history.first(EventKind.FINISHED) is not None
        self.batches: list[ReportedBatch] = []
        self.messages: list[tuple[int, str]] = []
        self._drivers: dict[int, ReportedDriver] = {}
        self._steps: dict[int, ReportedStep] = {}
        for planned in self.asked.get("schedule") or ():
            step = self._step(planned.get("number"), planned.get("fault"))
            step.planned, step.aimed = planned, phase_name(planned.get("phase"))
            step.system, step.request = str(planned.get("system", "")), str(planned.get("request", ""))
        for event in history.events:
            self._take(event.kind, event.at_ms, event.fields)
        self.drivers = [self._drivers[key] for key in sorted(self._drivers)]
        self.steps = [self._steps[key] for key in sorted(self._steps)]
        told = [str(event.fields.get("system")) for event in history.of(EventKind.SEEN)]
        self.systems = list(dict.fromkeys([*map(str, self.asked.get("systems") or ()), *history.observed, *told]))

    def after(self, step: ReportedStep) -> int:
        """Returns the end of a step's effects: the recovery or, if there was none, the next fault or the run's end."""
        if step.recovered_ms is not None:
            return step.recovered_ms
        later = (one.fault_ms for one in self.steps if one.step > step.step and one.fault_ms is not None)
        return min(later, default=self.end_ms)

    def _driver(self, at_ms: int, told: Mapping[str, Any]) -> ReportedDriver:
        key = int(told.get("driver") or 0)
        return self._drivers.setdefault(key, ReportedDriver(driver=key, began_ms=at_ms))

    def _step(self, key: Any, fault: Any = None) -> ReportedStep:
        step = self._steps.setdefault(int(key or 0), ReportedStep(step=int(key or 0)))
        step.fault = str(fault) if fault else step.fault
        return step

    def _take(self, kind: EventKind, at_ms: int, told: Mapping[str, Any]) -> None:
        def message(what: str) -> None:
            self.messages.append((at_ms, f"driver {told.get('driver')}  {what}  {told.get('message', '')}"))

        match kind:
            case EventKind.START:
                self._driver(at_ms, told).slots = told.get("slots")
            case EventKind.PHASE:
                entered = (at_ms, phase_name(told.get("phase")), int(told.get("batch") or 0))
                self._driver(at_ms, told).phases.append(entered)
            case EventKind.BATCH:
                self._driver(at_ms, told).batches += 1
                batch = ReportedBatch(
                    at_ms=at_ms,
                    number=int(told.get("batch") or 0),
                    rows=told.get("rows") or {},
                    transactions=int(told.get("transactions") or 0),
                    recovered=bool(told.get("recovered")),
                    healed=int(told.get("healed") or 0),
                    seconds={phase_name(name): float(spent) for name, spent in (told.get("seconds") or {}).items()},
                )
                self.batches.append(batch)
            case EventKind.LOG:
                message(str(told.get("level", "")))
            case EventKind.STOPPED:
                driver = self._driver(at_ms, told)
                driver.error, driver.message = str(told.get("error") or "error"), str(told.get("message", ""))
                driver.stopped_ms = at_ms
                message(driver.error)
            case EventKind.ENDED:
                driver = self._driver(at_ms, told)
                driver.ended_ms, driver.code = at_ms, told.get("code")
            case EventKind.FAULT:
                step = self._step(told.get("step"), told.get("fault"))
                step.fault_ms, step.hit = at_ms, phase_name(told.get("phase"))
                step.system = str(told.get("system") or step.system)
                step.request = str(told.get("request") or step.request)
                step.aimed = phase_name(told["aimed"]) if told.get("aimed") else step.aimed
                step.batch, step.driver, step.held = told.get("batch"), told.get("driver"), bool(told.get("held"))
            case EventKind.OVER:
                self._step(told.get("step")).over_ms = at_ms
            case EventKind.RECOVERED:
                self._step(told.get("step")).recovered_ms = at_ms
            case EventKind.SKIPPED:
                self._step(told.get("step"), told.get("fault")).skipped = str(told.get("why") or "no reason given")
            case EventKind.STUCK:
                if told.get("step"):
                    self._step(told["step"]).stuck = str(told.get("what", ""))


def summary(story: Story, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Returns the numbers of a run.

    Points in time are in milliseconds since the run began, and durations are in milliseconds, unless a name ends in
    ``seconds``. Unknown values are None. A phase is a name of `sparkonce.protocol.state.Phase`, or ``NO_DRIVER``. A
    *spread* is ``{count, min, median, p95, max}``, where p95 is the smallest value that 95% of the values do not
    exceed. If there are no values, all fields but ``count`` are None.

    Returns:
        A dictionary with

        - ``verdict``: ``outcome``, its ``words`` and ``sentence``, and the numbers of ``anomalies``, ``checks`` and
          ``checks_on_nothing``. The outcome is ``failed`` if an anomaly was found; otherwise ``unfinished`` if the run
          was cut short or got stuck; otherwise ``nothing proved`` if a check had nothing to examine, or no fault
          struck; otherwise ``passed``;
        - ``run``: ``seed``, ``workload``, ``systems``, ``versions``, ``guarantee`` and ``limits`` as requested,
          ``length_ms``, ``finished``, and the lists ``stuck`` of ``{step, what}`` and ``unread`` of ``{what, why}``;
        - ``rows``: the numbers of rows in the ``source``, ``expected`` (by kind), ``found`` (by system and kind), and
          ``written`` (by system, as reported by the drivers);
        - ``batches``: the numbers of batches that were ``finished`` (including repeats), ``distinct``, ``recovered``
          (decided by an earlier driver) and ``healed`` (a lost transaction was written again); the number of
          ``transactions``; ``longest_gap``, the longest time without a finished batch, as ``{length_ms, from_ms, to_ms,
          steps}``, which extends to the end of an unfinished run; and ``seconds``, the spread over the batches by phase
          and as ``whole``;
        - ``drivers``: the number ``started``; ``ends``, the number of drivers for each way to end; and ``each``, a list
          of ``{driver, began_ms, ended_ms, slots, batches, end, error, message}``;
        - ``faults``: the numbers of faults that were ``asked``, ``struck``, ``as_aimed`` (in the intended phase),
          ``held`` and ``recovered``; ``by_phase``, the number of strikes by fault and phase; ``skipped``, a list of
          ``{step, fault, system, why}``; ``recovery_ms``, the spread of ``all`` and of each ``by_fault``; and
          ``steps``, a list of ``{step, fault, system, request, aimed, hit, batch, driver, held, fault_ms, over_ms,
          recovered_ms, outage_ms, recovery_ms, skipped, stuck}``. ``recovery_ms`` of a step is the time from the end of
          the outage (or from the fault, if there was none) to the next finished batch;
        - ``anomalies``: a list of ``{anomaly, words, system, looked_at, count, examples}``, one for each verdict;
        - ``resources``: the largest ``rss_mib`` and the largest number of ``handles`` for each role; and ``folders``,
          the last and the largest ``{files, bytes, largest_bytes}`` for each name.
    """
    history, batches = story.history, story.batches
    fed = [event.fields.get("rows") for event in history.of(EventKind.FED)]
    written: Counter[str] = Counter()
    for batch in batches:
        written.update({system: int(rows) for system, rows in batch.rows.items()})
    made = {
        "run": {
            "seed": story.asked.get("seed"),
            "workload": story.asked.get("workload"),
            "systems": story.systems,
            "versions": story.asked.get("versions"),
            "guarantee": story.asked.get("guarantee"),
            "limits": story.asked.get("limits"),
            "length_ms": story.end_ms,
            "finished": story.finished,
            "stuck": [
                {"step": event.fields.get("step"), "what": str(event.fields.get("what", ""))}
                for event in history.of(EventKind.STUCK)
            ],
            "unread": [
                {name: event.fields.get(name) for name in ("what", "why")} for event in history.of(EventKind.UNREAD)
            ],
        },
        "rows": {
            "source": fed[-1] if fed else None,
            "expected": _kinds(history.expected),
            "found": {system: _kinds(table) for system, table in history.observed.items()},
            "written": dict(written),
        },
        "batches": {
            "finished": len(batches),
            "distinct": len({batch.number for batch in batches}),
            "recovered": sum(batch.recovered for batch in batches),
            "healed": sum(batch.healed > 0 for batch in batches),
            "transactions": sum(batch.transactions for batch in batches),
            "longest_gap": _longest_gap(story),
            "seconds": {
                "whole": spread(round(sum(batch.seconds.values()), 3) for batch in batches),
                **{
                    phase: spread(round(batch.seconds[phase], 3) for batch in batches if phase in batch.seconds)
                    for phase in in_order({phase for batch in batches for phase in batch.seconds})
                },
            },
        },
        "drivers": {
            "started": len(story.drivers),
            "ends": dict(Counter(driver.end for driver in story.drivers)),
            "each": [{name: getattr(driver, name) for name in _OF_A_DRIVER} for driver in story.drivers],
        },
        "faults": _faults(story.steps),
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
        "resources": _resources(history),
    }
    return {"verdict": _judge(made, verdicts), **made}


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Returns the spread of the values; see `summary`."""
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


def _kinds(table: Any) -> dict[str, int]:
    return {str(one["values"]): int(one["counts"]) for one in pc.value_counts(table["kind"]).to_pylist()}


def _longest_gap(story: Story) -> dict[str, Any] | None:
    moments = [batch.at_ms for batch in story.batches]
    if not story.finished:
        moments = [*(moments or [0]), story.end_ms]
    if len(moments) < 2:
        return None
    length, from_ms = max((later - earlier, earlier) for earlier, later in pairwise(moments))
    to_ms = from_ms + length
    steps = [step.step for step in story.steps if step.fault_ms is not None and from_ms <= step.fault_ms < to_ms]
    return {"length_ms": length, "from_ms": from_ms, "to_ms": to_ms, "steps": steps}


def _faults(steps: Sequence[ReportedStep]) -> dict[str, Any]:
    struck = [step for step in steps if step.fault_ms is not None]
    faults = sorted({step.fault for step in struck})
    hits = {fault: Counter(step.hit for step in struck if step.fault == fault) for fault in faults}
    recovered = {
        fault: [step.recovery_ms for step in struck if step.fault == fault and step.recovery_ms is not None]
        for fault in faults
    }
    return {
        "asked": len(steps),
        "struck": len(struck),
        "as_aimed": sum(step.hit == step.aimed for step in struck),
        "held": sum(step.held for step in struck),
        "recovered": sum(step.recovered_ms is not None for step in struck),
        "by_phase": {fault: {phase: hits[fault][phase] for phase in in_order(hits[fault])} for fault in faults},
        "skipped": [
            {"step": step.step, "fault": step.fault, "system": step.system, "why": step.skipped}
            for step in steps
            if step.skipped
        ],
        "recovery_ms": {
            "all": spread(ms for times in recovered.values() for ms in times),
            "by_fault": {fault: spread(times) for fault, times in recovered.items()},
        },
        "steps": [{name: getattr(step, name) for name in _OF_A_STEP} for step in steps],
    }


def _resources(history: History) -> dict[str, Any]:
    largest: dict[str, dict[str, float]] = {"rss_mib": {}, "handles": {}}
    for event in history.of(EventKind.RESOURCES):
        role = str(event.fields.get("role", ""))
        for name, by_role in largest.items():
            value = event.fields.get(name)
            if value is not None:
                by_role[role] = max(by_role.get(role, value), value)
    folders: dict[str, dict[str, int]] = {}
    for event in history.of(EventKind.FOLDER):
        name, size = str(event.fields.get("name", "")), int(event.fields.get("bytes") or 0)
        before = folders.get(name, {}).get("largest_bytes", 0)
        files = int(event.fields.get("files") or 0)
        folders[name] = {"files": files, "bytes": size, "largest_bytes": max(before, size)}
    return {**largest, "folders": folders}


def _judge(made: Mapping[str, Any], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Computes the part ``verdict`` of `summary` from the other parts."""
    run, faults = made["run"], made["faults"]
    try:
        promised = _PROMISED[Guarantee(run["guarantee"])]
    except ValueError:
        promised = _PROMISED[Guarantee.EXACTLY_ONCE]
    did = f"{number(faults['struck'])} of {times(faults['asked'], 'fault')} struck the running query"
    if not faults["asked"]:
        did = "No fault was planned"
    drivers, batches = times(made["drivers"]["started"], "driver"), made["batches"]["distinct"]
    finished = f"{drivers} finished {times(batches, 'batch', 'batches')} in {duration(run['length_ms'])}"
    through = f"{did}; {finished}."

    # A run that got stuck or was cut short is not a violation, because the machine may just be slow.
    broke_off = ""
    if run["stuck"]:
        first = run["stuck"][0]
        where = f" after step {first['step']}" if first["step"] else ""
        broke_off = f"The run was not finished: before its deadline this did not happen{where}: {first['what']}."
    elif not run["finished"]:
        broke_off = f"The run was not finished: its recording breaks off after {clock(run['length_ms'])}."
    found = [one for one in verdicts if not one.ok]
    if real := [one for one in found if not (broke_off and one.anomaly is Anomaly.STUCK)]:
        outcome, sentence = FAILED, f"{_what_was_found(real)} {through} {broke_off}".rstrip()
    elif broke_off:
        blank = sorted({one.anomaly.value for one in verdicts if one.blank})
        unknown = f" What is {listed(blank, 'or')} is unknown." if blank else ""
        outcome, sentence = UNFINISHED, f"{broke_off} This proves nothing.{unknown} {through}"
    elif blind := _not_looked_at(promised, run["systems"] or [""], verdicts):
        some = listed([*blind[:3], f"{len(blind) - 3} more"] if len(blind) > 3 else blind, "or")
        why = f"No anomaly was found, but the run could not check for {some}: this proves nothing."
        unread = "; ".join(f"{one['what']} ({one['why']})" for one in run["unread"])
        outcome, sentence = NOTHING_PROVED, f"{why}{f' Not read: {unread}.' if unread else ''} {through}"
    elif not passed(verdicts):
        outcome, sentence = NOTHING_PROVED, f"Nothing was judged: this proves nothing. {through}"
    elif faults["asked"] and not faults["struck"]:
        why = "No anomaly was found, but the query was not disturbed: this proves nothing."
        outcome, sentence = NOTHING_PROVED, f"{why} {through}"
    else:
        total = times(sum(made["rows"]["expected"].values()), "expected row")
        rows = f"of {total} each is there once, and nothing else" if len(promised) == 3 else f"{total} were looked for"
        nothing = f"Nothing is {listed([one.value for one in promised], 'or')} in {listed(run['systems'])}"
        outcome, sentence = PASSED, f"{nothing}: {rows}. {through}"
    return {
        "outcome": outcome,
        "words": WORDS[outcome],
        "sentence": sentence,
        "anomalies": sum(one.count for one in found),
        "checks": len(verdicts),
        "checks_on_nothing": sum(not one.looked_at for one in verdicts),
    }


def _what_was_found(found: Sequence[Verdict]) -> str:
    kinds: dict[str, list[str]] = {}
    for one in found:
        where = f" in {one.system}" if one.system else ""
        kinds.setdefault(one.anomaly.value, []).append(f"{number(one.count)}{where}")
    total = sum(one.count for one in found)
    details = "; ".join(f"{anomaly} ({listed(where)})" for anomaly, where in kinds.items())
    return f"{times(total, 'anomaly', 'anomalies')} {'was' if total == 1 else 'were'} found: {details}."


def _not_looked_at(promised: Sequence[Anomaly], systems: Sequence[str], verdicts: Sequence[Verdict]) -> list[str]:
    """Returns the promised anomalies that were not checked in a system, and the checks that had nothing to examine."""
    looked = {(one.anomaly, one.system) for one in verdicts if one.looked_at}
    unsearched = [
        (anomaly, system)
        for anomaly in promised
        for system in systems
        if not {(anomaly, system), (anomaly, "")} & looked
    ]
    missed = dict.fromkeys([*unsearched, *((one.anomaly, one.system) for one in verdicts if one.blank)])
    return [f"“{anomaly.value}”{' in ' + system if system else ''}" for anomaly, system in missed]
