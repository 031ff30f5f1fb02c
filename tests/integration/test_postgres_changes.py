"""Tables that change while a query writes to them: the location of their partitions, and the types of columns."""

from __future__ import annotations

import re
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from integration.postgres_scene import new_sink
from one_run import QUERY, finish, open_writer, outcomes, prepare
from shared_servers import needs_postgres
from sparkonce.errors import PreflightError, PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Outcome
from sparkonce_lab.systems.postgres import PostgresSystem

pytestmark = needs_postgres

both = pytest.mark.parametrize("commit", ["two_phase", "staged"])


@pytest.fixture
def postgres(postgres) -> PostgresSystem:
    postgres.ask("CREATE TABLE t (id bigint, k bigint) PARTITION BY LIST (k)")
    return postgres


ROWS = pa.record_batch({"id": [1, 2], "k": [1, 1]})

FOREIGN, UNLOGGED = "part is a foreign table", "part is unlogged"
either = pytest.mark.parametrize("why", [FOREIGN, UNLOGGED])


@pytest.fixture(autouse=True)
def remote(postgres) -> None:
    """Creates a foreign table that PostgreSQL treats as remote, although it is on the same server."""
    postgres.ask("CREATE EXTENSION postgres_fdw; CREATE TABLE remote (id bigint, k bigint)")
    postgres.ask(
        "CREATE SERVER other FOREIGN DATA WRAPPER postgres_fdw "
        f"OPTIONS (host '127.0.0.1', port '{postgres.server.port}', dbname 'postgres'); "
        "CREATE USER MAPPING FOR postgres SERVER other OPTIONS (user 'postgres')"
    )
    postgres.ask("CREATE FOREIGN TABLE part (id bigint, k bigint) SERVER other OPTIONS (table_name 'remote')")


def attach(postgres: PostgresSystem, why: str) -> None:
    if why == UNLOGGED:
        postgres.ask("DROP FOREIGN TABLE part; CREATE UNLOGGED TABLE part (id bigint, k bigint)")
    postgres.ask("ALTER TABLE t ATTACH PARTITION part FOR VALUES IN (1)")


def ids(postgres: PostgresSystem, table: str = "t") -> list[int]:
    return [one for (one,) in postgres.ask(f"SELECT id FROM {table} ORDER BY id")]  # noqa: S608 - the test's


@both
@either
def test_a_partition_that_keeps_no_promise_is_refused_by_name(postgres, why, commit):
    """This applies anywhere in the tree.

    Rows that a foreign server committed separately were duplicated after a crash.
    """
    attach(postgres, why)
    postgres.ask("CREATE TABLE top (id bigint, k bigint) PARTITION BY RANGE (id)")
    postgres.ask("ALTER TABLE top ATTACH PARTITION t FOR VALUES FROM (0) TO (9)")
    for table in ("t", "top"):
        with pytest.raises(PreflightError, match=f"public.{why}.* Next: .*DETACH"):
            new_sink(postgres, table, commit=commit).preflight(QUERY, None)
        new_sink(postgres, table, commit=commit, guarantee=Guarantee.AT_LEAST_ONCE).preflight(QUERY, None)


@both
@either
def test_a_partition_that_comes_while_rows_are_written(postgres, why, commit):
    postgres.ask("CREATE TABLE good PARTITION OF t FOR VALUES IN (7)")
    writer = open_writer(new_sink(postgres, commit=commit), pa.record_batch({"id": [1], "k": [7]}))
    attach(postgres, why)
    with pytest.raises(PrepareError, match=f"{why}.*DETACH"):
        writer.prepare()
    writer.abort()
    assert (ids(postgres), postgres.stages()) == ([], [])


def test_a_partition_that_comes_after_the_decision(postgres):
    """The batch waits, even across a server crash, and is committed once the partition is replaced."""
    mend = "ALTER TABLE t DETACH PARTITION part; CREATE TABLE good PARTITION OF t FOR VALUES IN (1)"
    given = new_sink(postgres)
    handle = prepare(given, ROWS)
    attach(postgres, FOREIGN)
    for _ in range(2):
        (found,) = finish(given, handle)
        assert (found.outcome, f"public.{FOREIGN}" in found.reason) == (Outcome.UNKNOWN, True)
        assert (ids(postgres), ids(postgres, "remote"), len(postgres.stages())) == ([], [], 1)
    postgres.ask(mend)
    assert outcomes(finish(given, handle)) == [Outcome.COMMITTED]
    postgres.restart()
    assert (ids(postgres), ids(postgres, "remote"), postgres.stages()) == ([1, 2], [], [])


def test_prepared_rows_keep_their_partition_as_it_is(postgres):
    """This is why two_phase checks nothing again after the prepare."""
    postgres.ask("CREATE TABLE good PARTITION OF t FOR VALUES IN (1)")
    given = new_sink(postgres, commit="two_phase")
    handle = prepare(given, ROWS)
    for change in ("ALTER TABLE good SET UNLOGGED", "ALTER TABLE t DETACH PARTITION good", "ALTER TABLE t ADD x int"):
        with pytest.raises(psycopg.errors.LockNotAvailable):
            postgres.ask(f"SET lock_timeout = 1; {change}")
    assert outcomes(finish(given, handle)) == [Outcome.COMMITTED]


@pytest.mark.parametrize(
    ("change", "back", "words"),
    [
        ("v TYPE numeric(10,1)", "v TYPE numeric(10,2)", r"v was numeric\(10,2\) and is numeric\(10,1\)"),
        ("w TYPE varchar(3)", "w TYPE varchar(9)", r"w was character varying\(9\) and is character varying\(3\)"),
        ("v TYPE double precision", "v TYPE numeric(10,2)", "and is double precision"),
    ],
)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_column_that_changes_its_type_after_the_decision(postgres, change, back, words, mode):
    """The server would silently round the number and cut off the spaces."""
    postgres.ask("CREATE TABLE typed (id bigint PRIMARY KEY, v numeric(10,2), w varchar(9), later int)")
    given = new_sink(postgres, "typed", mode=mode, key_columns=["id"] if mode == "upsert" else [])
    row = {"id": pa.array([1], pa.int64()), "v": pa.array([Decimal("1.25")], pa.decimal128(10, 2)), "w": ["abc   "]}
    handle = prepare(given, pa.record_batch(row))
    postgres.ask(f"ALTER TABLE typed ALTER later TYPE bigint, ALTER {change}")
    (found,) = finish(given, handle)
    assert found.outcome is Outcome.UNKNOWN
    assert re.search(words, found.reason)
    assert "later" not in found.reason
    assert ids(postgres, "typed") == []
    postgres.ask(f"ALTER TABLE typed ALTER {back}, ADD another int")
    assert outcomes(finish(given, handle)) == [Outcome.COMMITTED]
    assert postgres.ask("SELECT id, v, w FROM typed") == [(1, Decimal("1.25"), "abc   ")]
