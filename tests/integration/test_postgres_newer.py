from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from integration.postgres_scene import new_sink
from one_run import finish, open_writer, outcomes, prepare
from other_servers import programs_of
from shared_servers import new_postgres
from sparkonce.protocol.handles import Handle, Outcome, transaction_fields
from sparkonce.sinks.sql.postgres.connection import close_all
from sparkonce_lab.rig.servers.postgres import PostgresServer
from sparkonce_lab.systems.postgres import PostgresSystem

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(programs=programs_of("postgres=18.1.0")) as newer:
        yield newer


@pytest.fixture
def postgres(server) -> Iterator[PostgresSystem]:
    system = new_postgres(server)
    yield system
    system.stop()
    close_all()


ROWS = pa.record_batch({"id": pa.array([1], pa.int32()), "text": ["one"]})


@pytest.mark.parametrize("commit", ["staged", "two_phase"])
def test_a_roles_timeout_ends_neither_a_long_slot_nor_a_long_commit(postgres, commit):
    postgres.ask("CREATE TABLE t (id int, text text)")
    postgres.ask(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END'"
    )
    postgres.ask("CREATE TRIGGER slow AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION slow()")
    postgres.ask(f"CREATE ROLE {commit} SUPERUSER LOGIN")
    postgres.ask(f"ALTER ROLE {commit} SET transaction_timeout = '200ms'")
    sink = new_sink(postgres, commit=commit, user=commit)
    writer = open_writer(sink, ROWS)
    postgres.ask("SELECT pg_sleep(0.4)")
    handle = Handle(sink=sink.name, slot=0, rows=1, transaction=transaction_fields(writer.prepare()))
    writer.close()
    assert outcomes(finish(sink, handle)) == [Outcome.COMMITTED]
    assert postgres.ask("SELECT id FROM t") == [(1,)]


@pytest.mark.parametrize("commit", ["staged", "two_phase"])
def test_a_check_that_is_not_enforced_refuses_no_row(postgres, commit):
    postgres.ask("CREATE TABLE t (id int CHECK (id > 9) NOT ENFORCED, text text)")
    sink = new_sink(postgres, commit=commit)
    assert outcomes(finish(sink, prepare(sink, ROWS))) == [Outcome.COMMITTED]
    assert postgres.ask("SELECT id FROM t") == [(1,)]
