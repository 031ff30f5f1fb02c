"""A query on one target, across its runs: struck in cell after cell, recovered, and judged by what readers see."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

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
from crashes.child import DIE, DIE_LATER, GO, Order, is_empty, numbers
from crashes.runs import Run
from crashes.target import ABORT, Target
from crashes.verdict import DoesNotRecover, Late, Verdict
from crashes.watcher import Watcher, decided
from sparkonce_lab.faults import Fault
from sparkonce_lab.rig.disk import SmallDisk
from sparkonce_lab.rig.proxy import RequestFault, Trap
from zygote import Zygote

WARM_BATCHES = 5
"""Enough batches that the log is tidied in every one that follows."""
STARTS = 3
"""How often a run without faults may stop before a query counts as not recovering."""
_POLL_S = 0.05
_REQUEST_FAULTS = {
    REPLY_LOST: RequestFault.REPLY_LOST,
    HALVED: RequestFault.HALVED,
    LATE: RequestFault.HELD,
    LATE_KILLED: RequestFault.STALLED,
}


class Job:
    """A query with its own checkpoint and target table, topic or folder.

    Args:
        target: A started target.
        zygote: Forks its runs.
        folder: A new folder.
    """

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
        return Verdict(
            missing=missing,
            doubled=doubled,
            unexpected=unexpected,
            early=len(watcher.early),
            lingering=self._lingering(),
            unconcluded=tuple(batch for batch in range(self._next) if batch not in self._concluded),
            broken=tuple(run.broken for run in self._runs[first:] if run.broken),
            missed=missed,
            late=self._late,
        )

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
            target.lift(Fault.SERVER_KILLED)
        elif fault == LOG_FULL:
            self._for_a_while(run, self.disk.fill, self.disk.free)
        elif fault == MEMORY_FULL:
            self._for_a_while(run, partial(target.limit_memory, 1), partial(target.limit_memory, 0))
        else:
            lasting = {HOLE: Fault.BLACK_HOLE, PAUSE: Fault.SERVER_PAUSED, DISK_FULL: Fault.TARGET_DISK_FULL}[fault]
            self._for_a_while(run, partial(target.inject, lasting), partial(target.lift, lasting))
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
        assert proxy is not None
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
            before = self.target.state()
        if trap.deliver():
            with watcher.turn:
                self._late = Late.WITHOUT_EFFECT if self.target.state() == before else Late.CHANGED
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
        """Starts the query without faults until everything begun is done, and for one more batch.

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

        Only missing rows are waited for: the others do not go away.
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
        while (found := tuple(self.target.lingering())) and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)
        return found
