"""A run of today's driver on a golden checkpoint, in this process: its real files, and stand-ins for all servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from golden.kept import QUERY
from sparkonce import Guarantee, WriteAheadSink
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.checkpoint.spark import SparkCheckpoint
from sparkonce.driver.progress import BatchProgress
from sparkonce.driver.run import RunDriver
from sparkonce.driver.start import read_log, recorded_facts
from sparkonce.driver.timing import Timing
from sparkonce.executor import SinkTask, SlotTask, write_slot
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.view import LogView
from sparkonce.sink import Facts, Owner, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.write_ahead.apply import ApplyToken
from sparkonce.write_ahead import Applies

SLOTS = 2
ON_DISK = ("files", "files.days", "files.list", "write-ahead", "orders.eu")
"""Sinks that need no server: today's, on the golden folders themselves."""

SOON_S = 1.0
"""How long what is not known is asked for: nothing here changes by itself."""

_FINGERPRINT = "_fingerprint"


@dataclass
class Asked:
    """Notes what was asked of the stand-ins, and of the function of the write-ahead sinks."""

    recorded: dict[str, Facts | None] = field(default_factory=dict)
    written: list[tuple[str, int, int]] = field(default_factory=list)
    committed: list[Handle] = field(default_factory=list)
    aborted: list[Handle] = field(default_factory=list)
    concluded: list[tuple[str, int, int]] = field(default_factory=list)
    swept: dict[str, tuple[Owner, ...]] = field(default_factory=dict)
    applied: list[tuple[ApplyToken, list[int]]] = field(default_factory=list)


class Job:
    """The golden query, taken up by today's code.

    Args:
        folder: A copy of a state, see `golden.kept.copy`.
        on_disk: Which sinks are today's own.
    """

    def __init__(self, folder: Path, on_disk: Collection[str] = ON_DISK) -> None:
        self.folder, self.checkpoint, self._on_disk = folder, folder / "checkpoint", on_disk
        self.asked = Asked()
        self.known = recorded_facts(read_log(self.log()))

    def log(self) -> DecisionLog:
        return DecisionLog(LocalLogStore(self.checkpoint))

    def view(self) -> LogView:
        return self.log().read(LogView())

    def sinks(self) -> dict[str, TwoPhaseCommitSink]:
        made = {name: self._sink(name) for name in self.known}
        for sink in made.values():
            sink.use_checkpoint(LocalFiles(self.checkpoint))
        return made

    def _sink(self, name: str) -> TwoPhaseCommitSink:
        def apply(rows: pa.RecordBatchReader, token: ApplyToken) -> None:
            self.asked.applied.append((token, rows.read_all().column("number").to_pylist()))

        files = self.folder / "files"
        match name if name in self._on_disk else "":
            case "files":
                return FilesSink(files / "plain", format="json", name=name)
            case "files.days":
                return FilesSink(files / "days", format="json", name=name, partition_by="half")
            case "files.list":
                return FilesSink(files / "list", format="json", name=name, partition_by="day", max_file_bytes=1)
            case "write-ahead":
                return WriteAheadSink(apply, applies=Applies.NEITHER, name=name, parallel=1)
            case "orders.eu":
                return WriteAheadSink(apply, applies=Applies.NEITHER, name=name, per="batch")
        return StandIn(name, self.known[name], self.asked)

    def run(self, batch: int) -> BatchProgress:
        """A new run of the query, on the checkpoint's own offsets."""
        sinks = self.sinks()
        assert SparkCheckpoint(LocalFiles(self.checkpoint)).query_id() == QUERY
        driver = RunDriver(
            run=str(uuid.uuid4()),
            query=QUERY,
            sinks=sinks,
            log=self.log(),
            timing=Timing(outage_patience_s=SOON_S),
            moved=True,
        )
        offsets = SparkCheckpoint(LocalFiles(self.checkpoint)).input_offsets(batch)
        asked = BatchAsked(
            batch=batch,
            offsets=('{"orders":{"0":99,"1":99}}',) if offsets is None else offsets,
            previous_offsets=SparkCheckpoint(LocalFiles(self.checkpoint)).input_offsets(batch - 1),
        )
        self.work = Work(sinks, batch)
        try:
            return driver.run_batch(asked, self.work)
        finally:
            driver.close()

    def names(self, *folders: str) -> set[str]:
        """The names of all files in folders of the state."""
        return {path.name for folder in folders for path in (self.folder / folder).rglob("*") if path.is_file()}


class Work:
    """Three numbers for each slot, to all sinks alike."""

    def __init__(self, sinks: Mapping[str, TwoPhaseCommitSink], batch: int) -> None:
        self._sinks, self._batch = sinks, batch
        self.into_nothing = 0

    def write(
        self,
        sinks: Mapping[str, Owner],
        only: frozenset[tuple[str, int]] | None,
        computed: Callable[[], None] | None = None,
    ) -> tuple[Sequence[Handle], bool]:
        handles: list[Handle] = []
        for name, owner in sinks.items():
            part = SinkTask(sink=self._sinks[name], owner=owner, columns=_COLUMNS, fingerprint=_FINGERPRINT)
            task = SlotTask(batch=self._batch, sinks=(part,), only=only)
            for slot in range(SLOTS):
                handles += write_slot([rows_of(self._batch, slot)], task, slot=slot, copy=f"1.{slot}.0")
        return handles, False

    def run_into_nothing(self) -> None:
        self.into_nothing += 1

    def is_stopped(self) -> bool:
        return False


_COLUMNS = ("number", "half", "day")


def numbers(batch: int, slot: int) -> list[int]:
    return [1000 * batch + 10 * slot + place for place in range(3)]


def rows_of(batch: int, slot: int) -> pa.RecordBatch:
    given = numbers(batch, slot)
    columns = (given, [f"h{one % 2}" for one in given], [f"2024-06-0{one % 3 + 1}" for one in given], given)
    return pa.record_batch(dict(zip((*_COLUMNS, _FINGERPRINT), columns, strict=True)))


class StandIn(TwoPhaseCommitSink):
    """A sink whose server is not there. Commits whatever it is asked to."""

    def __init__(self, name: str, facts: Facts, asked: Asked) -> None:
        kinds = {"direct": Guarantee.AT_LEAST_ONCE, "once": Guarantee.AT_MOST_ONCE}
        super().__init__(name, kinds.get(name.rpartition(".")[2], Guarantee.EXACTLY_ONCE))
        self._facts, self._asked = facts, asked

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        self._asked.recorded[self.name] = recorded
        return self._facts

    def writer(self, context: WriterContext) -> SinkWriter:
        self._asked.written.append((self.name, context.batch, context.slot))
        return _Writer(f"{self.name} {context.batch} {context.slot}", self.guarantee)

    def committer(self) -> SinkCommitter:
        return _Committer(self.name, self._asked)


class _Writer(SinkWriter):
    def __init__(self, text: str, guarantee: Guarantee) -> None:
        self._fields = {"new": text} if guarantee is Guarantee.EXACTLY_ONCE else {}

    def begin(self) -> None:
        """Nothing to open."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Nobody reads it."""

    def prepare(self) -> Mapping[str, str | int]:
        return self._fields

    def abort(self) -> None:
        raise AssertionError("nothing goes wrong here")


class _Committer(SinkCommitter):
    def __init__(self, name: str, asked: Asked) -> None:
        self._name, self._asked = name, asked

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        self._asked.committed += handles
        return [Finished(outcome=Outcome.COMMITTED) for _ in handles]

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        self._asked.aborted += handles
        return [Finished(outcome=Outcome.ABORTED) for _ in handles]

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        self._asked.swept.setdefault(self._name, tuple(owners))
        return ()

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        self._asked.concluded.append((self._name, batch, len(handles)))
