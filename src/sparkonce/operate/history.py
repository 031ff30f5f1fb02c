"""Lists the records of a decision log in order, with their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparkonce.driver.progress import rows_by_sink
from sparkonce.driver.start import read_log
from sparkonce.errors import CorruptRecordError
from sparkonce.log.base import MOST_READS, DecisionLog
from sparkonce.protocol import codec
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim, LogView, Record, Void
from sparkonce.sinks._shared.orphans import run_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A record of the log.

    Attributes:
        position: The record's position in the log.
        at_ms: When it was written, in milliseconds since the epoch, by its driver's clock.
        kind: ``claim``: a run began. ``commit``: a batch was decided. ``amend``: its lost transactions were replaced.
            ``void``: some of them are to be aborted, since rows of them are gone.
        run: The run that wrote it, as ``position-nonce``.
        batch: Spark's batch id; None for a claim.
        rows: Rows of the batch by sink.
        transactions: Transactions of the batch by sink.
        void: How many of them are void.
        offsets: The batch's end offsets of each source, as JSON.
        opened_ms: When the batch's oldest transaction was begun, by its executor's clock; None without one.
        spark_run: Spark's run id, of a claim.
        host: The driver's host, of a claim.
        process: The driver's process id, of a claim.
        library: The version of sparkonce, of a claim.
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


def read_history(log: DecisionLog) -> tuple[LogView, Sequence[LogEntry]]:
    """Reads a log, also while a run appends to it.

    Returns:
        The log, and the records that it still has, oldest first. Records below its floor are deleted.

    Raises:
        LogError: if it cannot be read, or cannot have been written by runs of sparkonce.
    """
    for _ in range(MOST_READS):
        view = read_log(log)
        data = log.store.read(view.floor.position)[: view.end - view.floor.position]
        if len(data) == view.end - view.floor.position:
            return view, [_entry(view.floor.position + number, one) for number, one in enumerate(data)]
    raise CorruptRecordError(
        f"The floor of the decision log {log.store.location} rose {MOST_READS} times while it was read.",
        next_step="Find out which other driver runs on this checkpoint.",
    )


def transactions_by_sink(handles: Sequence[Handle]) -> dict[str, int]:
    """Counts transactions by sink."""
    found: dict[str, int] = {}
    for handle in handles:
        found[handle.sink] = found.get(handle.sink, 0) + bool(handle.transaction)
    return found


def oldest_ms(handles: Sequence[Handle]) -> int | None:
    """Returns when the oldest transaction was begun, in milliseconds since the epoch; None without one."""
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
