"""The part of a format that runs in a task: it prepares one slot, or discards the rows of a decided batch.

It also hashes each row, because Spark does not pass a data source any column that its JVM has computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from sparkonce.driver.split_run import Handover
from sparkonce.errors import ConfigurationError, PrepareError
from sparkonce.executor import SinkTask, SlotTask, write_slot
from sparkonce.protocol.handles import Handle
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.python_worker import lighten_worker
from sparkonce.spark.shipped import acknowledge_at_once

_FINGERPRINT = "__sparkonce_fingerprint"


@dataclass(frozen=True, kw_only=True)
class SlotWritten(WriterCommitMessage):  # type: ignore[misc]
    """The result of a task.

    Attributes:
        handle: The prepared handle; None if the batch was already decided.
        tried: The number of earlier attempts for the slot.
        handover: The batch, for the process that ends it. Only one of the tasks returns it; the others return None.
    """

    handle: Handle | None
    tried: int = 0
    handover: Handover | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTask:
    """The task of every slot.

    Attributes:
        handover: The batch that was started; None if it is decided.
        batch: Spark's batch id in the checkpoint.
        query: Spark's query id in the checkpoint; None for a job without a query.
    """

    sink: TwoPhaseCommitSink
    columns: tuple[str, ...]
    handover: Handover | None
    batch: int
    query: str | None

    def write(self, rows: Iterable[pa.RecordBatch]) -> SlotWritten:
        """Writes one slot."""
        context = TaskContext.get()
        if context is None:
            raise PrepareError("Rows can only be written inside a Spark task.")
        self._check_query(context)
        acknowledge_at_once()
        if self.handover is None:
            for _ in rows:
                pass  # The plan must run, because a stateful query's state store needs this version.
            return SlotWritten(handle=None)
        part = SinkTask(
            sink=self.sink, owner=self.handover.owners[self.sink.name], columns=self.columns, fingerprint=_FINGERPRINT
        )
        task = SlotTask(batch=self.batch, sinks=(part,), only=self.handover.effect.only)
        slot, attempt = context.partitionId(), context.attemptNumber()
        copy = f"{context.stageId()}.{context.taskAttemptId()}.{attempt}"
        (handle,) = write_slot(_hashed(rows, self.columns), task, slot=slot, copy=copy, attempt=attempt)
        lighten_worker()
        return SlotWritten(handle=handle, tried=attempt, handover=self.handover if slot == 0 else None)

    def _check_query(self, context: TaskContext) -> None:
        """Compares the query and batch of the checkpoint with those that Spark passes to its tasks."""
        if self.query is None:
            return
        query, batch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if (query, batch) != (self.query, str(self.batch)):
            raise ConfigurationError(
                f"checkpointLocation holds batch {self.batch} of query {self.query}, and Spark runs batch {batch} of "
                f"query {query}.",
                next_step="Give the option checkpointLocation itself, and no asyncProgressTrackingEnabled: the sink "
                "reads there which batch runs.",
                setting="checkpointLocation",
            )


def _hashed(rows: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        yield batch.append_column(_FINGERPRINT, fingerprints(batch, columns))


_Hashes = npt.NDArray[np.uint64]

_NULL = np.uint64(0x9E3779B97F4A7C15)

_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def fingerprints(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """Returns an int64 hash of each row: equal for equal values of these columns, in every process and version."""
    found = np.zeros(rows.num_rows, np.uint64)
    for name in columns:
        found = _mixed(found * _FIRST + _hashes(rows.column(name)))
    return pa.array(found.view(np.int64))


def _hashes(column: pa.Array) -> _Hashes:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        found = _of_integers(column)
    elif pa.types.is_date32(kind):
        found = _of_integers(column.cast(pa.int32()))
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        found = _of_integers(column.cast(pa.int64()))
    elif pa.types.is_floating(kind):
        found = _mixed(pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False).view(np.uint64))
    elif pa.types.is_struct(kind):
        found = np.zeros(len(column), np.uint64)
        for number in range(kind.num_fields):
            found = _mixed(found * _FIRST + _hashes(pc.struct_field(column, [number])))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        found = _of_lists(column)
    else:
        found = _of_bytes(column)
    if not column.null_count:
        return found
    return np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL, found)


def _of_integers(column: pa.Array) -> _Hashes:
    numbers = column.cast(pa.int64()) if not pa.types.is_uint64(column.type) else column
    return _mixed(pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).view(np.uint64))


def _of_lists(column: pa.Array) -> _Hashes:
    """Sums the hashes of the elements, each mixed with its index."""
    if pa.types.is_map(column.type):
        entries = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
        column = pa.ListArray.from_arrays(column.offsets, entries)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(lengths)
    positions = np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
    elements = _mixed(_hashes(column.flatten()) + (positions.astype(np.uint64) + np.uint64(1)) * _NULL)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(elements, dtype=np.uint64)))
    return _mixed(sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64))


def _of_bytes(column: pa.Array) -> _Hashes:
    """Hashes the bytes in Arrow's memory, because a Python str cannot hold invalid UTF-8."""
    kind = column.type
    if pa.types.is_decimal(kind):
        column = column.view(pa.binary(kind.byte_width))
    values = pc.fill_null(column.cast(pa.large_binary()), b"").to_pylist()
    return np.fromiter(map(_of_value, values), np.uint64, len(column))


def _of_value(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def _mixed(numbers: _Hashes) -> _Hashes:
    """Mixes the bits of each number, as the last step of SplitMix64 does."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))
