"""Judges what happened: what readers saw, what was left open, whether the run came to its end."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from sparkonce_lab.checkers.multisets import Difference, told
from sparkonce_lab.checkers.steps import steps_of
from sparkonce_lab.history import EventKind, History
from sparkonce_lab.verdicts import MOST_EXAMPLES, Anomaly, Verdict


def check_early(history: History, system: str, found: pa.Table) -> Iterator[Verdict]:
    """Finds EARLY: a reader saw a batch before it was decided, or in the end found one that was never decided.

    The newest decision is the newest that a reader found in the log, or that a driver has said is committed.
    """
    seen = [event for event in history.of(EventKind.SEEN) if event["system"] == system]
    examples = [
        f"at {event.at_ms} ms a reader saw batch {event['batch']}, and the newest decided batch was {event['decided']}"
        for event in seen
        if event["batch"] > event["decided"]
    ]
    decided = [event["decided"] for event in history.of(EventKind.SEEN)]
    decided += [event["batch"] for event in history.of(EventKind.BATCH)]
    if decided and len(found):
        beyond = pc.unique(found.filter(pc.greater(found["batch"], max(decided)))["batch"]).to_pylist()
        examples += [
            f"batch {batch} is there, and the newest that was ever decided is {max(decided)}"
            for batch in sorted(beyond)
        ]
    newest = pc.max(found["batch"]).as_py() if len(found) else None
    # A reader that has not seen what is there in the end was blind for a while: it may have missed more.
    saw_all = newest is None or max((event["batch"] for event in seen), default=-1) >= newest
    yield Verdict(
        anomaly=Anomaly.EARLY,
        system=system,
        looked_at=len(seen) if saw_all else 0,
        count=len(examples),
        examples=tuple(examples[:MOST_EXAMPLES]),
    )


def check_lingering(history: History, system: str) -> Iterator[Verdict]:
    """Finds LINGERING: what the last look at the system found open."""
    looks = [event for event in history.of(EventKind.OPEN) if event["system"] == system]
    names = [str(name) for name in looks[-1]["names"]] if looks else []
    yield Verdict(
        anomaly=Anomaly.LINGERING,
        system=system,
        looked_at=len(looks),
        count=len(names),
        examples=tuple(names[:MOST_EXAMPLES]),
    )


def check_state(history: History, calm: Difference | None) -> Iterator[Verdict]:
    """Finds STATE_DIFFERS of the whole run: the undisturbed query made other rows, or kept other state.

    Args:
        history: The run.
        calm: What distinguishes the undisturbed query's rows from the expected ones; None if none was run.
    """
    states = list(history.of(EventKind.STATE))
    examples = [
        f"the query kept {event['disturbed']} rows of state, and one that nobody disturbed {event['undisturbed']}"
        for event in states
        if event["disturbed"] != event["undisturbed"]
    ]
    count = len(examples)
    if calm is not None and history.undisturbed is not None:
        count += calm.count
        examples += [f"the undisturbed query's rows: {line}" for line in told(calm, history.undisturbed)]
    # Rows alone, or state alone, would be half of the question.
    looked_at = 0 if calm is None or not states else len(states) + len(history.expected)
    yield Verdict(
        anomaly=Anomaly.STATE_DIFFERS,
        system="",
        looked_at=looked_at,
        count=count,
        examples=tuple(examples[:MOST_EXAMPLES]),
    )


def check_stuck(history: History) -> Iterator[Verdict]:
    """Finds STUCK: a deadline passed, the run never came to its end, or a fault was never recovered from."""
    examples = [f"step {event['step']}: {event['what']}" for event in history.of(EventKind.STUCK)]
    if history.first(EventKind.FINISHED) is not None:
        examples += [
            f"step {step.number} ({step.fault.value}): no batch was finished after it"
            for step in steps_of(history)
            if step.until is None
        ]
    elif not examples:
        examples = ["the history breaks off: not all was carried out and read"]
    yield Verdict(
        anomaly=Anomaly.STUCK,
        system="",
        looked_at=sum(1 for _ in history.of(EventKind.BATCH)),
        count=len(examples),
        examples=tuple(examples[:MOST_EXAMPLES]),
    )
