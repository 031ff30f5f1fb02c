"""Judges whether a fault explains why a query stopped.

A query may stop while something is broken, if it says what: a new driver continues. It must never lose
rows knowingly, take its own log or checkpoint for another's, or stop when nothing is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sparkonce_lab.checkers.steps import Struck, steps_of
from sparkonce_lab.faults import OF_REQUESTS, STORE, Fault
from sparkonce_lab.history import Event, EventKind, History
from sparkonce_lab.verdicts import MOST_EXAMPLES, Anomaly, Verdict

_RIVALS = frozenset({Fault.DRIVER_PAUSED, Fault.TWO_DRIVERS})
"""Two drivers at once: one of them must stop, whichever error it meets first."""
_SERVERS = frozenset({Fault.SERVER_KILLED, Fault.SERVER_PAUSED, Fault.COORDINATOR_MOVED, Fault.TARGET_DISK_FULL})
_CONNECTIONS = frozenset(
    {
        Fault.CUT,
        Fault.SLOWED,
        Fault.BLACK_HOLE,
        Fault.REQUESTS_SWALLOWED,
        Fault.REPLIES_SWALLOWED,
        Fault.REPLY_LOST,
        Fault.REQUEST_LATE,
    }
)
_OUTAGES = _SERVERS | _CONNECTIONS
_WORKERS = frozenset({Fault.EXECUTOR_KILLED, Fault.WORKER_KILLED})
_LOG_DISK = frozenset({Fault.LOG_DISK_FULL})
_CLOCK = frozenset({Fault.CLOCK_JUMPED})
"""Servers refuse what is dated otherwise than they are: S3 a signature, Kafka by log.message.timestamp.after.max.ms."""

_OF_SPARK = _RIVALS | _OUTAGES | _WORKERS | _LOG_DISK
"""Spark's own error: its source asks the broker, its log and state are on the checkpoint's disk, where it also sees
another driver's files; its jobs fail with their workers."""

EXPLAINED_BY = {
    # Another run has claimed the query, or is ahead.
    "SupersededError": _RIVALS,
    "StaleBatchError": _RIVALS,
    # Nothing is visible, and the next run writes the batch again. A rival's sweep aborts what is prepared here.
    "PrepareError": _RIVALS | _OUTAGES | _WORKERS | _LOG_DISK | _CLOCK,
    # The batch took longer than its transactions may live: a server did not answer, or the driver was stopped.
    "TransactionTooOldError": _RIVALS | _OUTAGES,
    # A deadline has passed. A paused driver's has, too, when it wakes up.
    "UnknownOutcomeError": _RIVALS | _OUTAGES | _LOG_DISK | _CLOCK,
    # A driver that starts during an outage cannot ask the server.
    "PreflightError": _OUTAGES | _CLOCK,
    # A record or a floor could not be written. Not its subclasses: what was written must be readable.
    "LogError": _LOG_DISK,
    "StreamingQueryException": _OF_SPARK,
    "Py4JJavaError": _OF_SPARK,
    "SparkException": _OF_SPARK,
}
"""Names of errors, and the faults that may lead to them. Nothing explains an error that is not listed: not
``TransactionLostError``, for the workload is deterministic and healing must work; not ``CheckpointMismatchError``,
``StaleLogError`` and ``CorruptRecordError``, for nobody touches log or checkpoint; not ``ConfigurationError``; and no
error that is neither ours nor Spark's, such as a client library's."""

_OF_THE_STORE = {
    "ConfigurationError": re.compile(
        r"cannot be written to: |could not be asked to show|did not say which of two puts|cannot reach that store: "
    ),
    "LogError": re.compile(r"could not be written: |cannot be read: |could not be tidied away: "),
}
"""The words of a start or a run whose checkpoint's store gave no answer. An outage of that store explains them. One
request that is struck does not, for it is sent again. Nothing explains a store, query or log that is wrong."""
_PLANNED = re.compile(r"has planned batch \d+ with the offsets .+: another driver runs on this checkpoint")
"""Two drivers at once explain this in S3, which renames by copying: Spark itself does not keep them apart there."""
_COPIES = ("s3", "s3a")
"""The checkpoints that are in S3: the verifier's own one, and the user's."""
_SPARKS_OWN = frozenset({"StreamingQueryException", "Py4JJavaError", "SparkException"})
_NOTHING_SAID = "SparkException"
_CRASHED = "signal"
"""Ended by a signal that we did not send, or as if all were done: nothing explains that."""
_OURS = re.compile(r"\bsparkonce\.errors\.(\w+)")


def check_stops(history: History) -> Iterator[Verdict]:
    """Finds STOPPED: a query stopped by itself, or a driver ended unasked and said nothing.

    A fault explains its errors from `EventKind.FAULT` to `EventKind.RECOVERED`. Two drivers at once explain them of
    each of the two for as long as there is another driver, or there has been a newer one.
    """
    steps = steps_of(history)
    stops = list(_stops(history))
    began = history.first(EventKind.BEGAN)
    copies = began is not None and str(began.fields.get("checkpoint")).partition(":")[0] in _COPIES
    unexplained = [
        f"at {event.at_ms} ms driver {event['driver']}: {what}"
        for place, event, error, what in stops
        if not _is_explained(
            history.events, [step for step in steps if _explains(step, error, what, copies)], place, event["driver"]
        )
    ]
    yield Verdict(
        anomaly=Anomaly.STOPPED,
        system="",
        looked_at=sum(1 for _ in history.of(EventKind.START)),
        count=len(unexplained),
        examples=tuple(unexplained[:MOST_EXAMPLES]),
    )


def _stops(history: History) -> Iterator[tuple[int, Event, str, str]]:
    """Yields place, event, the name of the error, and a description of each stop."""
    told: set[int] = set()
    for place, event in enumerate(history.events):
        if event.kind is EventKind.STOPPED and event["driver"] not in told:
            told.add(event["driver"])  # Spark tells the same error again, wrapped
            yield place, event, _error(event), f"{event['error']}: {event['message']}"
        elif (
            event.kind is EventKind.ENDED
            and not event.fields.get("asked", event["code"] <= 0)
            and event["driver"] not in told
        ):
            error = _NOTHING_SAID if event["code"] > 0 else _CRASHED
            yield place, event, error, f"ended with code {event['code']} and did not say why"


def _error(event: Event) -> str:
    """Returns the error's name. Where Spark has wrapped ours, it is the last of ours that the traces name."""
    inside = _OURS.findall(str(event["message"])) if event["error"] in _SPARKS_OWN else []
    return str((inside or [event["error"]])[-1])


def _explains(step: Struck, error: str, what: str, copies: bool) -> bool:
    """Tells whether a fault may lead to an error, whenever that was."""
    if step.system == STORE and error in _OF_THE_STORE:
        return step.fault in _OUTAGES - OF_REQUESTS and _OF_THE_STORE[error].search(what) is not None
    if error == "CheckpointMismatchError":
        return copies and step.fault in _RIVALS and _PLANNED.search(what) is not None
    return step.fault in EXPLAINED_BY.get(error, ())


def _is_explained(events: Sequence[Event], steps: Sequence[Struck], place: int, driver: int) -> bool:
    return any(
        not step.is_over(place) or (step.fault in _RIVALS and _is_rival(events, step, place, driver))
        for step in steps
        if step.since < place
    )


def _is_rival(events: Sequence[Event], step: Struck, place: int, driver: int) -> bool:
    """Tells whether the driver was one of the two, and not the only one left at that place of the history.

    The second one takes long to start, and a zombie to find out: either may be after a batch was finished.
    """
    next_fault = next(
        (at for at, event in enumerate(events) if at > step.since and event.kind is EventKind.FAULT), len(events)
    )
    started = {event["driver"] for event in events[step.since : next_fault] if event.kind is EventKind.START}
    rivals = {step.driver} | started
    gone = {event["driver"] for event in events[:place] if event.kind in (EventKind.STOPPED, EventKind.ENDED)}
    newer = {event["driver"] for event in events[:place] if event.kind is EventKind.START and event["driver"] > driver}
    return driver in rivals and bool(newer or rivals - gone - {driver})
