"""The executor's side, without Spark: a task attempt writes a slot's rows to all sinks and returns the handles."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from sparkonce.dead_letters import to_dead_letters
from sparkonce.errors import OutageError, PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.codec import is_scalar
from sparkonce.protocol.handles import FINGERPRINT_MODULUS, Handle, transaction_fields
from sparkonce.sink import Owner, Refused, SinkWriter, TwoPhaseCommitSink, WriterContext

Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTask:
    """The task of a slot for one sink.

    Attributes:
        sink: The sink.
        owner: The run, with the sink's facts.
        columns: The columns to write, in order.
        fingerprint: The name of the int64 column with ``xxhash64`` over those columns; empty for a dead-letter sink,
            whose rows have the fingerprints of the rejected rows.
        dead_letters: The name of the sink for rows that this one rejects; empty if such a row fails the slot.
        mark: The name of a column that contains the reason if the system will reject the row, and null otherwise; empty
            if there is no such column.
    """

    sink: TwoPhaseCommitSink
    owner: Owner
    columns: tuple[str, ...]
    fingerprint: str = ""
    dead_letters: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTask:
    """The task of every slot of a batch.

    Attributes:
        batch: Spark's batch id.
        sinks: The sinks to write to.
        only: If not None, write only these (sink, slot) pairs, and only count and fingerprint the others.
        max_refused: The number of rows that a slot may send to a dead-letter sink.
    """

    batch: int
    sinks: tuple[SinkTask, ...]
    only: frozenset[tuple[str, int]] | None = None
    max_refused: int = 0


def write_slot(
    rows: Iterable[pa.RecordBatch], task: SlotTask, *, slot: int, copy: str, attempt: int = 0
) -> list[Handle]:
    """Writes one slot and prepares it, in a task attempt that ``copy`` identifies (see `WriterContext.copy`).

    Returns one handle per sink, even if the slot has no rows. After any error, every writer is aborted. Only attempt 0
    writes to AT_MOST_ONCE sinks, since it may have written before a later attempt starts.

    Raises:
        PrepareError: If a sink did not accept all rows, or may have accepted them from an earlier attempt.
    """
    with ExitStack() as stack:
        parts: dict[str, _Part] = {}
        for part in task.sinks:
            if attempt > 0 and part.sink.guarantee is Guarantee.AT_MOST_ONCE:
                raise PrepareError(
                    f"slot {slot} failed before, and sink {part.sink.name} is {Guarantee.AT_MOST_ONCE.value}: its "
                    "rows may have been written, and are not written again"
                )
            parts[part.sink.name] = _Part(part, task, slot, copy)
            stack.push(parts[part.sink.name].leave)
        taking = [(part, parts.get(part.takes.dead_letters)) for part in parts.values() if part.takes.fingerprint]
        for batch in rows:
            for writing, dead_letters in taking:
                writing.take(batch, dead_letters)
        return [writing.prepare() for writing in parts.values()]


class _Part:
    """Writes a slot's rows to one sink."""

    def __init__(self, part: SinkTask, task: SlotTask, slot: int, copy: str) -> None:
        self.takes = part
        self._rows = 0
        self._fingerprint = 0
        self._opened_ms: int | None = None
        self._most = task.max_refused
        self._context = WriterContext(owner=part.owner, batch=task.batch, slot=slot, copy=copy, columns=part.columns)
        self._is_written = task.only is None or (part.sink.name, slot) in task.only
        self._writer: SinkWriter | None = None
        # Dead letters are rare, so their writer is created only when there are any.
        if part.fingerprint and (self._is_written or (part.dead_letters and not part.mark)):
            # Only a write shows which rows the system rejects. The rows are therefore written even if they only need to
            # be counted, and the transaction is aborted afterward.
            self._writer = part.sink.writer(self._context)

    def take(self, batch: pa.RecordBatch, dead_letters: _Part | None) -> None:
        if batch.num_rows == 0:
            return
        hashes = batch.column(self.takes.fingerprint).to_numpy(zero_copy_only=False).view(np.uint64)
        rows = batch.select(list(self.takes.columns))
        if dead_letters is None:
            self._count(rows.num_rows, hashes)
            if self._writer is not None:
                self._open().write(rows)
            return
        refused = self._offer(batch, rows)
        taken = np.ones(rows.num_rows, bool)
        taken[list(refused.rows)] = False
        self._count(int(np.count_nonzero(taken)), hashes[taken])
        if refused.rows:
            dead_letters.receive(
                self.takes.sink.name, rows.take(pa.array(refused.rows)), refused.reasons, hashes[~taken]
            )

    def receive(self, sink: str, rows: pa.RecordBatch, reasons: Sequence[str], hashes: Hashes) -> None:
        """Adds rows that another sink has rejected."""
        self._count(rows.num_rows, hashes)
        if self._rows > self._most:
            raise PrepareError(
                f"Sink {sink!r} refused {self._rows} rows of slot {self._context.slot}, and max_refused is "
                f"{self._most}: {reasons[-1]}",
                next_step=(
                    "Check whether the rows or the system are wrong; raise max_refused if that many should go to "
                    f"sink {self.takes.sink.name!r}."
                ),
            )
        if not self._is_written:
            return
        if self._writer is None:
            self._writer = self.takes.sink.writer(self._context)
        dead_letters = to_dead_letters(rows, reasons, sink=sink, context=self._context, columns=self.takes.columns)
        try:
            self._open().write(dead_letters)
        except OutageError:
            raise
        except PrepareError as error:
            raise PrepareError(
                f"Sink {self.takes.sink.name!r} refuses a row that sink {sink!r} has refused: {error.message}",
                next_step="Set dead_letters= to a sink that accepts any row, such as FilesSink.",
            ) from error

    def _offer(self, batch: pa.RecordBatch, rows: pa.RecordBatch) -> Refused:
        """Writes the rows that the system accepts, and returns the others."""
        if not self.takes.mark:
            return self._open().offer(rows)
        marks = batch.column(self.takes.mark)
        if self._writer is not None and marks.null_count:
            self._open().write(rows if marks.null_count == len(marks) else rows.filter(marks.is_null()))
        numbers = np.flatnonzero(marks.is_valid().to_numpy(zero_copy_only=False))
        return Refused(rows=numbers.tolist(), reasons=marks.drop_null().to_pylist())

    def _open(self) -> SinkWriter:
        if self._writer is None:
            raise RuntimeError(f"Sink {self.takes.sink.name!r} is only counted.")
        if self._opened_ms is None:
            self._opened_ms = time.time_ns() // 1_000_000
            self._writer.begin()
        return self._writer

    def _count(self, rows: int, hashes: Hashes) -> None:
        self._rows += rows
        self._fingerprint = (self._fingerprint + int(np.sum(hashes))) % FINGERPRINT_MODULUS

    def prepare(self) -> Handle:
        fields: Mapping[str, str | int] = {}
        sink = self.takes.sink
        if self._opened_ms is not None and (not self._rows or not self._is_written):
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.abort()
        if self._writer is not None and self._rows:
            fields = self._writer.prepare()
        if self._writer is not None and self._rows and not fields and sink.guarantee is Guarantee.EXACTLY_ONCE:
            # A handle without fields stands for a slot without rows, so the driver would never commit it.
            raise PrepareError(
                f"sink {sink.name} is {Guarantee.EXACTLY_ONCE.value}, and its writer prepared {self._rows} rows "
                "without returning what commits them",
                next_step="return the transaction's fields from SinkWriter.prepare; see SinkConformance.",
            )
        odd = next((name for name, value in fields.items() if not is_scalar(value)), None)
        if odd is not None:
            raise PrepareError(
                f"sink {sink.name}: the field {odd!r} of its handle is {fields[odd]!r}, and the decision log only "
                "keeps strings and integers of at most 64 bits",
                next_step="return only such values from SinkWriter.prepare.",
            )
        return Handle(
            sink=sink.name,
            slot=self._context.slot,
            rows=self._rows,
            fingerprint=self._fingerprint,
            opened_ms=(self._opened_ms or 0) if self._writer is not None else 0,
            transaction=transaction_fields(fields),
        )

    def leave(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        if self._writer is None:
            return
        if kind is None:
            self._writer.close()
        else:
            self._writer.abort()
