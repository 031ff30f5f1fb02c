"""A whole query without Spark: the real driver, decision log and executor's half, with any sinks, in this process."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa

from sparkonce.decision_log import DecisionLog
from sparkonce.driver.outage import Timing
from sparkonce.driver.positions import PositionReporter
from sparkonce.driver.progress import BatchProgress
from sparkonce.driver.run import Listener, RunDriver
from sparkonce.executor import SinkTask, SlotTask, write_slot
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import Decision, LogView
from sparkonce.sink import Owner, TwoPhaseCommitSink
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles

_FINGERPRINT = "_fingerprint"
Rows = Callable[[int, int], pa.RecordBatch]
"""Returns the rows of a slot, given the batch number and the slot number."""


def one_row(batch: int, slot: int) -> pa.RecordBatch:
    """Returns a row that says where it belongs."""
    return pa.record_batch({"value": [f"{batch}.{slot}"]})


def values_of(*batches: int) -> list[str]:
    """Returns the values of `one_row` in these batches of two slots."""
    return sorted(f"{batch}.{slot}" for batch in batches for slot in range(2))


class Killed(BaseException):
    """Simulates the death of the driver's process. No code may catch it and continue."""


class SmallJob:
    """A query with its own checkpoint folder.

    Args:
        checkpoint: The folder.
        make_sinks: Makes new sinks for each run, as a user's program does.
        rows: Returns the rows of a slot, see `Rows`.
        slots: The number of slots of a batch.
        at_once: How many slots are written at the same time.
        reporters: Makes the progress reporters of a run, which are told how far the query has read.
        source: The topic of the batches' offsets.
        deadline_s: How many seconds a run keeps asking about unknown outcomes.

    Attributes:
        accept_lost: See `RunDriver`.
        files_of_checkpoint: The current checkpoint store, since the checkpoint can be moved to another one.
        moved: See `RunDriver`.
    """

    def __init__(
        self,
        checkpoint: Path,
        make_sinks: Callable[[], Sequence[TwoPhaseCommitSink]],
        rows: Rows,
        *,
        slots: int = 2,
        at_once: int = 1,
        deadline_s: float = 20.0,
        reporters: Callable[[], Sequence[PositionReporter]] = tuple,
        source: str = "t",
    ) -> None:
        self.checkpoint = checkpoint
        self.query = str(uuid.uuid4())
        self._make_sinks = make_sinks
        self._rows = rows
        self._slots = slots
        self._at_once = at_once
        self._deadline_s = deadline_s
        self._reporters = reporters
        self._source = source
        self.accept_lost: Mapping[str, int] = {}
        self.files_of_checkpoint: CheckpointFiles = LocalFiles(checkpoint)
        self.moved = False

    @property
    def short_query(self) -> str:
        return short_query(self.query)

    def run(self, *batches: int, listener: Listener | None = None) -> list[BatchProgress]:
        """Starts a new run, as after a restart of the driver, and runs these batches."""
        sinks = {sink.name: sink for sink in self._make_sinks()}
        for sink in sinks.values():
            sink.use_checkpoint(self.files_of_checkpoint)
        driver = RunDriver(
            run=str(uuid.uuid4()),
            query=self.query,
            sinks=sinks,
            log=self._log(),
            timing=Timing(outage_patience_s=self._deadline_s),
            listener=listener,
            reporters=self._reporters(),
            accept_lost=self.accept_lost,
            moved=self.moved,
        )
        try:
            return [
                driver.run_batch(self._asked(batch), _Work(sinks, self._rows, batch, self._slots, self._at_once))
                for batch in batches
            ]
        finally:
            driver.close()

    def kill(self, batch: int, phase: Phase, after: Callable[[], Any] = lambda: None) -> None:
        """Starts a run whose driver dies when the batch enters the phase."""

        def listen(entered: Phase, _: int) -> None:
            if entered is phase:
                raise Killed(phase)

        try:
            self.run(batch, listener=listen)
        except Killed:
            after()
        else:
            raise AssertionError(f"batch {batch} did not come to {phase}")

    def live(self, seen: Callable[[], Any] = lambda: None) -> None:
        """Runs batches 0 to 3. The driver dies before the decision of batch 1, and after that of batch 2.

        Args:
            seen: Called while transactions are open.
        """
        self.run(0)
        self.kill(1, Phase.DECIDING, seen)
        self.run(1)
        self.kill(2, Phase.FINISHING, seen)
        self.run(2, 3)

    def put_sparks_files(self, batch: int) -> None:
        """Writes the files that Spark has in its checkpoint while this batch runs."""
        self.files_of_checkpoint.replace("metadata", json.dumps({"id": self.query}).encode())
        for number in range(batch + 1):
            self.files_of_checkpoint.put(f"offsets/{number}", f'v1\n{{}}\n{{"t": {{"0": {number}}}}}'.encode())
        for number in range(batch):
            self.files_of_checkpoint.put(f"commits/{number}", b"v1\n{}")

    def decision(self, batch: int) -> Decision:
        """Returns the log's decision for a batch."""
        decided = self._log().read(LogView()).decision(batch)
        assert decided is not None, f"batch {batch} is not decided"
        return decided

    def _log(self) -> DecisionLog:
        return DecisionLog(self.files_of_checkpoint)

    def _asked(self, batch: int) -> BatchAsked:
        def line(number: int) -> tuple[str, ...]:
            return (json.dumps({self._source: {"0": number}}, separators=(",", ":")),)

        return BatchAsked(batch=batch, offsets=line(batch), previous_offsets=line(batch - 1) if batch else None)

    def files(self) -> list[Path]:
        """Returns all files in the checkpoint folder."""
        return sorted(path for path in self.checkpoint.rglob("*") if path.is_file())


class _Work:
    def __init__(
        self, sinks: Mapping[str, TwoPhaseCommitSink], rows: Rows, batch: int, slots: int, at_once: int
    ) -> None:
        self._sinks, self._rows, self._batch, self._slots, self._at_once = sinks, rows, batch, slots, at_once

    def write(
        self,
        sinks: Mapping[str, Owner],
        only: frozenset[tuple[str, int]] | None,
        computed: Callable[[], None] | None = None,
    ) -> tuple[Sequence[Handle], bool]:
        def write(slot: int) -> Sequence[Handle]:
            rows = self._rows(self._batch, slot)
            hashes = pa.array([crc32(repr(row).encode()) for row in rows.to_pylist()], pa.int64())
            whole = pa.RecordBatch.from_arrays([*rows.columns, hashes], names=[*rows.schema.names, _FINGERPRINT])
            parts = tuple(
                SinkTask(
                    sink=self._sinks[name],
                    owner=owner,
                    columns=tuple(self._sinks[name].columns(rows.schema)),
                    fingerprint=_FINGERPRINT,
                )
                for name, owner in sinks.items()
            )
            task = SlotTask(batch=self._batch, sinks=parts, only=only)
            return write_slot([whole], task, slot=slot, copy=f"1.{slot}.0")

        with ThreadPoolExecutor(self._at_once) as pool:
            return [handle for handles in pool.map(write, range(self._slots)) for handle in handles], False

    def run_into_nothing(self) -> None:
        """Does nothing: there is no state."""

    def is_stopped(self) -> bool:
        return False
