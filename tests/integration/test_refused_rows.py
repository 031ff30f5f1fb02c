"""Rows that violate a database's own rules are reported one by one, and the others are written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from one_run import finish, open_writer, outcomes
from shared_servers import needs_postgres
from sparkonce import MySQLSink, PostgresSink
from sparkonce.errors import OutageError
from sparkonce.protocol.handles import Handle, Outcome, transaction_fields
from sparkonce.sink import Refused, TwoPhaseCommitSink

NUMBERS = [1, 2, 2, 3, None, 4, 5, 66, 7, 8]
"""The second 2 is a duplicate, 66 is missing in the referenced table, and a trigger rejects 7."""
ROWS = pa.record_batch({"number": pa.array(NUMBERS, pa.int64()), "word": ["w"] * 9 + ["far too long"]})
TABLES = (
    "CREATE TABLE known (number bigint PRIMARY KEY)",
    "INSERT INTO known VALUES (1), (2), (3), (4), (5), (7), (8)",
    "CREATE TABLE t (number bigint NOT NULL UNIQUE REFERENCES known, word varchar(4), CHECK (number <> 4))",
)


def offer(sink: TwoPhaseCommitSink) -> tuple[Refused, Handle]:
    writer = open_writer(sink)
    told = writer.offer(ROWS)
    rows = ROWS.num_rows - len(told.rows)
    handle = Handle(sink=sink.name, slot=0, rows=rows, transaction=transaction_fields(writer.prepare()))
    writer.close()
    return told, handle


@needs_postgres
def test_postgres_refuses_rows_by_every_rule_of_the_table(postgres):
    raises = (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.number = 7 THEN RAISE EXCEPTION "
        "'no sevens'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    for statement in (*TABLES, *raises):
        postgres.ask(statement)
    sink = PostgresSink(postgres.server.conninfo(), table="t", commit="two_phase")
    told, handle = offer(sink)
    words = {2: "23505", 4: "23502", 5: "23514", 7: "23503", 8: "P0001", 9: "22001"}
    assert list(told.rows) == sorted(words)
    for row, reason in zip(told.rows, told.reasons, strict=True):
        assert words[row] in reason
    assert outcomes(finish(sink, handle)) == [Outcome.COMMITTED]
    assert sorted(number for (number,) in postgres.ask("SELECT number FROM t")) == [1, 2, 3, 5]


@needs_postgres
def test_staging_tables_refuse_rows_by_types_nulls_and_checks(postgres):
    postgres.ask("CREATE TABLE t (number bigint NOT NULL, word varchar(4), CHECK (number <> 4))")
    sink = PostgresSink(postgres.server.conninfo(), table="t")
    told, handle = offer(sink)
    assert list(told.rows) == [4, 5, 9]
    assert outcomes(finish(sink, handle)) == [Outcome.COMMITTED]
    assert sorted(number for (number,) in postgres.ask("SELECT number FROM t")) == [1, 2, 2, 3, 5, 7, 66]


@needs_postgres
def test_a_session_that_ends_is_no_refusal(postgres):
    postgres.ask("CREATE TABLE t (number bigint, word varchar(20))")
    sink = PostgresSink(postgres.server.conninfo(), table="t")
    writer = open_writer(sink)
    writer.offer(ROWS)
    ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    assert postgres.ask(ended) == [(True,)]
    with pytest.raises(OutageError):
        writer.offer(ROWS)
    writer.abort()


def test_mariadb_refuses_rows_by_every_rule_of_the_table(mariadb):
    for statement in TABLES:
        mariadb.ask(f"{statement} ENGINE=InnoDB" if statement.startswith("CREATE") else statement)
    mariadb.ask("ALTER TABLE t ADD CONSTRAINT fk FOREIGN KEY (number) REFERENCES known (number)")
    sink = MySQLSink(mariadb.settings, table="t", commit="two_phase")
    told, handle = offer(sink)
    assert list(told.rows) == [2, 4, 5, 7, 9]
    assert all(told.reasons)
    assert outcomes(finish(sink, handle)) == [Outcome.COMMITTED]
    assert sorted(number for (number,) in mariadb.ask("SELECT number FROM t")) == [1, 2, 3, 5, 7]
