"""Sums up a committed batch, with the time that each phase took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkonce.protocol.effects import Done
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.state import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """A committed batch.

    Attributes:
        batch: Spark's batch id.
        rows: The number of rows written, by sink. Rows that a table's own triggers or rules discard are included.
        transactions: The number of committed transactions.
        recovered: True if the batch was already decided when Spark passed it to this run.
        healed: The number of lost transactions that were rewritten.
        seconds: The wall time of each phase that the batch went through.
        finished_at_ms: When the batch was done, in milliseconds since the epoch by the driver's clock.
    """

    batch: int
    rows: dict[str, int]
    transactions: int
    recovered: bool
    healed: int
    seconds: dict[str, float]
    finished_at_ms: int

    @classmethod
    def of(cls, done: Done, sinks: Sequence[str], seconds: dict[str, float]) -> BatchProgress:
        """Sums up a batch that has just been committed. ``sinks`` are those that took part in its decision."""
        return cls(
            batch=done.batch,
            rows=rows_by_sink(done.handles, sinks),
            transactions=sum(bool(handle.transaction) for handle in done.handles),
            recovered=done.recovered,
            healed=done.healed,
            seconds=seconds,
            finished_at_ms=time.time_ns() // 1_000_000,
        )

    @property
    def total_seconds(self) -> float:
        """The wall time from Spark's call to its return."""
        return sum(self.seconds.values())

    def line(self) -> str:
        """Formats the progress as a line for the log."""
        rows = [f"{sink}:{rows}" for sink, rows in self.rows.items()]
        marks = f"{' recovered' if self.recovered else ''}{f' healed={self.healed}' if self.healed else ''}"
        return (
            f"batch={self.batch} committed rows={','.join(rows) if len(rows) > 1 else sum(self.rows.values())} "
            f"transactions={self.transactions}{marks} in {self.total_seconds:.3f} s"
        )


@dataclass(slots=True)
class Stopwatch:
    """Adds up the wall time spent in each phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.monotonic)

    def spent(self, phase: Phase) -> None:
        """Adds the time since the last call to the phase's total."""
        now = time.monotonic()
        self.seconds[phase.value] = self.seconds.get(phase.value, 0.0) + now - self._since
        self._since = now


def rows_by_sink(handles: Sequence[Handle], sinks: Sequence[str] = ()) -> dict[str, int]:
    """Counts rows by sink. Includes ``sinks`` even without handles, since a view of a batch may have no slots."""
    rows = dict.fromkeys(sinks, 0)
    for handle in handles:
        rows[handle.sink] = rows.get(handle.sink, 0) + handle.rows
    return rows
