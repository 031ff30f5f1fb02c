"""Reads a query's state from its checkpoint alone: its log, and whether its next start would succeed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sparkonce.decision_log import FOLDER, MOST_READS, DecisionLog, check_whole
from sparkonce.driver.progress import rows_by_sink
from sparkonce.driver.start import ResumePoint, read_log
from sparkonce.driver.stops import stop_error
from sparkonce.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    CorruptRecordError,
    LogError,
    SparkonceError,
    with_capital,
)
from sparkonce.protocol import codec
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim, Decision, LogView, Record, Void
from sparkonce.sinks._shared.orphans import run_of
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.spark_checkpoint import SparkCheckpoint
from sparkonce.watch.timeline import TimelineReader

OPERATOR = "operator-"
"""The prefix of the run id in claims by ``transactions resolve``, which are not Spark runs."""

_MAY_BE_REFUSED = "Restore the checkpoint and the log together, from one copy that was made while no driver ran."


class BatchState(str, Enum):
    """The states of a batch, according to the checkpoint and the log."""

    DONE = "done"
    DECIDED = "decided, and may not be finished"
    PLANNED = "planned, and not decided"
    BEYOND = "decided, and not in Spark's part of the checkpoint"


class NextStart(str, Enum):
    """The first action of the next start."""

    BEGINS = "begins"
    RESUMES = "resumes"
    COMMITS = "commits"
    WRITES_AGAIN = "writes again"
    DEPENDS = "may be refused"
    REFUSED = "is refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOfLog:
    """A run that has claimed the log.

    Attributes:
        run: The run's token, as ``position-nonce``.
        claimed_ms: When the run claimed the log, in milliseconds since the epoch. If the record has been deleted, this
            is None, and the attributes below are not set.
        spark_run: Spark's run id.
        host: The driver's host.
        process: The driver's process id.
        library: The version of sparkonce.
    """

    run: str
    claimed_ms: int | None = None
    spark_run: str = ""
    host: str = ""
    process: int = 0
    library: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestBatch:
    """The newest batch of a checkpoint. Times are in milliseconds since the epoch.

    Attributes:
        batch: Spark's batch id.
        state: The state of the batch.
        decided_ms: When the batch was decided; None if it is not decided, or the record was deleted.
        opened_ms: When the batch's oldest transaction was started, by its executor's clock; None if there is none.
        rows: The number of rows by sink, once the batch is decided.
        transactions: The number of transactions by sink, once the batch is decided.
        void: The number of transactions whose rows are lost, according to the log.
        offsets: The end offsets of each source, as JSON.
    """

    batch: int
    state: BatchState
    decided_ms: int | None = None
    opened_ms: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)
    void: int = 0
    offsets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatus:
    """The state of a query, according to its checkpoint.

    Attributes:
        location: The checkpoint's location.
        query: The query's id; None before its first start.
        floor: The position of the first record that the log still has.
        end: The position after the log's last record; 0 if sparkonce has never run on the checkpoint.
        runs: The number of runs that the log knows.
        run: The newest run; None if there is none.
        sinks: The newest run's facts about each sink, such as prefix, cluster and limits.
        newest: The newest batch; None if there is none.
        next_start: The first action of the next start.
        says: The first action of the next start, as a sentence.
        next_step: The operator's next step, if the next start would fail.
    """

    location: str
    query: str | None
    floor: int
    end: int
    runs: int
    run: RunOfLog | None
    sinks: Mapping[str, Mapping[str, str]]
    newest: NewestBatch | None
    next_start: NextStart
    says: str
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A record of the log. Times are in milliseconds since the epoch.

    Attributes:
        position: The record's position in the log.
        at_ms: When the record was written, by its driver's clock.
        kind: ``claim``: a run began. ``commit``: a batch was decided. ``amend``: a batch's lost transactions were
            replaced. ``void``: some of a batch's transactions must be aborted because rows are gone.
        run: The run that wrote the record, as ``position-nonce``.
        batch: Spark's batch id; None for a claim.
        rows: The number of the batch's rows, by sink.
        transactions: The number of the batch's transactions, by sink.
        void: The number of void transactions.
        offsets: The batch's end offsets for each source, as JSON.
        opened_ms: When the batch's oldest transaction was started, by its executor's clock; None if there is none.
        spark_run: Spark's run id. For a claim only.
        host: The driver's host. For a claim only.
        process: The driver's process id. For a claim only.
        library: The version of sparkonce. For a claim only.
    """

    position: int
    at_ms: int
    kind: str
    run: str
    batch: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)
    void: int = 0
    offsets: tuple[str, ...] = ()
    opened_ms: int | None = None
    spark_run: str = ""
    host: str = ""
    process: int = 0
    library: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of checking one aspect of a checkpoint; `ok` is None if the aspect was not checked."""

    name: str
    ok: bool | None
    says: str
    next_step: str = ""

    @classmethod
    def failed(cls, name: str, error: SparkonceError) -> Check:
        """Returns a check that ended with an error."""
        return cls(name=name, ok=False, says=told(error), next_step=error.next_step)


def read_checkpoint(files: CheckpointFiles, *, moved: bool = False) -> CheckpointStatus:
    """Reads the state of a query, as a start with ``checkpoint_moved=True`` would find it if ``moved`` is True.

    Servers are not queried, so an old copy of the log is detected only if it contradicts Spark's files. A start also
    compares the log with what the sinks remember.

    Raises:
        ConfigurationError: If the folder is not a checkpoint.
        CheckpointMismatchError: If one of Spark's files in it is damaged.
        LogError: If its decision log cannot be read.
        OSError: If its store cannot be read.
    """
    log, entries, point = settled(files)
    return _status(files, log, entries, point, moved=moved)


def check_checkpoint(files: CheckpointFiles, *, moved: bool = False) -> Sequence[Check]:
    """Checks whether a start on this checkpoint would succeed, for example before an old copy is restored.

    Returns the checks in order. Each check depends on the previous ones, so the first check that fails is the last.

    Raises:
        ConfigurationError: If the folder is not a checkpoint.
        OSError: If its store cannot be read.
    """
    checks = []
    name = "Spark's checkpoint"
    try:
        query = SparkCheckpoint(files).query_id()
        checks.append(Check(name=name, ok=True, says=f"Query {query}." if query else "No query has started yet."))
        name = "decision log"
        log, entries, point = settled(files)
        first, end = point.view.floor.position, point.view.end
        records = f"Records {first} to {end - 1} are whole." if end else "There is none yet."
        checks.append(Check(name=name, ok=True, says=records))
        name = "next start"
        status = _status(files, log, entries, point, moved=moved)
    except (LogError, CheckpointMismatchError) as error:
        return [*checks, Check.failed(name, error)]
    ok = status.next_start not in (NextStart.REFUSED, NextStart.DEPENDS)
    return [*checks, Check(name=name, ok=ok, says=status.says, next_step=status.next_step)]


def read_handles(files: CheckpointFiles, batch: int) -> Sequence[Handle]:
    """Returns the handles of a decided batch, one per sink and slot.

    Raises:
        ConfigurationError: If the folder is not a checkpoint, or its log does not have the batch.
    """
    _, view, _ = read_log_of(files)
    decision = view.decision(batch)
    if decision is None:
        batches = [one.batch for one in view.decisions]
        raise ConfigurationError(
            f"The decision log of {files.location!r} does not have batch {batch}.",
            next_step=f"It has batches {batches[0]} to {batches[-1]}." if batches else "No batch is decided yet.",
        )
    return decision.handles


def settled(files: CheckpointFiles) -> tuple[DecisionLog | None, Sequence[LogEntry], ResumePoint]:
    """Reads a consistent pair of log and checkpoint, even while a driver is writing both."""
    log, view, entries = read_log_of(files)
    for _ in range(MOST_READS):
        point = ResumePoint.of(files, view)
        if log is None or read_log(log, view).end == view.end:
            return log, entries, point
        log, view, entries = read_log_of(files)
    raise LogError(
        f"The decision log of {files.location!r} grew {MOST_READS} times while it was read.",
        next_step="Try again, or stop the query.",
    )


def read_log_of(files: CheckpointFiles) -> tuple[DecisionLog | None, LogView, Sequence[LogEntry]]:
    """Reads the decision log of a checkpoint, with its records. A missing log counts as empty, and is not created."""
    has_log = any(files.names(f"{FOLDER}/{part}") for part in ("records", "floors"))
    if not has_log:
        if isinstance(files, LocalFiles) and not files.folder.is_dir():
            raise ConfigurationError(
                f"{files.location!r} does not exist, or is no folder.",
                next_step="Give the folder of the option checkpointLocation; see that its disk is mounted here.",
            )
        if not SparkCheckpoint(files).exists():
            raise ConfigurationError(
                f"{files.location!r} is not a checkpoint: it has neither Spark's file `metadata` nor a decision log.",
                next_step="Give the folder of the option checkpointLocation.",
            )
        return None, LogView(), ()
    log = DecisionLog(files, make=False)
    view, entries = read_history(log)
    check_whole(files)
    return log, view, entries


def read_history(log: DecisionLog) -> tuple[LogView, Sequence[LogEntry]]:
    """Reads a log, even while a run is appending to it.

    Returns the log's view, and its records, oldest first. Records below the log's floor have been deleted.
    """
    for _ in range(MOST_READS):
        view = read_log(log)
        data = log.read_bytes(view.floor.position)[: view.end - view.floor.position]
        if len(data) == view.end - view.floor.position:
            return view, [_entry(view.floor.position + number, one) for number, one in enumerate(data)]
    raise CorruptRecordError(
        f"The floor of the decision log {log.location} rose {MOST_READS} times while it was read.",
        next_step="Find out which other driver runs on this checkpoint.",
    )


def query_name(files: CheckpointFiles) -> str:
    """Returns the newest name of the checkpoint's query in Spark, according to its timeline; empty if it has none."""
    return next((one.name for one in reversed(TimelineReader(files).read()) if one.name), "")


def told(error: SparkonceError) -> str:
    """Returns an error's message as a sentence."""
    return with_capital(error.lines()[0])


def _status(
    files: CheckpointFiles, log: DecisionLog | None, entries: Sequence[LogEntry], point: ResumePoint, *, moved: bool
) -> CheckpointStatus:
    view, query = point.view, point.checkpoint.query_id()
    refused = point.refusal(log.location, moved=moved) if log is not None else None
    error: SparkonceError | None = None if refused is None else stop_error(refused, point.batch)
    next_start = NextStart.REFUSED if error is not None else _next_start(point)
    run = view.newest_run
    return CheckpointStatus(
        location=files.location,
        query=query,
        floor=view.floor.position,
        end=view.end,
        runs=len(view.runs),
        run=None if run is None else _run(run_of(run.token), entries),
        sinks={} if run is None else {name: dict(facts) for name, facts in run.sinks},
        newest=_newest(point, entries),
        next_start=next_start,
        says=told(error) if error is not None else _said(next_start, point, entries),
        next_step=_MAY_BE_REFUSED if next_start is NextStart.DEPENDS else error.next_step if error is not None else "",
    )


def _run(run: str, entries: Sequence[LogEntry]) -> RunOfLog:
    claims = [one for one in entries if one.kind == "claim" and one.run == run]
    if not claims:
        return RunOfLog(run=run)
    first = claims[0]
    return RunOfLog(
        run=run,
        claimed_ms=first.at_ms,
        spark_run=first.spark_run,
        host=first.host,
        process=first.process,
        library=first.library,
    )


def _newest(point: ResumePoint, entries: Sequence[LogEntry]) -> NewestBatch | None:
    decided = point.view.newest_decision
    number = max(point.batch, decided.batch if decided is not None else -1)
    if number < 0:
        return None
    decision = point.view.decision(number)
    if number > point.batch:
        state = BatchState.BEYOND
    elif point.is_done:
        state = BatchState.DONE
    else:
        state = BatchState.PLANNED if decision is None else BatchState.DECIDED
    if decision is None:
        return NewestBatch(batch=number, state=state, offsets=point.checkpoint.input_offsets(number) or ())
    return _decided(decision, state, entries)


def _decided(decision: Decision, state: BatchState, entries: Sequence[LogEntry]) -> NewestBatch:
    written = [one.at_ms for one in entries if one.batch == decision.batch]
    return NewestBatch(
        batch=decision.batch,
        state=state,
        decided_ms=written[0] if written else None,
        opened_ms=oldest_ms(decision.handles),
        rows=rows_by_sink(decision.handles),
        transactions=transactions_by_sink(decision.handles),
        void=len(decision.void),
        offsets=decision.offsets,
    )


def _said(next_start: NextStart, point: ResumePoint, entries: Sequence[LogEntry]) -> str:
    if next_start is NextStart.DEPENDS:
        return (
            f"Batch {point.batch + 1} is decided, and Spark's part of the checkpoint does not have it. A start is "
            "refused unless Spark plans it with the same offsets."
        )
    claimed_by = next((one.spark_run or "" for one in reversed(entries) if one.kind == "claim"), "")
    since = ""
    if next_start is NextStart.COMMITS and claimed_by.startswith(OPERATOR):
        since = (
            " An operator's command has ended its transactions since, as far as it reported: the start checks again."
        )
    return f"{point.description()}{since}" or "Begins with batch 0."


def _next_start(point: ResumePoint) -> NextStart:
    if point.is_done and point.view.decision(point.batch + 1) is not None:
        return NextStart.DEPENDS
    if point.batch < 0:
        return NextStart.BEGINS
    if point.is_done:
        return NextStart.RESUMES
    return NextStart.COMMITS if point.awaits_commit else NextStart.WRITES_AGAIN


def transactions_by_sink(handles: Sequence[Handle]) -> dict[str, int]:
    """Counts transactions by sink."""
    found: dict[str, int] = {}
    for handle in handles:
        found[handle.sink] = found.get(handle.sink, 0) + bool(handle.transaction)
    return found


def oldest_ms(handles: Sequence[Handle]) -> int | None:
    """Returns when the oldest transaction was started, in milliseconds since the epoch; None if there is none."""
    return min((handle.opened_ms for handle in handles if handle.transaction and handle.opened_ms), default=None)


def _entry(position: int, data: bytes) -> LogEntry:
    record: Record = codec.decode_record(data)
    at_ms, kind = codec.decided_at_ms(data), type(record).__name__.lower()
    if isinstance(record, Claim):
        return LogEntry(
            position=position,
            at_ms=at_ms,
            kind=kind,
            run=run_of(record.renews or Token(position, record.nonce)),
            spark_run=record.run,
            host=record.host,
            process=record.process,
            library=record.library,
        )
    return LogEntry(
        position=position,
        at_ms=at_ms,
        kind=kind,
        run=run_of(record.token),
        batch=record.batch,
        rows=rows_by_sink(record.handles),
        transactions=transactions_by_sink(record.handles),
        void=len(record.void) if isinstance(record, Void) else 0,
        offsets=record.offsets,
        opened_ms=oldest_ms(record.handles),
    )
