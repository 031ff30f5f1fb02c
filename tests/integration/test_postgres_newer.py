"""What PostgreSQL has only since 17 or 18."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from postgres_witness import (
    ask,
    database_fixture,
    finish,
    fresh_database,
    new_sink,
    open_writer,
    outcomes,
    prepare,
)

from other_servers import programs_of
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Outcome
from sparkonce.rig.servers.postgres import PostgresServer

__all__ = ["emptied"]

pytestmark = pytest.mark.slow
emptied = database_fixture("CREATE TABLE t (id int, text text)")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(programs=programs_of("postgres=18.1.0")) as newer:
        yield newer


ROWS = pa.record_batch({"id": pa.array([1], pa.int32()), "text": ["one"]})


@pytest.mark.parametrize("commit", ["staged", "two_phase"])
def test_a_roles_timeout_ends_neither_a_long_slot_nor_a_long_commit(server: PostgresServer, commit: str) -> None:
    ask(
        server,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END'",
    )
    ask(server, "CREATE TRIGGER slow AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION slow()")
    ask(server, f"CREATE ROLE {commit} SUPERUSER LOGIN")
    ask(server, f"ALTER ROLE {commit} SET transaction_timeout = '200ms'")
    sink = new_sink(server, commit=commit, user=commit)
    writer = open_writer(sink, ROWS)
    ask(server, "SELECT pg_sleep(0.4)")
    handle = Handle(sink=sink.name, slot=0, rows=1, transaction=transaction_fields(writer.prepare()))
    writer.close()
    assert outcomes(finish(sink, handle)) == [Outcome.COMMITTED]
    assert ask(server, "SELECT id FROM t") == [(1,)]


@pytest.mark.parametrize("commit", ["staged", "two_phase"])
def test_a_check_that_is_not_enforced_refuses_no_row(server: PostgresServer, commit: str) -> None:
    fresh_database(server, "CREATE TABLE t (id int CHECK (id > 9) NOT ENFORCED, text text)")
    sink = new_sink(server, commit=commit)
    assert outcomes(finish(sink, prepare(sink, ROWS))) == [Outcome.COMMITTED]
    assert ask(server, "SELECT id FROM t") == [(1,)]
