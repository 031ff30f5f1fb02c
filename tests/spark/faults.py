"""Sinks with a gate in their way. In a module of its own: Spark pickles them to its workers by reference."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from spark.gate import DIE, FAIL, arrive
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import Finished
from sparkonce.sinks.base import Facts, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks.kafka.writer import KafkaWriter
from sparkonce.testing.forwarding import ForwardingCommitter, ForwardingWriter

BEGIN = "a slot begins"
OPENED = "a slot's transaction is open"
WRITTEN = "a slot has written some rows"
PREPARED = "a slot has prepared"
HALFWAY = "half-way through the commits"
CONCLUDING = "a sink is told that its batch is committed"


class InjectedError(RuntimeError):
    """What a task that is told to fail raises."""


class GatedSink(TwoPhaseCommitSink):
    """A sink whose writers and committer come to a gate on their way.

    Args:
        real: The sink.
        gate: The gate's address.
        points: At which of the points above.
    """

    def __init__(self, real: TwoPhaseCommitSink, *, gate: str, points: Collection[str]) -> None:
        super().__init__(real.name, real.guarantee)
        self._real = real
        self._gate = gate
        self.points = frozenset(points)

    def arrive(self, point: str, **told: Any) -> None:
        if point not in self.points:
            return
        answer = arrive(self._gate, point, sink=self.name, **told)
        if answer == FAIL:
            raise InjectedError(f"told to fail at: {point}")
        if answer == DIE:
            raise SystemExit(f"told to die at: {point}")

    def use_checkpoint(self, folder: str) -> None:
        self._real.use_checkpoint(folder)

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        return self._real.columns(schema)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        return self._real.preflight(query, recorded)

    def transaction_timeout_s(self, facts: Facts) -> float | None:
        return self._real.transaction_timeout_s(facts)

    def writer(self, context: WriterContext) -> SinkWriter:
        return _GatedWriter(self._real.writer(context), self, context)

    def committer(self) -> SinkCommitter:
        return _GatedCommitter(self._real.committer(), self)


class _GatedWriter(ForwardingWriter):
    def __init__(self, real: SinkWriter, sink: GatedSink, context: WriterContext) -> None:
        super().__init__(real)
        self._sink = sink
        task = TaskContext.get()
        attempt = task.attemptNumber() if task is not None else -1
        self._told = {"slot": context.slot, "batch": context.batch, "attempt": attempt}
        self._has_written = False

    def begin(self) -> None:
        self._sink.arrive(BEGIN, **self._told)
        self._real.begin()
        self._sink.arrive(OPENED, **self._told)

    def write(self, rows: pa.RecordBatch) -> None:
        half = rows.num_rows // 2
        self._real.write(rows.slice(0, half))
        if not self._has_written and WRITTEN in self._sink.points:
            # Half of what comes first has reached the broker: the transaction is really open there.
            if isinstance(self._real, KafkaWriter):
                self._real._open_lane().flush(30.0)
            self._sink.arrive(WRITTEN, rows=half, **self._told)
        self._has_written = True
        self._real.write(rows.slice(half))

    def prepare(self) -> Mapping[str, str | int]:
        fields = self._real.prepare()
        self._sink.arrive(PREPARED, **self._told)
        return fields


class _GatedCommitter(ForwardingCommitter):
    def __init__(self, real: SinkCommitter, sink: GatedSink) -> None:
        super().__init__(real)
        self._sink = sink

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        transactions = [handle for handle in handles if handle.transaction]
        half = len(transactions) // 2
        if half and HALFWAY in self._sink.points:
            self._real.commit(transactions[:half])
            self._sink.arrive(HALFWAY, committed=half, left=len(transactions) - half)
        return self._real.commit(handles)

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        self._sink.arrive(CONCLUDING, batch=batch)
        self._real.conclude(batch, handles)
