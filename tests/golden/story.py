"""The golden query: the real driver, decision log and executor's half, on the offsets of a real query of Spark's."""

from __future__ import annotations

import importlib.metadata
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import pyarrow as pa

from forwarding_store import ForwardingStore
from golden.places import Part, numbers
from small_job import Killed
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.checkpoint.spark import SparkCheckpoint
from sparkonce.driver.run import Listener, RunDriver
from sparkonce.executor import SinkTask, SlotTask, write_slot
from sparkonce.log.base import DecisionLog, Landed, LogStore, PutUnknownError, Taken
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol.codec import decode_record
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.records import Commit
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import Decision, LogView
from sparkonce.sink import Owner, TwoPhaseCommitSink

QUERY = "60a1de00-0000-4000-8000-000000000001"
SLOTS = 2
_FINGERPRINT = "_fingerprint"


class Story:
    """A query whose runs can be killed.

    Args:
        checkpoint: Its folder.
        spark: The checkpoint of a query of Spark's that has read the same batches.
        parts: The sinks, see `golden.places.sinks`.
    """

    def __init__(self, checkpoint: Path, spark: Path, parts: Mapping[str, Part]) -> None:
        self.checkpoint, self._spark, self._parts = checkpoint, spark, parts

    @property
    def short_query(self) -> str:
        return short_query(QUERY)

    def rows_of(self, sink: str, given: Sequence[int]) -> pa.RecordBatch:
        return self._parts[sink].rows(given)

    def sinks(self) -> dict[str, TwoPhaseCommitSink]:
        made = {name: part.make() for name, part in self._parts.items()}
        for sink in made.values():
            sink.use_checkpoint(LocalFiles(self.checkpoint))
        return made

    def log(self) -> DecisionLog:
        return DecisionLog(LocalLogStore(self.checkpoint))

    def decision(self, batch: int) -> Decision:
        found = self.log().read(LogView()).decision(batch)
        assert found is not None, f"batch {batch} is not decided"
        return found

    def run(self, *batches: int, listener: Listener | None = None, store: LogStore | None = None) -> None:
        """A new run, as after a restart of the driver, and these batches in it."""
        sinks = self.sinks()
        driver = RunDriver(
            run=str(uuid.uuid4()),
            query=QUERY,
            sinks=sinks,
            log=DecisionLog(store) if store else self.log(),
            listener=listener,
            library=importlib.metadata.version("sparkonce"),
        )
        try:
            for batch in batches:
                driver.run_batch(self._asked(batch), Work(sinks, self._parts, batch))
        finally:
            driver.close()

    def kill(self, batch: int, phase: Phase) -> None:
        """A run whose driver dies when the batch enters the phase."""

        def listen(entered: Phase, number: int) -> None:
            if (entered, number) == (phase, batch):
                raise Killed(phase)

        try:
            self.run(batch, listener=listen)
        except Killed:
            return
        raise AssertionError(f"batch {batch} did not come to {phase}")

    def _asked(self, batch: int) -> BatchAsked:
        offsets = SparkCheckpoint(LocalFiles(self._spark)).input_offsets(batch)
        assert offsets is not None
        previous = SparkCheckpoint(LocalFiles(self._spark)).input_offsets(batch - 1) if batch else None
        return BatchAsked(batch=batch, offsets=offsets, previous_offsets=previous)


class Work:
    """A batch's plan: each sink has a view of its own of it."""

    def __init__(self, sinks: Mapping[str, TwoPhaseCommitSink], parts: Mapping[str, Part], batch: int) -> None:
        self._sinks, self._parts, self._batch = sinks, parts, batch

    def write(
        self,
        sinks: Mapping[str, Owner],
        only: frozenset[tuple[str, int]] | None,
        computed: Callable[[], None] | None = None,
    ) -> tuple[Sequence[Handle], bool]:
        handles: list[Handle] = []
        for name, owner in sinks.items():
            sink, rows = self._sinks[name], self._parts[name].rows
            for slot in range(SLOTS):
                given = rows(numbers(self._batch, slot))
                columns = tuple(sink.columns(given.schema))
                task = SinkTask(sink=sink, owner=owner, columns=columns, fingerprint=_FINGERPRINT)
                whole = SlotTask(batch=self._batch, sinks=(task,), only=only)
                handles += write_slot([hashed(given)], whole, slot=slot, copy=f"1.{slot}.0")
        return handles, False

    def run_into_nothing(self) -> None:
        """There is no state that would need it."""

    def is_stopped(self) -> bool:
        return False


def hashed(rows: pa.RecordBatch) -> pa.RecordBatch:
    hashes = pa.array([crc32(repr(row).encode()) << 31 for row in rows.to_pylist()], pa.int64())
    return pa.RecordBatch.from_arrays([*rows.columns, hashes], names=[*rows.schema.names, _FINGERPRINT])


class Losing(ForwardingStore):
    """A log whose disk once does not say whether it took a decision of this batch. It did not."""

    def __init__(self, inner: LogStore, batch: int) -> None:
        super().__init__(inner)
        self._batch, self._lost = batch, False

    def put(self, position: int, data: bytes) -> Landed | Taken:
        record = decode_record(data)
        if not self._lost and isinstance(record, Commit) and record.batch == self._batch:
            self._lost = True
            raise PutUnknownError("the reply was lost")
        return super().put(position, data)
