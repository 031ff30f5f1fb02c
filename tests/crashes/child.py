"""What runs in a child: one run of a query without Spark, with the real driver, log, and sink."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from crashes.points import HALFWAY, PREPARED
from crashes.watched import WatchedSink
from sparkonce.driver.run import RunDriver, Timing
from sparkonce.errors import SparkonceError
from sparkonce.executor import SinkTask, SlotTask, write_slot
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol import coordinator
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.state import Phase
from sparkonce.sinks.base import Owner, TwoPhaseCommitSink

QUERY = "7f6e5d4c-0000-4000-8000-000000000001"
SLOTS = 3
ROWS = 4
STRUCK_SLOT = SLOTS - 1
KEPT_BATCHES = 3

GO, DIE, DIE_LATER = "go", "die", "die when prepared"
DONE, CONCLUDED, VISIT, STOPPED, BROKEN = "done", "concluded", "visit", "stopped", "broken"

Rows = Callable[[int, int], pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a child is to do. Pickled.

    Attributes:
        sink: The real sink.
        rows: Gives the rows that carry the numbers from a first one on, so many.
        checkpoint: The query's.
        first: The first batch to run.
        last: The last one.
        point: Where it waits for its parent, the first time that it comes there; empty for nowhere.
        batch: In which batch.
        deadline_s: How long the driver asks before it stops.
        log: Where it logs.
    """

    sink: TwoPhaseCommitSink
    rows: Rows
    checkpoint: Path
    first: int
    last: int
    point: str = ""
    batch: int = -1
    deadline_s: float = 20.0
    log: Path


def numbers(batch: int) -> dict[int, list[int]]:
    """The numbers of a batch's rows, by slot: every fifth batch is empty, another one has an empty slot."""
    full = () if is_empty(batch) else tuple(slot for slot in range(SLOTS) if not (batch % 5 == 1 and slot == 1))
    return {slot: [1000 * batch + 100 * slot + place for place in range(ROWS)] for slot in full}


def is_empty(batch: int) -> bool:
    return batch % 5 == 3


def run(order: Order, channel: socket.socket) -> None:
    """Ends by returning, or by SIGKILL."""
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(relativeCreated)d %(name)s: %(message)s")
    logging.getLogger("sparkonce").setLevel(logging.DEBUG)
    coordinator.KEEP_BATCHES, coordinator.TIDY_EVERY_BATCHES = KEPT_BATCHES, 1
    desk = Desk(order, channel)
    try:
        _run(order, desk)
    except SparkonceError as error:
        desk.tell(STOPPED, f"{type(error).__name__}: {error}")
    except Exception as error:
        desk.tell(BROKEN, f"{type(error).__name__}: {error}")
        raise


def _run(order: Order, desk: Desk) -> None:
    sink = WatchedSink(
        order.sink,
        visit=desk.visit,
        concluded=lambda batch: desk.tell(CONCLUDED, batch),
        struck_slot=STRUCK_SLOT,
        halves=order.point == HALFWAY,
    )
    sink.use_checkpoint(str(order.checkpoint))
    driver = RunDriver(
        run=str(uuid.uuid4()),
        query=QUERY,
        sinks={sink.name: sink},
        log=DecisionLog(LocalLogStore(order.checkpoint)),
        timing=Timing(commit_deadline_s=order.deadline_s, sweep_every_s=0.0),
        listener=lambda phase, batch: _listen(phase, batch, desk, order),
    )
    for batch in range(order.first, order.last + 1):
        sink.batch = batch
        driver.run_batch(_asked(batch), _Work(sink, order.rows, batch))
        desk.tell(DONE, batch)
    driver.close()


def _listen(phase: Phase, batch: int, desk: Desk, order: Order) -> None:
    logging.getLogger("crashes").info("batch %d: %s", batch, phase.name)
    desk.visit(phase.name, batch)


def _asked(batch: int) -> BatchAsked:
    def line(number: int) -> tuple[str, ...]:
        return (f'{{"t":{{"0":{number}}}}}',)

    return BatchAsked(batch=batch, offsets=line(batch), previous_offsets=line(batch - 1) if batch else None)


class Desk:
    """Tells the parent, and at the ordered point waits for its word."""

    def __init__(self, order: Order, channel: socket.socket) -> None:
        self._order = order
        self._channel = channel
        self._answers = channel.makefile("r")
        self._die_at = ""
        self._visited = False

    def tell(self, kind: str, what: object) -> None:
        self._channel.sendall(f"{json.dumps([kind, what])}\n".encode())

    def visit(self, point: str, batch: int) -> None:
        if point == self._die_at:
            self._die()
        if self._visited or (point, batch) != (self._order.point, self._order.batch):
            return
        self._visited = True
        self.tell(VISIT, point)
        answer = self._answers.readline().strip()
        if answer == DIE_LATER:
            self._die_at = PREPARED
        elif answer != GO:
            self._die()

    @staticmethod
    def _die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)  # the signal is on its way


class _Work:
    """One batch's plan: its slots one after the other."""

    def __init__(self, sink: WatchedSink, rows: Rows, batch: int) -> None:
        self._sink = sink
        self._rows = rows
        self._batch = batch

    def write(
        self, sinks: Mapping[str, Owner], only: frozenset[tuple[str, int]] | None
    ) -> tuple[Sequence[Handle], bool]:
        columns = tuple(self._sink.columns(self._rows(0, 1).schema))
        parts = tuple(
            SinkTask(sink=self._sink, owner=owner, columns=columns, fingerprint="fingerprint")
            for owner in sinks.values()
        )
        task = SlotTask(batch=self._batch, sinks=parts, only=only)
        handles: list[Handle] = []
        for slot in range(SLOTS):
            handles += write_slot(self._pieces(slot), task, slot=slot, copy=f"1.{slot}.0")
        return handles, False

    def run_into_nothing(self) -> None:
        pass

    def _pieces(self, slot: int) -> list[pa.RecordBatch]:
        found = numbers(self._batch).get(slot, [])
        if not found:
            return []
        hashes = pa.array([number * 0x9E3779B97F4A7C15 % 2**63 for number in found], pa.int64())
        rows = self._rows(found[0], len(found)).append_column("fingerprint", hashes)
        return [rows.slice(0, 1), rows.slice(1)]
