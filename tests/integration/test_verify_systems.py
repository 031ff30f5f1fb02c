from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.sinks.base import Owner, SinkWriter, WriterContext
from sparkonce.sinks.kafka.producers import this_worker
from sparkonce.testing.servers.mariadb import MariaDBServer
from sparkonce.testing.servers.postgres import find_postgres
from sparkonce.testing.servers.process import find_program
from sparkonce.testing.servers.s3 import find_versitygw
from sparkonce.verify.faults import OF_REQUESTS, Fault
from sparkonce.verify.history import OBSERVED
from sparkonce.verify.systems.base import System
from sparkonce.verify.systems.files import FilesSystem
from sparkonce.verify.systems.injections import Struck
from sparkonce.verify.systems.kafka import KafkaSystem
from sparkonce.verify.systems.mysql import MySQLSystem
from sparkonce.verify.systems.names import SYSTEMS
from sparkonce.verify.systems.postgres import PostgresSystem
from sparkonce.verify.systems.redis import RedisSystem
from sparkonce.verify.systems.s3 import S3System

LIMIT_S = 60.0
PER_BATCH = 3
FINAL = {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}


class Query:
    """What a query does to a system, without Spark: one slot a batch."""

    def __init__(self, system: System) -> None:
        self.system = system
        settings = json.loads(json.dumps(system.sink_settings()))
        self.sink = SYSTEMS[system.name].build(settings)
        query = secrets.token_hex(6)
        self.owner = Owner(query=query, token=Token(3, "0badcafe"), facts=self.sink.preflight(query, None))
        self.committer = self.sink.committer()
        self.handles: dict[int, Handle] = {}

    def open(self, batch: int) -> SinkWriter:
        rows = rows_of(batch)
        if self.system.name == "kafka":
            lines = [",".join(str(value) for value in row.values()) for row in rows.to_pylist()]
            rows = pa.record_batch({"key": [line.split(",")[1] for line in lines], "value": lines})
        rows = rows.select(list(self.sink.columns(rows.schema)))
        writer = self.sink.writer(WriterContext(owner=self.owner, batch=batch, slot=0, copy="1.0.0"))
        try:
            writer.begin()
            writer.write(rows)
        except BaseException:
            writer.abort()
            raise
        return writer

    def prepare(self, batch: int) -> None:
        writer = self.open(batch)
        try:
            fields = writer.prepare()
        except BaseException:
            writer.abort()
            raise
        writer.close()
        self.handles[batch] = Handle(
            sink=self.sink.name, slot=0, rows=PER_BATCH, transaction=transaction_fields(fields)
        )

    def commit(self, batch: int) -> None:
        self._finish(self.committer.commit, self.handles.pop(batch), FINAL)

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
    """Asks again while it does not hold, or cannot be asked."""
    give_up_at = time.monotonic() + LIMIT_S
    while True:
        problem = ""
        try:
            if holds():
                return
        except Exception as error:  # noqa: BLE001 - it is asked again
            problem = repr(error)
        assert time.monotonic() < give_up_at, f"not within {LIMIT_S:g} s: {what} {problem}"
        time.sleep(0.05)


def batches_in(system: System) -> list[tuple[int, int]]:
    """Batch and key of what a reader finds."""
    found = system.read()
    assert found.schema == OBSERVED
    return sorted(zip(found["batch"].to_pylist(), found["key"].to_pylist(), strict=True))


def with_batches(before: list[tuple[int, int]], *batches: int) -> list[tuple[int, int]]:
    return sorted([*before, *((batch, key) for batch in batches for key in range(PER_BATCH))])


@contextlib.contextmanager
def started(system: System, folder: Path) -> Iterator[System]:
    try:
        system.start(folder)
        yield system
    finally:
        system.stop()


MADE: Mapping[str, Callable[[], Struck]] = {
    "kafka": KafkaSystem,
    "postgres two_phase": PostgresSystem,
    "postgres staged": lambda: PostgresSystem(commit="staged"),
    "files": FilesSystem,
    "mysql two_phase": MySQLSystem,
    "mysql staged": lambda: MySQLSystem(commit="staged"),
    "redis": RedisSystem,
    "s3": S3System,
}
MISSING = {
    "postgres": "" if find_postgres() else "PostgreSQL is not installed",
    "mysql": "" if MariaDBServer.is_installed() else "MariaDB is not installed",
    "redis": "" if find_program("redis-server") else "redis-server is not installed",
    "s3": "" if find_versitygw() else "versitygw is not installed",
}


@pytest.fixture(scope="module", params=list(MADE))
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Struck]:
    system = MADE[request.param]()
    if why := MISSING.get(system.name):
        pytest.skip(why)
    with started(system, tmp_path_factory.mktemp("system") / "folder"):
        yield system


NEXT = iter(range(0, 1_000_000, 1))


@pytest.fixture
def query(system: Struck) -> Iterator[Query]:
    query = Query(system)
    yield query
    query.sweep()
    query.close()


def test_a_reader_sees_what_is_committed_and_the_system_names_what_is_open(system: Struck, query: Query) -> None:
    before, first, second = batches_in(system), next(NEXT), next(NEXT)
    query.prepare(first)
    query.prepare(second)
    assert system.left_open()
    assert batches_in(system) == before
    query.commit(first)
    until(lambda: system.newest() == first, "the first batch is seen")
    assert batches_in(system) == with_batches(before, first)
    assert system.left_open()
    query.abort(second)
    until(lambda: not system.left_open(), "nothing is open")
    assert system.newest() == first
    assert batches_in(system) == with_batches(before, first)


def test_rows_come_back_as_they_were_written(system: Struck, query: Query) -> None:
    batch = next(NEXT)
    query.write(batch)
    until(lambda: system.newest() == batch, "the batch is seen")
    written = rows_of(batch).to_pylist()
    found = [row for row in system.read().to_pylist() if row["batch"] == batch]
    places = {(row.pop("partition"), row.pop("offset")) for row in found}
    assert sorted(found, key=lambda row: row["key"]) == written
    assert len(places) == PER_BATCH if system.name == "kafka" else places == {(-1, -1)}


def test_a_row_that_is_there_twice_is_read_twice(system: Struck, query: Query) -> None:
    before, batch = batches_in(system), next(NEXT)
    query.write(batch)
    query.write(batch)
    until(lambda: batches_in(system) == with_batches(before, batch, batch), "both are read")


def test_every_fault_comes_and_goes_and_the_system_works_on(system: Struck, query: Query) -> None:
    before = batches_in(system)
    for fault in system.faults():
        if fault in OF_REQUESTS:
            continue
        batch = next(NEXT)
        query.prepare(batch)
        lasts = system.inject(fault)
        assert system.sprung()
        assert lasts == (fault is not Fault.CUT)
        if lasts:
            system.lift(fault)
        query.commit(batch)
        before = with_batches(before, batch)
        until(lambda batch=batch: system.newest() == batch, f"the batch after {fault.value} is seen")
        assert batches_in(system) == before


def test_a_reply_is_lost(system: Struck, query: Query) -> None:
    for name in system.faults().get(Fault.REPLY_LOST, ()):
        struck(system, query, Fault.REPLY_LOST, name)


def test_a_request_comes_late(system: Struck, query: Query) -> None:
    for name in system.faults().get(Fault.REQUEST_LATE, ()):
        struck(system, query, Fault.REQUEST_LATE, name)


def struck(system: Struck, query: Query, fault: Fault, name: str) -> None:
    """Whatever a request is for, the trap springs, and no row is lost or doubled."""
    before = batches_in(system)
    assert system.inject(fault, request=name)
    assert not system.sprung()
    for _ in range(10):
        batch = next(NEXT)
        with contextlib.suppress(SparkonceError):  # a slot may fail, and its batch is not decided then
            query.prepare(batch)
        if name == "abort" and batch in query.handles:
            query.abort(batch)
        elif batch in query.handles:
            query.commit(batch)
            before = with_batches(before, batch)
        if system.sprung():
            break
    assert system.sprung(), f"{name} never came"
    system.lift(fault)
    query.sweep()
    until(lambda: batches_in(system) == before, f"a reader sees what is decided, after {fault.value} of {name}")
    until(lambda: not system.left_open(), f"nothing is open after {fault.value} of {name}")


def test_a_trap_that_has_not_sprung_is_taken_away(system: Struck, query: Query) -> None:
    if Fault.REPLY_LOST not in system.faults():
        pytest.skip("it has no requests")
    name = system.faults()[Fault.REPLY_LOST][0]
    system.inject(Fault.REPLY_LOST, request=name)
    system.lift(Fault.REPLY_LOST)
    seen = system.proxy.seen[name] if system.proxy else 0
    query.write(next(NEXT))
    assert system.proxy is not None
    assert system.proxy.seen[name] > seen


def test_what_cannot_be_injected_is_refused(system: Struck) -> None:
    with pytest.raises(ConfigurationError, match="driver-killed cannot be injected"):
        system.inject(Fault.DRIVER_KILLED)
    if Fault.REPLY_LOST in system.faults():
        with pytest.raises(ConfigurationError, match="reply-lost of 'nothing'"):
            system.inject(Fault.REPLY_LOST, request="nothing")
