"""The state of each query and system at one moment, and the usual durations of a query's batches.

The page gets these values as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from sparkonce.errors import SparkonceError
from sparkonce.operate.checkpoint import BatchState, CheckpointStatus, LogEntry, told
from sparkonce.operate.transactions import OpenTransaction
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.state import Phase
from sparkonce.sinks._shared.orphans import token_in
from sparkonce.sinks.kafka.orphans import HeldPartition, KafkaOrphan
from sparkonce.watch.figures import InDoubt, WatchedBatch
from sparkonce.watch.timeline import TimelineSegment

SILENT_AFTER_MS = 180_000
"""The driver counts as silent after this time without a report. A live driver reports at least once a minute."""

TOLD_WITHIN_MS = 45_000
"""A live driver reports that it finishes a batch within this time, since it writes its timeline at least every 15 s."""

MEASURED = 1000
"""The number of newest batches from which the usual durations are computed."""

FEW = 10
"""If there are fewer batches than this, no duration counts as usual yet."""

RATE_OVER_MS = 300_000

LONGER_THAN_USUAL = 3
"""A phase takes unusually long if it takes this many times its usual duration."""

_CLAIMED = "The run had just claimed the log when it was last heard from. An operator's resolve does so, too."


class QueryState(str, Enum):
    """The states of a query, as the page names them."""

    AT_WORK = "at work"
    IDLE = "idle"
    STOPPED = "stopped"
    ENDED = "ended"
    SILENT = "silent"
    NOT_KNOWN = "not known"
    NEW = "not started"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReading:
    """A checkpoint, as it was last read. Times are in milliseconds since the epoch.

    Attributes:
        location: The location that the operator passed.
        segments: The segments of its timeline, oldest first.
        entries: The records of its log.
        status: The state of the query; None if it could not be read.
        error: Why the last read failed; None if it succeeded.
        read_ms: When the checkpoint was last read completely; None if it never was.
        polled_ms: When the timeline was last read. The driver's state after that time is unknown.
        silent_s: How long the current read has been running, in seconds; 0 if there is none.
        last: The newest number in its `PageTimeline`.
    """

    location: str
    segments: Sequence[TimelineSegment] = ()
    entries: Sequence[LogEntry] = ()
    status: CheckpointStatus | None = None
    error: SparkonceError | None = None
    read_ms: int | None = None
    polled_ms: int | None = None
    silent_s: float = 0.0
    last: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """The durations of batches or of one phase: the median, the 95th percentile, and the number of measurements."""

    p50_ms: int
    p95_ms: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownQuery:
    """A query, as the page shows it. Times are in milliseconds since the epoch; unknown values are None or empty.

    Attributes:
        name: The query's name or, without one, the last part of its checkpoint's path.
        says: The state as a sentence; empty if the phase and its start time are enough.
        next_step: The operator's next step, if the query has stopped.
        since_ms: When the query entered its state.
        heard_ms: When the driver last wrote to the checkpoint.
        batch: The current batch or, between batches, the last one, as reported by the driver.
        newest: The newest batch in the log.
        rates: The rows per second over the last minutes, by sink.
        rows: The rows of the newest batch by sink, once it is decided.
        took: The usual duration of the query's batches.
        usual: The usual durations of the phases, by phase.
        in_doubt: The transactions that are prepared but not finished.
        timeout_ms: The shortest lifetime of a sink's transactions.
        log_end: The position after the last record of the log.
        next_start: The next start's first action, as a value of `NextStart`.
        next_says: The next start's first action, as a sentence.
        next_start_step: The operator's step before that start, if there is one.
        error: Why the checkpoint could not be read.
        read_ms: See `CheckpointReading`, as for `polled_ms`, `silent_s` and `last`.
    """

    location: str
    name: str
    query: str = ""
    run: str = ""
    host: str = ""
    state: QueryState = QueryState.NOT_KNOWN
    says: str = ""
    next_step: str = ""
    phase: str = ""
    since_ms: int | None = None
    heard_ms: int | None = None
    batch: int | None = None
    newest: int | None = None
    newest_state: str = ""
    rates: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    took: Usual | None = None
    usual: Mapping[str, Usual] = field(default_factory=dict)
    in_doubt: InDoubt = field(default_factory=InDoubt)
    timeout_ms: int | None = None
    log_end: int = 0
    next_start: str = ""
    next_says: str = ""
    next_start_step: str = ""
    has_timeline: bool = False
    error: str = ""
    error_step: str = ""
    read_ms: int | None = None
    polled_ms: int | None = None
    silent_s: float = 0.0
    last: int = 0

    @property
    def short(self) -> str:
        """The short form of the query's id, as servers know it."""
        return short_query(self.query) if self.query else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTransaction:
    """An open transaction, as the page shows it; see `sparkonce.sinks._shared.orphans.Orphan`.

    Attributes:
        age_s: The transaction's current age, in seconds; -1 if the server does not report it.
        timeout_s: The age at which the server ends the transaction; None if unknown.
        verdict: The verdict according to the log, for the reason `why`.
        holds: What the transaction blocks while it is open.
        partitions: For Kafka, the partitions that the transaction has written to.
    """

    name: str
    kind: str
    query: str
    run: str
    batch: int
    slot: int
    age_s: float
    timeout_s: float | None
    verdict: str
    why: str
    holds: Sequence[str] = ()
    partitions: Sequence[HeldPartition] = ()

    @classmethod
    def of(
        cls, one: OpenTransaction, since_answer_s: float, partitions: Sequence[HeldPartition] = ()
    ) -> ShownTransaction:
        """Converts a listed transaction. Adds the seconds since the server responded to the transaction's age."""
        found = one.found
        timeout_s = found.timeout_s if isinstance(found, KafkaOrphan) else None
        return cls(
            name=found.name,
            kind=found.kind,
            query=found.query,
            run=found.run,
            batch=found.batch,
            slot=found.slot,
            age_s=found.age_s + since_answer_s if found.age_s >= 0 else -1,
            timeout_s=timeout_s if timeout_s and timeout_s > 0 else None,
            verdict=one.verdict.value,
            why=one.why,
            holds=found.holds,
            partitions=partitions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSystem:
    """A system in the operator's file, as the page shows it.

    Attributes:
        answered_ms: When the system last responded; None if it never did.
        silent_s: How long the current request has been unanswered, in seconds; 0 if there is none.
        error: Why the system did not respond; empty if it did.
        error_step: The operator's next step after that error.
        open: The open transactions in the system's last response.
    """

    name: str
    kind: str
    answered_ms: int | None = None
    silent_s: float = 0.0
    error: str = ""
    error_step: str = ""
    open: Sequence[ShownTransaction] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """Everything that the page shows at one moment, `now_ms` in milliseconds since the epoch.

    Queries are in the order of the command line, systems in file order. If `moved` is True, the page shows what a start
    with ``checkpoint_moved=True`` would do.
    """

    now_ms: int
    queries: Sequence[ShownQuery]
    systems: Sequence[ShownSystem] = ()
    config: str = ""
    moved: bool = False

    def plain(self) -> dict[str, Any]:
        """Returns the state as plain values, for the page's JSON."""
        return asdict(self)


def show_query(reading: CheckpointReading, now_ms: int) -> ShownQuery:
    """Describes a query from its checkpoint."""
    status, batches = reading.status, newest_batches(reading.segments)
    newest = status.newest if status is not None else None
    segment = reading.segments[-1] if reading.segments else None
    usual = {name: usual_of(times) for name, times in phase_times(batches).items()}
    timeouts = list(segment.timeout_ms.values()) if segment is not None else []
    shown = ShownQuery(
        location=reading.location,
        name=(segment.name if segment is not None else "") or reading.location.rstrip("/").rpartition("/")[2],
        query=(status.query or "" if status is not None else "") or (segment.query if segment is not None else ""),
        batch=newest.batch if newest is not None else None,
        newest=newest.batch if newest is not None else None,
        newest_state=newest.state.value if newest is not None else "",
        rates=rates(reading.segments, now_ms),
        rows=newest.rows if newest is not None else {},
        took=usual_of([one.took_ms for one in batches]) if batches else None,
        usual=usual,
        timeout_ms=min(timeouts, default=None),
        log_end=status.end if status is not None else 0,
        next_start=status.next_start.value if status is not None else "",
        next_says=status.says if status is not None else "",
        next_start_step=sentence(status.next_step) if status is not None else "",
        has_timeline=bool(reading.segments),
        error=told(reading.error) if reading.error is not None else "",
        error_step=sentence(reading.error.next_step) if reading.error is not None else "",
        read_ms=reading.read_ms,
        polled_ms=reading.polled_ms,
        silent_s=reading.silent_s,
        last=reading.last,
    )
    return replace(shown, **_standing(reading, segment, now_ms))


def sentence(step: str) -> str:
    """Formats an error's next step as a sentence, as the error's own lines do."""
    return SparkonceError("", next_step=step).lines()[-1].removeprefix("Next: ")


def _standing(reading: CheckpointReading, segment: TimelineSegment | None, now_ms: int) -> dict[str, Any]:
    """Returns the fields for the query's state, from the timeline or the log, whichever is newer."""
    run = reading.status.run if reading.status is not None else None
    newest_ms = max((one.at_ms for one in reading.entries), default=None)
    if run is not None and (segment is None or token_in(run.run).position > token_in(segment.run).position):
        since = {"since_ms": run.claimed_ms, "heard_ms": newest_ms, "run": run.run, "host": run.host}
        has_decided = any(one.run == run.run and one.kind != "claim" for one in reading.entries)
        if newest_ms is not None and not has_decided and (reading.polled_ms or now_ms) - newest_ms > SILENT_AFTER_MS:
            return {**since, "state": QueryState.SILENT, "since_ms": newest_ms, "says": _CLAIMED}
        says = "The log shows its progress. Its run keeps no timeline, or none yet."
        return {**since, "state": QueryState.NOT_KNOWN, "says": says}
    if segment is None:
        if reading.status is None:
            return {"says": "The checkpoint has not been read yet." if reading.error is None else "It cannot be read."}
        return {"state": QueryState.NEW, "says": "No run has begun on this checkpoint."}
    now = segment.now
    of_run = [one.at_ms for one in reading.entries if one.run == segment.run]
    heard_ms = max([now.written_ms, *of_run])
    found: dict[str, Any] = {"run": segment.run, "host": segment.host, "heard_ms": heard_ms, "in_doubt": now.in_doubt}
    found |= {"phase": now.phase, "since_ms": now.since_ms}
    if now.batch is not None:
        found["batch"] = now.batch
    if (decided := _decided_since(reading, segment)) is not None:
        count = sum(decided.transactions.values())
        found |= {"batch": decided.batch, "in_doubt": InDoubt(transactions=count, opened_ms=decided.opened_ms)}
        if (reading.polled_ms or now_ms) - decided.at_ms > TOLD_WITHIN_MS:
            says = f"The driver has decided batch {decided.batch}, and has not been heard from since."
            return {**found, "state": QueryState.SILENT, "since_ms": heard_ms, "says": says}
    if now.phase == Phase.STOPPED.value:
        stop = next((one for one in reversed(segment.events) if one.kind == "stopped"), None)
        says = stop.text if stop is not None else "The run has stopped."
        return {
            **found,
            "state": QueryState.STOPPED,
            "says": says,
            "next_step": sentence(stop.next_step) if stop else "",
        }
    if segment.events and (end := segment.events[-1]).kind == "ended":
        return {**found, "state": QueryState.ENDED, "since_ms": end.at_ms, "says": end.text}
    if (reading.polled_ms or now_ms) - heard_ms > SILENT_AFTER_MS:
        doing = "idle" if now.phase == Phase.IDLE.value else f"at {now.phase!r} of batch {now.batch}"
        says = f"The driver was {doing} when it was last heard from."
        return {**found, "state": QueryState.SILENT, "since_ms": heard_ms, "says": says}
    return {**found, "state": QueryState.IDLE if now.phase == Phase.IDLE.value else QueryState.AT_WORK}


def _decided_since(reading: CheckpointReading, segment: TimelineSegment) -> LogEntry | None:
    """Returns a run's newest decision if it is unfinished and newer than the run's timeline."""
    newest = reading.status.newest if reading.status is not None else None
    if newest is None or newest.state is not BatchState.DECIDED:
        return None
    commits = (one for one in reading.entries if one.kind == "commit" and one.batch == newest.batch)
    last = max(commits, key=lambda one: one.position, default=None)
    is_newer = last is not None and last.run == segment.run and last.at_ms > segment.now.written_ms
    return last if is_newer else None


def usual_of(times_ms: Iterable[int]) -> Usual:
    """Returns the percentiles of at least one duration."""
    ordered = sorted(times_ms)

    def rank(part: float) -> int:
        return ordered[max(0, math.ceil(part * len(ordered)) - 1)]

    return Usual(p50_ms=rank(0.5), p95_ms=rank(0.95), of=len(ordered))


def longest_usual_ms(usual: Usual | None, at_least_ms: int) -> int:
    """Returns the time after which a batch or phase takes unusually long."""
    known = usual is not None and usual.of >= FEW
    return max(at_least_ms, LONGER_THAN_USUAL * usual.p95_ms if usual is not None and known else 5 * 60_000)


def newest_batches(segments: Sequence[TimelineSegment]) -> list[WatchedBatch]:
    """Returns the newest batches, at most `MEASURED`."""
    found: list[WatchedBatch] = []
    for segment in reversed(segments):
        found[:0] = segment.batches
        if len(found) >= MEASURED:
            break
    return found[-MEASURED:]


def phase_times(batches: Sequence[WatchedBatch]) -> dict[str, list[int]]:
    """Returns the durations of each phase, in milliseconds."""
    found: dict[str, list[int]] = {}
    for batch in batches:
        for name, took_ms in batch.phases:
            found.setdefault(name, []).append(took_ms)
    return found


def rates(segments: Sequence[TimelineSegment], now_ms: int) -> dict[str, float]:
    """Returns the rows per second over the last minutes, by sink. A batch counts at the time when it ended."""
    since_ms = now_ms - RATE_OVER_MS
    rows: dict[str, int] = {}
    # Count each batch id once, since a batch that was already decided when the next run started appears in both runs'
    # segments.
    batches = {batch.batch: batch for segment in segments for batch in segment.batches}
    for batch in batches.values():
        ended = batch.began_ms + batch.took_ms
        for sink, count in batch.rows.items():
            rows[sink] = rows.get(sink, 0) + (count if since_ms < ended <= now_ms else 0)
    known_ms = next((batch.began_ms for batch in batches.values()), now_ms)
    over_ms = min(RATE_OVER_MS, now_ms - known_ms)
    return {sink: round(count * 1000 / over_ms, 1) for sink, count in rows.items()} if over_ms > 0 else {}
