"""The verdict on a whole run, in a word and in a sentence, for command line, page and exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkonce.guarantees import Guarantee
from sparkonce_lab.report.text import clock, duration, listed, number, times
from sparkonce_lab.verdicts import Anomaly, Verdict, passed

FAILED = "failed"
UNFINISHED = "unfinished"
NOTHING_PROVED = "nothing proved"
PASSED = "passed"

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
"""The anomalies that must be looked for in every system, or nothing is proved."""


def judge(figures: Mapping[str, Any], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Returns the part ``verdict`` of `sparkonce_lab.report.figures.summary`.

    Args:
        figures: The other parts.
        verdicts: The checkers' answers.
    """
    found = [one for one in verdicts if not one.ok]
    # A run that got stuck or broke off is no violation: its machine may be slow.
    unfinished = not figures["run"]["finished"] or bool(figures["run"]["stuck"])
    if real := [one for one in found if not (unfinished and one.anomaly is Anomaly.STUCK)]:
        outcome, sentence = FAILED, _failed(figures, real, unfinished=unfinished)
    elif unfinished:
        outcome, sentence = UNFINISHED, _unfinished(figures, verdicts)
    elif blind := _not_looked_at(figures, verdicts):
        why = f"No anomaly was found, but nobody looked for {_some(blind)}: this proves nothing.{_unread(figures)}"
        outcome, sentence = NOTHING_PROVED, f"{why} {_through(figures)}"
    elif not passed(verdicts):
        outcome, sentence = NOTHING_PROVED, f"Nothing was judged: this proves nothing. {_through(figures)}"
    elif figures["faults"]["asked"] and not figures["faults"]["struck"]:
        why = "No anomaly was found, but the query was not disturbed: this proves nothing."
        outcome, sentence = NOTHING_PROVED, f"{why} {_through(figures)}"
    else:
        outcome, sentence = PASSED, _passed(figures)
    return {
        "outcome": outcome,
        "words": WORDS[outcome],
        "sentence": sentence,
        "anomalies": sum(one.count for one in found),
        "checks": len(verdicts),
        "checks_on_nothing": sum(not one.looked_at for one in verdicts),
    }


def _not_looked_at(figures: Mapping[str, Any], verdicts: Sequence[Verdict]) -> list[str]:
    """Returns the promised anomalies that a system was not searched for, and the checks that had nothing to look at."""
    looked = {(one.anomaly, one.system) for one in verdicts if one.looked_at}
    systems = figures["run"]["systems"] or [""]
    promised = [
        (anomaly, system)
        for anomaly in _promised(figures)
        for system in systems
        if not {(anomaly, system), (anomaly, "")} & looked
    ]
    blank = [(one.anomaly, one.system) for one in verdicts if one.blank]
    return [
        f"“{anomaly.value}”{' in ' + system if system else ''}" for anomaly, system in dict.fromkeys(promised + blank)
    ]


def _unread(figures: Mapping[str, Any]) -> str:
    told = "; ".join(f"{one['what']} ({one['why']})" for one in figures["run"]["unread"])
    return f" Not read: {told}." if told else ""


def _some(names: Sequence[str]) -> str:
    return listed([*names[:3], f"{len(names) - 3} more"] if len(names) > 3 else names, "or")


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


def _failed(figures: Mapping[str, Any], found: Sequence[Verdict], *, unfinished: bool) -> str:
    kinds: dict[str, list[str]] = {}
    for one in found:
        where = f" in {one.system}" if one.system else ""
        kinds.setdefault(one.anomaly.value, []).append(f"{number(one.count)}{where}")
    total = sum(one.count for one in found)
    details = "; ".join(f"{anomaly} ({listed(where)})" for anomaly, where in kinds.items())
    end = f" The run was not finished: {_break(figures)}." if unfinished else ""
    verb = "was" if total == 1 else "were"
    return f"{times(total, 'anomaly', 'anomalies')} {verb} found: {details}. {_through(figures)}{end}"


def _unfinished(figures: Mapping[str, Any], verdicts: Sequence[Verdict]) -> str:
    blank = sorted({one.anomaly.value for one in verdicts if one.blank})
    unknown = f" What is {listed(blank, 'or')} cannot be told." if blank else ""
    return f"The run was not finished: {_break(figures)}. This proves nothing.{unknown} {_through(figures)}"


def _break(figures: Mapping[str, Any]) -> str:
    if stuck := figures["run"]["stuck"]:
        first = stuck[0]
        where = f" after step {first['step']}" if first["step"] else ""
        return f"before its deadline this did not happen{where}: {first['what']}"
    return f"its recording breaks off after {clock(figures['run']['length_ms'])}"


def _through(figures: Mapping[str, Any]) -> str:
    faults, drivers = figures["faults"], figures["drivers"]["started"]
    batches, length = figures["batches"]["distinct"], duration(figures["run"]["length_ms"])
    did = f"{number(faults['struck'])} of {times(faults['asked'], 'fault')} struck the running query"
    if not faults["asked"]:
        did = "No fault was to strike the query"
    return f"{did}; {times(drivers, 'driver')} finished {times(batches, 'batch', 'batches')} in {length}."
