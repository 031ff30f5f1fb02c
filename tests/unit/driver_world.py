"""A query without Spark: a log on disk, memory servers, and batches whose rows only depend on batch and slot."""

from __future__ import annotations

import errno
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from forwarding_log import ForwardingLog
from sparkonce import executor as executor_module
from sparkonce.decision_log import DecisionLog, Landed, Taken
from sparkonce.driver import outage, prepare, put, run, sweeper
from sparkonce.driver.outage import Timing
from sparkonce.driver.positions import PositionReporter
from sparkonce.driver.progress import BatchProgress
from sparkonce.driver.run import Listener, RunDriver
from sparkonce.executor import SinkTask, SlotTask, write_slot
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.codec import decode_record
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import Record
from sparkonce.sink import Owner, TwoPhaseCommitSink
from sparkonce.sinks.memory import MemoryServer, MemorySink
from sparkonce.storage.files import PutUnknownError
from sparkonce.storage.local import LocalFiles

QUERY = "7f6e5d4c-0000-4000-8000-000000000001"
SLOTS = 3
NEVER = 10_000


class Crash(BaseException):
    """Simulates the death of the driver's process. No code may catch it and continue."""


def crash_at(*phases: Phase) -> Listener:
    def listen(phase: Phase, batch: int) -> None:
        if phase in phases:
            raise Crash(phase)

    return listen


def call_at(phase: Phase, action: Callable[[], object]) -> Listener:
    done = []

    def listen(entered: Phase, batch: int) -> None:
        if entered is phase and not done:
            done.append(entered)
            action()

    return listen


class Clock:
    """Replaces the module ``time``. Time passes only by sleeping."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._passed = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.pass_by(seconds)

    def pass_by(self, seconds: float) -> None:
        # Like every sleep, this takes slightly longer than requested, so that a loop that sleeps until a deadline gets
        # past it.
        self._passed += seconds + 1e-6

    def monotonic(self) -> float:
        return self._passed

    def time(self) -> float:
        return time.time() + self._passed

    def time_ns(self) -> int:
        return time.time_ns() + int(self._passed * 1e9)


def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (outage, put, run, sweeper, prepare, executor_module):
        monkeypatch.setattr(module, "time", clock)
    return clock


def numbers(*batches: int, slots: Sequence[int] = range(SLOTS)) -> list[int]:
    return [1000 * batch + 10 * slot + place for batch in batches for slot in slots for place in range(2)]


def asked(batch: int, *, offsets: str | None = None) -> BatchAsked:
    def line(number: int) -> tuple[str, ...]:
        return (f'{{"t":{{"0":{number}}}}}',)

    return BatchAsked(
        batch=batch,
        offsets=line(batch) if offsets is None else (offsets,),
        previous_offsets=line(batch - 1) if batch else None,
    )


def owner_of(driver: RunDriver) -> Owner:
    return driver._sinks.owner("memory", driver.state.token, driver._sweeper.generation("memory"))


class Work:
    def __init__(self, sinks: Mapping[str, TwoPhaseCommitSink], batch: int) -> None:
        self.sinks = sinks
        self.batch = batch
        self.slots = SLOTS
        self.empty: frozenset[int] = frozenset()
        self.shift = 0
        self.orders: list[list[int]] = []
        """The rows of each slot in the first write, the second write, and so on.

        The last entry applies to all further writes.
        """
        self.together = False
        """Whether all rows are in one slot, as when adaptive execution finds only a few."""
        self.loser = False
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        self.computing: Callable[[], object] = lambda: None
        """Called while the rows are computed, which is before or, by default, after the first transaction is opened."""
        self.first: list[bool] = []
        """For each write, whether all rows were computed first."""
        self.written: list[tuple[tuple[str, ...], frozenset[tuple[str, int]] | None]] = []
        self.into_nothing = 0
        self.stopped = False

    def write(
        self,
        sinks: Mapping[str, Owner],
        only: frozenset[tuple[str, int]] | None,
        computed: Callable[[], None] | None = None,
    ) -> tuple[Sequence[Handle], bool]:
        self.written.append((tuple(sinks), only))
        self.first.append(computed is not None)
        order = self.orders.pop(0) if len(self.orders) > 1 else (self.orders or [list(range(self.slots))])[0]
        self.before()
        parts = tuple(
            SinkTask(sink=self.sinks[name], owner=owner, columns=("number",), fingerprint="fingerprint")
            for name, owner in sinks.items()
        )
        task = SlotTask(batch=self.batch, sinks=parts, only=only)
        handles: list[Handle] = []
        slots = [self._rows(order[slot]) for slot in range(self.slots)]
        if computed is not None:
            self.computing()
            computed()
        for slot, rows in enumerate([list(chain(*slots))] if self.together else slots):
            handles += write_slot(rows, task, slot=slot, copy=f"1.{slot}.0")
            if self.loser:
                write_slot(rows, task, slot=slot, copy=f"1.{slot + 100}.1")
            if slot == 0 and computed is None:
                self.computing()
        self.after()
        return handles, self.loser

    def run_into_nothing(self) -> None:
        self.into_nothing += 1

    def is_stopped(self) -> bool:
        return self.stopped

    def _rows(self, slot: int) -> list[pa.RecordBatch]:
        found = [] if slot in self.empty else [number + self.shift for number in numbers(self.batch, slots=[slot])]
        hashes = [(number * 0x9E3779B97F4A7C15) % 2**63 for number in found]
        whole = pa.record_batch(
            {"number": pa.array(found, pa.int64()), "fingerprint": pa.array(hashes, pa.int64()), "other": found}
        )
        return [whole.slice(0, 1), whole.slice(1)]


class World:
    """Everything that outlives a driver: the checkpoint folder and the servers."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = folder
        self.servers: dict[str, MemoryServer] = {"memory": MemoryServer()}
        self.guarantees: dict[str, Guarantee] = {}
        self.timeouts_s: dict[str, float] = {}
        self.log: DecisionLog = DecisionLog(LocalFiles(folder))

    def another(self) -> World:
        return type(self)(self.checkpoint / "another")

    @property
    def server(self) -> MemoryServer:
        return self.servers["memory"]

    def add(self, name: str, guarantee: Guarantee = Guarantee.EXACTLY_ONCE) -> MemoryServer:
        self.guarantees[name] = guarantee
        return self.servers.setdefault(name, MemoryServer())

    def sinks(self) -> dict[str, MemorySink]:
        return {
            name: MemorySink(
                server,
                name=name,
                guarantee=self.guarantees.get(name, Guarantee.EXACTLY_ONCE),
                timeout_s=self.timeouts_s.get(name),
            )
            for name, server in self.servers.items()
        }

    def start(
        self,
        listener: Listener | None = None,
        *,
        query: str = QUERY,
        log: DecisionLog | None = None,
        deadline_s: float = 300.0,
        moved: bool = False,
        in_background: bool = False,
        monitor_every_s: float = 0.0,
        reporters: Sequence[PositionReporter] = (),
    ) -> RunDriver:
        """A new run, as after a restart of the driver."""
        return RunDriver(
            run=str(uuid.uuid4()),
            query=query,
            sinks=self.sinks(),
            log=log or self.log,
            timing=Timing(
                outage_patience_s=deadline_s, sweep_in_background=in_background, monitor_every_s=monitor_every_s
            ),
            listener=listener,
            moved=moved,
            reporters=reporters,
        )

    def work(self, batch: int) -> Work:
        return Work(self.sinks(), batch)

    def run(self, driver: RunDriver, *batches: int) -> list[BatchProgress]:
        return [driver.run_batch(asked(batch), self.work(batch)) for batch in batches]

    def crash(self, batch: int, *phases: Phase) -> None:
        """A run that dies when the batch enters one of the phases, if it does."""
        try:
            self.run(self.start(crash_at(*phases)), batch)
        except Crash:
            return

    def visible(self, name: str = "memory") -> list[int]:
        return sorted(int(str(number)) for (number,) in self.servers[name].visible())

    def unfinished(self) -> list[tuple[int, str]]:
        return [one for server in self.servers.values() for one in server.unfinished()]

    def records(self) -> list[Record]:
        folder = self.checkpoint / "sparkonce" / "records"
        return [decode_record(path.read_bytes()) for path in sorted(folder.iterdir())]

    def kinds(self) -> list[str]:
        return [type(record).__name__ for record in self.records()]


class FlakyLog(ForwardingLog):
    """A log whose next puts of some kind fail: full, read-only, unknown, landed, or without a floor update."""

    def __init__(self, inner: DecisionLog, kind: type, *faults: str) -> None:
        super().__init__(inner)
        self._kind = kind
        self._faults = list(faults)
        self._floor_is_read = True

    def put_bytes(self, position: int, data: bytes) -> Landed | Taken:
        fault = self._faults.pop(0) if self._faults and isinstance(decode_record(data), self._kind) else "none"
        if fault == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if fault == "read-only":
            raise OSError(errno.EROFS, "Read-only file system")
        if fault == "unknown":
            raise PutUnknownError("the reply was lost")
        answer = super().put_bytes(position, data)
        if fault == "landed":
            raise PutUnknownError("the reply was lost")
        self._floor_is_read = fault != "no floor"
        return answer

    def floor_bytes(self) -> bytes | None:
        if not self._floor_is_read:
            raise OSError(errno.ESTALE, "Stale file handle")
        return super().floor_bytes()
