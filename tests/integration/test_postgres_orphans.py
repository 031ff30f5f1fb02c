from __future__ import annotations

import json
import threading
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from eventually import eventually
from integration.postgres_scene import new_sink
from one_run import QUERY, finish, open_writer, prepare
from shared_servers import needs_postgres
from small_job import SmallJob
from sparkonce.cli.main import app
from sparkonce.protocol.state import Phase
from sparkonce.sinks.sql.postgres.orphans import list_open
from sparkonce_lab.systems.postgres import PostgresSystem

pytestmark = needs_postgres

ROWS = pa.record_batch({"id": [1, 2]})


sink = partial(new_sink, table="odd.Name")


@pytest.fixture
def postgres(postgres) -> PostgresSystem:
    postgres.ask('CREATE TABLE "odd.Name" (id bigint)')
    return postgres


def test_all_that_is_open_is_listed_with_age_locks_and_who_waits(postgres):
    def _lock(connection: psycopg.Connection[Any]) -> None:
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute('ALTER TABLE "odd.Name" ADD x int')

    first, second = sink(postgres, commit="two_phase"), sink(postgres, name="second")
    held, staged = prepare(first, ROWS, batch=4, slot=2), prepare(second, ROWS, batch=5)
    writer = open_writer(second, ROWS)
    postgres.ask("BEGIN; INSERT INTO \"odd.Name\" VALUES (9); PREPARE TRANSACTION 'theirs'")
    with psycopg.connect(postgres.server.conninfo(), autocommit=True) as other:
        waiting = threading.Thread(target=_lock, args=(other,))
        waiting.start()
        try:
            eventually(lambda: postgres.ask("SELECT 1 FROM pg_locks WHERE NOT granted"), "it waits")
            found = {one.kind: one for one in list_open(postgres.server.conninfo())}
        finally:
            other.cancel_safe()
            waiting.join()
    writer.abort()
    assert set(found) == {"prepared", "staged", "session"}
    one = found["prepared"]
    assert (one.name, one.query, one.run, one.batch, one.slot) == (held["name"], QUERY, "3-0badcafe", 4, 2)
    assert '"odd.Name" RowExclusiveLock' in one.holds
    assert (one.owner, one.blocks) == ("postgres", 1)
    assert 0 <= one.age_s < 300
    assert found["staged"].name == staged["name"]
    assert found["staged"].holds[0].startswith(f'"public"."{postgres.stages()[0]}" ')
    assert found["session"].query == QUERY
    finish(first, held, commit=False)
    finish(second, staged, commit=False)


def test_the_command_lists_and_changes_nothing(postgres):
    run = CliRunner()
    command = ["transactions", "list", "--system", "postgres", "--settings", postgres.server.conninfo()]
    assert "Nothing of sparkonce is open" in run.invoke(app, command).output
    given = sink(postgres, commit="two_phase")
    handle = prepare(given, ROWS)
    shown = run.invoke(app, command)
    assert shown.exit_code == 0
    assert str(handle["name"]) in shown.output
    command = [*command, "--format=json"]
    (listed,) = json.loads(run.invoke(app, command).output)
    assert (listed["kind"], listed["name"]) == ("prepared", handle["name"])
    assert json.loads(run.invoke(app, [*command, "--older-than-s", "3600"]).output) == []
    assert json.loads(run.invoke(app, [*command, "--query", "ffffffff-ffff-ffff"]).output) == []
    assert len(json.loads(run.invoke(app, [*command, "--query", f"{QUERY[:8]}-{QUERY[8:]}"]).output)) == 1
    assert postgres.prepared() == [handle["name"]]


def test_what_the_page_says_takes_orphans_of_a_query_away_that_is_gone_for_good(postgres):
    """Runs the SQL from docs/postgres.md, "Orphans"."""
    held, staged = prepare(sink(postgres, commit="two_phase"), ROWS), prepare(sink(postgres), ROWS)
    name = str(held["name"])
    postgres.ask(f"ROLLBACK PREPARED '{name}'")
    (table,) = postgres.stages()
    postgres.ask(f"BEGIN; DROP TABLE {table}; DELETE FROM sparkonce_commits WHERE name = '{staged['name']}'; COMMIT")  # noqa: S608
    assert list_open(postgres.server.conninfo()) == []
    found = finish(sink(postgres), held, staged)
    assert {one.outcome.name for one in found} == {"LOST"}


def test_an_orphan_holds_vacuum_back_until_the_query_is_started_again(postgres, tmp_path):
    """This affects every table in the database.

    It is measured by file size, which VACUUM reduces when the end is unused.
    """

    def vacuumed(postgres: PostgresSystem) -> int:
        """Returns the size of the other table in bytes after VACUUM."""
        postgres.ask("VACUUM other")
        ((size,),) = postgres.ask("SELECT pg_relation_size('other')")
        return int(size)

    postgres.ask("CREATE TABLE other WITH (autovacuum_enabled = false) AS SELECT generate_series(1, 20000) AS number")
    job = SmallJob(tmp_path, lambda: [sink(postgres, commit="two_phase")], lambda *_: ROWS, slots=1)
    job.kill(0, Phase.DECIDING)
    (orphan,) = postgres.prepared()
    postgres.ask("DELETE FROM other")
    before = vacuumed(postgres)
    assert before > 0
    ((age,),) = postgres.ask("SELECT age(transaction) FROM pg_prepared_xacts")
    postgres.ask("SELECT txid_current()")
    assert postgres.ask("SELECT age(transaction) > %s FROM pg_prepared_xacts", age) == [(True,)]
    assert vacuumed(postgres) == before
    job.run(0)
    assert orphan not in postgres.prepared()
    assert vacuumed(postgres) == 0
    assert postgres.ask('SELECT count(*) FROM "odd.Name"') == [(ROWS.num_rows,)]
