from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import pytest

from integration.verify_query import PER_BATCH, Query, batches_in, rows_of, started, until, with_batches
from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce_lab.faults import OF_REQUESTS, Fault
from sparkonce_lab.systems.files import FilesSystem
from sparkonce_lab.systems.injections import Injectable
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.systems.redis import RedisSystem
from sparkonce_lab.systems.s3 import S3System

MADE: Mapping[str, Callable[[], Injectable]] = {
    "kafka": KafkaSystem,
    "postgres two_phase": PostgresSystem,
    "postgres staged": lambda: PostgresSystem(commit="staged"),
    "files": FilesSystem,
    "mysql two_phase": MySQLSystem,
    "mysql staged": lambda: MySQLSystem(commit="staged"),
    "redis": RedisSystem,
    "s3": S3System,
}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.kafka if name == "kafka" else ()) for name in MADE]
)
def system(request, tmp_path_factory) -> Iterator[Injectable]:
    system = MADE[request.param]()
    if why := system.missing():
        pytest.skip(why)
    with started(system, tmp_path_factory.mktemp("system") / "folder"):
        yield system


NEXT = iter(range(0, 1_000_000, 1))


@pytest.fixture
def query(system) -> Iterator[Query]:
    query = Query(system)
    yield query
    query.sweep()
    query.close()


def test_a_reader_sees_what_is_committed_and_the_system_names_what_is_open(system, query):
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


def test_rows_come_back_as_they_were_written(system, query):
    batch = next(NEXT)
    query.write(batch)
    until(lambda: system.newest() == batch, "the batch is seen")
    written = rows_of(batch).to_pylist()
    found = [row for row in system.read().to_pylist() if row["batch"] == batch]
    places = {(row.pop("partition"), row.pop("offset")) for row in found}
    assert sorted(found, key=lambda row: row["key"]) == written
    assert len(places) == PER_BATCH if system.name == "kafka" else places == {(-1, -1)}


def test_a_row_that_is_there_twice_is_read_twice(system, query):
    before, batch = batches_in(system), next(NEXT)
    query.write(batch)
    query.write(batch)
    until(lambda: batches_in(system) == with_batches(before, batch, batch), "both are read")


def test_every_fault_comes_and_goes_and_the_system_works_on(system, query):
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


def test_a_reply_is_lost(system, query):
    for name in system.faults().get(Fault.REPLY_LOST, ()):
        struck(system, query, Fault.REPLY_LOST, name)


@pytest.mark.slow
def test_a_request_comes_late(system, query):
    for name in system.faults().get(Fault.REQUEST_LATE, ()):
        struck(system, query, Fault.REQUEST_LATE, name)


def struck(system: Injectable, query: Query, fault: Fault, name: str) -> None:
    before = batches_in(system)
    assert system.inject(fault, request=name)
    assert not system.sprung()
    for _ in range(10):
        batch = next(NEXT)
        with contextlib.suppress(SparkonceError):  # a slot may fail, and then its batch is not decided
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
    until(lambda: not list(system.left_open()), f"nothing is open after {fault.value} of {name}")


def test_a_trap_that_has_not_sprung_is_taken_away(system, query):
    for name in system.faults().get(Fault.REPLY_LOST, ())[:1]:
        assert system.proxy is not None
        system.inject(Fault.REPLY_LOST, request=name)
        system.lift(Fault.REPLY_LOST)
        seen = system.proxy.seen[name]
        query.write(next(NEXT))
        assert system.proxy.seen[name] > seen


def test_what_cannot_be_injected_is_refused(system):
    with pytest.raises(ConfigurationError, match="driver-killed cannot be injected"):
        system.inject(Fault.DRIVER_KILLED)
    if Fault.REPLY_LOST in system.faults():
        with pytest.raises(ConfigurationError, match="reply-lost of 'nothing'"):
            system.inject(Fault.REPLY_LOST, request="nothing")
