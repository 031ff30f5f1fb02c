"""MERGE into Delta and Iceberg: what happens to rows, to columns, and to several rows with one key."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark.in_process import SPARK, crash_at
from spark.merge_job import (
    ADD,
    ARROW,
    FIRST_DELTA,
    KINDS,
    DeltaMerge,
    MergeJob,
    Row,
)
from spark.table_job import QUERY
from sparkonce.errors import SchemaError
from sparkonce.log import DecisionLog
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import LogView
from sparkonce.sinks.tables import merging
from sparkonce.storage.local import LocalFiles
from tryout.bulk import make_orders

pytestmark = SPARK


@pytest.fixture(params=FIRST_DELTA)
def job(request: pytest.FixtureRequest, tables: SparkSession, tmp_path: Path) -> MergeJob:
    return KINDS[request.param](tables, tmp_path)


WHOLE = [(1, 11, "x"), (9, 99, "y")]
CASES: dict[str, tuple[dict[str, Any], list[Row], list[Row]]] = {
    "upsert": ({}, WHOLE, [(1, 11, "x"), (2, 20, "b"), (3, 30, "c"), (9, 99, "y")]),
    "insert only": ({"when_matched": None}, WHOLE, [(1, 10, "a"), (2, 20, "b"), (3, 30, "c"), (9, 99, "y")]),
    "update only": ({"when_not_matched": None}, WHOLE, [(1, 11, "x"), (2, 20, "b"), (3, 30, "c")]),
    "some columns": (
        {"when_matched": {"n": "source.n"}, "when_not_matched": {"id": "source.id", "word": "upper(source.word)"}},
        WHOLE,
        [(1, 11, "a"), (2, 20, "b"), (3, 30, "c"), (9, None, "Y")],
    ),
    "some rows": (
        {"update_when": "source.n > 2 * target.n", "insert_when": "source.n < 99"},
        [(1, 11, "x"), (2, 41, "x"), (8, 98, "x"), (9, 99, "x")],
        [(1, 10, "a"), (2, 41, "x"), (3, 30, "c"), (8, 98, "x")],
    ),
    "deleted, and not inserted": (
        {"delete_when": "source.word = 'gone'"},
        [(1, 11, "gone"), (2, 21, "x"), (9, 99, "gone"), (8, 88, None)],
        [(2, 21, "x"), (3, 30, "c"), (8, 88, None)],
    ),
    "deleted by what the table has": (
        {"delete_when": "target.n + source.n = 0"},
        [(1, -10, "x"), (2, 21, "x"), (9, 99, "y")],
        [(2, 21, "x"), (3, 30, "c"), (9, 99, "y")],
    ),
    "only some of the table": (
        {"merge_where": "target.n > 10", "when_not_matched": None},
        [(1, 11, "x"), (2, 21, "x")],
        [(1, 10, "a"), (2, 21, "x"), (3, 30, "c")],
    ),
    "the last one counts": (
        {"order_by": ["n"]},
        [(1, 12, "y"), (1, 13, "z"), (1, 11, "x"), (2, 19, "older"), (3, 30, "as old"), (9, 1, "v"), (9, 1, "w")],
        [(1, 13, "z"), (2, 20, "b"), (3, 30, "as old"), (9, 1, "w")],
    ),
    "older ones delete nothing": (
        {"order_by": ["n"], "delete_when": "source.word = 'gone'"},
        [(1, 9, "gone"), (2, 21, "gone"), (3, 31, "x"), (3, 32, "gone")],
        [(1, 10, "a")],
    ),
    "no key": (
        {"order_by": ["n"]},
        [(None, 1, "x"), (None, 1, "x")],
        [*MergeJob.started, (None, 1, "x"), (None, 1, "x")],
    ),
}


def by_id(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row[0] is None, row[0]))


FIRST = ("some rows", "deleted, and not inserted", "older ones delete nothing")


@pytest.mark.parametrize(
    "case", [each if each in FIRST else pytest.param(each, marks=pytest.mark.slow) for each in CASES]
)
@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_what_becomes_of_rows(tables: SparkSession, tmp_path: Path, kind: str, case: str) -> None:
    settings, rows, left = CASES[case]
    job = KINDS[kind](tables, tmp_path)
    job.merge(rows, **settings)
    found = [tuple(row) for row in job.sink().table(tables).frame().collect()]
    assert by_id(found) == by_id(left)


@pytest.mark.slow
def test_columns_that_only_a_condition_reads(job: MergeJob) -> None:
    """Rows of a change feed. The table has no column for the kind of a change."""
    schema = ARROW.append(pa.field("kind", pa.string()))
    settings = {"merge_on": ["id"], "delete_when": "source.kind = 'D'"}
    sink = job.sink(**settings)
    assert sink.columns(schema) == ["id", "n", "word", "kind"]
    job.merge([(1, 11, "x", "U"), (2, 0, "", "D"), (4, 44, "y", "I"), (5, 0, "", "D")], schema=schema, **settings)
    assert job.rows() == [(1, 11, "x"), (3, 30, "c"), (4, 44, "y")]
    with pytest.raises(SchemaError, match="'kind' is not in"):
        job.sink(merge_on=["id"]).columns(schema)


@pytest.mark.slow
def test_columns_that_the_rows_do_not_have_stay(job: MergeJob) -> None:
    narrow = pa.schema([("id", pa.int32()), ("n", pa.int64())])
    assert job.sink(merge_on=["id"]).columns(narrow) == ["id", "n"]
    job.merge([(1, 11), (4, 44)], schema=narrow)
    found = [tuple(row) for row in job.sink().table(job.spark).frame().collect()]
    assert by_id(found) == [(1, 11, "a"), (2, 20, "b"), (3, 30, "c"), (4, 44, None)]


# --- columns and settings --------------------------------------------------------------------------------------------

WRONG = {
    "merge_on names column 'no', which the rows does not have": {"merge_on": ["no"]},
    "order_by names column 'no'": {"order_by": ["no"]},
    r"when_matched names column 'no'": {"when_matched": {"no": "1"}},
    r"delete_when=.* cannot be used with these columns": {"delete_when": "source.gone"},
    r"update_when=.* cannot be used": {"update_when": "source.n >"},
    r"insert_when=.* cannot be used": {"insert_when": "target.n > 1"},
    r"merge_where=.* cannot be used": {"merge_where": "target.n"},
    r"when_matched\['n'\]=.* cannot be used": {"when_matched": {"n": "max(source.n)"}},
    r"when_matched\['n'\]='source.word' is a string, and the column is a bigint": {
        "when_matched": {"n": "source.word"}
    },
    r"when_not_matched\['n'\]=.* returns a different value each time": {
        "when_not_matched": {"n": "cast(rand() as bigint)"}
    },
    r"update_when=.* has a subquery": {"update_when": "source.n > (select 1)"},
}


@pytest.mark.parametrize("says", WRONG)
def test_settings_are_held_against_rows_and_table(
    tables: SparkSession, tmp_path: Path, says: str, wrong_job: MergeJob
) -> None:
    with pytest.raises(SchemaError, match=says):
        wrong_job.sink(**{"merge_on": ["id"], **WRONG[says]}).columns(ARROW)


def test_a_key_of_another_type_is_refused(wrong_job: MergeJob) -> None:
    """Two strings, such as 1 and 01, may be the same number in the table."""
    sink = wrong_job.sink(merge_on=["id"], when_matched=ADD, when_not_matched=None)
    schema = pa.schema([pa.field("id", pa.string()), *list(ARROW)[1:]])
    with pytest.raises(SchemaError, match="column 'id' is string in the rows, and bigint in the table"):
        sink.columns(schema)


@pytest.fixture(scope="module")
def wrong_job(tables: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> MergeJob:
    """A job whose table is never written to."""
    return DeltaMerge(tables, tmp_path_factory.mktemp("wrong"))


def test_columns_are_added_at_the_start_if_that_is_asked(job: MergeJob) -> None:
    schema = ARROW.append(pa.field("More", pa.list_(pa.field("element", pa.int32()))))
    with pytest.raises(SchemaError, match="'More' is not in"):
        job.sink(merge_on=["id"]).columns(schema)
    for _ in range(2):
        sink = job.sink(merge_on=["id"], evolve_schema=True)
        assert sink.columns(schema) == ["id", "n", "word", "More"]
        sink.preflight(QUERY, job.facts)
    assert sink.columns(schema) == ["id", "n", "word", "More"]
    with pytest.raises(SchemaError, match="'later' is not in"):
        sink.columns(schema.append(pa.field("later", pa.int32())))
    job.merge([(1, 11, "x", [7])], schema=schema)
    assert [row.More for row in job.sink().table(job.spark).frame().where("id < 3").sort("id").collect()] == [[7], None]


@pytest.mark.slow
def test_the_session_that_started_the_query_sees_a_merge_at_once(job: MergeJob) -> None:
    """This also holds if it has read the table before, since an Iceberg catalog caches tables for 30 seconds."""
    assert len(job.rows()) == len(job.started)
    job.merge([(9, 99, "y")])
    assert (9, 99, "y") in job.rows()


# --- several rows of one key -----------------------------------------------------------------------------------------


def test_several_rows_of_one_key_are_refused_before_the_decision(job: MergeJob) -> None:
    """The rows are in two slots. A null equals nothing, not even another null."""
    committer = job.sink().committer()
    first = job.prepared([(1, 1, "x"), (None, 1, "x")])
    assert committer.check_prepared([first, job.prepared([(2, 1, "x"), (None, 1, "x")], slot=1)]) == ""
    reason = committer.check_prepared([first, job.prepared([(7, 1, "x"), (1, 2, "y")], slot=2)])
    assert "2 rows of the batch have the key id=1" in reason
    assert job.sink(merge_on=["id"], order_by=["n"]).committer().check_prepared([first, first]) == ""


@pytest.mark.parametrize("by", ["driver", pytest.param("spark", marks=pytest.mark.slow)])
def test_keys_of_all_types_are_compared_as_spark_does(
    tables: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The driver compares them with Arrow, or Spark does if there are many rows. Zeros of both signs are equal."""
    if by == "spark":
        monkeypatch.setattr(merging, "_MOST_IN_DRIVER", 1)
    columns = {"id": "bigint", "Day": "date", "cents": "decimal(9,2)", "rate": "double", "word": "string"}
    monkeypatch.setattr(DeltaMerge, "started", ())
    job = DeltaMerge(tables, tmp_path, ", ".join(f"{name} {kind}" for name, kind in columns.items()))
    types = [pa.int64(), pa.date32(), pa.decimal128(9, 2), pa.float64(), pa.string()]
    schema = pa.schema(list(zip(columns, types, strict=True)))
    days = [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)]
    rows = [(1, days[0], Decimal("1.50"), 0.0, "é"), (1, days[1], Decimal("1.50"), -0.0, "e")]
    job.settings = {"merge_on": ["id"]}
    handle = job.prepared(rows, schema=schema)
    for keys, shown in (
        (["id", "day", "word"], ""),
        (["ID", "cents"], "2 rows of the batch have the key ID=1, cents=Decimal('1.50')"),
        (["rate"], "2 rows of the batch have the key rate=0.0"),
        (["word"], ""),
    ):
        reason = job.sink(merge_on=keys).committer().check_prepared([handle])
        assert (reason[: len(shown)], bool(reason)) == (shown, bool(shown)), keys


@pytest.mark.slow
def test_a_query_with_several_rows_of_one_key_stops_undecided(tables: SparkSession, tmp_path: Path) -> None:
    """Everything that was prepared is undone. Once the rows have an order, the query continues without loss."""

    class OrdersJob(DeltaMerge):
        started = ((-1, 0, ""),)

        def of_orders(self, orders: Any) -> Any:
            return orders.selectExpr("number % 10 as id", "number as n", "'x' as word")

    job = OrdersJob(tables, tmp_path)
    job.settings = {"merge_on": ["id"]}
    sent = make_orders(tmp_path / "orders", files=4)
    assert "rows of the batch have the key id=" in job.query()
    assert DecisionLog(LocalFiles(tmp_path / "query")).read(LogView()).newest_decision is None
    assert job.rows() == [(-1, 0, "")]
    assert list((tmp_path / "rows" / "delta" / "prepared").iterdir()) == []
    job.settings = {"merge_on": ["id"], "order_by": ["n"]}
    assert job.query() == ""
    last = {number % 10: number for number in sorted(sent)}
    assert job.rows() == [(-1, 0, ""), *sorted((id_, number, "x") for id_, number in last.items())]


# --- rules of the table for what expressions insert ------------------------------------------------------------------

INSERTS: Mapping[str, Any] = {
    "merge_on": ["id"],
    "when_matched": ADD,
    "when_not_matched": {"id": "source.id", "n": "source.n - 5"},
}


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_a_row_that_an_expression_must_not_insert_is_refused_before_the_decision(
    tables: SparkSession, tmp_path: Path, kind: str
) -> None:
    """The check applies only to rows that would be inserted. A matching row is updated, with another expression."""
    # The options to create a table of each kind, a value of `n` that it then rejects, and its error message.
    rules: dict[str, tuple[dict[str, str], int | None, str]] = {
        "delta": ({"delta.constraints.high": "n > 0"}, 3, "CHECK constraint high"),
        "iceberg": ({"columns": "id bigint, n bigint not null, word string"}, None, "must not be null"),
    }
    made, bad, name = rules[kind]
    job = KINDS[kind](tables, tmp_path, **made)
    committer = job.sink(**INSERTS).committer()
    assert committer.check_prepared([job.prepared([(1, bad, "x"), (4, 6, "x")])]) == ""
    assert name in committer.check_prepared([job.prepared([(1, bad, "x"), (4, bad, "x")])])
    dropped = job.sink(**INSERTS, insert_when="source.word <> 'x'").committer()
    assert dropped.check_prepared([job.prepared([(4, bad, "x"), (5, 6, "y")])]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_an_expression_has_to_set_a_column_that_must_not_be_null(
    tables: SparkSession, tmp_path: Path, kind: str
) -> None:
    needed = "id bigint, n bigint, word string not null"
    settings = {**INSERTS, "when_not_matched": {"id": "source.id", "n": "source.n"}}
    KINDS[kind](tables, tmp_path / "1").sink(**settings).columns(ARROW)
    job = KINDS[kind](tables, tmp_path / "2", needed)
    with pytest.raises(SchemaError, match=r"'word' of .* must not be null, and when_not_matched does not set it"):
        job.sink(**settings).columns(ARROW)
    for other in (None, {**settings["when_not_matched"], "word": "source.word"}):
        job.sink(**{**settings, "when_not_matched": other}).columns(ARROW)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_columns_that_another_writer_changes_while_a_batch_is_decided(
    tables: SparkSession, tmp_path: Path, kind: str
) -> None:
    """The next batch is refused before its decision; this one stops, and is merged once the column is back."""
    job = KINDS[kind](tables, tmp_path)
    table = job.sink().table(tables).sql_name
    if isinstance(job, DeltaMerge):
        mode = "'delta.columnMapping.mode'='name', 'delta.minReaderVersion'='2', 'delta.minWriterVersion'='5'"
        tables.sql(f"alter table {table} set tblproperties ({mode})")
    sink = job.sink(**INSERTS)
    sink.columns(ARROW)
    handle = job.prepared([(1, 1, "x"), (4, 9, "x")])
    committer = sink.committer()
    assert committer.check_prepared([handle]) == ""
    tables.sql(f"alter table {table} rename column n to other")
    with pytest.raises(SchemaError, match="names column 'n'"):
        sink.columns(ARROW)
    (answer,) = committer.commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "refuses the rows" in answer.reason
    tables.sql(f"alter table {table} rename column other to n")
    assert job.sink(**INSERTS).committer().commit([handle])[0].outcome is Outcome.COMMITTED
    found = [tuple(row) for row in job.sink().table(tables).frame().collect()]
    assert by_id(found) == [(1, 11, "x"), (2, 20, "b"), (3, 30, "c"), (4, 4, None)]


# --- rows that are lost after the decision ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_that_has_lost_a_file_is_merged_as_one(tables: SparkSession, tmp_path: Path, kind: str) -> None:
    """If it were merged on its own, the older row would insert a key that the other file deletes."""

    class OrdersJob(KINDS[kind]):  # type: ignore[misc] # any of them
        settings: Mapping[str, Any] = {"merge_on": ["id"], "order_by": ["n"], "delete_when": "source.word = 'gone'"}

        def of_orders(self, orders: Any) -> Any:
            return orders.selectExpr("number % 10 as id", "number as n", "if(number < 90, 'x', 'gone') as word")

    job = OrdersJob(tables, tmp_path)
    make_orders(tmp_path / "orders", files=2)
    assert "CrashError" in job.query(crash_at(Phase.FINISHING, 0))
    waiting = sorted((tmp_path / "rows").rglob("prepared/*"), key=lambda path: pq.read_table(path)["n"].to_pylist())
    assert len(waiting) == 2
    waiting[0].unlink()
    assert job.query() == ""
    assert job.rows() == []
    assert job.versions() == 1
