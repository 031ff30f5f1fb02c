"""Judges events: what readers saw, which transactions stayed open, why queries stopped, and what kept growing.

While a server or process is broken, a query may stop with an error that names the cause, because a new driver
continues. A query must never knowingly lose rows, mistake its own log or checkpoint for another's, or stop when nothing
is broken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.protocol.coordinator import MOST_DOUBTS, MOST_HEALINGS
from sparkonce.protocol.horizon import KEEP_BATCHES, TIDY_EVERY_BATCHES
from sparkonce_lab.checkers.rows import Difference, told
from sparkonce_lab.faults import OF_REQUESTS, STORE, Fault
from sparkonce_lab.history import Event, EventKind, History
from sparkonce_lab.verdicts import MOST_EXAMPLES, Anomaly, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A fault that was injected.

    Attributes:
        number: The step's number.
        fault: The fault.
        system: The name of the system that it struck; empty for the query.
        driver: The number of the driver that was running.
        since: The position of `EventKind.FAULT` in the history.
        until: The position of `EventKind.RECOVERED` for this step or a later one; None if there was no recovery.
    """

    number: int
    fault: Fault
    system: str
    driver: int
    since: int
    until: int | None

    def is_over(self, index: int) -> bool:
        """Returns True if the recovery came before a position in the history."""
        return self.until is not None and self.until < index


def steps_of(history: History) -> list[Struck]:
    """Lists every fault, in order."""
    recovered = [(at, event["step"]) for at, event in enumerate(history.events) if event.kind is EventKind.RECOVERED]
    return [
        Struck(
            number=event["step"],
            fault=Fault(event["fault"]),
            system=str(event.fields.get("system") or ""),
            driver=event["driver"],
            since=since,
            until=next((at for at, step in recovered if at > since and step >= event["step"]), None),
        )
        for since, event in enumerate(history.events)
        if event.kind is EventKind.FAULT
    ]


def check_early(history: History, system: str, found: pa.Table) -> Iterator[Verdict]:
    """Finds EARLY: a reader saw a batch before it was decided, or found a batch at the end that was never decided.

    The newest decision is the newest one that a reader found in the log or that a driver reported as committed.
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
            f"batch {batch} is there, and the newest batch ever decided is {max(decided)}" for batch in sorted(beyond)
        ]
    newest = pc.max(found["batch"]).as_py() if len(found) else None
    # If the readers never saw the newest rows, they were offline for a while, and may have missed earlier rows, too.
    saw_all = newest is None or max((event["batch"] for event in seen), default=-1) >= newest
    yield Verdict(
        anomaly=Anomaly.EARLY,
        system=system,
        looked_at=len(seen) if saw_all else 0,
        count=len(examples),
        examples=tuple(examples[:MOST_EXAMPLES]),
    )


def check_lingering(history: History, system: str) -> Iterator[Verdict]:
    """Finds LINGERING: transactions that were open in the system at the last check."""
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
    """Finds STATE_DIFFERS for the whole run: the undisturbed query had different rows or a different final state."""
    states = list(history.of(EventKind.STATE))
    examples = [
        f"the query kept {event['disturbed']} rows of state, and the undisturbed one {event['undisturbed']}"
        for event in states
        if event["disturbed"] != event["undisturbed"]
    ]
    count = len(examples)
    if calm is not None and history.undisturbed is not None:
        count += calm.count
        examples += [f"the undisturbed query's rows: {line}" for line in told(calm, history.undisturbed)]
    # Judge only if both the rows and the state are known.
    looked_at = 0 if calm is None or not states else len(states) + len(history.expected)
    yield Verdict(
        anomaly=Anomaly.STATE_DIFFERS,
        system="",
        looked_at=looked_at,
        count=count,
        examples=tuple(examples[:MOST_EXAMPLES]),
    )


def check_stuck(history: History) -> Iterator[Verdict]:
    """Finds STUCK: a deadline has passed, the run never finished, or the query never recovered from a fault."""
    examples = [f"step {event['step']}: {event['what']}" for event in history.of(EventKind.STUCK)]
    if history.first(EventKind.FINISHED) is not None:
        examples += [
            f"step {step.number} ({step.fault.value}): no batch was finished after it"
            for step in steps_of(history)
            if step.until is None
        ]
    elif not examples:
        examples = ["the history breaks off: not everything was carried out and read"]
    yield Verdict(
        anomaly=Anomaly.STUCK,
        system="",
        looked_at=sum(1 for _ in history.of(EventKind.BATCH)),
        count=len(examples),
        examples=tuple(examples[:MOST_EXAMPLES]),
    )


_RIVALS = frozenset({Fault.DRIVER_PAUSED, Fault.TWO_DRIVERS})
"""Faults that make two drivers run at the same time. One of them must stop, with the first error that it meets."""
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
"""The fault that sets the clock. Servers reject wrong times: S3 in a signature, Kafka in a row's timestamp."""
_OF_SPARK = _RIVALS | _OUTAGES | _WORKERS | _LOG_DISK
"""Faults that may lead to Spark's own errors.

Spark's source queries the broker. Spark's log and state are on the checkpoint's disk, where Spark also notices another
driver's files. Spark's jobs fail if their workers do.
"""
EXPLAINED_BY = {
    # Another run has claimed the query, or has progressed further.
    "SupersededError": _RIVALS,
    "StaleBatchError": _RIVALS,
    # The next run writes the batch again. A rival's sweep aborts what this run has prepared.
    "PrepareError": _RIVALS | _OUTAGES | _WORKERS | _LOG_DISK | _CLOCK,
    # The batch outlived its transactions because a server did not respond or the driver was paused.
    "TransactionTooOldError": _RIVALS | _OUTAGES,
    # A deadline has passed, perhaps because the driver was paused.
    "UnknownOutcomeError": _RIVALS | _OUTAGES | _LOG_DISK | _CLOCK,
    # A driver that starts during an outage cannot query the server.
    "PreflightError": _OUTAGES | _CLOCK,
    # The log could not be written. This does not cover subclasses of LogError, because a log that was written must be
    # readable.
    "LogError": _LOG_DISK,
    "StreamingQueryException": _OF_SPARK,
    "Py4JJavaError": _OF_SPARK,
    "SparkException": _OF_SPARK,
}
"""The faults that may lead to each error. No fault explains an error that is not listed, such as
``TransactionLostError``, because the workload is deterministic and healing must work; ``CheckpointMismatchError``,
``StaleLogError`` and ``CorruptRecordError``, because nobody touches the log or the checkpoint;
``ConfigurationError``; or an error of a client library."""
_OF_THE_STORE = {
    "ConfigurationError": re.compile(
        r"cannot be written to: |could not be asked to show|did not say which of two puts|cannot reach that store: "
    ),
    "LogError": re.compile(r"could not be written: |cannot be read: |could not be tidied away: "),
}
"""The messages of a start or a run whose checkpoint store did not respond.

An outage of the store explains them. A single failed request does not, because it is retried. No fault explains a
message that the store, query or log is the wrong one.
"""
_PLANNED = re.compile(r"has planned batch \d+ with the offsets .+: another driver runs on this checkpoint")
"""Part of an error that two concurrent drivers explain in S3, where Spark renames by copying and does not exclude
others."""
_COPIES = ("s3", "s3a")
"""The schemes of checkpoints in S3: the verifier's own, and the user's."""
_SPARKS_OWN = frozenset({"StreamingQueryException", "Py4JJavaError", "SparkException"})
_NOTHING_SAID = "SparkException"
_CRASHED = "signal"
"""The name for a driver that was ended by a signal the verifier did not send, or that exited as if done. No fault
explains it."""
_OURS = re.compile(r"\bsparkonce\.errors\.(\w+)")


def check_stops(history: History) -> Iterator[Verdict]:
    """Finds STOPPED: a query stopped on its own, or a driver exited unasked and without an error.

    A fault explains its errors from `EventKind.FAULT` to `EventKind.RECOVERED`. Two concurrent drivers explain the
    errors of both drivers while there are two of them, and those of the older one after that.
    """
    steps = steps_of(history)
    stops = list(_stops(history))
    began = history.first(EventKind.BEGAN)
    copies = began is not None and str(began.fields.get("checkpoint")).partition(":")[0] in _COPIES
    unexplained = [
        f"at {event.at_ms} ms driver {event['driver']}: {what}"
        for index, event, error, what in stops
        if not _is_explained(
            history.events, [step for step in steps if _explains(step, error, what, copies)], index, event["driver"]
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
    """Yields the position, event, error name and description of each stop."""
    told: set[int] = set()
    for index, event in enumerate(history.events):
        if event.kind is EventKind.STOPPED and event["driver"] not in told:
            told.add(event["driver"])  # Spark reports the same error again, wrapped in its own. Skip that copy.
            yield index, event, _error(event), f"{event['error']}: {event['message']}"
        elif (
            event.kind is EventKind.ENDED
            and not event.fields.get("asked", event["code"] <= 0)
            and event["driver"] not in told
        ):
            error = _NOTHING_SAID if event["code"] > 0 else _CRASHED
            yield index, event, error, f"ended with code {event['code']} and did not say why"


def _error(event: Event) -> str:
    """Returns the name of an event's error: the last one in the traces, if Spark has wrapped one of sparkonce's."""
    inside = _OURS.findall(str(event["message"])) if event["error"] in _SPARKS_OWN else []
    return str((inside or [event["error"]])[-1])


def _explains(step: Struck, error: str, what: str, copies: bool) -> bool:
    """Returns True if a fault may lead to an error, regardless of timing."""
    if step.system == STORE and error in _OF_THE_STORE:
        return step.fault in _OUTAGES - OF_REQUESTS and _OF_THE_STORE[error].search(what) is not None
    if error == "CheckpointMismatchError":
        return copies and step.fault in _RIVALS and _PLANNED.search(what) is not None
    return step.fault in EXPLAINED_BY.get(error, ())


def _is_explained(events: Sequence[Event], steps: Sequence[Struck], index: int, driver: int) -> bool:
    return any(
        not step.is_over(index) or (step.fault in _RIVALS and _is_rival(events, step, index, driver))
        for step in steps
        if step.since < index
    )


def _is_rival(events: Sequence[Event], step: Struck, index: int, driver: int) -> bool:
    """Returns True if the driver was one of two rivals, and was not the only one left at that point of the history.

    The second driver takes a while to start, and a superseded one takes a while to notice. Both may happen after a
    batch was finished.
    """
    next_fault = next(
        (at for at, event in enumerate(events) if at > step.since and event.kind is EventKind.FAULT), len(events)
    )
    started = {event["driver"] for event in events[step.since : next_fault] if event.kind is EventKind.START}
    rivals = {step.driver} | started
    gone = {event["driver"] for event in events[:index] if event.kind in (EventKind.STOPPED, EventKind.ENDED)}
    newer = {event["driver"] for event in events[:index] if event.kind is EventKind.START and event["driver"] > driver}
    return driver in rivals and bool(newer or rivals - gone - {driver})


LOG_FOLDER = "log"
"""The name of the decision log in `EventKind.FOLDER`."""
WARM_UP_MS = 120_000
"""The time after a process starts that is not judged, because caches fill, code is compiled, and pools open."""
FEWEST_SAMPLES = 20
SHORTEST_MS = 600_000
"""The shortest observation of a process that allows a conclusion about growth."""
_HANDLES = (1.20, 20.0)
_OF_A_JVM = {"rss_mib": (1.25, 100.0), "handles": _HANDLES}
_OF_PYTHON = {"rss_mib": (1.10, 20.0), "handles": _HANDLES}
"""The factor and the difference that growth must both exceed. Only for Python, because a JVM retains garbage."""
_FLOORS = 2
"""The number of floor files: the newest one, and one that is about to be deleted."""
_FILES_PER_DRIVER = 2
"""The number of files per driver: a claim, and a temporary file of a killed driver, which is deleted after an hour."""


def check_growth(history: History) -> Iterator[Verdict]:
    """Finds GROWING. Does not judge processes that were observed only briefly, or a log that is not yet tidied."""
    looked_at, examples = 0, []
    series: dict[tuple[int, str, int], list[Event]] = {}
    for event in history.of(EventKind.RESOURCES):
        series.setdefault((event["driver"], event["role"], event["pid"]), []).append(event)
    for (driver, role, pid), samples in series.items():
        warm = [event for event in samples if event.at_ms - samples[0].at_ms >= WARM_UP_MS]
        if len(warm) < FEWEST_SAMPLES or warm[-1].at_ms - warm[0].at_ms < SHORTEST_MS:
            continue
        looked_at += 1
        limits = _OF_A_JVM if role == "jvm" else _OF_PYTHON
        examples += [f"{role} of driver {driver} (process {pid}): {line}" for line in _growth(warm, limits)]
    newest = max((event["batch"] for event in history.of(EventKind.BATCH)), default=-1)
    bound = most_log_files(history)
    logs = [event for event in history.of(EventKind.FOLDER) if event["name"] == LOG_FOLDER]
    if logs and newest >= bound:
        looked_at += 1
        largest = max(logs, key=lambda event: int(event["files"]))
        if largest["files"] > bound:
            examples.append(
                f"the decision log had {largest['files']} files at {largest.at_ms} ms, and keeps {bound} at most"
            )
    yield Verdict(
        anomaly=Anomaly.GROWING,
        system="",
        looked_at=looked_at,
        count=len(examples),
        examples=tuple(examples[:MOST_EXAMPLES]),
    )


def most_log_files(history: History) -> int:
    """Returns the maximum number of files in the decision log: those that the coordinator keeps, and the run's own."""
    drivers = sum(1 for _ in history.of(EventKind.START))
    healed = sum(1 for event in history.of(EventKind.BATCH) if event["healed"])
    decisions = KEEP_BATCHES + TIDY_EVERY_BATCHES + 1
    # If a driver is killed before it deletes old records, the next batch deletes them.
    return decisions + _FLOORS + drivers * (_FILES_PER_DRIVER + 1) + healed * MOST_HEALINGS + MOST_DOUBTS


def _growth(warm: Sequence[Event], limits: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    third = len(warm) // 3
    for name, (times, more) in limits.items():
        before = median(float(event[name]) for event in warm[:third])
        after = median(float(event[name]) for event in warm[-third:])
        if after > before * times and after - before > more:
            yield f"{name} {before:.0f} at first, {after:.0f} at last"
