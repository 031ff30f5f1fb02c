"""What runs in a child process: one run of a query without Spark, with the real driver, log, and sink."""

from __future__ import annotations

import importlib
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

from sparkonce.decision_log import DecisionLog
from sparkonce.driver.outage import Timing
from sparkonce.driver.run import RunDriver
from sparkonce.errors import SparkonceError
from sparkonce.executor import SinkTask, SlotTask, write_slot
from sparkonce.protocol import horizon
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.state import Phase
from sparkonce.sink import Owner, TwoPhaseCommitSink
from sparkonce.storage.local import LocalFiles
from striking.gated import GatedSink
from striking.points import CONCLUDED, HALFWAY, IN_COMMITTER, IN_WRITERS, PREPARED, WRITTEN

QUERY = "7f6e5d4c-0000-4000-8000-000000000001"
SLOTS = 3
ROWS = 4
STRUCK_SLOT = SLOTS - 1
KEPT_BATCHES = 3

GO, DIE, DIE_LATER = "go", "die", "die when prepared"
DONE, ARRIVED, STOPPED, BROKEN = "done", "arrived", "stopped", "broken"

Rows = Callable[[int, int], pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The instructions for a child process. Pickled."""

    sink: TwoPhaseCommitSink
    rows: Rows
    checkpoint: Path
    first: int  # the first batch to run
    last: int
    point: str = ""  # where it waits for its parent the first time it arrives there
    batch: int = -1  # the batch in which it waits
    waits: Mapping[str, int]  # see `Target.waits`
    deadline_s: float = 20.0  # how long the driver retries before it stops
    log: Path


def numbers(batch: int) -> dict[int, list[int]]:
    """The numbers of a batch's rows, by slot. Every fifth batch is empty, and another one has an empty slot."""
    full = () if is_empty(batch) else tuple(slot for slot in range(SLOTS) if not (batch % 5 == 1 and slot == 1))
    return {slot: [1000 * batch + 100 * slot + place for place in range(ROWS)] for slot in full}


def is_empty(batch: int) -> bool:
    return batch % 5 == 3


def carry_out(order: Order, channel: socket.socket) -> None:
    """Runs until it returns, or until SIGKILL."""
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(relativeCreated)d %(name)s: %(message)s")
    logging.getLogger("sparkonce").setLevel(logging.DEBUG)
    horizon.KEEP_BATCHES, horizon.TIDY_EVERY_BATCHES = KEPT_BATCHES, 1
    for place, seconds in order.waits.items():
        module, _, name = place.partition(":")
        found = importlib.import_module(module)
        assert hasattr(found, name), f"{module} has no {name} any more"
        setattr(found, name, seconds)
    gate = Gate(order, channel)
    try:
        _run(order, gate)
    except SparkonceError as error:
        gate.tell(STOPPED, f"{type(error).__name__}: {error}")
    except Exception as error:
        gate.tell(BROKEN, f"{type(error).__name__}: {error}")
        raise


def _run(order: Order, gate: Gate) -> None:
    now = order.first

    def arrive(point: str, *, slot: int = STRUCK_SLOT, batch: int | None = None, **_: object) -> None:
        at = now if batch is None else batch
        if point == CONCLUDED:
            gate.tell(CONCLUDED, at)
        if slot == STRUCK_SLOT:
            gate.arrive(point, at)

    def listen(phase: Phase, batch: int) -> None:
        logging.getLogger("crashes").info("batch %d: %s", batch, phase.name)
        gate.arrive(phase.name, batch)

    def offsets(number: int) -> tuple[str, ...]:
        return (f'{{"t":{{"0":{number}}}}}',)

    # Instrumenting some points changes how a sink is called, so do it only if the run is to be held there.
    points = {*IN_WRITERS, *IN_COMMITTER} - ({HALFWAY, WRITTEN} - {order.point})
    sink = GatedSink(order.sink, arrive, points)
    sink.use_checkpoint(LocalFiles(order.checkpoint))
    driver = RunDriver(
        run=str(uuid.uuid4()),
        query=QUERY,
        sinks={sink.name: sink},
        log=DecisionLog(LocalFiles(order.checkpoint)),
        timing=Timing(outage_patience_s=order.deadline_s, sweep_every_s=0.0),
        listener=listen,
    )
    for now in range(order.first, order.last + 1):
        asked = BatchAsked(batch=now, offsets=offsets(now), previous_offsets=offsets(now - 1) if now else None)
        driver.run_batch(asked, _Work(sink, order.rows, now))
        gate.tell(DONE, now)
    driver.close()


class Gate:
    """Reports events to the parent, including arrival at the ordered point, and waits there for the response."""

    def __init__(self, order: Order, channel: socket.socket) -> None:
        self._order = order
        self._channel = channel
        self._answers = channel.makefile("r")
        self._die_at = ""
        self._arrived = False

    def tell(self, kind: str, what: object) -> None:
        self._channel.sendall(f"{json.dumps([kind, what])}\n".encode())

    def arrive(self, point: str, batch: int) -> None:
        if point == self._die_at:
            self._die()
        if self._arrived or (point, batch) != (self._order.point, self._order.batch):
            return
        self._arrived = True
        self.tell(ARRIVED, point)
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
    """One batch's plan, which runs its slots one after the other."""

    def __init__(self, sink: GatedSink, rows: Rows, batch: int) -> None:
        self._sink = sink
        self._rows = rows
        self._batch = batch

    def write(
        self,
        sinks: Mapping[str, Owner],
        only: frozenset[tuple[str, int]] | None,
        computed: Callable[[], None] | None = None,
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

    def is_stopped(self) -> bool:
        return False

    def _pieces(self, slot: int) -> list[pa.RecordBatch]:
        found = numbers(self._batch).get(slot, [])
        if not found:
            return []
        hashes = pa.array([number * 0x9E3779B97F4A7C15 % 2**63 for number in found], pa.int64())
        rows = self._rows(found[0], len(found)).append_column("fingerprint", hashes)
        return [rows.slice(0, 1), rows.slice(1)]
