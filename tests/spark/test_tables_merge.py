"""MERGE into Delta and Iceberg: each batch once, beside other writers, whenever drivers die.

Most merges add to what is there, so one that is done twice, or is lost, shows in the sums. The expected rows are
computed without Spark.
"""

from __future__ import annotations

import abc
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import customer_history
from eventually import eventually
from spark.harness import new_name
from spark.in_process import SPARK, crash_at, ended
from spark.table_job import QUERY, KilledError, TableJob, killed
from sparkonce import DeltaSink, IcebergSink
from sparkonce.errors import SchemaError
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import COMMITTED, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import LogView
from sparkonce.sink import WriterContext
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.spark.tables.committer import _active
from sparkonce.spark.tables.delta import _DeltaTable
from sparkonce.spark.tables.errors import error_message
from sparkonce.spark.tables.iceberg import _IcebergTable
from sparkonce.spark.tables.sink import TableSink
from tryout.bulk import make_orders
from tryout.history import history_of, make_changes

pytestmark = SPARK
COLUMNS = "id bigint, n bigint, word string"
ARROW = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("word", pa.string())])
ADD = {"n": "target.n + source.n", "word": "source.word"}

drawn = pytest.mark.drawn(5, "merge")
"""Drawn of some forty tests. Always run: each merge is done once, whenever drivers die."""

Row = tuple[int, int, str]


def added(table: Iterable[Row], *batches: Iterable[Row]) -> list[Row]:
    """What a table holds once batches were merged by `ADD`."""
    found = {id_: (n, word) for id_, n, word in table}
    for id_, n, word in (row for batch in batches for row in batch):
        found[id_] = (found[id_][0] + n if id_ in found else n, word)
    return sorted((id_, n, word) for id_, (n, word) in found.items())


class MergeJob(TableJob):
    """One table with a few rows, a run that merges into it, and another writer."""

    started = ((1, 10, "a"), (2, 20, "b"), (3, 30, "c"))
    settings: Mapping[str, Any] = {"merge_on": ["id"], "when_matched": ADD}

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.make(spark, folder)
        super().__init__(spark, folder)

    @abc.abstractmethod
    def make(self, spark: SparkSession, folder: Path) -> None:
        """Makes the table."""

    @abc.abstractmethod
    def sink(self, **settings: Any) -> TableSink:
        """As given, in place of the job's own settings."""

    @abc.abstractmethod
    def rows(self) -> list[Row]:
        """What a reader finds, sorted."""

    @abc.abstractmethod
    def another_adds(self, id_: int, n: int) -> None:
        """Another writer adds to a row that is there. Fails if somebody else was faster."""

    @abc.abstractmethod
    def another_inserts(self, *rows: Row) -> None: ...

    @abc.abstractmethod
    def versions(self) -> int:
        """That are the batches'."""

    def numbers(self) -> list[int]:
        return [row[0] for row in self.rows()]

    def commit_unnoticed_sometime(self, handle: Handle) -> None:
        """As `commit_unnoticed`, once no other writer is in the way."""

        def died() -> bool:
            with pytest.MonkeyPatch.context() as broken:
                broken.setattr(WriteAheadFolder, "note_done", killed)
                try:
                    self.commit(handle)
                except KilledError:
                    return True
            return False

        eventually(died, "the driver has died in its commit")

    def prepared(
        self, rows: Sequence[tuple[Any, ...]], batch: int = 0, slot: int = 0, schema: pa.Schema = ARROW
    ) -> Handle:
        sink = self.sink()
        writer = sink.writer(WriterContext(owner=self.owner(), batch=batch, slot=slot, copy="1.1.0"))
        writer.begin()
        columns = {name: [row[place] for row in rows] for place, name in enumerate(schema.names)}
        writer.write(pa.record_batch(columns, schema=schema))
        fields = transaction_fields(writer.prepare())
        writer.close()
        return Handle(sink=sink.name, slot=slot, rows=len(rows), transaction=fields)

    def merge(
        self, rows: Sequence[tuple[Any, ...]], *, batch: int = 0, schema: pa.Schema = ARROW, **settings: Any
    ) -> None:
        """One batch, by other settings."""
        (answer,) = (
            self.sink(**{"merge_on": ["id"], **settings}).committer().commit([self.prepared(rows, batch, 0, schema)])
        )
        assert answer.outcome is Outcome.COMMITTED, answer.reason


class DeltaMerge(MergeJob):
    table = _DeltaTable
    points = ("merge",)

    def make(self, spark: SparkSession, folder: Path) -> None:
        self.path = str(folder / "table")
        spark.createDataFrame(self.started, COLUMNS).coalesce(1).write.format("delta").save(self.path)

    def sink(self, **settings: Any) -> DeltaSink:
        return DeltaSink(self.path, folder=self.folder / "rows", **(settings or self.settings))

    def rows(self) -> list[Row]:
        return sorted(tuple(row) for row in self.spark.read.format("delta").load(self.path).collect())

    def another_adds(self, id_: int, n: int) -> None:
        """By a MERGE: an UPDATE needs Delta's extension to SQL."""
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
        spark.sql(f"create table {self.name} ({COLUMNS}) using iceberg tblproperties ({modes})")
        spark.createDataFrame(self.started, COLUMNS).writeTo(self.name).append()

    def sink(self, **settings: Any) -> IcebergSink:
        return IcebergSink(self.name, folder=self.folder / "rows", **(settings or self.settings))

    def rows(self) -> list[Row]:
        self.spark.catalog.refreshTable(self.name)
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
POINTS = [(kind, point) for kind, each in KINDS.items() for point in (*each.points, "note_done")]


@pytest.fixture(params=KINDS)
def job(request: pytest.FixtureRequest, tables: SparkSession, tmp_path: Path) -> MergeJob:
    return KINDS[request.param](tables, tmp_path)


@pytest.mark.parametrize(("kind", "point"), [pytest.param(*one, marks=drawn) for one in POINTS])
def test_a_driver_that_is_killed_while_another_writes(
    tables: SparkSession, tmp_path: Path, kind: str, point: str
) -> None:
    """It updates a row of the batch, and inserts one, before the batch is merged again."""
    job = KINDS[kind](tables, tmp_path)
    batches = [[(1, 1, "x"), (4, 4, "x")], [(2, 2, "x"), (5, 5, "x")]]
    handles = [job.prepared(rows, slot=slot) for slot, rows in enumerate(batches)]
    job.commit_killed(WriteAheadFolder if point == "note_done" else job.table, point, *handles)
    done = point == "note_done"
    assert job.rows() == added(job.started, *(batches if done else []))
    job.another_adds(1, 1000)
    job.another_inserts((6, 60, "other"))
    assert set(job.commit(*handles)) == {Outcome.ALREADY_COMMITTED if done else Outcome.COMMITTED}
    assert job.commit(handles[0]) == [Outcome.ALREADY_COMMITTED]
    assert job.rows() == [(1, 1011, "x"), (2, 22, "x"), (3, 30, "c"), (4, 4, "x"), (5, 5, "x"), (6, 60, "other")]
    assert job.versions() == 1


def test_each_batch_is_merged_into_what_the_last_one_left(job: MergeJob) -> None:
    batches = [[(1, 1, "x"), (4, 4, "y")], [(4, 40, "z")], [(4, 400, "w"), (1, 100, "w")]]
    for batch, rows in enumerate(batches):
        assert job.commit(job.prepared(rows, batch)) == [Outcome.COMMITTED]
    assert job.rows() == added(job.started, *batches)
    assert job.versions() == 3


@drawn
def test_updates_of_two_writers_at_once_are_all_there(job: MergeJob, say: Callable[[str], None]) -> None:
    """Each reads the rows that the other changes. Whoever comes late is refused, and reads again."""
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
            except Exception as error:  # a conflict is one of Spark's, of Delta's or of Iceberg's
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


@drawn
@pytest.mark.parametrize("kind", [IcebergMerge, IcebergMergeOnRead])
def test_a_key_that_another_inserts_between_the_merge_and_its_publishing(
    tables: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[IcebergMerge]
) -> None:
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


@drawn
def test_two_drivers_at_once_without_locks(job: MergeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table lets one of them in, or tells the second what the first has done."""
    monkeypatch.setattr("sparkonce.sinks.write_ahead.application._lock", lambda _: True)
    handles = [job.prepared([(1, 1, "x"), (4, 4, "x")])]
    committers = [job.sink().committer() for _ in range(2)]
    for _ in range(5):
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda one: one.commit(handles), committers))
        assert {one.outcome for some in answers for one in some} <= COMMITTED | {Outcome.RETRY}, answers
    assert {one.outcome for some in answers for one in some} <= COMMITTED
    assert job.rows() == added(job.started, [(1, 1, "x"), (4, 4, "x")])
    assert job.versions() == 1


@drawn
def test_a_merge_that_changes_nothing_is_known_too(job: MergeJob) -> None:
    job.settings = {"merge_on": ["id"], "update_when": "false", "when_not_matched": None}
    handle = job.prepared([(1, 1, "x"), (9, 9, "x")])
    job.commit_unnoticed(handle)
    assert job.commit(handle) == [Outcome.ALREADY_COMMITTED]
    assert (job.rows(), job.versions()) == (sorted(job.started), 1)


# --- what becomes of rows --------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("case", [pytest.param(each, marks=drawn) for each in CASES])
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_what_becomes_of_rows(tables: SparkSession, tmp_path: Path, kind: str, case: str) -> None:
    settings, rows, left = CASES[case]
    job = KINDS[kind](tables, tmp_path)
    job.merge(rows, **settings)
    found = [tuple(row) for row in job.sink().table(tables).frame().collect()]
    assert by_id(found) == by_id(left)


@drawn
def test_columns_that_only_a_condition_reads(job: MergeJob) -> None:
    """As of a change feed: the table has no column for the kind of a change."""
    schema = ARROW.append(pa.field("kind", pa.string()))
    settings = {"merge_on": ["id"], "delete_when": "source.kind = 'D'"}
    sink = job.sink(**settings)
    assert sink.columns(schema) == ["id", "n", "word", "kind"]
    job.merge([(1, 11, "x", "U"), (2, 0, "", "D"), (4, 44, "y", "I"), (5, 0, "", "D")], schema=schema, **settings)
    assert job.rows() == [(1, 11, "x"), (3, 30, "c"), (4, 44, "y")]
    with pytest.raises(SchemaError, match="'kind' is none of"):
        job.sink(merge_on=["id"]).columns(schema)


@drawn
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
    r"when_not_matched\['n'\]=.* gives another value each time": {"when_not_matched": {"n": "cast(rand() as bigint)"}},
    r"update_when=.* has a subquery": {"update_when": "source.n > (select 1)"},
}


@pytest.mark.parametrize("says", WRONG)
def test_settings_are_held_against_rows_and_table(
    tables: SparkSession, tmp_path: Path, says: str, wrong_job: MergeJob
) -> None:
    with pytest.raises(SchemaError, match=says):
        wrong_job.sink(**{"merge_on": ["id"], **WRONG[says]}).columns(ARROW)


def test_a_key_of_another_type_is_refused(wrong_job: MergeJob) -> None:
    """Two texts, such as 1 and 01, may be one number of the table."""
    sink = wrong_job.sink(merge_on=["id"], when_matched=ADD, when_not_matched=None)
    schema = pa.schema([pa.field("id", pa.string()), *list(ARROW)[1:]])
    with pytest.raises(SchemaError, match="Column 'id' is a string"):
        sink.columns(schema)


@pytest.fixture(scope="module")
def wrong_job(tables: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> MergeJob:
    """It is not written to."""
    return DeltaMerge(tables, tmp_path_factory.mktemp("wrong"))


def test_columns_are_added_at_the_start_if_that_is_asked(job: MergeJob) -> None:
    schema = ARROW.append(pa.field("More", pa.list_(pa.field("element", pa.int32()))))
    with pytest.raises(SchemaError, match="'More' is none of"):
        job.sink(merge_on=["id"]).columns(schema)
    for _ in range(2):
        sink = job.sink(merge_on=["id"], evolve_schema=True)
        assert sink.columns(schema) == ["id", "n", "word", "More"]
        sink.preflight(QUERY, job.facts)
    assert sink.columns(schema) == ["id", "n", "word", "More"]
    with pytest.raises(SchemaError, match="'later' is none of"):
        sink.columns(schema.append(pa.field("later", pa.int32())))
    job.merge([(1, 11, "x", [7])], schema=schema)
    assert [row.More for row in job.sink().table(job.spark).frame().where("id < 3").sort("id").collect()] == [[7], None]


def test_an_older_driver_is_not_told_of_settings(job: MergeJob) -> None:
    """A sink that appends knows none of them."""
    assert any("merged" in one for one in job.sink().conditions())
    plain = job.sink(evolve_schema=False)
    assert plain.merge is None
    assert not any("merged" in one for one in plain.conditions())


# --- several rows of one key -----------------------------------------------------------------------------------------


@drawn
def test_several_rows_of_one_key_are_refused_before_the_decision(job: MergeJob) -> None:
    """In two slots. A null equals nothing, not even another null."""
    committer = job.sink().committer()
    first = job.prepared([(1, 1, "x"), (None, 1, "x")])
    assert committer.check_prepared([first, job.prepared([(2, 1, "x"), (None, 1, "x")], slot=1)]) == ""
    reason = committer.check_prepared([first, job.prepared([(7, 1, "x"), (1, 2, "y")], slot=2)])
    assert "2 rows of the batch have the key id=1" in reason
    assert job.sink(merge_on=["id"], order_by=["n"]).committer().check_prepared([first, first]) == ""


@drawn
def test_a_query_with_several_rows_of_one_key_stops_undecided(tables: SparkSession, tmp_path: Path) -> None:
    """With everything that it had prepared undone; once the rows are ordered it goes on, without loss."""

    class OrdersJob(DeltaMerge):
        started = ((-1, 0, ""),)

        def of_orders(self, orders: Any) -> Any:
            return orders.selectExpr("number % 10 as id", "number as n", "'x' as word")

    job = OrdersJob(tables, tmp_path)
    job.settings = {"merge_on": ["id"]}
    sent = make_orders(tmp_path / "orders", files=4)
    assert "rows of the batch have the key id=" in job.query()
    assert DecisionLog(LocalLogStore(tmp_path / "query")).read(LogView()).newest_decision is None
    assert job.rows() == [(-1, 0, "")]
    assert list((tmp_path / "rows" / "delta" / "prepared").iterdir()) == []
    job.settings = {"merge_on": ["id"], "order_by": ["n"]}
    assert job.query() == ""
    last = {number % 10: number for number in sorted(sent)}
    assert job.rows() == [(-1, 0, ""), *sorted((id_, number, "x") for id_, number in last.items())]


@drawn
@pytest.mark.parametrize("phase", [Phase.DECIDING, Phase.FINISHING, Phase.IDLE])
def test_the_example_keeps_a_history(tables: SparkSession, tmp_path: Path, phase: Phase) -> None:
    """Its driver dies in its second batch."""
    table, state, changes = str(tmp_path / "table"), str(tmp_path / "state"), tmp_path / "changes"
    sent = make_changes(changes)
    customer_history.create(tables, table)
    for listener in (crash_at(phase, 1), None):
        once = customer_history.query(table, state, listener=listener, display=False)
        query = once.start(customer_history.read(tables, changes), trigger={"availableNow": True})
        if listener is None:
            ended(query)
        else:
            with pytest.raises(StreamingQueryException, match="CrashError"):
                ended(query)
    found = [tuple(row) for row in tables.read.format("delta").load(table).collect()]
    assert Counter(found) == Counter(history_of(sent))


# --- maintenance beside it -------------------------------------------------------------------------------------------


def tidied(job: MergeJob) -> Mapping[str, Callable[[], object]]:
    """The tables' own tools, each with the shortest retention that it takes."""
    spark = job.spark
    if isinstance(job, DeltaMerge):
        return {
            "OPTIMIZE": lambda: job._handle().optimize().executeCompaction()
        }  # VACUUM needs Delta's extension to SQL
    actions = spark._jvm.org.apache.iceberg.spark.actions.SparkActions

    def table() -> Any:
        return _IcebergTable(spark, job.name)._load()

    return {
        "rewrite_data_files": lambda: (
            actions.get(spark._jsparkSession).rewriteDataFiles(table()).option("min-input-files", "2").execute()
        ),
        "expire_snapshots": lambda: (
            actions.get(spark._jsparkSession).expireSnapshots(table()).expireOlderThan(2**62).retainLast(1).execute()
        ),
        "remove_orphan_files": lambda: (
            actions.get(spark._jsparkSession)
            .deleteOrphanFiles(table())
            .olderThan(int(1000 * (time.time() - 86_401)))
            .execute()
        ),
    }


@pytest.mark.slow
def test_maintenance_beside_merges(job: MergeJob, say: Callable[[str], None]) -> None:
    """All tools run all the time, and every third batch's driver dies in its commit. No merge is lost or doubled."""
    batches = [[(1, 1, "x"), (100 + batch, batch, "y")] for batch in range(9)]
    done, failed, ended = Counter[str](), Counter[str](), Event()

    def tidy() -> None:
        while not ended.is_set():
            for name, tool in tidied(job).items():
                try:
                    with _active(job.spark):
                        tool()
                    done[name] += 1
                except Exception as error:  # noqa: BLE001, PERF203 - a merge was faster: it can be run again
                    failed[f"{name}: {error_message(error)[:90]}"] += 1

    def merge() -> None:
        for batch, rows in enumerate(batches):
            handle = job.prepared(rows, batch)
            if batch % 3 == 2:
                job.commit_unnoticed_sometime(handle)
            eventually(lambda handle=handle: set(job.commit(handle)) <= COMMITTED, f"batch {batch} is merged")

    with ThreadPoolExecutor(1) as pool:
        tool = pool.submit(tidy)
        try:
            merge()
        finally:
            ended.set()
        tool.result()
    say(f"{type(job).__name__}: done {dict(done)}; refused {dict(failed)}")
    assert len(done) == len(tidied(job))
    assert job.rows() == added(job.started, *batches)
