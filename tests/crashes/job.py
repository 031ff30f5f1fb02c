"""A query on one target, across its runs: struck in cell after cell, recovered, and judged by what readers see."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from crashes.cells import (
    CUT,
    DISK_FULL,
    HALVED,
    HOLE,
    KILL,
    LATE,
    LATE_KILLED,
    LOG_FULL,
    MEMORY_FULL,
    ORPHAN,
    PAUSE,
    REPLY_LOST,
    REQUESTS,
    RESTART,
    ZOMBIE,
    Cell,
)
from crashes.child import ARRIVED, BROKEN, DIE, DIE_LATER, DONE, GO, STOPPED, Order, carry_out, is_empty, numbers
from crashes.target import ABORT, Target
from sparkonce.protocol.codec import decode_record
from sparkonce.protocol.view import Amend, Commit
from sparkonce_lab.faults import Fault
from sparkonce_lab.rig.disk import SmallDisk
from sparkonce_lab.rig.process import Background, freeze
from sparkonce_lab.rig.proxy import RequestFault, Trap
from striking.points import CONCLUDED
from zygote import Zygote

WARM_BATCHES = 5
"""So many batches that the log is tidied in each of the following ones."""
STARTS = 3
"""How often a run without faults may stop before a query counts as not recovering."""
_POLL_S = 0.05
_REQUEST_FAULTS = {
    REPLY_LOST: RequestFault.REPLY_LOST,
    HALVED: RequestFault.HALVED,
    LATE: RequestFault.HELD,
    LATE_KILLED: RequestFault.STALLED,
}
_OF_EVERY_RUN = ("pandas", "pyarrow.pandas_compat", "encodings.idna", "crashes.child")


class DoesNotRecover(AssertionError):  # noqa: N818 - it is what it says
    """Runs without faults keep stopping."""


class Late(str, Enum):
    """What a request that was delivered late did."""

    CHANGED = "changed something"
    WITHOUT_EFFECT = "was answered, without effect"
    ENDED = "found its connection ended by the server"


class Verdict(NamedTuple):
    """The outcome of a cell.

    Attributes:
        violations: What must not happen, in numbers; empty if all is well.
        missed: Why the cell, or its late request, did not do what it should; empty if it did.
        late: What the late request did; None in cells without one.
    """

    violations: str
    missed: str
    late: Late | None


class Run:
    """A run in a child process. Fails if it takes too long to reach its point, or its end."""

    def __init__(self, zygote: Zygote, order: Order, limit_s: float) -> None:
        self.order = order
        self.done: list[int] = []  # batches that Spark would have recorded as done
        self.concluded: list[int] = []  # batches that were concluded in the sink
        self.arrived = self.ended = False
        self.stopped = ""  # the driver's error that ended it
        self.broken = ""  # any other error that ended it
        self._limit_s = limit_s
        self._pid, self._channel = zygote.fork(partial(carry_out, order))
        self._channel.setblocking(False)
        self._buffer = b""

    def until_arrival(self) -> bool:
        """Waits until it reaches the point, or ends. Returns True if it got there."""
        self._read(lambda: self.arrived)
        return self.arrived

    def finish(self) -> None:
        self._read(lambda: False)

    def finish_within(self, seconds: float) -> bool:
        """Listens for a while. Returns True if it has ended."""
        self._read(lambda: False, seconds)
        return self.ended

    def answer(self, word: str) -> None:
        self._channel.sendall(f"{word}\n".encode())

    def pause(self) -> None:
        freeze(lambda: [self._pid])

    def resume(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills it at any point, unless it has ended. While its connection is open, its process id cannot be reused."""
        if not self.finish_within(0):
            os.kill(self._pid, signal.SIGKILL)
            self.finish()

    def close(self) -> None:
        self.kill()
        self._channel.close()

    def _read(self, enough: Callable[[], bool], limit_s: float | None = None) -> None:
        give_up_at = time.monotonic() + (self._limit_s if limit_s is None else limit_s)
        while not self.ended and not enough():
            left_s = give_up_at - time.monotonic()
            if select.select([self._channel], [], [], max(0.0, left_s))[0]:
                self._take()
            elif limit_s is not None:
                return
            else:
                os.kill(self._pid, signal.SIGKILL)
                raise AssertionError(f"a run hangs for {self._limit_s:g} s; see {self.order.log}")

    def _take(self) -> None:
        try:
            data = self._channel.recv(65_536)
        except ConnectionResetError:
            data = b""
        self.ended = not data
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for kind, what in map(json.loads, lines):
            if kind in (DONE, CONCLUDED):
                (self.done if kind == DONE else self.concluded).append(what)
            elif kind == ARRIVED:
                self.arrived = True
            elif kind == STOPPED:
                self.stopped = what
            elif kind == BROKEN:
                self.broken = what


def decided(checkpoint: Path) -> int:
    """The newest batch for which the log has a decision; -1 if there is none."""
    newest = -1
    for path in (checkpoint / "sparkonce" / "records").glob("[0-9]*"):
        with suppress(FileNotFoundError):  # tidied meanwhile
            record = decode_record(path.read_bytes())
            if isinstance(record, Commit | Amend):
                newest = max(newest, record.batch)
    return newest


class Watcher(Background):
    """A reader that polls a target continuously, and checks whether rows are visible before they are decided.

    Attributes:
        seen: Every number that was ever seen.
        early: Numbers that were seen before their batch was decided.
        turn: Held by whoever queries the target, whose connection is not thread-safe.
    """

    def __init__(self, target: Target, checkpoint: Path) -> None:
        super().__init__("watcher", 60.0)
        self.seen: set[int] = set()
        self.early: set[int] = set()
        self.turn = threading.Lock()
        self._target, self._checkpoint = target, checkpoint

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert not self._thread.is_alive(), "the watcher hangs"

    def poll(self, *, whole: bool = False) -> list[int]:
        """What is currently visible. Raises an error if the server does not respond."""
        with self.turn:
            found = sorted(self._target.visible() if whole else self._target.glance())
            # Read the log after the rows: if a batch is not in the log by now, it was not there either when its rows
            # were seen.
            if new := set(found) - self.seen:
                newest = decided(self._checkpoint)
                self.early |= {number for number in new if number // 1000 > newest}
                self.seen |= new
            return found

    def work(self) -> None:
        while not self.stopping.is_set():
            began = time.monotonic()
            with suppress(Exception):  # a server under attack may reject
                self.poll()
            # Leave most of the CPU to the processes that are being watched.
            self.stopping.wait(max(0.005, 2 * (time.monotonic() - began)))


class Job:
    """A query with its own checkpoint and table, topic or folder in a started target."""

    def __init__(self, target: Target, zygote: Zygote, folder: Path) -> None:
        self.target = target
        self.folder = folder
        self._zygote = zygote
        self._runs: list[Run] = []
        self._next = 0
        self._concluded: set[int] = set()
        self._late: Late | None = None
        self.disk = SmallDisk(folder / "checkpoint")
        self.checkpoint = self.disk.folder
        try:
            target.new_place()
            self._sink = target.make_sink()
            self._go_on(WARM_BATCHES - 1)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for run in self._runs:
            run.close()
        self.disk.close()

    def strike(self, cell: Cell) -> Verdict:
        """Carries out a cell, lets the query recover, and checks the outcome.

        Raises:
            DoesNotRecover: If it does not.
        """
        first = len(self._runs)
        self._late = None
        with Watcher(self.target, self.checkpoint) as watcher:
            if cell.before:
                self._kill_at(cell.before)
            missed = self._at_request(cell, watcher) if cell.is_request else self._at_point(cell, watcher)
            self._recover()
            missing, doubled, unexpected = self._count(watcher)
        wrong = {
            "missing": missing,  # decided rows that no reader sees
            "doubled": doubled,
            "unexpected": unexpected,  # rows that belong to no batch, or that were seen once and have disappeared
            "early": len(watcher.early),
            "lingering": list(self._lingering()),  # transactions that are still open on the server after the last sweep
            "never concluded": [batch for batch in range(self._next) if batch not in self._concluded],
            "broken": [run.broken for run in self._runs[first:] if run.broken],
        }
        return Verdict(", ".join(f"{name}: {found}" for name, found in wrong.items() if found), missed, self._late)

    # --- striking ---------------------------------------------------------------------------------------------------

    def _kill_at(self, point: str) -> None:
        run = self._start(point)
        if run.until_arrival():
            run.answer(DIE)
        run.finish()
        self._note(run)

    def _at_point(self, cell: Cell, watcher: Watcher) -> str:
        run = self._come_to(cell)
        if not run.arrived:
            return f"the run ended without coming to: {cell.point} {run.stopped or run.broken}"
        watcher.poll()
        self._strike_at_arrival(cell.fault, run)
        self._note(run)
        return ""

    def _come_to(self, cell: Cell) -> Run:
        """Returns a run that is at the point.

        On a busy machine, one may stop before that, at an intentionally short deadline.
        """
        for _ in range(STARTS):
            run = self._start(cell.point, first=bool(cell.before))
            run.until_arrival()
            self._note(run)
            if run.arrived or cell.before:
                break
            self._recover()
        return run

    def _strike_at_arrival(self, fault: str, run: Run) -> None:
        target, proxy = self.target, self.target.proxy
        if fault == KILL:
            run.answer(DIE)
        elif fault in {ZOMBIE, ORPHAN}:
            run.pause()
            self._recover()
            run.resume()
            run.answer(GO if fault == ZOMBIE else DIE_LATER)
        elif fault == CUT and proxy is not None:
            proxy.cut()
            run.answer(GO)
        elif fault == RESTART:
            target.inject(Fault.SERVER_KILLED)
            run.answer(GO)
            target.system.lift(Fault.SERVER_KILLED)
        elif fault == LOG_FULL:
            self._for_a_while(run, self.disk.fill, self.disk.free)
        elif fault == MEMORY_FULL:
            self._for_a_while(run, partial(target.limit_memory, 1), partial(target.limit_memory, 0))
        else:
            lasting = {HOLE: Fault.BLACK_HOLE, PAUSE: Fault.SERVER_PAUSED, DISK_FULL: Fault.TARGET_DISK_FULL}[fault]
            self._for_a_while(run, partial(target.inject, lasting), partial(target.system.lift, lasting))
        run.finish()

    def _for_a_while(self, run: Run, begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        try:
            run.answer(GO)
            run.finish_within(self.target.while_s)
        finally:
            end()

    def _at_request(self, cell: Cell, watcher: Watcher) -> str:
        proxy = self.target.proxy
        # Inject the fault at the second request of a batch, after the first has passed. For aborts, inject it at the
        # first, since a sweep may send only one.
        trap = proxy.trap(cell.point, _REQUEST_FAULTS[cell.fault], nth=1 if cell.point == ABORT else 2)
        run = self._start()
        try:
            if cell.fault == LATE_KILLED:
                while not trap.sprung.is_set() and not run.finish_within(_POLL_S):
                    pass
                run.kill()
            run.finish()
            self._note(run)
            if not trap.sprung.is_set():
                return f"there was no request to {cell.point}"
            if cell.fault in {LATE, LATE_KILLED}:
                return self._deliver(trap, watcher)
        finally:
            proxy.clear()
        return ""

    def _deliver(self, trap: Trap, watcher: Watcher) -> str:
        self._recover()
        self._count(watcher)  # waits until everything is visible
        with watcher.turn:
            before = self.target.system.state()
        if trap.deliver():
            with watcher.turn:
                self._late = Late.WITHOUT_EFFECT if self.target.system.state() == before else Late.CHANGED
        else:
            self._late = Late.ENDED
        allowed = {Late.CHANGED: self.target.changes_late, Late.ENDED: self.target.ends_sessions}
        if trap.kind in allowed.get(self._late, REQUESTS):
            return ""
        return f"the late request to {trap.kind} {self._late.value}"

    # --- running ----------------------------------------------------------------------------------------------------

    def _start(self, point: str = "", *, first: bool = False) -> Run:
        """Returns a run that stops at a point in a batch with rows, and continues for one more batch."""
        batch = self._next if first else self._next + 1
        while is_empty(batch):
            batch += 1
        return self._new_run(batch + 1, point, batch)

    def _recover(self) -> None:
        """Runs the query without faults until everything that was begun is done, and for one more batch.

        It sweeps before that.

        Raises:
            DoesNotRecover: If runs stop again and again.
        """
        self._go_on(max(self._next, decided(self.checkpoint) + 1))

    def _go_on(self, last: int) -> None:
        for _ in range(STARTS):
            run = self._new_run(last)
            run.finish()
            self._note(run)
            if self._next > last:
                return
        raise DoesNotRecover(f"stopped without any fault: {run.stopped or run.broken or 'killed'}; see {run.order.log}")

    def _new_run(self, last: int, point: str = "", batch: int = -1) -> Run:
        order = Order(
            sink=self._sink,
            rows=self.target.rows,
            checkpoint=self.checkpoint,
            first=self._next,
            last=last,
            point=point,
            batch=batch,
            waits=self.target.waits,
            log=self.folder / f"{len(self._runs)}.log",
        )
        self._runs.append(Run(self._zygote, order, self.target.run_within_s))
        return self._runs[-1]

    def _note(self, run: Run) -> None:
        """What Spark would have recorded."""
        self._next = max([self._next, *(batch + 1 for batch in run.done)])
        self._concluded.update(run.concluded)

    # --- judging ----------------------------------------------------------------------------------------------------

    def _expected(self) -> set[int]:
        return {number for batch in range(self._next) for slot in numbers(batch).values() for number in slot}

    def _count(self, watcher: Watcher) -> tuple[int, int, int]:
        """Counts missing, duplicate and unexpected rows.

        Waits only for missing rows, since surplus ones will not disappear.
        """
        expected = self._expected()
        give_up_at = time.monotonic() + self.target.shows_within_s
        while True:
            seen = Counter(watcher.poll(whole=True))
            missing = len(expected - seen.keys())
            doubled = sum(times - 1 for times in seen.values())
            unexpected = len((seen.keys() | watcher.seen) - expected)
            if not missing or doubled or unexpected or time.monotonic() >= give_up_at:
                return missing, doubled, unexpected
            time.sleep(_POLL_S)

    def _lingering(self) -> tuple[str, ...]:
        give_up_at = time.monotonic() + self.target.gone_within_s
        while (found := tuple(self.target.system.left_open())) and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)
        return found


class StartedTargets:
    """Keeps one target running, with one job. The next target takes over its server if it needs the same one."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self._zygote, self._folder = zygote, folder
        self._number = 0
        self._target: Target | None = None
        self._job: Job | None = None

    def strike(self, target: Target, cell: Cell) -> Verdict:
        """Carries out a cell in the target's job, or in a new one."""
        if self._target is not target:
            self._change_to(target)
        job = self._job or Job(target, self._zygote, self._new_folder("job"))
        # A failed cell ends the job, so that its leftovers do not make the next one fail.
        self._job = None
        try:
            verdict = job.strike(cell)
            if not verdict.violations and not verdict.missed:
                self._job = job
            return verdict
        finally:
            if self._job is None:
                job.close()

    def _change_to(self, target: Target) -> None:
        before = self._target
        if before is not None and before.server == target.server:
            self._end_job()
            target.system = before.system
        else:
            self.close()
            target.start(self._new_folder(target.name))
        self._target = target
        self._zygote.load([*_OF_EVERY_RUN, target.rows.__module__, *target.preload])

    def _new_folder(self, name: str) -> Path:
        self._number += 1
        return self._folder / f"{name}-{self._number}"

    def _end_job(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.close()

    def close(self) -> None:
        self._end_job()
        target, self._target = self._target, None
        if target is not None:
            target.stop()
