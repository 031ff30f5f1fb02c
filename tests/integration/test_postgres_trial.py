"""Rows that a table rejects are detected before the decision, by a merge that is rolled back."""

from __future__ import annotations

import logging
import re
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from integration.postgres_scene import new_sink
from one_run import finish, outcomes, owner, prepare
from shared_servers import needs_postgres
from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.sinks.sql.postgres.connection import connect
from sparkonce.sinks.sql.postgres.dialect import POSTGRES_DIALECT
from sparkonce.sinks.sql.postgres.sink import PostgresSink
from sparkonce_lab.systems.postgres import PostgresSystem

pytestmark = needs_postgres

sink = partial(new_sink, lock_timeout_s=0.5)


@pytest.fixture
def postgres(postgres) -> PostgresSystem:
    postgres.ask("CREATE TABLE t (id bigint, text text)")
    return postgres


def rows(*ids: int, text: str = "x") -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "text": [text] * len(ids)})


def content(postgres: PostgresSystem) -> list[tuple[int, str]]:
    return postgres.ask("SELECT id, text FROM t ORDER BY id, text")


def check(given: PostgresSink, *handles: Handle) -> str:
    with closing(given.committer()) as committer:
        return committer.check_prepared(handles)


NO_NINE = """
    CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN IF NEW.id = 9 THEN RAISE 'not nine'; END IF; RETURN NEW; END $$;
    CREATE CONSTRAINT TRIGGER no AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()
"""
PARTITIONED = "DROP TABLE t; CREATE TABLE t (id bigint, text text) PARTITION BY RANGE (id)"
LOW = "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)"

REFUSING = {
    "a primary key": ("ALTER TABLE t ADD PRIMARY KEY (id); INSERT INTO t VALUES (9)", "23505", "PRIMARY KEY (id)"),
    "a deferred key": (
        "ALTER TABLE t ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED; INSERT INTO t VALUES (9)",
        "23505",
        "UNIQUE (id)",
    ),
    "an index on an expression": (
        "CREATE UNIQUE INDEX odd ON t ((id % 5)) WHERE id > 5; INSERT INTO t VALUES (14)",
        "23505",
        "(id % (5)::bigint)",
    ),
    "an exclusion": (
        "ALTER TABLE t ADD CONSTRAINT apart EXCLUDE USING btree (id WITH =); INSERT INTO t VALUES (9)",
        "23P01",
        "EXCLUDE USING btree (id WITH =)",
    ),
    "a foreign key": (
        "CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p VALUES (1); "
        "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES p DEFERRABLE INITIALLY DEFERRED",
        "23503",
        "FOREIGN KEY (id) REFERENCES p(id)",
    ),
    "a trigger": (NO_NINE, "P0001", "not nine"),
    "a check of what is not written": (
        "ALTER TABLE t ADD more int DEFAULT 9, ADD CHECK (id <> more)",
        "23514",
        "CHECK",
    ),
    "a check of the row": ("ALTER TABLE t ADD CHECK (t <> ROW(9, 'x')::t)", "23514", "CHECK"),
    "a generated column": ("ALTER TABLE t ADD more int GENERATED ALWAYS AS (1 / (id - 9)) STORED", "22012", ""),
    "a missing partition": (f"{PARTITIONED}; CREATE TABLE p1 PARTITION OF t FOR VALUES FROM (0) TO (9)", "23514", ""),
    "a partition's own key": (f"{PARTITIONED}; {LOW}; CREATE UNIQUE INDEX ON low (id)", "23505", ""),
    "a partition's own check": (f"{PARTITIONED}; {LOW}; ALTER TABLE low ADD CHECK (id <> 9)", "23514", "CHECK"),
}


@pytest.mark.parametrize("what", REFUSING)
def test_what_a_table_refuses_is_found_before_the_decision(postgres, what):
    statement, code, words = REFUSING[what]
    postgres.ask(statement)
    before = content(postgres)
    given = sink(postgres)
    good, bad = prepare(given, rows(1), slot=0), prepare(given, rows(9, *[9] * ("own key" in what)), slot=1)
    assert check(given, good) == ""
    with pytest.raises(PrepareError, match=code) as caught:
        check(given, good, bad)
    assert words in str(caught.value)
    assert "the batch is not decided" in caught.value.message
    assert caught.value.next_step
    assert content(postgres) == before
    assert outcomes(finish(given, good, bad, commit=False)) == [Outcome.ABORTED] * 2


ADDED = {
    "a check": ("ALTER TABLE t ADD CHECK (id <> 9)", "23514"),
    "a NOT NULL": ("ALTER TABLE t ALTER id SET NOT NULL", "23502"),
    "a unique index": ("CREATE UNIQUE INDEX ON t (id)", "23505"),
    "a trigger": (NO_NINE, "P0001"),
    "a column that needs a value": ("ALTER TABLE t ADD more int NOT NULL", "23502"),
}


@pytest.mark.parametrize("is_earlier", [True, False], ids=["between batches", "while a batch is written"])
@pytest.mark.parametrize("what", ADDED)
def test_what_is_added_to_a_table_while_a_query_runs_is_found_before_the_decision(postgres, what, is_earlier):
    statement, code = ADDED[what]
    given = sink(postgres)
    run = owner(given)
    assert outcomes(finish(given, prepare(given, rows(1), run=run))) == [Outcome.COMMITTED]
    postgres.ask("DELETE FROM t")
    bad = rows(9, 9).set_column(0, "id", pa.array([None, None], pa.int64())) if what == "a NOT NULL" else rows(9, 9)
    if is_earlier:
        postgres.ask(statement)
        with pytest.raises(PrepareError, match=code):
            check(given, prepare(given, bad, run=run))
    else:
        handle = prepare(given, bad, run=run)
        postgres.ask(statement)
        with pytest.raises(PrepareError, match=code):
            check(given, handle)
        assert outcomes(finish(given, handle, commit=False)) == [Outcome.ABORTED]


def test_keys_that_only_the_batch_itself_repeats_are_found_across_its_slots(postgres):
    postgres.ask("ALTER TABLE t ADD PRIMARY KEY (id)")
    given = sink(postgres)
    handles = [prepare(given, rows(1, 2), slot=0), prepare(given, rows(2, 3), slot=1)]
    with pytest.raises(PrepareError, match=r"PRIMARY KEY \(id\).*23505") as caught:
        check(given, *handles)
    assert "mode='upsert'" in caught.value.next_step
    assert "(2)" not in str(caught.value)  # values are in no message
    upsert = sink(postgres, mode="upsert", key_columns=["id"])
    handles = [prepare(upsert, rows(1, 2), slot=0), prepare(upsert, rows(2, 3), slot=1)]
    assert check(upsert, *handles) == ""
    assert outcomes(finish(upsert, *handles)) == [Outcome.COMMITTED] * 2
    assert content(postgres) == [(1, "x"), (2, "x"), (3, "x")]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX ON t (id)",
        pytest.param(
            "ALTER TABLE t ADD number bigserial PRIMARY KEY, ADD token uuid UNIQUE DEFAULT gen_random_uuid()",
            id="since-13",
        ),
        "ALTER TABLE t ADD CHECK (id > 0), ALTER text SET NOT NULL",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        f"{PARTITIONED}; {LOW}; CREATE TABLE rest PARTITION OF t DEFAULT; ALTER TABLE t ADD PRIMARY KEY (id)",
    ],
)
def test_a_table_that_can_refuse_nothing_more_is_not_merged_twice(postgres, statement, monkeypatch):
    postgres.ask(statement)
    given = sink(postgres, **({"mode": "upsert", "key_columns": ["id"]} if "KEY (id)" in statement else {}))
    handle = prepare(given, rows(1))
    monkeypatch.setattr("sparkonce.sinks.sql.postgres.finishing.merge_steps", None)
    assert check(given, handle) == ""


@pytest.mark.parametrize(
    ("statement", "messages"), [("CREATE INDEX ON t (id)", 2), ("CREATE UNIQUE INDEX ON t (id)", 5)]
)
def test_a_trial_takes_few_round_trips(postgres, statement, messages, monkeypatch):
    postgres.ask(statement)
    given = sink(postgres)
    handles = [prepare(given, rows(slot), slot=slot) for slot in range(3)]
    sent = []
    with closing(given.committer()) as committer:
        execute = psycopg.Connection.execute

        def counted(connection: Any, query: Any, *more: Any) -> Any:
            sent.append(query)
            return execute(connection, query, *more)

        monkeypatch.setattr(psycopg.Connection, "execute", counted)
        assert committer.check_prepared(handles) == ""
    assert len(sent) == messages


def test_a_batch_that_a_newer_run_aborts_during_the_trial_is_not_called_refused(postgres, monkeypatch):
    postgres.ask("ALTER TABLE t ADD PRIMARY KEY (id)")
    given = sink(postgres)
    handle = prepare(given, rows(1))
    with closing(given.committer()) as newer:

        def begin_after_an_abort(*arguments: Any) -> bool:
            assert outcomes(list(newer.abort([handle]))) == [Outcome.ABORTED]
            return POSTGRES_DIALECT.begin(*arguments)

        late = replace(POSTGRES_DIALECT, begin=begin_after_an_abort)
        monkeypatch.setattr("sparkonce.sinks.sql.postgres.dialect.POSTGRES_DIALECT", late)
        assert check(given, handle) == ""


def test_a_damaged_marker_says_which_it_is_and_what_to_do(postgres):
    postgres.ask("ALTER TABLE t ADD PRIMARY KEY (id)")
    given = sink(postgres)
    handle = prepare(given, rows(1))
    ((name, target),) = postgres.ask("SELECT name, target FROM sparkonce_commits")
    postgres.ask("UPDATE sparkonce_commits SET target = '{\"table\":'")
    with pytest.raises(
        PrepareError, match=f"'{name}' of table \"public\".sparkonce_commits .*target='{{\"table\":'"
    ) as caught:
        check(given, handle)
    (found,) = finish(given, handle)
    assert (found.outcome, found.reason, found.next_step) == (
        Outcome.UNKNOWN,
        caught.value.message,
        caught.value.next_step,
    )
    assert "UPDATE its target" in found.next_step
    postgres.ask(f"UPDATE sparkonce_commits SET target = '{target}'")  # noqa: S608 - the test's
    assert outcomes(finish(given, handle)) == [Outcome.COMMITTED]


def test_a_table_that_another_session_holds_is_not_taken_for_a_refusal(postgres):
    postgres.ask("ALTER TABLE t ADD PRIMARY KEY (id)")
    given = sink(postgres)
    handle = prepare(given, rows(1))
    with closing(connect(given.conninfo)) as other:
        other.execute("BEGIN; INSERT INTO t VALUES (1)")
        with pytest.raises(UnknownOutcomeError, match="55P03"):
            check(given, handle)
    assert check(given, handle) == ""


def test_rows_of_another_sink_of_the_batch_are_waited_for(postgres):
    postgres.ask("CREATE TABLE p (id bigint PRIMARY KEY, text text); ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES p")
    parents, children = sink(postgres, "p", name="parents"), sink(postgres, name="children")
    child = prepare(children, rows(1))
    with pytest.raises(PrepareError, match="23503"):
        check(children, child)
    parent = prepare(parents, rows(1))
    assert (check(parents, parent), check(children, child)) == ("", "")
    assert outcomes(finish(children, child)) == [Outcome.UNKNOWN]
    assert outcomes(finish(parents, parent) + finish(children, child)) == [Outcome.COMMITTED] * 2


@pytest.mark.parametrize(
    ("how", "expected"),
    [("nothing", [(1, "mine"), (2, "theirs"), (3, "first")]), ("update", [(1, "mine"), (2, "mine"), (3, "last")])],
)
def test_an_operator_lets_a_decided_batch_skip_or_replace_what_is_there(postgres, how, expected):
    """Another writer was faster between the trial and the commit."""
    postgres.ask("ALTER TABLE t ADD PRIMARY KEY (id)")
    given = sink(postgres)
    handles = [prepare(given, rows(1, 2, text="mine"), slot=0)]
    assert check(given, *handles) == ""
    postgres.ask("INSERT INTO t VALUES (2, 'theirs')")
    handles += [prepare(given, rows(3, text="first"), slot=1), prepare(given, rows(3, text="last"), slot=2)]
    found = finish(given, *handles)
    assert outcomes(found) == [Outcome.UNKNOWN] * 3
    assert "other sinks of the query may show theirs" in found[0].reason
    assert "--on-conflict nothing" in found[0].next_step
    given.decided_conflicts = how
    assert outcomes(finish(given, *handles)) == [Outcome.COMMITTED] * 3
    assert content(postgres) == expected
    assert postgres.stages() == []


def test_rows_without_a_key_of_their_own_cannot_replace_others(postgres):
    postgres.ask("CREATE UNIQUE INDEX ON t (lower(text))")
    given = sink(postgres)
    handles = [prepare(given, rows(1), slot=0), prepare(given, rows(2), slot=1)]
    given.decided_conflicts = "update"
    (found, _) = finish(given, *handles)
    assert (found.outcome, found.next_step) == (Outcome.UNKNOWN, "Run the command with --on-conflict nothing.")
    given.decided_conflicts = "nothing"
    assert outcomes(finish(given, *handles)) == [Outcome.COMMITTED] * 2
    assert content(postgres) == [(1, "x")]


# --- the server's answers about rows -------------------------------------------------------------------------------

SAYING = {
    "ALTER TABLE t ADD UNIQUE (text)": '23505 duplicate key value violates unique constraint "t_text_key"',
    "ALTER TABLE t ADD CHECK (text = 'x')": '23514 .* violates check constraint "t_text_check"',
    "CREATE TYPE mood AS ENUM ('x'); ALTER TABLE t ALTER text TYPE mood USING text::mood": '22P02 .* enum mood: "…"',
    "ALTER TABLE t ALTER text TYPE jsonb USING text::jsonb": "22P02 invalid input syntax for type json",
    "ALTER TABLE t ALTER text TYPE varchar(7)": "22001 .*varying\\(7\\)",
    "ALTER TABLE t ALTER text TYPE uuid USING text::uuid": "Column 'text' has a string that is not a UUID",
}


@pytest.mark.parametrize("change", SAYING)
def test_what_a_row_holds_is_told_at_debug_only_and_forges_no_line(postgres, caplog, change):
    def told(log: pytest.LogCaptureFixture, level: int) -> str:
        return "\n".join(record.getMessage() for record in log.records if record.levelno >= level)

    card = "4111-1111-1111-1111"
    forged = f"{card}\n2026-11-23 sparkonce batch=99 committed\x1b[31m"
    postgres.ask(change)
    caplog.set_level(logging.DEBUG)
    for commit in ("two_phase", "staged"):
        given = sink(postgres, commit=commit)
        try:
            (found,) = finish(given, prepare(given, rows(0, 1, text=forged)))
            assert found.outcome is Outcome.UNKNOWN
            said = found.reason
        except PrepareError as error:
            said = str(error)
        assert re.search(SAYING[change], said)
        assert "sparkonce_" not in said
        assert card not in said + told(caplog, logging.INFO)
        assert said.isprintable()
    assert "\x1b" not in told(caplog, logging.DEBUG)
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert (card in told(caplog, logging.DEBUG)) is ("t ADD" in change)
