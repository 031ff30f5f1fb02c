"""A sink with a gate in its way: its writers and its committer say where they are, and wait there if they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from crashes.points import BEFORE_CONCLUDE, BEGUN, CONCLUDED, HALFWAY, PREPARED, WRITTEN
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import Finished
from sparkonce.sinks.base import Facts, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.testing.forwarding import ForwardingCommitter, ForwardingWriter

Arrive = Callable[[str, int], None]
"""Told of a point and the batch before anything more is done."""


class GatedSink(TwoPhaseCommitSink):
    """Stays in its process: what is pickled is the real sink.

    Args:
        real: The sink.
        arrive: Told of every point.
        concluded: Told of each batch after `SinkCommitter.conclude`.
        struck_slot: The slot whose writer tells of its points.
        halves: Whether a batch's handles are committed in two halves, with a point between.
    """

    def __init__(
        self,
        real: TwoPhaseCommitSink,
        *,
        arrive: Arrive,
        concluded: Callable[[int], None],
        struck_slot: int,
        halves: bool,
    ) -> None:
        super().__init__(real.name, real.guarantee)
        self.real = real
        self.arrive = arrive
        self.concluded = concluded
        self.struck_slot = struck_slot
        self.halves = halves
        self.batch = -1

    @property
    def promise(self) -> Guarantee:
        return self.real.promise

    def use_checkpoint(self, folder: str) -> None:
        self.real.use_checkpoint(folder)

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        return self.real.columns(schema)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        return self.real.preflight(query, recorded)

    def transaction_timeout_s(self, facts: Facts) -> float | None:
        return self.real.transaction_timeout_s(facts)

    def writer(self, context: WriterContext) -> SinkWriter:
        real = self.real.writer(context)
        if context.slot != self.struck_slot:
            return real
        return _GatedWriter(real, lambda point: self.arrive(point, context.batch))

    def committer(self) -> SinkCommitter:
        return _GatedCommitter(self.real.committer(), self)


class _GatedWriter(ForwardingWriter):
    def __init__(self, real: SinkWriter, arrive: Callable[[str], None]) -> None:
        super().__init__(real)
        self._arrive = arrive
        self._writes = 0

    def begin(self) -> None:
        self._real.begin()
        self._arrive(BEGUN)

    def write(self, rows: pa.RecordBatch) -> None:
        self._real.write(rows)
        self._writes += 1
        if self._writes == 1:
            self._arrive(WRITTEN)

    def prepare(self) -> Mapping[str, str | int]:
        fields = self._real.prepare()
        self._arrive(PREPARED)
        return fields


class _GatedCommitter(ForwardingCommitter):
    def __init__(self, real: SinkCommitter, sink: GatedSink) -> None:
        super().__init__(real)
        self._sink = sink

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        if not self._sink.halves:
            return self._real.commit(handles)
        half = (len(handles) + 1) // 2
        first = self._real.commit(handles[:half])
        self._sink.arrive(HALFWAY, self._sink.batch)
        return [*first, *(self._real.commit(handles[half:]) if len(handles) > half else ())]

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        self._sink.arrive(BEFORE_CONCLUDE, batch)
        self._real.conclude(batch, handles)
        self._sink.concluded(batch)
        self._sink.arrive(CONCLUDED, batch)
