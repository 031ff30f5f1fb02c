"""MERGE into Delta and Iceberg: each batch is applied once, next to other writers, no matter when drivers die.

Most merges add to existing values, so the sums show a merge that was lost or done twice. The second part tests what
happens to rows, to columns, and to several rows with one key.
"""

from __future__ import annotations

import abc
import datetime
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import customer_history
from eventually import eventually
from one_run import prepare
from spark.harness import new_name
from spark.in_process import SPARK, CrashError, crash_at, ended
from spark.table_job import QUERY, TableJob
from sparkonce import DeltaSink, IcebergSink
from sparkonce.decision_log import DecisionLog
from sparkonce.errors import SchemaError, SparkonceError
from sparkonce.protocol.handles import COMMITTED, Handle, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import LogView
from sparkonce.sinks.tables import merging
from sparkonce.sinks.tables.delta import _DeltaTable
from sparkonce.sinks.tables.iceberg import _IcebergTable
from sparkonce.sinks.tables.sink import TableSink
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.storage.local import LocalFiles
from tryout.bulk import make_orders
from tryout.history import history_of, make_changes

pytestmark = SPARK

COLUMNS = "id bigint, n bigint, word string"
ARROW = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("word", pa.string())])
ADD = {"n": "target.n + source.n", "word": "source.word"}


Row = tuple[int, int, str]


class MergeJob(TableJob):
    """One table with a few rows, a run that merges into it, and another writer."""

    started = ((1, 10, "a"), (2, 20, "b"), (3, 30, "c"))
    settings: Mapping[str, Any] = {"merge_on": ["id"], "when_matched": ADD}

    def __init__(self, spark: SparkSession, folder: Path, columns: str = COLUMNS, **properties: str) -> None:
        self.columns, self.properties = columns, properties
        self.make(spark, folder)
        super().__init__(spark, folder)

    @abc.abstractmethod
    def make(self, spark: SparkSession, folder: Path) -> None:
        """Creates the table."""

    @abc.abstractmethod
    def sink(self, **settings: Any) -> TableSink:
        """Returns a sink with these settings instead of the job's own."""

    @abc.abstractmethod
    def rows(self) -> list[Row]:
        """Returns the rows that a reader finds, sorted."""

    @abc.abstractmethod
    def another_adds(self, id_: int, n: int) -> None:
        """Another writer adds to an existing row. Fails if somebody else committed first."""

    @abc.abstractmethod
    def another_inserts(self, *rows: Row) -> None: ...

    @abc.abstractmethod
    def versions(self) -> int:
        """Returns the number of table versions that belong to batches."""

    def numbers(self) -> list[int]:
        return [row[0] for row in self.rows()]

    def prepared(
        self,
        rows: Sequence[tuple[Any, ...]],
        batch: int = 0,
        slot: int = 0,
        schema: pa.Schema = ARROW,
        sink: TableSink | None = None,
    ) -> Handle:
        columns = {name: [row[place] for row in rows] for place, name in enumerate(schema.names)}
        given = pa.record_batch(columns, schema=schema)
        return prepare(sink or self.sink(), given, run=self.owner(), batch=batch, slot=slot)

    def merge(
        self, rows: Sequence[tuple[Any, ...]], *, batch: int = 0, schema: pa.Schema = ARROW, **settings: Any
    ) -> None:
        """Runs one batch with other settings."""
        sink = self.sink(**{"merge_on": ["id"], **settings})
        (answer,) = sink.committer().commit([self.prepared(rows, batch, 0, schema, sink)])
        assert answer.outcome is Outcome.COMMITTED, answer.reason


class DeltaMerge(MergeJob):
    table = _DeltaTable
    points = ("merge",)

    def make(self, spark: SparkSession, folder: Path) -> None:
        self.path = str(folder / "table")
        properties = ", ".join(f"'{name}'='{value}'" for name, value in {"made.by": "tests", **self.properties}.items())
        spark.sql(f"create table delta.`{self.path}` ({self.columns}) using delta tblproperties ({properties})")
        rows = spark.createDataFrame(self.started, self.columns).coalesce(1)
        rows.write.format("delta").mode("append").save(self.path)

    def sink(self, **settings: Any) -> DeltaSink:
        return DeltaSink(self.path, folder=self.folder / "rows", **(settings or self.settings))

    def rows(self) -> list[Row]:
        return sorted(tuple(row) for row in self.spark.read.format("delta").load(self.path).collect())

    def another_adds(self, id_: int, n: int) -> None:
        """Uses MERGE, since UPDATE needs Delta's SQL extension."""
        changes = self.spark._jvm.java.util.HashMap()
        changes["n"] = f"it.n + {n}"
        one = self.spark.range(1)._jdf.alias("one")
        self._handle().alias("it").merge(one, f"it.id = {id_}").whenMatched().updateExpr(changes).execute()

    def another_inserts(self, *rows: Row) -> None:
        self.spark.createDataFrame(rows, COLUMNS).write.format("delta").mode("append").save(self.path)

    def versions(self) -> int:
        return len(_DeltaTable(self.spark, self.path, None).labels())

    def _handle(self) -> Any:
        return self.spark._jvm.io.delta.tables.DeltaTable.forPath(self.spark._jsparkSession, self.path)


class IcebergMerge(MergeJob):
    table = _IcebergTable
    points = ("merge", "_publish")
    mode = "copy-on-write"

    def make(self, spark: SparkSession, folder: Path) -> None:
        self.name = f"ice.db.{new_name('t').replace('-', '_')}"
        modes = ", ".join(f"'write.{each}.mode'='{self.mode}'" for each in ("merge", "update", "delete"))
        spark.sql(f"create table {self.name} ({self.columns}) using iceberg tblproperties ({modes})")
        spark.createDataFrame(self.started, self.columns).writeTo(self.name).append()

    def sink(self, **settings: Any) -> IcebergSink:
        return IcebergSink(self.name, folder=self.folder / "rows", **(settings or self.settings))

    def rows(self) -> list[Row]:
        return sorted(tuple(row) for row in self.spark.table(self.name).collect())

    def another_adds(self, id_: int, n: int) -> None:
        self.spark.catalog.refreshTable(self.name)
        self.spark.sql(f"update {self.name} set n = n + {n} where id = {id_}")  # noqa: S608 - the test's own

    def another_inserts(self, *rows: Row) -> None:
        self.spark.catalog.refreshTable(self.name)
        self.spark.createDataFrame(rows, COLUMNS).writeTo(self.name).append()

    def versions(self) -> int:
        return len(_IcebergTable(self.spark, self.name).labels())


class IcebergMergeOnRead(IcebergMerge):
    mode = "merge-on-read"


KINDS = {"delta": DeltaMerge, "iceberg": IcebergMerge, "iceberg on read": IcebergMergeOnRead}


@pytest.fixture(params=["delta", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "delta")])
def job(request, tables, tmp_path) -> MergeJob:
    """For code that treats all kinds of tables the same. The first tier only uses Delta."""
    return KINDS[request.param](tables, tmp_path)


# --- drivers that die, and other writers ------------------------------------------------------------------------------


FIRST = [("delta", "merge"), ("iceberg", "_publish"), ("iceberg on read", "note_done")]
POINTS = [(kind, point) for kind, each in KINDS.items() for point in (*each.points, "note_done")]


@pytest.mark.parametrize(
    ("kind", "point"), [*FIRST, *(pytest.param(*one, marks=pytest.mark.slow) for one in POINTS if one not in FIRST)]
)
def test_a_driver_that_is_killed_while_another_writes(tables, tmp_path, kind, point):
    """It updates a row of the batch, and inserts one, before the batch is merged again."""
    job = KINDS[kind](tables, tmp_path)
    batches = [[(1, 1, "x"), (4, 4, "x")], [(2, 2, "x"), (5, 5, "x")]]
    handles = [job.prepared(rows, slot=slot) for slot, rows in enumerate(batches)]
    job.commit_killed(WriteAheadFolder if point == "note_done" else job.table, point, *handles)
    done = point == "note_done"
    merged = [(1, 11, "x"), (2, 22, "x"), (3, 30, "c"), (4, 4, "x"), (5, 5, "x")]
    assert job.rows() == (merged if done else list(job.started))
    job.another_adds(1, 1000)
    job.another_inserts((6, 60, "other"))
    assert set(job.commit(*handles)) == {Outcome.ALREADY_COMMITTED if done else Outcome.COMMITTED}
    assert job.commit(handles[0]) == [Outcome.ALREADY_COMMITTED]
    assert job.rows() == [(1, 1011, "x"), (2, 22, "x"), (3, 30, "c"), (4, 4, "x"), (5, 5, "x"), (6, 60, "other")]
    assert job.versions() == 1


@pytest.mark.slow
def test_updates_of_two_writers_at_once_are_all_there(job, say):
    """Each reads the rows that the other changes. The slower one is rejected, and reads again."""
    rounds, refused = 6, list[str]()
    handles = [job.prepared([(1, 1, "x"), (100 + batch, 1, "x")], batch) for batch in range(rounds)]

    committer = job.sink().committer()

    def merge() -> None:
        def committed(handle: Handle) -> bool:
            (answer,) = committer.commit([handle])
            if answer.outcome is Outcome.RETRY:
                refused.append(answer.reason)
            return answer.outcome in COMMITTED

        for handle in handles:
            eventually(lambda handle=handle: committed(handle), "merged")

    def add() -> None:
        def done() -> bool:
            try:
                job.another_adds(1, 1000)
            except Exception as error:  # the conflict is raised by Spark, by Delta, or by Iceberg
                if re.search("[Cc]oncurrent|[Cc]onflict|CommitFailed", str(error)) is None:
                    raise
                return False
            return True

        for _ in range(rounds):
            eventually(done, "added")

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(merge), pool.submit(add)]:
            one.result()
    assert job.rows()[0] == (1, 10 + rounds * 1001, "x")
    assert job.numbers() == [1, 2, 3, *range(100, 100 + rounds)]
    assert job.versions() == rounds
    say(f"{type(job).__name__}: {len(refused)} of {rounds + len(refused)} merges were refused: {set(refused)}")


@pytest.mark.parametrize("kind", [IcebergMerge, pytest.param(IcebergMergeOnRead, marks=pytest.mark.slow)])
def test_a_key_that_another_inserts_between_the_merge_and_its_publishing(tables, tmp_path, monkeypatch, kind):
    """The merge has only inserted, which Iceberg would add to any snapshot."""
    job = kind(tables, tmp_path)
    handle, publish = job.prepared([(7, 7, "x")]), _IcebergTable._publish

    def publish_late(self: _IcebergTable, *given: Any) -> None:
        job.another_inserts((7, 70, "other"))
        publish(self, *given)

    with monkeypatch.context() as late:
        late.setattr(_IcebergTable, "_publish", publish_late)
        assert job.commit(handle) == [Outcome.RETRY]
    assert job.commit(handle) == [Outcome.COMMITTED]
    assert job.rows() == [*job.started, (7, 77, "x")]


@pytest.mark.slow
def test_a_merge_that_changes_nothing_is_known_too(job):
    job.settings = {"merge_on": ["id"], "update_when": "false", "when_not_matched": None}
    handle = job.prepared([(1, 1, "x"), (9, 9, "x")])
    job.commit_unnoticed(handle)
    assert job.commit(handle) == [Outcome.ALREADY_COMMITTED]
    assert (job.rows(), job.versions()) == (sorted(job.started), 1)


@pytest.mark.slow
def test_the_example_keeps_a_history(tables, tmp_path):
    """Its driver dies in its second batch."""
    table, state, changes = str(tmp_path / "table"), str(tmp_path / "state"), tmp_path / "changes"
    sent = make_changes(changes)
    customer_history.create(tables, table)
    for listener in (crash_at(Phase.FINISHING, 1), None):
        once = customer_history.query(table, state, listener=listener, display=False)
        query = once.start(customer_history.read(tables, changes), trigger={"availableNow": True})
        if listener is None:
            ended(query)
        else:
            with pytest.raises(StreamingQueryException, match="CrashError"):
                ended(query)
    found = [tuple(row) for row in tables.read.format("delta").load(table).collect()]
    assert Counter(found) == Counter(history_of(sent))


# --- the fate of rows -------------------------------------------------------------------------------------------------

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


CHEAP = ("some rows", "deleted, and not inserted", "older ones delete nothing")


@pytest.mark.parametrize(
    "case", [each if each in CHEAP else pytest.param(each, marks=pytest.mark.slow) for each in CASES]
)
@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_what_becomes_of_rows(tables, tmp_path, kind, case):
    settings, rows, left = CASES[case]
    job = KINDS[kind](tables, tmp_path)
    job.merge(rows, **settings)
    found = [tuple(row) for row in job.sink().table(tables).frame().collect()]
    assert by_id(found) == by_id(left)


@pytest.mark.slow
def test_columns_that_only_a_condition_reads(job):
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
def test_columns_that_the_rows_do_not_have_stay(job):
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
def test_settings_are_held_against_rows_and_table(tables, tmp_path, says, wrong_job):
    with pytest.raises(SchemaError, match=says):
        wrong_job.sink(**{"merge_on": ["id"], **WRONG[says]}).columns(ARROW)


def test_a_key_of_another_type_is_refused(wrong_job):
    """Two strings, such as 1 and 01, may be the same number in the table."""
    sink = wrong_job.sink(merge_on=["id"], when_matched=ADD, when_not_matched=None)
    schema = pa.schema([pa.field("id", pa.string()), *list(ARROW)[1:]])
    with pytest.raises(SchemaError, match="column 'id' is string in the rows, and bigint in the table"):
        sink.columns(schema)


@pytest.fixture(scope="module")
def wrong_job(tables, tmp_path_factory) -> MergeJob:
    """A job whose table is never written to."""
    return DeltaMerge(tables, tmp_path_factory.mktemp("wrong"))


def test_columns_are_added_at_the_start_if_that_is_asked(job):
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
def test_the_session_that_started_the_query_sees_a_merge_at_once(job):
    """This also holds if it has read the table before, since an Iceberg catalog caches tables for 30 seconds."""
    assert len(job.rows()) == len(job.started)
    job.merge([(9, 99, "y")])
    assert (9, 99, "y") in job.rows()


# --- several rows of one key -----------------------------------------------------------------------------------------


def test_several_rows_of_one_key_are_refused_before_the_decision(job):
    """The rows are in two slots. A null equals nothing, not even another null."""
    committer = job.sink().committer()
    first = job.prepared([(1, 1, "x"), (None, 1, "x")])
    assert committer.check_prepared([first, job.prepared([(2, 1, "x"), (None, 1, "x")], slot=1)]) == ""
    reason = committer.check_prepared([first, job.prepared([(7, 1, "x"), (1, 2, "y")], slot=2)])
    assert "2 rows of the batch have the key id=1" in reason
    assert job.sink(merge_on=["id"], order_by=["n"]).committer().check_prepared([first, first]) == ""


@pytest.mark.parametrize("by", ["driver", pytest.param("spark", marks=pytest.mark.slow)])
def test_keys_of_all_types_are_compared_as_spark_does(tables, tmp_path, monkeypatch, by):
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
        (["ID", "cents"], "2 rows of the batch have the key ID=1, cents=1.50"),
        (["rate"], "2 rows of the batch have the key rate=0.0"),
        (["word"], ""),
    ):
        reason = job.sink(merge_on=keys).committer().check_prepared([handle])
        assert (reason[: len(shown)], bool(reason)) == (shown, bool(shown)), keys


@pytest.mark.slow
def test_a_query_with_several_rows_of_one_key_stops_undecided(tables, tmp_path):
    """Everything that was prepared is undone. Once the rows have an order, the query continues without loss."""

    class OrdersJob(DeltaMerge):
        started = ((-1, 0, ""),)

        def of_orders(self, orders: Any) -> Any:
            return orders.selectExpr("number % 10 as id", "number as n", "'x' as word")

    job = OrdersJob(tables, tmp_path)
    job.settings = {"merge_on": ["id"]}
    sent = make_orders(tmp_path / "orders", files=4)
    with pytest.raises(SparkonceError, match="rows of the batch have the key id="):
        job.query()
    assert DecisionLog(LocalFiles(tmp_path / "query")).read(LogView()).newest_decision is None
    assert job.rows() == [(-1, 0, "")]
    assert list((tmp_path / "rows" / "delta" / "prepared").iterdir()) == []
    job.settings = {"merge_on": ["id"], "order_by": ["n"]}
    job.query()
    last = {number % 10: number for number in sorted(sent)}
    assert job.rows() == [(-1, 0, ""), *sorted((id_, number, "x") for id_, number in last.items())]


# --- rules of the table for inserted expressions ---------------------------------------------------------------------

INSERTS: Mapping[str, Any] = {
    "merge_on": ["id"],
    "when_matched": ADD,
    "when_not_matched": {"id": "source.id", "n": "source.n - 5"},
}


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_a_row_that_an_expression_must_not_insert_is_refused_before_the_decision(tables, tmp_path, kind):
    """The check applies only to rows that would be inserted. A matching row is updated, with another expression."""
    # For each kind of table, the options that create it, a value of `n` that it then rejects, and its error message.
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
def test_an_expression_has_to_set_a_column_that_must_not_be_null(tables, tmp_path, kind):
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
def test_columns_that_another_writer_changes_while_a_batch_is_decided(tables, tmp_path, kind):
    """The next batch is rejected before its decision; this one stops, and is merged once the column is back."""
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
def test_a_batch_that_has_lost_a_file_is_merged_as_one(tables, tmp_path, kind):
    """If it were merged on its own, the older row would insert a key that the other file deletes."""

    class OrdersJob(KINDS[kind]):  # any of them
        settings: Mapping[str, Any] = {"merge_on": ["id"], "order_by": ["n"], "delete_when": "source.word = 'gone'"}

        def of_orders(self, orders: Any) -> Any:
            return orders.selectExpr("number % 10 as id", "number as n", "if(number < 90, 'x', 'gone') as word")

    job = OrdersJob(tables, tmp_path)
    make_orders(tmp_path / "orders", files=2)
    with pytest.raises(CrashError):
        job.query(crash_at(Phase.FINISHING, 0))
    waiting = sorted((tmp_path / "rows").rglob("prepared/*"), key=lambda path: pq.read_table(path)["n"].to_pylist())
    assert len(waiting) == 2
    waiting[0].unlink()
    job.query()
    assert job.rows() == []
    assert job.versions() == 1
