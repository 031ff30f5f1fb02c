"""The producers that a worker process keeps ready, so that no task has to wait for an initialization.

Each transaction needs its own initialization (its own epoch), which takes a tenth of a second or more. A task therefore
takes a producer that was initialized while the previous task ran. While the task runs, the pool initializes another.
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
from functools import partial

from sparkonce.errors import OutageError
from sparkonce.protocol.ownership import LanePool
from sparkonce.sinks.kafka.pooled_producer import PooledProducer, ProducerSpec

log = logging.getLogger(__name__)

KEEP_AT_MOST = 8
LEFT_OVER_TASKS = 64
"""After this many consecutive tasks that each leave a ready producer unused, the pool keeps one producer fewer."""

POLL_EVERY_S = 0.2
IDLE_LIMIT_S = 900.0
_EXIT_LIMIT_S = 5.0

OpenProducer = Callable[[ProducerSpec, str, int], PooledProducer]
"""Opens a producer from a specification, a worker's id and the number of a lane."""


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="sparkonce-kafka-initialise", daemon=True).start()


class ProducerPool:
    """The producers of one sink of one run in this process.

    Args:
        make: Creates and initializes the producer of a lane, in the background.
        discard: Ends a producer. Must not block.
        keep_at_most: The maximum number of producers to keep ready; 0 for producers that are reused instead.
        run: Runs a function in the background.
    """

    def __init__(
        self,
        make: Callable[[int], PooledProducer],
        discard: Callable[[PooledProducer], None],
        keep_at_most: int,
        run: Callable[[Callable[[], None]], None] = _in_thread,
    ) -> None:
        self._make = make
        self._discard = discard
        self._keep_at_most = keep_at_most
        self._run = run
        self._lock = threading.Lock()
        self._lanes = LanePool()
        self._ready: deque[PooledProducer] = deque()
        self._waiting: deque[Future[PooledProducer]] = deque()
        self._starting = 0
        self._target = 0
        self._left_over = 0
        self._last_batch = 0
        self._last_taken_s = time.monotonic()
        self._dropped = False

    def take(self, batch: int) -> Future[PooledProducer]:
        """Leases a producer to a task of this batch. The task gives it back or retires it, even after a failure."""
        lease: Future[PooledProducer] = Future()
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

    def wait(self, lease: Future[PooledProducer], timeout_s: float) -> PooledProducer:
        """Returns the leased producer. If the task has to wait for it, the pool keeps more producers ready from now on.

        Raises:
            PrepareError: If the producer is not ready in time, or could not be initialized.
            PreflightError: If the cluster does not allow the initialization.
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

    def give_back(self, pooled: PooledProducer) -> None:
        """Takes back a producer that opened no transaction, or that is not transactional."""
        with self._lock:
            self._offer(pooled)

    def retire(self, pooled: PooledProducer, batch: int) -> None:
        """Ends a producer that opened a transaction of this batch, or may have opened one."""
        with self._lock:
            self._lanes = self._lanes.give_back(pooled.lane, batch)
        self._discard(pooled)

    def withdraw(self, lease: Future[PooledProducer]) -> None:
        """Ends a lease whose producer was not used."""
        with self._lock:
            if lease in self._waiting:
                self._waiting.remove(lease)
            elif lease.exception() is None:
                self._offer(lease.result())

    def expire(self) -> None:
        """Ends the ready producers if no task has taken one for `IDLE_LIMIT_S`."""
        with self._lock:
            if time.monotonic() - self._last_taken_s > IDLE_LIMIT_S:
                self._target = 0
                self._drop_ready()

    def drop(self) -> None:
        """Ends every ready producer now, and every leased one when its task returns it."""
        with self._lock:
            self._dropped = True
            self._target = 0
            self._drop_ready()

    def _drop_ready(self) -> None:
        while self._ready:
            self._drop_first()

    def _drop_first(self) -> None:
        pooled = self._ready.popleft()
        self._lanes = self._lanes.give_back(pooled.lane, self._last_batch)
        self._discard(pooled)

    def _top_up(self, batch: int) -> None:
        missing = len(self._waiting) + self._target - len(self._ready) - self._starting
        for _ in range(missing):
            self._lanes, number = self._lanes.lend(batch)
            self._starting += 1
            self._run(partial(self._start, number))

    def _start(self, number: int) -> None:
        try:
            pooled = self._make(number)
        except Exception as error:  # noqa: BLE001 - every error must reach the task that waits
            # Do not reuse the lane. The failed InitProducerId may still reach the broker after the lane's next
            # transaction has committed, and would make that transaction look lost (see `LanePool`).
            with self._lock:
                self._starting -= 1
                if self._waiting:
                    self._waiting.popleft().set_exception(error)
                else:
                    log.warning("A Kafka producer could not be kept ready: %s", error)
            return
        with self._lock:
            self._starting -= 1
            self._offer(pooled)

    def _offer(self, pooled: PooledProducer) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(pooled)
        elif self._dropped:
            self._lanes = self._lanes.give_back(pooled.lane, self._last_batch)
            self._discard(pooled)
        else:
            self._ready.append(pooled)


class WorkerProducers:
    """The pools of one operating system process, and the thread that polls and ends their producers.

    Args:
        run: Runs a function in the background.
    """

    def __init__(self, run: Callable[[Callable[[], None]], None] = _in_thread) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._pools: dict[ProducerSpec, ProducerPool] = {}
        self._producers: set[PooledProducer] = set()
        self._discarded: queue.SimpleQueue[PooledProducer | None] = queue.SimpleQueue()
        self._keeper: threading.Thread | None = None

    def pool(
        self, spec: ProducerSpec, *, keep_at_most: int, open_producer: OpenProducer = PooledProducer.open
    ) -> ProducerPool:
        """Returns the pool of a specification. The first call from a newer run or generation drops the older pools.

        Each pool draws its own worker id, so two sinks never share a lane. Neither do two pools of the same run, which
        exist if the first one was dropped.
        """
        with self._lock:
            if spec not in self._pools:
                for older in [other for other in self._pools if spec.supersedes(other)]:
                    self._pools.pop(older).drop()
                worker = os.urandom(6).hex()
                self._pools[spec] = ProducerPool(
                    lambda lane: self._watch(open_producer(spec, worker, lane)), self._discard, keep_at_most, self._run
                )
            if self._keeper is None:
                self._begin_to_keep()
            return self._pools[spec]

    def stop(self) -> None:
        """Ends every producer before the interpreter exits."""
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
                pooled = self._discarded.get(timeout=max(0.0, poll_at - time.monotonic()))
            except queue.Empty:
                poll_at = time.monotonic() + POLL_EVERY_S
                self._poll_idle()
                continue
            if pooled is None:
                return
            self._end(pooled)

    def _discard(self, pooled: PooledProducer) -> None:
        if self._keeper is None:
            self._end(pooled)
        else:
            self._discarded.put(pooled)

    def _end(self, pooled: PooledProducer) -> None:
        self._producers.discard(pooled)
        pooled.destroy()

    def _poll_idle(self) -> None:
        """Polls producers that no task polls, so that events do not pile up. Ends long-idle producers."""
        for pooled in list(self._producers):
            if time.monotonic() - pooled.polled_s > POLL_EVERY_S:
                try:
                    pooled.poll(0)
                except Exception as error:  # The other producers still need this thread.
                    if not pooled.reports.fatal:
                        log.exception("The producer of %r could not be polled.", pooled.transactional_id)
                        # A delivery report may have been lost, so the producer's task must not prepare.
                        pooled.reports.fatal = f"{type(error).__name__}: {error}"
        with self._lock:
            for pool in self._pools.values():
                pool.expire()

    def _watch(self, pooled: PooledProducer) -> PooledProducer:
        self._producers.add(pooled)
        return pooled


_worker = WorkerProducers()
_inherited: list[WorkerProducers] = []


def this_worker() -> WorkerProducers:
    """Returns the producers of this process."""
    return _worker


def _begin_anew() -> None:
    """Gives a forked process an empty set of producers.

    The parent's producers have no threads in the child, and the child must not end them.
    """
    global _worker
    _inherited.append(_worker)
    _worker = WorkerProducers()


os.register_at_fork(after_in_child=_begin_anew)
atexit.register(lambda: _worker.stop())
