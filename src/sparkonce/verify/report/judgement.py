"""The verdict on a whole run, in a word and in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkonce.guarantees import Guarantee
from sparkonce.verify.report.text import clock, duration, listed, number, times
from sparkonce.verify.verdicts import Anomaly

FAILED = "failed"
UNFINISHED = "unfinished"
NOTHING_PROVED = "nothing proved"
PASSED = "passed"

_PROMISED = {
    Guarantee.AT_MOST_ONCE: (Anomaly.DOUBLED, Anomaly.STRANGE),
    Guarantee.AT_LEAST_ONCE: (Anomaly.MISSING, Anomaly.STRANGE),
    Guarantee.EXACTLY_ONCE: (Anomaly.MISSING, Anomaly.DOUBLED, Anomaly.STRANGE),
}
"""Without an answer on these of every system, nothing is proved."""

_NOT_YET = frozenset(
    {Anomaly.MISSING, Anomaly.TORN, Anomaly.STATE_DIFFERS, Anomaly.LINGERING, Anomaly.STUCK},
)
"""If the recording breaks off, these say nothing: not all was written then, nor read."""


def judge(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The part ``verdict`` of `sparkonce.verify.report.figures.summary`, made of the other parts."""
    verdicts, run = figures["anomalies"], figures["run"]
    found = [one for one in verdicts if one["count"]]
    breaks_off = not run["finished"] and not run["stuck"]
    real = [one for one in found if not (breaks_off and one["anomaly"] in _NOT_YET)]
    if real:
        outcome, sentence = FAILED, _failed(figures, real)
    elif breaks_off or run["stuck"]:
        outcome, sentence = UNFINISHED, _unfinished(figures, found)
    elif blind := _not_looked_at(figures):
        outcome, sentence = NOTHING_PROVED, _nothing_proved(figures, blind)
    else:
        outcome, sentence = PASSED, _passed(figures)
    return {
        "outcome": outcome,
        "sentence": sentence,
        "anomalies": sum(one["count"] for one in found),
        "checks": len(verdicts),
        "checks_on_nothing": sum(not one["looked_at"] for one in verdicts),
    }


def _not_looked_at(figures: Mapping[str, Any]) -> list[str]:
    """What of the rows was not looked at, and where."""
    looked = {(one["anomaly"], one["system"]) for one in figures["anomalies"] if one["looked_at"]}
    systems = figures["run"]["systems"] or [""]
    return [
        f"{anomaly.value} rows{' in ' + system if system else ''}"
        for anomaly in _promised(figures)
        for system in systems
        if not {(anomaly.value, system), (anomaly.value, "")} & looked
    ]


def _promised(figures: Mapping[str, Any]) -> tuple[Anomaly, ...]:
    try:
        return _PROMISED[Guarantee(figures["run"]["guarantee"])]
    except ValueError:
        return _PROMISED[Guarantee.EXACTLY_ONCE]


def _passed(figures: Mapping[str, Any]) -> str:
    promised = _promised(figures)
    total = times(sum(figures["rows"]["expected"].values()), "expected row")
    rows = f"of {total} each is there once, and no other" if len(promised) == 3 else f"{total} were looked for"
    nothing = f"Nothing is {listed([one.value for one in promised], 'or')} in {listed(figures['run']['systems'])}"
    return f"{nothing}: {rows}. {_through(figures)}"


def _failed(figures: Mapping[str, Any], found: list[dict[str, Any]]) -> str:
    kinds: dict[str, list[str]] = {}
    for one in found:
        where = f" in {one['system']}" if one["system"] else ""
        kinds.setdefault(one["anomaly"], []).append(f"{number(one['count'])}{where}")
    total = sum(one["count"] for one in found)
    details = "; ".join(f"{anomaly} ({listed(where)})" for anomaly, where in kinds.items())
    end = "" if figures["run"]["finished"] else f" The run was not finished: {_break(figures)}."
    verb = "was" if total == 1 else "were"
    return f"{times(total, 'anomaly', 'anomalies')} {verb} found: {details}. {_through(figures)}{end}"


def _unfinished(figures: Mapping[str, Any], found: list[dict[str, Any]]) -> str:
    checks = len(figures["anomalies"])
    if found:
        names = listed(sorted({one["anomaly"] for one in found}), "or")
        so_far = f"What was found ({names}) may only not have been written or read yet: this"
    else:
        so_far = (
            f"No anomaly was found in {times(checks, 'check')} of what there is" if checks else "Nothing was judged"
        )
        so_far += ", which"
    return f"The run was not finished: {_break(figures)}. {so_far} proves nothing. {_through(figures)}"


def _nothing_proved(figures: Mapping[str, Any], blind: list[str]) -> str:
    if len(blind) > 3:
        blind = [*blind[:3], f"{len(blind) - 3} more"]
    return (
        f"No anomaly was found, but nobody looked for {listed(blind, 'or')}: this proves nothing. {_through(figures)}"
    )


def _break(figures: Mapping[str, Any]) -> str:
    if stuck := figures["run"]["stuck"]:
        first = stuck[0]
        where = f" after step {first['step']}" if first["step"] else ""
        return f"before its deadline this did not happen{where}: {first['what']}"
    return f"its recording breaks off after {clock(figures['run']['length_ms'])}"


def _through(figures: Mapping[str, Any]) -> str:
    struck, drivers = figures["faults"]["struck"], figures["drivers"]["started"]
    batches, length = figures["batches"]["distinct"], duration(figures["run"]["length_ms"])
    did = f"{times(struck, 'fault')} struck the running query" if struck else "No fault struck the query"
    return f"{did}; {times(drivers, 'driver')} finished {times(batches, 'batch', 'batches')} in {length}."
