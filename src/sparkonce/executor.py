"""The executor's side without Spark: one copy of one slot writes its rows to every sink and returns the handles."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sparkonce.errors import PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import FINGERPRINT_MODULUS, Handle, transaction_fields
from sparkonce.protocol.plain import is_scalar
from sparkonce.sink import Owner, SinkWriter, TwoPhaseCommitSink, WriterContext


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTask:
    """The task of a slot for one sink.

    Attributes:
        sink: The sink.
        owner: The run, with the sink's facts.
        columns: The columns to write, in order.
        fingerprint: The name of the int64 column that holds ``xxhash64`` over those columns.
    """

    sink: TwoPhaseCommitSink
    owner: Owner
    columns: tuple[str, ...]
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTask:
    """The task of every slot of a batch.

    Attributes:
        batch: Spark's batch id.
        sinks: The sinks to write to.
        only: If not None, write these (sink, slot)s only; count and fingerprint the others.
    """

    batch: int
    sinks: tuple[SinkTask, ...]
    only: frozenset[tuple[str, int]] | None = None


def write_slot(
    rows: Iterable[pa.RecordBatch], task: SlotTask, *, slot: int, copy: str, attempt: int = 0
) -> list[Handle]:
    """Writes one slot and prepares.

    Args:
        rows: The slot's rows.
        task: The batch's.
        slot: The task's partition.
        copy: Names this execution of the slot, see `WriterContext.copy`.
        attempt: 0 for the first try. A later one does not write to AT_MOST_ONCE sinks: the first may have.

    Returns:
        One handle for each sink, also where the slot has no rows.

    Raises:
        PrepareError: if a sink did not take all rows, or may have taken them from an earlier try. Every writer is
            aborted, whatever the error.
    """
    with ExitStack() as stack:
        parts: list[_Part] = []
        for part in task.sinks:
            if attempt > 0 and part.sink.guarantee is Guarantee.AT_MOST_ONCE:
                raise PrepareError(
                    f"slot {slot} failed before, and sink {part.sink.name} is {Guarantee.AT_MOST_ONCE.value}: its "
                    "rows may have been written, and are not written again"
                )
            parts.append(_Part(part, task, slot, copy))
            stack.push(parts[-1].leave)
        for batch in rows:
            for writing in parts:
                writing.take(batch)
        return [writing.prepare() for writing in parts]


class _Part:
    """The writing of a slot to one sink."""

    def __init__(self, part: SinkTask, task: SlotTask, slot: int, copy: str) -> None:
        self._part = part
        self._slot = slot
        self._rows = 0
        self._fingerprint = 0
        self._opened_ms: int | None = None
        self._writer: SinkWriter | None = None
        if task.only is None or (part.sink.name, slot) in task.only:
            context = WriterContext(owner=part.owner, batch=task.batch, slot=slot, copy=copy)
            self._writer = part.sink.writer(context)

    def take(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        self._rows += batch.num_rows
        hashes = batch.column(self._part.fingerprint).to_numpy(zero_copy_only=False)
        self._fingerprint = (self._fingerprint + int(np.sum(hashes.view(np.uint64)))) % FINGERPRINT_MODULUS
        if self._writer is None:
            return
        if self._opened_ms is None:
            self._opened_ms = time.time_ns() // 1_000_000
            self._writer.begin()
        self._writer.write(batch.select(list(self._part.columns)))

    def prepare(self) -> Handle:
        fields: Mapping[str, str | int] = {}
        if self._writer is not None and self._rows:
            fields = self._writer.prepare()
        sink = self._part.sink
        if self._writer is not None and self._rows and not fields and sink.guarantee is Guarantee.EXACTLY_ONCE:
            # The driver takes a handle without fields for a slot without rows: these rows would never be committed.
            raise PrepareError(
                f"sink {sink.name} is {Guarantee.EXACTLY_ONCE.value}, and its writer prepared {self._rows} rows "
                "without returning what commits them",
                next_step="return the transaction's fields from SinkWriter.prepare; see SinkConformance.",
            )
        odd = next((name for name, value in fields.items() if not is_scalar(value)), None)
        if odd is not None:
            raise PrepareError(
                f"sink {sink.name}: the field {odd!r} of its handle is {fields[odd]!r}, and the decision log keeps "
                "texts and whole numbers of at most 64 bits",
                next_step="return only such values from SinkWriter.prepare.",
            )
        return Handle(
            sink=sink.name,
            slot=self._slot,
            rows=self._rows,
            fingerprint=self._fingerprint,
            opened_ms=self._opened_ms or 0,
            transaction=transaction_fields(fields),
        )

    def leave(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        if self._writer is None:
            return
        if kind is None:
            self._writer.close()
        else:
            self._writer.abort()
