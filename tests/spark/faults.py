"""Sinks with a desk in their way. In a module of its own: Spark pickles them to its workers by reference."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from spark.desk import DIE, FAIL, visit
from sparkonce import KafkaSink
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import Finished
from sparkonce.sinks.base import Facts, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks.kafka.writer import KafkaWriter
from sparkonce.testing.forwarding import ForwardingCommitter, ForwardingWriter

HALFWAY = "half-way through the commits"
OPENED = "a slot's transaction is open"
BEGIN = "a slot begins"
WRITTEN = "a slot has written some rows"
PREPARED = "a slot has prepared"
CONCLUDING = "a sink is told that its batch is committed"


class InjectedError(RuntimeError):
    """What a task that is told to fail raises."""


class Visitor:
    """What visits the desk at some points.

    Attributes:
        desk: Its address.
        points: At which of the points above.
        called: The sink's name.
    """

    desk: str
    points: frozenset[str]
    called: str

    def visit(self, point: str, **told: Any) -> None:
        if point not in self.points:
            return
        answer = visit(self.desk, point, sink=self.called, **told)
        if answer == FAIL:
            raise InjectedError(f"told to fail at: {point}")
        if answer == DIE:
            raise SystemExit(f"told to die at: {point}")

    def watch_writer(self, real: SinkWriter, context: WriterContext) -> SinkWriter:
        return _WatchedWriter(real, self, context)

    def watch_committer(self, real: SinkCommitter) -> SinkCommitter:
        return _WatchedCommitter(real, self) if self.points & {HALFWAY, CONCLUDING} else real


class WatchedSink(KafkaSink, Visitor):
    """A Kafka sink whose writers and committer visit a desk on their way.

    Args:
        settings: librdkafka's.
        desk: See `Visitor`.
        points: See `Visitor`.
        more: `KafkaSink`'s other arguments.
    """

    def __init__(self, settings: Mapping[str, Any], *, desk: str, points: Collection[str], **more: Any) -> None:
        super().__init__(settings, **more)
        self.desk, self.points, self.called = desk, frozenset(points), self.name

    def writer(self, context: WriterContext) -> SinkWriter:
        return self.watch_writer(super().writer(context), context)

    def committer(self) -> SinkCommitter:
        return self.watch_committer(super().committer())


class Watched(TwoPhaseCommitSink, Visitor):
    """Any other sink, whose writers and committer visit a desk on their way.

    Args:
        real: The sink.
        desk: See `Visitor`.
        points: See `Visitor`.
    """

    def __init__(self, real: TwoPhaseCommitSink, *, desk: str, points: Collection[str]) -> None:
        super().__init__(real.name, real.guarantee)
        self._real = real
        self.desk, self.points, self.called = desk, frozenset(points), real.name

    def use_checkpoint(self, folder: str) -> None:
        self._real.use_checkpoint(folder)

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        return self._real.columns(schema)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        return self._real.preflight(query, recorded)

    def transaction_timeout_s(self, facts: Facts) -> float | None:
        return self._real.transaction_timeout_s(facts)

    def writer(self, context: WriterContext) -> SinkWriter:
        return self.watch_writer(self._real.writer(context), context)

    def committer(self) -> SinkCommitter:
        return self.watch_committer(self._real.committer())


class _WatchedWriter(ForwardingWriter):
    def __init__(self, real: SinkWriter, sink: Visitor, context: WriterContext) -> None:
        super().__init__(real)
        self._sink = sink
        task = TaskContext.get()
        self._told = {
            "slot": context.slot,
            "batch": context.batch,
            "copy": context.copy,
            "attempt": task.attemptNumber() if task is not None else -1,
        }
        self._writes = 0

    def begin(self) -> None:
        self._sink.visit(BEGIN, **self._told)
        self._real.begin()
        self._sink.visit(OPENED, **self._told)

    def write(self, rows: pa.RecordBatch) -> None:
        half = rows.num_rows // 2
        self._real.write(rows.slice(0, half))
        self._writes += 1
        if self._writes == 1 and WRITTEN in self._sink.points:
            # Half of what comes first has reached the broker: the transaction is really open there.
            _flush(self._real)
            self._sink.visit(WRITTEN, rows=half, **self._told)
        self._real.write(rows.slice(half))

    def prepare(self) -> Mapping[str, str | int]:
        fields = self._real.prepare()
        self._sink.visit(PREPARED, **self._told)
        return fields


class _WatchedCommitter(ForwardingCommitter):
    def __init__(self, real: SinkCommitter, sink: Visitor) -> None:
        super().__init__(real)
        self._sink = sink

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        transactions = [handle for handle in handles if handle.transaction]
        half = len(transactions) // 2
        if half and HALFWAY in self._sink.points:
            self._real.commit(transactions[:half])
            self._sink.visit(HALFWAY, committed=half, left=len(transactions) - half)
        return self._real.commit(handles)

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        self._sink.visit(CONCLUDING, batch=batch)
        self._real.conclude(batch, handles)


def _flush(writer: SinkWriter) -> None:
    """Sends what a Kafka writer has taken, as librdkafka would do by itself a moment later."""
    if isinstance(writer, KafkaWriter):
        writer._open_lane().flush(30.0)
