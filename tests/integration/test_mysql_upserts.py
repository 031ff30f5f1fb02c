from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from one_run import prepare
from sparkonce.errors import ConfigurationError, PreflightError, PrepareError, SchemaError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Outcome
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.testing.hooks import SinkHooks
from sparkonce.testing.scene import Scene
from sparkonce_lab.systems.mysql import MySQLSystem

Row = tuple[int, int | None, str | None]


class Batches(SinkHooks):
    """Rows of the columns ``id``, ``at`` and ``text``: a slot's rows are those at its number."""

    def __init__(self, *slots: list[Row]) -> None:
        self.slots = slots

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        ids, at, text = zip(*self.slots[start], strict=True)
        return pa.record_batch({"id": ids, "at": pa.array(at, pa.int64()), "text": pa.array(text, pa.string())})


@pytest.fixture
def mariadb(mariadb) -> MySQLSystem:
    mariadb.ask("CREATE TABLE newest (id BIGINT PRIMARY KEY, at BIGINT, text VARCHAR(9) NOT NULL) ENGINE=InnoDB")
    return mariadb


def upsert(mariadb: MySQLSystem, **rule: Any) -> MySQLSink:
    return MySQLSink(mariadb.settings, table="newest", mode="upsert", key_columns=["id"], **rule)


def write(sink: MySQLSink, batches: list[list[Row]]) -> None:
    """Commits each of these as a batch of one slot, after its trial."""
    with closing(Scene(Batches(*batches), sink)) as scene:
        for batch, rows in enumerate(batches):
            handle = scene.prepare(batch, len(rows), batch=batch)
            assert scene.committer.check_prepared([handle]) == ""
            assert scene.commit(handle) == [Outcome.COMMITTED]


@pytest.mark.parametrize("rule", [{"order_by": "at"}, {"update_when": "source.at >= target.at"}])
def test_an_older_row_of_a_later_batch_does_not_replace_a_newer_one(mariadb, rule):
    write(upsert(mariadb, **rule), [[(1, 5, "first")], [(1, 3, "late")]])
    assert mariadb.ask("SELECT text FROM newest") == [("first",)]
    write(upsert(mariadb, **rule), [[(1, 5, "again")], [(1, 9, "last")], [(1, 8, "late")]])
    assert mariadb.ask("SELECT text FROM newest") == [("last",)]


def test_the_greatest_row_of_a_batch_wins_in_a_slot_and_across_slots(mariadb):
    slots: list[list[Row]] = [[(1, 7, "b"), (1, 9, "z"), (1, 8, "c")], [(1, 3, "a"), (2, None, "n"), (2, None, "m")]]
    with closing(Scene(Batches(*slots), upsert(mariadb, order_by="at"))) as scene:
        handles = [scene.prepare(slot, 3, slot=slot) for slot in range(2)]
        assert scene.commit(*handles) == [Outcome.COMMITTED] * 2
    assert mariadb.ask("SELECT id, text FROM newest ORDER BY id") == [(1, "z"), (2, "m")]


def test_a_row_without_a_value_deletes_the_tables_row_unless_it_is_older(mariadb):
    first: list[Row] = [(1, 5, "a"), (2, 5, "b"), (3, 5, "c"), (4, 5, None)]
    second: list[Row] = [(1, 4, None), (2, 6, None), (3, 6, "d"), (3, 7, None), (5, 7, None), (5, 8, "e")]
    write(upsert(mariadb, order_by="at", delete_when="source.text IS NULL"), [first, second])
    assert mariadb.ask("SELECT * FROM newest ORDER BY id") == [(1, 5, "a"), (5, 8, "e")]


def test_an_older_row_of_another_slot_does_not_put_a_deleted_row_back(mariadb):
    write(upsert(mariadb), [[(1, 5, "a"), (2, 5, "b")]])
    slots: list[list[Row]] = [[(1, 7, None), (2, 6, None)], [(1, 6, "older"), (2, 7, "newer")]]
    with closing(Scene(Batches(*slots), upsert(mariadb, order_by="at", delete_when="source.text IS NULL"))) as scene:
        handles = [scene.prepare(slot, 2, slot=slot, batch=1) for slot in range(2)]
        assert scene.committer.check_prepared(handles) == ""
        assert scene.commit(*handles) == [Outcome.COMMITTED] * 2
    assert mariadb.ask("SELECT * FROM newest") == [(2, 7, "newer")]


class Changes(SinkHooks):
    batches: Sequence[Sequence[tuple[int, str | None, str | None, bool | None]]] = (
        [(1, "a", "c", False), (2, "b", None, None), (3, "c", "c", None)],
        [(1, None, "d", None), (2, "B", None, None), (3, "C", "u", True), (4, "d", "D", False)],
    )

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        ids, texts, ops, gone = (list(column) for column in zip(*self.batches[start], strict=True))
        text, op = pa.array(texts, pa.string()), pa.array(ops, pa.string())
        return pa.record_batch({"Gone": pa.array(gone, pa.bool_()), "id": ids, "text": text, "op": op})


@pytest.mark.parametrize("gone", ["source.gone", "source.gone AND source.`Gone`"])
def test_columns_that_only_say_whether_a_row_deletes_are_not_written(mariadb, gone):
    """The table has neither `op` nor `Gone`. A condition that is null deletes nothing."""
    sink = upsert(mariadb, delete_when=f"source.op = 'd' OR {gone}")
    sink.columns(Changes().make_rows(0, 3).schema)
    with closing(Scene(Changes(), sink)) as scene:
        for batch in range(2):
            handle = scene.prepare(batch, 3 + batch, batch=batch)
            assert scene.committer.check_prepared([handle]) == ""
            assert scene.commit(handle) == [Outcome.COMMITTED]
    assert mariadb.ask("SELECT id, text FROM newest ORDER BY id") == [(2, "B"), (4, "d")]


def test_rows_are_upserted_without_transactions_too(mariadb):
    sink = upsert(mariadb, order_by="at", delete_when="source.text IS NULL", guarantee=Guarantee.AT_LEAST_ONCE)
    batches: list[list[Row]] = [
        [(1, 5, "a"), (1, 3, "older"), (2, 1, "b")],
        [(1, 4, "late"), (2, 2, None), (3, 1, "c")],
    ]
    for rows in batches:
        assert prepare(sink, Batches(rows).make_rows(0, 3)).transaction == ()
    assert mariadb.ask("SELECT id, text FROM newest ORDER BY id") == [(1, "a"), (3, "c")]
    assert mariadb.stages() == []


def test_a_null_that_deletes_nothing_is_refused_before_the_decision(mariadb):
    sink = upsert(mariadb, delete_when="source.at < 0")
    with closing(Scene(Batches([(1, -1, None), (2, 1, None)]), sink)) as scene:
        handle = scene.prepare(0)
        with pytest.raises(PrepareError, match="error 1048"):
            scene.committer.check_prepared([handle])


@pytest.mark.parametrize("rule", [{"update_when": "source.at > target.gone"}, {"delete_when": "source.at >"}])
def test_a_condition_that_the_server_does_not_take_is_refused_at_the_start(mariadb, rule):
    sink = upsert(mariadb, **rule)
    sink.columns(Batches([(1, 1, "a")]).make_rows(0, 1).schema)
    with pytest.raises(PreflightError, match=f"refuses to upsert into table 'newest' with {next(iter(rule))}="):
        sink.preflight("0123456789ab", None)
    assert mariadb.ask("SHOW TABLES LIKE 'sparkonce\\_stage%'") == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"mode": "append", "key_columns": (), "order_by": "at"}, "order_by='at' with mode='append'"),
        ({"delete_when": "target.at < 3"}, "reads target.…"),
        ({"update_when": ""}, "update_when=''"),
        ({"commit": "two_phase"}, "would wait for each other"),
    ],
)
def test_rules_that_cannot_be_kept_are_refused(arguments, says):
    settings = {"host": "h", "user": "u", "database": "d"}
    with pytest.raises(ConfigurationError, match=says) as refused:
        MySQLSink(settings, table="newest", **{"mode": "upsert", "key_columns": ["id"], **arguments})
    assert refused.value.next_step


def test_a_rule_that_reads_a_column_which_the_rows_lack_is_refused():
    sink = MySQLSink(
        {"host": "h", "user": "u", "database": "d"},
        table="newest",
        mode="upsert",
        key_columns=["id"],
        update_when="SOURCE.Version > target.version",
    )
    sink.columns(pa.schema([("id", pa.int64()), ("VERSION", pa.int64())]))
    with pytest.raises(SchemaError, match="reads column 'version', and the rows have \\['id'\\]"):
        sink.columns(pa.schema([("id", pa.int64())]))
