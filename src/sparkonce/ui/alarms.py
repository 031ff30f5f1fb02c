"""The rules that raise alarms. Each alarm has a sentence, the next step, and the command to run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparkonce.operate.checkpoint import NextStart
from sparkonce.operate.transactions import LogVerdict, next_step_of
from sparkonce.ui.state import (
    FEW,
    PageState,
    QueryState,
    ShownQuery,
    ShownSystem,
    ShownTransaction,
    Usual,
    longest_usual_ms,
)

SLOW_MS = 20_000
"""A shorter phase never raises an alarm, even if it is unusual: a driver writes its timeline only every 15 s."""
OLD, VERY_OLD = 0.5, 0.9
"""Transactions raise alarms once they are older than these fractions of their timeout."""
STRANGE_S = 60.0
"""The age at which a transaction raises an alarm if its query is unknown, or if it is foreign and blocks readers."""
SILENT_S = 15.0
"""A system or store that responds within this time raises no alarm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that needs an operator's attention.

    Attributes:
        key: Identifies the alarm as long as it lasts.
        urgent: True if rows are delayed or may be lost.
        title: A short title that does not change while the alarm lasts.
        says: A sentence that describes the problem.
        next_step: The operator's next step.
        command: The command to run.
    """

    key: str
    urgent: bool
    title: str
    says: str
    next_step: str
    command: str


def alarms_of(state: PageState) -> list[Alarm]:
    """Returns all alarms, urgent ones first."""
    return sorted((one for rule in RULES for one in rule(state)), key=lambda one: not one.urgent)


def shown_time(seconds: float) -> str:
    """Formats a duration in its two largest units, such as ``1 h 5 min``."""
    if 0 < seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s".replace(".0 ", " ")
    left, found = int(seconds), []
    for name, unit in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= unit:
            found.append(f"{left // unit} {name}")
        left %= unit
    return " ".join(found[:2])


def _stopped(state: PageState) -> Iterator[Alarm]:
    for query in state.queries:
        if query.state is QueryState.STOPPED:
            yield Alarm(
                key=f"stopped {query.location} {query.run}",
                urgent=True,
                title=f"{query.name}: the run has stopped",
                says=query.says,
                next_step=query.next_step or "Remove the cause, and start the query again.",
                command=_show(state, query),
            )


def _not_heard(state: PageState) -> Iterator[Alarm]:
    for query in state.queries:
        if query.state is QueryState.SILENT:
            silent_s = (state.now_ms - (query.heard_ms or state.now_ms)) / 1000
            yield Alarm(
                key=f"silent {query.location} {query.run}",
                urgent=True,
                title=f"{query.name}: the driver has not been heard from",
                says=f"{query.says} That is {shown_time(silent_s)} ago.",
                next_step=f"Check if the driver runs on {query.host or 'its host'}. If not, start the query again.",
                command=_show(state, query),
            )


def _slow(state: PageState) -> Iterator[Alarm]:
    for query in state.queries:
        if query.state is not QueryState.AT_WORK or query.since_ms is None:
            continue
        usual, takes_ms = query.usual.get(query.phase), (query.polled_ms or state.now_ms) - query.since_ms
        if takes_ms > longest_usual_ms(usual, SLOW_MS):
            yield Alarm(
                key=f"slow {query.location} {query.batch} {query.phase}",
                urgent=False,
                title=f"{query.name}: batch {query.batch} is taking long",
                says=f"It has been at {query.phase!r} for {shown_time(takes_ms / 1000)}. {_usually(usual)}",
                next_step="See what is open on the systems, and the driver's log.",
                command=_transactions("list", state, query) if state.systems else _show(state, query),
            )


def _refused(state: PageState) -> Iterator[Alarm]:
    for query in state.queries:
        if query.next_start in (NextStart.REFUSED.value, NextStart.DEPENDS.value):
            # While a driver is active, the log may briefly run ahead of Spark's files, which is normal.
            if query.next_start == NextStart.DEPENDS.value and query.state is QueryState.AT_WORK:
                continue
            yield Alarm(
                key=f"refused {query.location}",
                urgent=query.next_start == NextStart.REFUSED.value,
                title=f"{query.name}: the next start {query.next_start}",
                says=query.next_says,
                next_step=query.next_start_step,
                command=_show(state, query),
            )


def _unreadable(state: PageState) -> Iterator[Alarm]:
    for query in state.queries:
        if query.error or query.silent_s > SILENT_S:
            yield Alarm(
                key=f"unreadable {query.location}",
                urgent=True,
                title=f"{query.name}: the checkpoint cannot be read",
                says=query.error or f"Its store has not answered for {shown_time(query.silent_s)}.",
                next_step=query.error_step or "Check that the store can be reached from this machine.",
                command=_show(state, query),
            )


def _old(state: PageState) -> Iterator[Alarm]:
    told: set[str] = set()
    all_answer = bool(state.systems) and all(one.answered_ms and not one.error for one in state.systems)
    for system, one in _open(state):
        if one.verdict == LogVerdict.FOREIGN.value or one.timeout_s is None or one.age_s <= OLD * one.timeout_s:
            continue
        told.add(one.query)
        left_s = one.timeout_s - one.age_s
        ends = f"It ends in {shown_time(left_s)}." if left_s > 0 else "It is past it."
        loss = (
            " Its rows are decided, and have to be written again if it ends."
            if one.verdict == LogVerdict.COMMIT.value
            else ""
        )
        yield Alarm(
            key=f"old {system.name} {one.name}",
            urgent=one.age_s > VERY_OLD * one.timeout_s,
            title=f"{system.name}: a transaction is {_NEAR[one.age_s > VERY_OLD * one.timeout_s]}",
            says=f"{one.name} has been open for {shown_time(one.age_s)} of {shown_time(one.timeout_s)}. {ends}{loss}",
            next_step=next_step_of(one.kind, LogVerdict(one.verdict), one.name),
            command=_transactions("list", state, _query_of(state, one)),
        )
    for query in () if all_answer else state.queries:  # A system's answer takes precedence over a driver's report.
        opened_ms, timeout_ms = query.in_doubt.opened_ms, query.timeout_ms
        if opened_ms is None or timeout_ms is None or query.short in told or query.state in _NOT_OPEN:
            continue
        age_ms = (query.polled_ms or state.now_ms) - opened_ms
        if age_ms > OLD * timeout_ms:
            yield Alarm(
                key=f"old {query.location} {query.batch}",
                urgent=age_ms > VERY_OLD * timeout_ms,
                title=f"{query.name}: a transaction is {_NEAR[age_ms > VERY_OLD * timeout_ms]}",
                says=f"The oldest of batch {query.batch} was opened {shown_time(age_ms / 1000)} ago. "
                f"The shortest timeout is {shown_time(timeout_ms / 1000)}.",
                next_step="If the driver does not run, start the query again.",
                command=_transactions("list", state, query) if state.systems else _show(state, query),
            )


def _unknown(state: PageState) -> Iterator[Alarm]:
    for system, one in _open(state):
        query = _query_of(state, one)
        if one.verdict != LogVerdict.NOT_KNOWN.value or (query is None and one.age_s < STRANGE_S):
            continue
        yield Alarm(
            key=f"unknown {system.name} {one.name}",
            urgent=False,
            title=f"{system.name}: the fate of a transaction is unknown",
            says=f"{one.name}: {one.why}",
            next_step="Find out which copy of the checkpoint is the newest."
            if query is not None
            else f"Give this page the checkpoint of query {one.query}, too.",
            command=_transactions("list", state, query),
        )


def _blocking(state: PageState) -> Iterator[Alarm]:
    for system, one in _open(state):
        parts = [part for part in one.partitions if part.blocks]
        blocked = [f"{part.topic}-{part.partition}" for part in parts]
        if one.verdict != LogVerdict.FOREIGN.value or not blocked or one.age_s < STRANGE_S:
            continue
        more = f" and {len(blocked) - 1} more partitions" if len(blocked) > 1 else ""
        ends = "" if one.timeout_s is None else f" It times out after {shown_time(one.timeout_s)}."
        yield Alarm(
            key=f"blocking {system.name} {one.name}",
            urgent=True,
            title=f"{system.name}: another application's transaction blocks readers",
            says=(
                f"{one.name} ({one.kind}) has been open for {shown_time(one.age_s)}: read_committed readers of "
                f"{blocked[0]}{more} see no rows after its first one.{ends}"
            ),
            next_step=next_step_of(one.kind, LogVerdict.FOREIGN, one.name),
            command=_transactions("blocking", state, None, f"--topic {shlex.quote(parts[0].topic)}"),
        )


def _silent(state: PageState) -> Iterator[Alarm]:
    for system in state.systems:
        if system.error or system.silent_s > SILENT_S:
            yield Alarm(
                key=f"silent {system.name}",
                urgent=True,
                title=f"{system.name}: the system does not answer",
                says=system.error or f"It was queried {shown_time(system.silent_s)} ago.",
                next_step=system.error_step or "Check that it runs, and can be reached from this machine.",
                command=_transactions("list", state, None, f"--system {system.kind}"),
            )


Rule = Callable[[PageState], Iterator[Alarm]]
RULES: tuple[Rule, ...] = (_stopped, _not_heard, _refused, _unreadable, _old, _blocking, _silent, _slow, _unknown)
"""All rules, in the order in which alarms of equal urgency are shown."""

_NOT_OPEN = (QueryState.IDLE, QueryState.ENDED)
_NEAR = {False: "past half of its timeout", True: "near its timeout"}


def _open(state: PageState) -> Iterator[tuple[ShownSystem, ShownTransaction]]:
    return ((system, one) for system in state.systems for one in system.open)


def _query_of(state: PageState, one: ShownTransaction) -> ShownQuery | None:
    copies = [query for query in state.queries if query.short == one.query]
    return max(copies, key=lambda query: query.log_end, default=None)


def _usually(usual: Usual | None) -> str:
    if usual is None or usual.of < FEW:
        return "There are too few batches to know what is usual."
    return (
        f"The usual time is {shown_time(usual.p50_ms / 1000)}, and 95 % take at most {shown_time(usual.p95_ms / 1000)}."
    )


def _show(state: PageState, query: ShownQuery) -> str:
    return f"sparkonce checkpoint show {shlex.quote(query.location)}{' --moved' if state.moved else ''}"


def _transactions(command: str, state: PageState, query: ShownQuery | None, *more: str) -> str:
    words = [f"sparkonce transactions {command}", *(one if one.startswith("--") else shlex.quote(one) for one in more)]
    words += [f"--config {shlex.quote(state.config)}"] if state.config else []
    words += [f"--checkpoint {shlex.quote(query.location)}"] if query is not None else []
    return " ".join(words)
