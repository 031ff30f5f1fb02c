from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import one_run
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner
from sparkonce.sinks.kafka.producer_pool import this_worker
from sparkonce_lab.history import OBSERVED
from sparkonce_lab.systems.base import VerifiedSystem
from sparkonce_lab.systems.names import SYSTEMS

LIMIT_S = 30.0
PER_BATCH = 3
FINAL = {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}


class Query:
    """Writes to a system as a query does, without Spark, with one slot per batch."""

    def __init__(self, system: VerifiedSystem) -> None:
        self.system = system
        settings = json.loads(json.dumps(system.sink_settings()))
        self.sink = SYSTEMS[system.name].build(settings)
        query = secrets.token_hex(6)
        self.owner = Owner(query=query, token=Token(3, "0badcafe"), facts=self.sink.preflight(query, None))
        self.committer = self.sink.committer()
        self.handles: dict[int, Handle] = {}

    def prepare(self, batch: int) -> None:
        rows = rows_of(batch)
        if self.system.name == "kafka":
            lines = [",".join(str(value) for value in row.values()) for row in rows.to_pylist()]
            rows = pa.record_batch({"key": [line.split(",")[1] for line in lines], "value": lines})
        self.handles[batch] = one_run.prepare(self.sink, rows, run=self.owner, batch=batch)

    def commit(self, batch: int) -> None:
        handle = self.handles.pop(batch)
        self._finish(self.committer.commit, handle, FINAL)
        until(lambda: self.committer.conclude(batch, [handle]) is None, f"batch {batch} is concluded")

    def abort(self, batch: int) -> None:
        self._finish(self.committer.abort, self.handles.pop(batch), {Outcome.ABORTED})

    def write(self, batch: int) -> None:
        self.prepare(batch)
        self.commit(batch)

    def sweep(self) -> None:
        for handle in self.committer.list_lingering([self.owner]):
            self._finish(self.committer.abort, handle, {Outcome.ABORTED})

    def _finish(self, call: Callable[[Sequence[Handle]], Sequence[Any]], handle: Handle, wanted: set[Outcome]) -> None:
        until(lambda: call([handle])[0].outcome in wanted, f"{handle} is final")

    def close(self) -> None:
        self.committer.close()
        this_worker().stop()


def rows_of(batch: int) -> pa.RecordBatch:
    numbers = list(range(PER_BATCH))
    columns: dict[str, list[Any]] = {
        "kind": ["row"] * PER_BATCH,
        "key": numbers,
        "number": [batch * 10 + number for number in numbers],
        "amount": [-number for number in numbers],
        "rows": [1] * PER_BATCH,
    }
    types = {name: OBSERVED.field(name).type for name in OBSERVED.names[:6]}
    return pa.record_batch(
        [pa.array(columns.get(name, [batch] * PER_BATCH), types[name]) for name in types], list(types)
    )


def until(holds: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while True:
        problem = ""
        try:
            if holds():
                return
        except Exception as error:  # noqa: BLE001 - retried
            problem = repr(error)
        assert time.monotonic() < give_up_at, f"not within {LIMIT_S:g} s: {what} {problem}"
        time.sleep(0.05)


def batches_in(system: VerifiedSystem) -> list[tuple[int, int]]:
    found = system.read()
    assert found.schema == OBSERVED
    return sorted(zip(found["batch"].to_pylist(), found["key"].to_pylist(), strict=True))


def with_batches(before: list[tuple[int, int]], *batches: int) -> list[tuple[int, int]]:
    return sorted([*before, *((batch, key) for batch in batches for key in range(PER_BATCH))])


@contextlib.contextmanager
def started(system: VerifiedSystem, folder: Path) -> Iterator[VerifiedSystem]:
    try:
        system.start(folder)
        system.place()
        yield system
    finally:
        system.stop()
