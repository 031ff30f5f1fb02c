"""Producers that a worker process keeps ready, so that no task waits for one to be initialised.

A transaction needs an initialisation of its own (its own epoch), which takes a tenth of a second or more. So a task
takes a producer that was initialised while the one before it ran, and its own replacement is initialised while it runs.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LeaseTimeoutError
from dataclasses import dataclass
from functools import partial

from sparkonce.errors import OutageError
from sparkonce.protocol.ownership import LanePool, Token
from sparkonce.sinks.kafka.lane import Lane

log = logging.getLogger(__name__)

KEEP_AT_MOST = 8
LEFT_OVER_TASKS = 64
"""After so many tasks in a row that each left one ready, one less is kept."""

POLL_EVERY_S = 0.2
IDLE_LIMIT_S = 900.0
_EXIT_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolKey:
    """Which producers may stand in for each other.

    Attributes:
        sink: The sink's name.
        query: The short form of the query's id.
        token: The run's token.
        generation: See `sparkonce.sink.Owner`.
    """

    sink: str
    query: str
    token: Token
    generation: int = 0


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="sparkonce-kafka-initialise", daemon=True).start()


class Pool:
    """The producers of one sink of one run in this process.

    Args:
        make: Makes and initialises the producer of a lane; may take long, may raise. Called in a background thread.
        discard: Ends a producer. Must not block.
        keep_at_most: How many may be kept ready; 0 for producers that are used again instead.
        run: Runs a function in the background.
    """

    def __init__(
        self,
        make: Callable[[int], Lane],
        discard: Callable[[Lane], None],
        keep_at_most: int,
        run: Callable[[Callable[[], None]], None] = _in_thread,
    ) -> None:
        self._make = make
        self._discard = discard
        self._keep_at_most = keep_at_most
        self._run = run
        self._lock = threading.Lock()
        self._lanes = LanePool()
        self._ready: deque[Lane] = deque()
        self._waiting: deque[Future[Lane]] = deque()
        self._starting = 0
        self._target = 0
        self._left_over = 0
        self._last_batch = 0
        self._last_taken_s = time.monotonic()
        self._dropped = False

    def take(self, batch: int) -> Future[Lane]:
        """A producer for a task of this batch. Give it back or retire it, also if it failed."""
        lease: Future[Lane] = Future()
        with self._lock:
            self._last_batch, self._last_taken_s = batch, time.monotonic()
            while self._ready and self._ready[0].reports.fatal:
                self._drop_first()
            if self._ready:
                lease.set_result(self._ready.popleft())
            else:
                self._waiting.append(lease)
            self._left_over = self._left_over + 1 if self._ready else 0
            if self._left_over == LEFT_OVER_TASKS:
                self._target, self._left_over = self._target - 1, 0
            self._top_up(batch)
        return lease

    def wait(self, lease: Future[Lane], timeout_s: float) -> Lane:
        """The producer of a lease. A task that has to wait for it raises how many are kept ready for the next ones.

        Raises:
            PrepareError: if it is not ready in time, or could not be initialised.
            PreflightError: if the cluster does not allow it.
        """
        with self._lock:
            if not lease.done():
                self._target = min(self._target + 1, self._keep_at_most)
                self._top_up(self._last_batch)
        try:
            return lease.result(timeout_s)
        except LeaseTimeoutError:
            self.withdraw(lease)
            raise OutageError(f"No Kafka producer was ready within {timeout_s:g} s.") from None

    def give_back(self, lane: Lane) -> None:
        """Returns a producer on which nothing was opened, or which is not transactional."""
        with self._lock:
            self._offer(lane)

    def retire(self, lane: Lane, batch: int) -> None:
        """Ends a producer on which a transaction of this batch was opened, or may have been."""
        with self._lock:
            self._lanes = self._lanes.give_back(lane.number, batch)
        self._discard(lane)

    def withdraw(self, lease: Future[Lane]) -> None:
        """Gives up a lease that was not used."""
        with self._lock:
            if lease in self._waiting:
                self._waiting.remove(lease)
            elif lease.exception() is None:
                self._offer(lease.result())

    def expire(self) -> None:
        """Ends those kept ready if no task has taken one for long."""
        with self._lock:
            if time.monotonic() - self._last_taken_s > IDLE_LIMIT_S:
                self._target = 0
                self._drop_ready()

    def drop(self) -> None:
        """Ends all that are ready, and each of the others when its task returns it."""
        with self._lock:
            self._dropped = True
            self._target = 0
            self._drop_ready()

    def _drop_ready(self) -> None:
        while self._ready:
            self._drop_first()

    def _drop_first(self) -> None:
        lane = self._ready.popleft()
        self._lanes = self._lanes.give_back(lane.number, self._last_batch)
        self._discard(lane)

    def _top_up(self, batch: int) -> None:
        missing = len(self._waiting) + self._target - len(self._ready) - self._starting
        for _ in range(missing):
            self._lanes, number = self._lanes.lend(batch)
            self._starting += 1
            self._run(partial(self._start, number))

    def _start(self, number: int) -> None:
        try:
            lane = self._make(number)
        except Exception as error:  # noqa: BLE001 - whatever it is must reach the task that waits
            # The lane is not given back: its initialisation may still arrive at the broker, after a transaction that a
            # later one carried was committed, and would make that commit read as a loss (see `LanePool`).
            with self._lock:
                self._starting -= 1
                if self._waiting:
                    self._waiting.popleft().set_exception(error)
                else:
                    log.warning("A Kafka producer could not be kept ready: %s", error)
            return
        with self._lock:
            self._starting -= 1
            self._offer(lane)

    def _offer(self, lane: Lane) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(lane)
        elif self._dropped:
            self._lanes = self._lanes.give_back(lane.number, self._last_batch)
            self._discard(lane)
        else:
            self._ready.append(lane)


class Worker:
    """Holds what one operating-system process has: its pools, and a thread that looks after them.

    Args:
        run: Runs a function in the background.
    """

    def __init__(self, run: Callable[[Callable[[], None]], None] = _in_thread) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._pools: dict[PoolKey, Pool] = {}
        self._lanes: set[Lane] = set()
        self._discarded: queue.SimpleQueue[Lane | None] = queue.SimpleQueue()
        self._keeper: threading.Thread | None = None

    def pool(self, key: PoolKey, make: Callable[[str, int], Lane], keep_at_most: int) -> Pool:
        """The pool of a key. The first call for a newer run or generation drops the pools of older ones.

        Each pool draws an id of its own, which is given to ``make`` with the lane's number: two sinks, and a pool made
        again for a run whose first pool was dropped, never meet on one lane.
        """
        with self._lock:
            if key not in self._pools:
                older = [other for other in self._pools if _supersedes(key, other)]
                for other in older:
                    self._pools.pop(other).drop()
                drawn = os.urandom(6).hex()
                self._pools[key] = Pool(
                    lambda number: self._watch(make(drawn, number)), self._discard, keep_at_most, self._run
                )
            if self._keeper is None:
                self._begin_to_keep()
            return self._pools[key]

    def stop(self) -> None:
        """Ends every producer before the interpreter goes."""
        with self._lock:
            for pool in self._pools.values():
                pool.drop()
            self._pools.clear()
            keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._discarded.put(None)
            keeper.join(_EXIT_LIMIT_S)

    def _begin_to_keep(self) -> None:
        self._keeper = threading.Thread(target=self._keep, name="sparkonce-kafka-keeper", daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        poll_at = time.monotonic() + POLL_EVERY_S
        while True:
            try:
                lane = self._discarded.get(timeout=max(0.0, poll_at - time.monotonic()))
            except queue.Empty:
                poll_at = time.monotonic() + POLL_EVERY_S
                self._look_after()
                continue
            if lane is None:
                return
            self._end(lane)

    def _discard(self, lane: Lane) -> None:
        if self._keeper is None:
            self._end(lane)
        else:
            self._discarded.put(lane)

    def _end(self, lane: Lane) -> None:
        self._lanes.discard(lane)
        lane.destroy()

    def _look_after(self) -> None:
        """Serves those that no task polls: kept ready, or waiting for rows. Their statistics would pile up."""
        for lane in list(self._lanes):
            if time.monotonic() - lane.polled_s > POLL_EVERY_S:
                try:
                    lane.poll(0)
                except Exception as error:  # the others still need this thread
                    if not lane.reports.fatal:
                        log.exception("could not serve the producer of %r", lane.transactional_id)
                        # A delivery report may be lost: its task must not prepare.
                        lane.reports.fatal = f"{type(error).__name__}: {error}"
        with self._lock:
            for pool in self._pools.values():
                pool.expire()

    def _watch(self, lane: Lane) -> Lane:
        self._lanes.add(lane)
        return lane


def _supersedes(key: PoolKey, other: PoolKey) -> bool:
    newer = (key.token, key.generation) > (other.token, other.generation)
    return newer and (key.sink, key.query) == (other.sink, other.query)


_worker = Worker()
_inherited: list[Worker] = []


def this_worker() -> Worker:
    """The process's own."""
    return _worker


def _begin_anew() -> None:
    """After a fork: the parent's producers have no threads here and must be neither used nor ended."""
    global _worker
    _inherited.append(_worker)
    _worker = Worker()


os.register_at_fork(after_in_child=_begin_anew)
atexit.register(lambda: _worker.stop())
