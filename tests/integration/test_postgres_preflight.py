from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from integration.postgres_scene import new_sink
from one_run import QUERY, finish, outcomes, owner, prepare
from shared_servers import needs_postgres, new_postgres
from sparkonce.errors import ConfigurationError, PreflightError, PrepareError, SchemaError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.sinks.sql.postgres import preflight
from sparkonce.sinks.sql.postgres.connection import close_all
from sparkonce.sinks.sql.postgres.sink import PostgresSink
from sparkonce_lab.rig.servers.postgres import PostgresServer
from sparkonce_lab.systems.postgres import PostgresSystem

pytestmark = needs_postgres

ROWS = pa.record_batch({"id": [1, 2], "text": ["a", "b"]})


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer({"max_prepared_transactions": "2"}) as started:
        yield started
        close_all()


@pytest.fixture
def postgres(server) -> Iterator[PostgresSystem]:
    postgres = new_postgres(server)
    postgres.ask("CREATE TABLE t (id bigint, text text)")
    postgres.ask("CREATE ROLE plain LOGIN")
    yield postgres
    postgres.stop()


LEAVES_OUT = (
    "CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "
    "CREATE TRIGGER leave_out"
)
FOR_EACH = "FOR EACH ROW WHEN (NEW.id = 1) EXECUTE FUNCTION leave_out()"
IGNORING_CASE = "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"


def refused(postgres: PostgresSystem, *words: str, **more: Any) -> None:
    with pytest.raises(PreflightError) as raised:
        new_sink(postgres, **more).preflight(QUERY, None)
    for word in words:
        raised.match(word)


def test_facts_say_where_and_under_which_names(postgres):
    facts = new_sink(postgres, name="orders").preflight(QUERY, None)
    ((system,),) = postgres.ask("SELECT system_identifier::text FROM pg_control_system()")
    wanted = {"system": system, "database": "postgres", "commits": "public", "prefix": "sparkonce.orders"}
    assert facts == {**wanted, "schema": "public", "table": "t"}


def test_no_room_for_prepared_transactions():
    with PostgresServer({"max_prepared_transactions": "0"}) as server:
        closed = new_postgres(server)
        closed.ask("CREATE TABLE t (id bigint, text text)")
        refused(closed, "max_prepared_transactions=0", "commit='staged'", commit="two_phase")
        finish(new_sink(closed), prepare(new_sink(closed), ROWS))
        assert closed.ask("SELECT count(*) FROM t") == [(2,)]
        closed.stop()


def test_prepared_transactions_that_are_used_up(postgres):
    given = new_sink(postgres, commit="two_phase")
    run = owner(given)
    left = [prepare(given, ROWS, run=run, slot=slot) for slot in range(2)]
    with pytest.raises(PrepareError, match=r"53200.*max_prepared_transactions"):
        prepare(given, ROWS, run=run, slot=2)
    finish(given, *left, commit=False)
    assert postgres.prepared() == []
    assert postgres.ask("SELECT count(*) FROM t") == [(0,)]


def test_columns_that_the_table_lacks_are_named_at_once_and_what_they_may_mean(postgres):
    postgres.ask('CREATE TABLE mixed ("Id" bigint, text text)')
    given = new_sink(postgres, "mixed")
    given.columns(pa.schema([(name, pa.string()) for name in ("id", "key", "text", "topic")]))
    with pytest.raises(SchemaError) as told:
        given.preflight(QUERY, None)
    assert told.value.message == ("""Table "public"."mixed" has no column 'id', 'key', 'topic'. 'id' is 'Id' there.""")
    assert told.value.next_step.count("Add") == 1
    with pytest.raises(PreflightError) as apart:
        new_sink(postgres, "public.mixed").preflight(QUERY, None)
    assert apart.value.next_step == "Give schema='public' and table='mixed' separately."


@pytest.mark.parametrize(
    ("statement", "more", "words"),
    [
        ("DROP TABLE t", {}, ["no table"]),
        ("SELECT 1", {"table": "T"}, ["no table", "exactly as the catalog has it"]),
        ("ALTER TABLE t RENAME TO r; CREATE VIEW t AS SELECT * FROM r", {}, ["is a view"]),
        ("ALTER TABLE t SET UNLOGGED", {}, ["unlogged"]),
        ("SELECT 1", {"user": "plain"}, ["42501 permission denied for table t.* Next: Grant"]),
        (
            "GRANT INSERT ON t TO plain; ALTER TABLE t ADD PRIMARY KEY (id)",
            {"user": "plain", "mode": "upsert", "key_columns": ["id"]},
            ["42501 permission denied for table t"],
        ),
        ("SELECT 1", {"mode": "upsert", "key_columns": ["id"]}, ["no unique index on exactly these"]),
        ("ALTER TABLE t ADD UNIQUE (id, text)", {"mode": "upsert", "key_columns": ["id"]}, ["no unique index"]),
        ("CREATE UNIQUE INDEX ON t (id) WHERE id > 0", {"mode": "upsert", "key_columns": ["id"]}, ["partial"]),
        ("ALTER TABLE t ADD UNIQUE (id) DEFERRABLE", {"mode": "upsert", "key_columns": ["id"]}, ["deferrable"]),
        ("ALTER TABLE t ADD UNIQUE (id)", {"mode": "upsert", "key_columns": ["id"]}, ["may be null", "NOT NULL"]),
        (
            f"{IGNORING_CASE}; ALTER TABLE t ALTER text SET NOT NULL; CREATE UNIQUE INDEX ON t (text COLLATE ci)",
            {"mode": "upsert", "key_columns": ["text"]},
            ["a different collation", "Give index and columns the same"],
        ),
        (
            "ALTER TABLE t ADD PRIMARY KEY (id); CREATE RULE r AS ON UPDATE TO t DO ALSO NOTIFY x",
            {"mode": "upsert", "key_columns": ["id"]},
            ["INSERT or UPDATE rules"],
        ),
        (
            "SELECT 1",
            {"commits_schema": "elsewhere"},
            ["3F000.*elsewhere.* Next: Set commits_schema"],
        ),
        (
            "GRANT INSERT ON t TO plain; REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            {"user": "plain"},
            ["sparkonce_commits.* failed: 42501"],
        ),
        (
            "GRANT INSERT ON t TO plain; REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            {"user": "plain", "commit": "two_phase"},
            ["sparkonce_commits.* failed: 42501", "CREATE TABLE IF NOT EXISTS", "GRANT SELECT, INSERT"],
        ),
    ],
)
def test_what_does_not_allow_the_guarantee_is_refused(postgres, statement, more, words):
    postgres.ask(statement)
    refused(postgres, *words, **more)


HIDING = "CREATE POLICY hiding ON sparkonce_commits USING (false) WITH CHECK (true)"


def test_policies_that_may_hide_markers_are_refused_and_those_of_others_are_not(postgres):
    postgres.ask("GRANT INSERT ON t TO plain; GRANT ALL ON SCHEMA public TO plain")
    new_sink(postgres, user="plain").preflight(QUERY, None)
    postgres.ask(f"ALTER TABLE sparkonce_commits ENABLE ROW LEVEL SECURITY; {HIDING}")
    new_sink(postgres, user="plain").preflight(QUERY, None)  # the owner of the table
    for statement in ("FORCE ROW LEVEL SECURITY", "NO FORCE ROW LEVEL SECURITY, OWNER TO postgres"):
        postgres.ask(f"ALTER TABLE sparkonce_commits {statement}; GRANT ALL ON sparkonce_commits TO plain")
        refused(postgres, "Row-level security.*sparkonce_commits", "BYPASSRLS", user="plain")
        refused(postgres, "Row-level security.*sparkonce_commits", user="plain", commit="two_phase")
        new_sink(postgres, user="plain", guarantee=Guarantee.AT_LEAST_ONCE).preflight(QUERY, None)
    postgres.ask("ALTER ROLE plain BYPASSRLS")
    new_sink(postgres, user="plain").preflight(QUERY, None)


@pytest.mark.parametrize("commit", ["two_phase", "staged"])
def test_a_policy_that_comes_later_makes_nothing_lost(postgres, commit):
    postgres.ask("GRANT INSERT ON t TO plain; GRANT ALL ON SCHEMA public TO plain")
    given = new_sink(postgres, user="plain", commit=commit)
    handle = prepare(given, ROWS)
    assert outcomes(finish(given, handle)) == [Outcome.COMMITTED]
    postgres.ask(f"ALTER TABLE sparkonce_commits ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; {HIDING}")
    for call in (True, False):
        (found,) = finish(given, handle, commit=call)
        assert (found.outcome, "Row-level security" in found.reason) == (Outcome.UNKNOWN, True)
    postgres.ask("ALTER TABLE sparkonce_commits DISABLE ROW LEVEL SECURITY")
    assert outcomes(finish(given, handle)) == [Outcome.ALREADY_COMMITTED]
    assert postgres.ask("SELECT count(*) FROM t") == [(2,)]


def test_a_table_of_markers_that_a_crash_would_empty_is_refused(postgres):
    new_sink(postgres).preflight(QUERY, None)
    postgres.ask("ALTER TABLE sparkonce_commits SET UNLOGGED")
    refused(postgres, "is a view, or is unlogged")


def test_a_table_of_markers_that_a_newer_version_has_changed_is_refused(postgres):
    facts = new_sink(postgres).preflight(QUERY, None)
    # one of these columns is not ours
    postgres.ask("ALTER TABLE sparkonce_commits ADD sparkonce_lease bigint, ADD audited_by text")
    for recorded in (None, facts):
        with pytest.raises(
            PreflightError, match=r"public\.sparkonce_commits has columns .* not know: sparkonce_lease"
        ) as told:
            new_sink(postgres).preflight(QUERY, recorded)
        assert "Run the newer version of sparkonce again" in told.value.next_step


def test_a_server_that_does_not_sync_is_refused_at_exactly_once_only():
    with PostgresServer({"fsync": "off"}) as server:
        careless = new_postgres(server)
        careless.ask("CREATE TABLE t (id bigint, text text)")
        refused(careless, "fsync=off")
        new_sink(careless, guarantee=Guarantee.AT_LEAST_ONCE).preflight(QUERY, None)
        careless.stop()


def test_a_server_that_is_too_old_is_refused(postgres, monkeypatch):
    ((version,),) = postgres.ask("SHOW server_version_num")
    monkeypatch.setattr(preflight, "OLDEST", int(version))
    new_sink(postgres).preflight(QUERY, None)
    postgres.ask("DROP TABLE sparkonce_commits")
    monkeypatch.setattr(preflight, "OLDEST", int(version) + 10_000)
    older = int(version) // 10_000 + 1
    for commit in ("staged", "two_phase"):
        words = (f"server_version_num={version}: PostgreSQL {older} is the oldest", "Update the server")
        refused(postgres, *words, commit=commit)
    assert postgres.ask("SELECT to_regclass('sparkonce_commits')") == [(None,)], "made before the refusal"


def test_another_database_than_before_is_refused(postgres):
    facts = new_sink(postgres).preflight(QUERY, None)
    for changed in ({"database": "other"}, {"system": "7"}):
        with pytest.raises(PreflightError, match="its open transactions are there"):
            new_sink(postgres).preflight(QUERY, {**facts, **changed})


@pytest.mark.parametrize("commit", ["two_phase", "staged"])
def test_another_schema_of_markers_than_before_is_refused_and_nothing_is_lost(postgres, commit):
    """This also holds if it defaults to the table's schema, which may change."""
    postgres.ask("DROP SCHEMA IF EXISTS b CASCADE; CREATE SCHEMA b; CREATE TABLE b.t (LIKE t)")
    run = owner(new_sink(postgres, commit=commit))
    decided, left = (prepare(new_sink(postgres, commit=commit), ROWS, run=run, batch=batch) for batch in (0, 1))
    for more in ({"commits_schema": "b"}, {"schema": "b"}):
        with pytest.raises(PreflightError, match=r"in schema 'public'.* Next: Set commits_schema='public'"):
            new_sink(postgres, commit=commit, **more).preflight(QUERY, run.facts)
    assert postgres.ask("SELECT to_regclass('b.sparkonce_commits')") == [(None,)]
    moved = new_sink(postgres, commit=commit, schema="b", commits_schema="public")
    again = replace(run, token=Token(4, "0badcafe"), facts=moved.preflight(QUERY, run.facts))
    assert outcomes(finish(moved, decided)) == [Outcome.COMMITTED]
    with closing(moved.committer()) as committer:
        assert [one["name"] for one in committer.list_lingering([run])] == [left["name"]]
        assert len(committer.list_traces(QUERY, again.facts)) == 1
    finish(moved, left, commit=False)
    assert postgres.ask("SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM b.t)") == [(2, 0)]


def test_a_table_of_markers_that_is_gone_is_not_made_again(postgres):
    """An empty table would make everything that is committed look lost."""
    facts = new_sink(postgres).preflight(QUERY, None)
    postgres.ask("ALTER TABLE sparkonce_commits RENAME TO away")
    with pytest.raises(PreflightError, match=r'"public"."sparkonce_commits" is gone.* Next: Restore it'):
        new_sink(postgres).preflight(QUERY, facts)
    postgres.ask("ALTER TABLE away RENAME TO sparkonce_commits")
    assert new_sink(postgres).preflight(QUERY, facts) == facts


def test_a_server_that_was_upgraded_goes_on_as_the_one_that_it_was(postgres):
    """pg_upgrade changes the system_identifier.

    The error contains the statement to run, which has no effect in a copy elsewhere.
    """
    given = new_sink(postgres)
    facts = {**given.preflight(QUERY, None), "system": "7"}
    run = replace(owner(given), facts=facts)
    before, gone = prepare(given, ROWS, run=run), prepare(given, ROWS, run=run, batch=1)
    finish(given, gone, commit=False)
    assert outcomes(finish(given, gone)) == [Outcome.UNKNOWN]
    with pytest.raises(PreflightError) as refusal:
        given.preflight(QUERY, facts)
    found = re.search(r"COMMENT ON .*(?=\.)", refusal.value.next_step)
    postgres.ask(found[0])
    assert new_sink(postgres).preflight(QUERY, facts) == facts
    assert outcomes(finish(given, before, gone)) == [Outcome.COMMITTED, Outcome.LOST]
    postgres.ask(found[0].replace("system ", "system 9"))
    assert outcomes(finish(given, gone)) == [Outcome.UNKNOWN]
    with pytest.raises(PreflightError, match="COMMENT ON"):
        new_sink(postgres).preflight(QUERY, facts)


def test_the_optional_right_may_be_granted_later_but_not_taken(postgres):
    postgres.ask("GRANT INSERT ON t TO plain")
    right = "ON FUNCTION pg_catalog.pg_control_system()"
    postgres.ask(f"REVOKE EXECUTE {right} FROM PUBLIC")
    try:
        facts = new_sink(postgres, user="plain").preflight(QUERY, None)
        assert facts["system"] == ""
        postgres.ask(f"GRANT EXECUTE {right} TO plain")
        assert new_sink(postgres, user="plain").preflight(QUERY, facts) == facts
        known = new_sink(postgres, user="plain").preflight(QUERY, None)
        postgres.ask(f"REVOKE EXECUTE {right} FROM plain")
        with pytest.raises(PreflightError, match="GRANT EXECUTE"):
            new_sink(postgres, user="plain").preflight(QUERY, known)
    finally:
        postgres.ask(f"GRANT EXECUTE {right} TO PUBLIC")


def test_a_handle_of_another_database_is_unknown_and_not_lost(postgres):
    """The transaction is prepared in the other database."""
    given = new_sink(postgres, commit="two_phase")
    handle = prepare(given, ROWS)
    postgres.ask("CREATE DATABASE other")
    elsewhere = postgres.server.conninfo(dbname="other")
    with closing(psycopg.connect(elsewhere, autocommit=True)) as connection:
        connection.execute("CREATE TABLE t (id bigint, text text)")
    wrong = PostgresSink(elsewhere, table="t", commit="two_phase")
    wrong.preflight(QUERY, None)
    (found,) = finish(wrong, handle)
    assert found.outcome.name == "UNKNOWN"
    assert "0A000" in found.reason
    finish(given, handle)
    assert postgres.ask("SELECT count(*) FROM t") == [(2,)]


@pytest.mark.parametrize("commit", ["staged", "two_phase"])
def test_a_trigger_may_leave_rows_out_in_either_way(postgres, commit):
    """That is the table owner's choice."""
    postgres.ask(f"{LEAVES_OUT} BEFORE INSERT ON t {FOR_EACH}")
    given = new_sink(postgres, commit=commit)
    handle = prepare(given, ROWS)
    assert (outcomes(finish(given, handle)), handle.rows) == ([Outcome.COMMITTED], 2)
    assert postgres.ask("SELECT id FROM t") == [(2,)]


def test_a_check_of_the_row_as_a_whole_does_not_stop_staging(postgres):
    """The condition refers to the table by name, which is impossible in a staging table."""
    postgres.ask("ALTER TABLE t ADD CHECK (t IS NOT NULL), ADD CHECK (tableoid > 0)")
    given = new_sink(postgres)
    assert outcomes(finish(given, prepare(given, ROWS))) == [Outcome.COMMITTED]


def test_an_upsert_takes_an_index_of_another_collation_that_tells_as_many_apart(postgres):
    """Both collations compare bytes for equality."""
    postgres.ask('ALTER TABLE t ALTER text SET NOT NULL; CREATE UNIQUE INDEX ON t (text COLLATE "C")')
    given = new_sink(postgres, mode="upsert", key_columns=["text"])
    rows = pa.record_batch({"id": [1, 2], "text": ["A", "a"]})
    assert outcomes(finish(given, prepare(given, rows))) == [Outcome.COMMITTED]
    assert postgres.ask("SELECT count(*) FROM t") == [(2,)]


def test_synchronous_commit_off_is_put_right(postgres):
    """Each session can choose it, and ours does."""
    postgres.ask("ALTER ROLE plain SET synchronous_commit = off; GRANT INSERT ON t TO plain")
    given = new_sink(postgres, user="plain")
    postgres.ask(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.text := current_setting('synchronous_commit'); RETURN NEW; END $$; "
        "CREATE TRIGGER note BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION note()"
    )
    finish(given, prepare(given, ROWS))
    assert postgres.ask("SELECT DISTINCT text FROM t") == [("on",)]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"commit": "xa"}, "commit='xa'"),
        ({"mode": "upsert", "key_columns": ["id"], "commit": "two_phase"}, "would wait for each other"),
        ({"order_by": "x"}, "order_by='x' with mode='append'"),
        ({"update_when": "source.a"}, "update_when='source.a' with mode='append'"),
        ({"mode": "upsert", "key_columns": ["id"], "delete_when": "target.a"}, "reads target.…"),
        ({"mode": "upsert", "key_columns": ["id"], "on_conflict": "nothing", "order_by": "x"}, "order_by='x'"),
        ({"table": "x" * 64}, "1 to 63 bytes"),
        ({"table": ""}, "1 to 63 bytes"),
        ({"prefix": "p" * 100}, "Choose 100 printable bytes or less"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(more, says):
    with pytest.raises(ConfigurationError, match=says):
        PostgresSink("dbname=x", **{"table": "t", **more})


def test_a_nullable_key_whose_nulls_conflict_can_be_upserted_since_15(postgres):
    postgres.ask("DROP TABLE t; CREATE TABLE t (id int, text text, UNIQUE NULLS NOT DISTINCT (id))")
    sink = new_sink(postgres, mode="upsert", key_columns=["id"])
    for batch, text in enumerate(["first", "second"]):
        row = pa.record_batch({"id": pa.array([None], pa.int32()), "text": [text]})
        assert outcomes(finish(sink, prepare(sink, row, batch=batch))) == [Outcome.COMMITTED]
    assert postgres.ask("SELECT id, text FROM t") == [(None, "second")]
