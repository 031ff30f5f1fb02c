"""A sink with a gate: its writers and its committer report where they are, and can be held there.

The sink has a separate module, since Spark pickles it to its workers by reference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from sparkonce.protocol.handles import Finished, Handle
from sparkonce.sink import Refused, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks.kafka.writer import KafkaWriter
from sparkonce_lab.forwarding import ForwardingCommitter, ForwardingSink, ForwardingWriter
from striking.points import BEFORE_CONCLUDE, BEGIN, BEGUN, CONCLUDED, HALFWAY, PREPARED, WRITTEN

_FLUSH_S = 30.0


class Arrive(Protocol):
    """Called at a point with its details, before the sink does anything else."""

    def __call__(self, point: str, **told: Any) -> None: ...


class GatedSink(ForwardingSink):
    """Wraps a sink so that its writers and its committer stop at a gate.

    Args:
        real: The wrapped sink.
        arrive: The gate. It is pickled together with the sink.
        points: The points of `striking.points` that are reported to the gate.
    """

    def __init__(self, real: TwoPhaseCommitSink, arrive: Arrive, points: Collection[str]) -> None:
        super().__init__(real)
        self._arrive = arrive
        self.points = frozenset(points)

    def arrive(self, point: str, **told: Any) -> None:
        if point in self.points:
            self._arrive(point, sink=self.name, **told)

    def writer(self, context: WriterContext) -> SinkWriter:
        return _GatedWriter(self._real.writer(context), self, context)

    def committer(self) -> SinkCommitter:
        return _GatedCommitter(self._real.committer(), self)


class _GatedWriter(ForwardingWriter):
    def __init__(self, real: SinkWriter, sink: GatedSink, context: WriterContext) -> None:
        super().__init__(real)
        self._sink = sink
        self._told = {"slot": context.slot, "batch": context.batch}
        self._has_written = False

    def begin(self) -> None:
        self._sink.arrive(BEGIN, **self._told)
        self._real.begin()
        self._sink.arrive(BEGUN, **self._told)

    def write(self, rows: pa.RecordBatch) -> None:
        if self._has_written or WRITTEN not in self._sink.points:
            self._real.write(rows)
            return
        self._has_written = True
        some = -(-rows.num_rows // 2)
        self._real.write(rows.slice(0, some))
        if isinstance(self._real, KafkaWriter):  # the transaction is open on the server once rows have arrived
            self._real._open_producer().flush(_FLUSH_S)
        self._sink.arrive(WRITTEN, **self._told)
        if some < rows.num_rows:
            self._real.write(rows.slice(some))

    def offer(self, rows: pa.RecordBatch) -> Refused:
        refused = self._real.offer(rows)
        if not self._has_written and WRITTEN in self._sink.points:
            self._has_written = True
            self._sink.arrive(WRITTEN, **self._told)
        return refused

    def prepare(self) -> Mapping[str, str | int]:
        fields = self._real.prepare()
        self._sink.arrive(PREPARED, **self._told)
        return fields


class _GatedCommitter(ForwardingCommitter):
    def __init__(self, real: SinkCommitter, sink: GatedSink) -> None:
        super().__init__(real)
        self._sink = sink

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        written = [handle for handle in handles if handle.transaction]
        half = -(-len(written) // 2)
        if half == len(written) or HALFWAY not in self._sink.points:  # fewer than two have no half
            return self._real.commit(handles)
        first = dict(zip(written[:half], self._real.commit(written[:half]), strict=True))
        self._sink.arrive(HALFWAY)
        rest = [handle for handle in handles if handle not in first]
        answers = {**first, **dict(zip(rest, self._real.commit(rest) if rest else (), strict=True))}
        return [answers[handle] for handle in handles]

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        self._sink.arrive(BEFORE_CONCLUDE, batch=batch)
        self._real.conclude(batch, handles)
        self._sink.arrive(CONCLUDED, batch=batch)
