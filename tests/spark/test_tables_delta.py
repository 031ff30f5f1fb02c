"""The Delta sink: the conformance suite, and its behavior when things go wrong. Readers use Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.sql import DataFrame, SparkSession

from spark.harness import new_name
from spark.in_process import SPARK, call_at
from spark.table_job import ARROW, QUERY, TableJob, WaitingRows
from sparkonce.decision_log import DecisionLog
from sparkonce.errors import ConfigurationError, PreflightError, SchemaError, SparkonceError, UnknownOutcomeError
from sparkonce.protocol.handles import COMMITTED, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import LogView
from sparkonce.sinks.tables.delta import DeltaSink, _DeltaTable
from sparkonce.sinks.tables.errors import is_final
from sparkonce.sinks.tables.sink import driver_session
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.storage.local import LocalFiles
from tryout.bulk import make_orders

pytestmark = SPARK
SCHEMA = "number bigint, word string"


def make_table(spark: SparkSession, path: Path) -> None:
    spark.createDataFrame([], SCHEMA).write.format("delta").save(str(path))


def numbers_in(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row[0] for row in spark.read.format("delta").load(str(path)).select("number").collect())


@pytest.fixture(scope="module")
def empty_table(tables, tmp_path_factory) -> Path:
    """An empty table to copy, which is a hundred times faster than creating one."""
    path = tmp_path_factory.mktemp("empty") / "table"
    make_table(tables, path)
    return path


@pytest.mark.slow
class TestDelta(WaitingRows):
    @pytest.fixture(autouse=True)
    def _table(self, tables, empty_table, tmp_path) -> None:
        self.spark, self.root = tables, tmp_path
        shutil.copytree(empty_table, tmp_path / "table")

    def make_sink(self, **more: Any) -> DeltaSink:
        return DeltaSink(str(self.root / "table"), folder=self.root / "rows", **more)

    def visible(self) -> Sequence[int]:
        return numbers_in(self.spark, self.root / "table")


class DeltaJob(TableJob):
    def __init__(
        self, spark: SparkSession, folder: Path, empty_table: Path, waiting: str = "rows", name: str = "delta"
    ) -> None:
        self.path = folder / "table"
        self.waiting, self.name = waiting, name
        shutil.copytree(empty_table, self.path)
        super().__init__(spark, folder)

    def sink(self) -> DeltaSink:
        return DeltaSink(str(self.path), folder=self.folder / self.waiting, name=self.name)

    def numbers(self) -> list[int]:
        return numbers_in(self.spark, self.path)

    def versions(self) -> int:
        return len(list((self.path / "_delta_log").glob("*.json"))) - 1


@pytest.fixture
def job(tables, tmp_path, empty_table) -> DeltaJob:
    return DeltaJob(tables, tmp_path, empty_table)


def test_a_batch_is_one_version(job):
    handles = [job.prepare(slot=slot) for slot in range(4)]
    assert job.commit(*handles) == [Outcome.COMMITTED] * 4
    assert (job.numbers(), job.versions()) == ([0, 1, 2, 3], 1)


@pytest.mark.slow
@pytest.mark.parametrize(("waiting", "name"), [("_rows/.rows/a*b?[c]{d,e}\\f %20", "delta"), ("rows", "_delta.x")])
def test_names_that_mean_something_to_spark(tables, tmp_path, empty_table, waiting, name):
    """Spark interprets paths as patterns, and skips files that begin with an underscore or a dot."""
    (tmp_path / "_rows/.rows/axb!cd").mkdir(parents=True)
    job = DeltaJob(tables, tmp_path, empty_table, waiting, name)
    assert job.commit(*(job.prepare(slot=slot) for slot in range(2))) == [Outcome.COMMITTED] * 2
    assert job.numbers() == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kind"), [("append", _DeltaTable), ("note_done", WriteAheadFolder)])
def test_a_driver_that_is_killed_before_and_after_the_write(job, method, kind):
    handles = [job.prepare(slot=slot) for slot in range(2)]
    job.commit_killed(kind, method, *handles)
    assert set(job.commit(*handles)) <= COMMITTED
    assert job.commit(handles[0]) == [Outcome.ALREADY_COMMITTED]
    assert (job.numbers(), job.versions()) == ([0, 1], 1)


def test_a_write_that_delta_skips_is_not_taken_for_done(job):
    """Delta has seen a later version of the application id, so the rows are in no version (delta-io/delta#1141)."""
    early, late = job.prepare(batch=0), job.prepare(batch=5)
    assert job.commit(late) == [Outcome.COMMITTED]
    committer = job.sink().committer()
    (answer,) = committer.commit([early])
    assert answer.outcome is Outcome.UNKNOWN
    assert "no version of it has them" in answer.reason
    with pytest.raises(UnknownOutcomeError):
        committer.commit([early])
    assert job.numbers() == [500]


def test_versions_that_were_forgotten_are_not_taken_for_absent(job, monkeypatch):
    handle = job.prepare()
    job.commit_unnoticed(handle)
    monkeypatch.setattr(_DeltaTable, "labels", lambda *_, **__: [])
    monkeypatch.setattr(_DeltaTable, "remembers_since_ms", lambda *_: 2**62)
    assert job.commit(handle) == [Outcome.UNKNOWN]
    assert job.numbers() == [0]


def test_a_note_of_rows_is_not_believed_if_a_power_cut_took_their_version(job):
    """Delta does not sync what it writes to a local disk, but the note is synced."""
    before, handle = job.prepare(batch=0), job.prepare(batch=1)
    assert job.commit(before) == job.commit(handle) == [Outcome.COMMITTED]
    assert job.commit(handle) == [Outcome.ALREADY_COMMITTED]
    for file in (job.path / "_delta_log").glob("*2.*"):
        file.unlink()
    job.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert (job.numbers(), job.commit(handle)) == ([0], [Outcome.LOST])
    assert job.commit(before) == [Outcome.ALREADY_COMMITTED]
    assert job.sink().committer().missing([before, handle]) == [handle]


def test_two_drivers_at_once_without_locks(job, monkeypatch):
    """Delta accepts only one of them, since the same application id cannot commit twice at the same time."""
    monkeypatch.setattr("sparkonce.sinks.write_ahead.application._lock", lambda _: True)
    waiting = {who: [job.prepare(slot=slot) for slot in range(2)] if who == 0 else [] for who in range(2)}
    waiting[1] = waiting[0]
    committers = {who: job.sink().committer() for who in waiting}
    for _ in range(5):
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda who: committers[who].commit(waiting[who]), waiting))
        assert {one.outcome for some in answers for one in some} <= COMMITTED | {Outcome.RETRY}, answers
    assert {one.outcome for some in answers for one in some} <= COMMITTED
    assert (job.numbers(), job.versions()) == ([0, 1], 1)


def test_what_the_table_is_is_remembered(job, tmp_path):
    assert job.sink().preflight(QUERY, job.facts) == job.facts
    make_table(job.spark, tmp_path / "other")
    other = DeltaSink(str(tmp_path / "other"), folder=job.folder / "rows")
    with pytest.raises(PreflightError, match="has written to the table"):
        other.preflight(QUERY, job.facts)
    with pytest.raises(PreflightError, match="Create the table first"):
        DeltaSink(str(tmp_path / "none"), folder=job.folder / "rows").preflight(QUERY, None)


def test_columns_are_held_against_the_table(job):
    assert job.sink().columns(ARROW) == ["number", "word"]
    assert job.sink().columns(pa.schema([("NUMBER", pa.int32())])) == ["NUMBER"]
    with pytest.raises(SchemaError, match="'more' is not in"):
        job.sink().columns(pa.schema([("more", pa.int64())]))
    with pytest.raises(SchemaError, match="column 'word' is bigint in the rows, and string in the table"):
        job.sink().columns(pa.schema([("word", pa.int64())]))


def test_a_query_that_crashes(job):
    assert job.query_that_crashes(Phase.FINISHING) == job.numbers()
    assert job.versions() == 2


@pytest.mark.slow
def test_files_that_spark_is_told_to_skip_are_not_skipped(job, monkeypatch):
    handles = [job.prepare(slot=slot) for slot in range(2)]
    append = _DeltaTable.append

    def spoilt(self: _DeltaTable, paths: Sequence[str], *rest: Any) -> None:
        """This happens after the driver has checked the checksums."""
        monkeypatch.undo()
        Path(paths[1]).write_bytes(b"PAR1")
        append(self, paths, *rest)

    monkeypatch.setattr(_DeltaTable, "append", spoilt)
    job.spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        assert job.commit(*handles) == [Outcome.RETRY] * 2
    finally:
        job.spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert job.versions() == 0


@pytest.mark.slow
def test_a_cluster_whose_own_file_system_is_another(job):
    handle = job.prepare()
    sink = DeltaSink(job.path.as_uri(), folder=job.folder / "rows")
    job.spark.conf.set("fs.defaultFS", "elsewhere://cluster")
    try:
        (answer,) = sink.committer().commit([handle])
    finally:
        job.spark.conf.unset("fs.defaultFS")
    assert answer.outcome is Outcome.COMMITTED, answer.reason
    assert job.numbers() == [0]


def test_a_path_or_a_table():
    for settings in ({}, {"path": "p", "table": "t"}):
        with pytest.raises(ConfigurationError, match="one of them"):
            DeltaSink(**settings)


# --- the table was replaced or is gone -------------------------------------------------------------------------------


class NamedJob(DeltaJob):
    """The same table, under a name in the session's catalog."""

    def __init__(self, spark: SparkSession, folder: Path, empty_table: Path) -> None:
        self.name = f"default.{new_name('t').replace('-', '_')}"
        self.spark, self.path = spark, folder / "table"
        shutil.copytree(empty_table, self.path)
        self.register()
        TableJob.__init__(self, spark, folder)

    def register(self) -> None:
        self.spark.sql(f"create table {self.name} using delta location '{self.path}'")

    def sink(self) -> DeltaSink:
        return DeltaSink(table=self.name, folder=self.folder / "rows")


@pytest.mark.slow
def test_a_table_by_its_name(tables, tmp_path, empty_table):
    job = NamedJob(tables, tmp_path, empty_table)
    assert job.facts["table"] == DeltaSink(str(job.path), folder=tmp_path / "rows").preflight(QUERY, None)["table"]
    handles = [job.prepare(slot=slot) for slot in range(2)]
    job.commit_killed(_DeltaTable, "append", *handles)
    job.commit_unnoticed(*handles)
    assert set(job.commit(*handles)) <= COMMITTED
    assert (job.numbers(), job.versions()) == ([0, 1], 1)
    assert sorted([*job.query_that_crashes(Phase.FINISHING), 0, 1]) == job.numbers()
    assert job.versions() == 3


@pytest.mark.parametrize(
    ("kind", "begun"), [(DeltaJob, True), (NamedJob, False)], ids=["a write by path that was begun", "a write by name"]
)
def test_a_table_that_is_gone_is_not_made_anew(kind, begun, tables, tmp_path, empty_table):
    """A table that replaced it is not written to either."""
    job = kind(tables, tmp_path, empty_table)
    handle = job.prepare()
    if begun:
        job.commit_killed(_DeltaTable, "append", handle)
    before, after = job.run_of_its_own(), job.run_of_its_own()
    if isinstance(job, NamedJob):
        tables.sql(f"drop table {job.name}")
    shutil.rmtree(job.path)
    (answer,) = before.commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "is not a Delta table" in answer.reason
    assert not job.path.exists()
    make_table(tables, job.path)
    if isinstance(job, NamedJob):
        job.register()
    (answer,) = after.commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "deleted or replaced" in answer.reason
    assert (job.numbers(), job.versions()) == ([], 0)


@pytest.mark.slow
def test_a_table_that_goes_while_it_is_written_to(job, monkeypatch):
    """Spark recreates the table with the rows, which must not count as a commit."""
    handle, committer, widened = job.prepare(), job.run_of_its_own(), _DeltaTable._widened

    def gone(self: _DeltaTable, rows: DataFrame) -> DataFrame:
        """Removes the table just before the write."""
        made = widened(self, rows)
        shutil.rmtree(job.path)
        return made

    monkeypatch.setattr(_DeltaTable, "_widened", gone)
    (answer,) = committer.commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "deleted or replaced" in answer.reason


@pytest.mark.slow
@pytest.mark.parametrize(("made_anew", "says"), [(True, "has written to the table"), (False, "reate the table first")])
def test_a_batch_is_not_decided_for_a_table_that_is_gone(job, made_anew, says):
    make_orders(job.folder / "orders", files=4)

    def replace() -> None:
        shutil.rmtree(job.path)
        if made_anew:
            make_table(job.spark, job.path)

    with pytest.raises(SparkonceError, match=says):
        job.query(call_at(Phase.WRITING, 1, replace))
    assert job.path.exists() == made_anew
    assert not made_anew or job.numbers() == []
    decided = DecisionLog(LocalFiles(job.folder / "query")).read(LogView()).newest_decision
    assert decided.batch == 0


# --- the table's requirements for rows -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ruled(tables, tmp_path_factory) -> DeltaSink:
    delta, session, folder = tables._jvm.io.delta.tables.DeltaTable, tables._jsparkSession, tmp_path_factory.mktemp("r")

    def column(name: str, kind: str) -> Any:
        return delta.columnBuilder(session, name).dataType(kind)

    made = delta.create(session).location(str(folder / "table")).property("delta.constraints.positive", "number > 0")
    made = made.property("delta.constraints.even", "twice % 2 = 0")
    made = made.addColumn(column("number", "bigint").build()).addColumn(column("a`b", "string").nullable(False).build())
    made = made.addColumn(column("short", "varchar(3)").build())
    made.addColumn(column("Twice", "bigint").generatedAlwaysAs("number * 2").build()).execute()
    return DeltaSink(str(folder / "table"), folder=folder / "rows")


GOOD = {"number": "1L", "a`b": "'x'", "short": "'abc'", "twice": "2L"}


def row_of(spark: SparkSession, **changed: str | None) -> DataFrame:
    columns = {name: value for name, value in {**GOOD, **changed}.items() if value is not None}
    return spark.range(1).selectExpr(*(f"{value} as `{name.replace('`', '``')}`" for name, value in columns.items()))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"number": "-1L", "twice": "-2L"}, r"CHECK constraint positive \(.*number > 0.*\)"),
        ({"number": "cast(null as bigint)", "twice": "cast(null as bigint)"}, "CHECK constraint positive"),
        ({"a`b": "cast(null as string)"}, "`a``b` must not be null"),
        ({"twice": "4L"}, r"column 'Twice' is generated always as number \* 2"),
        ({"short": "'abc '"}, "__CHAR_VARCHAR_STRING_LENGTH_CHECK__"),
    ],
    ids=["CHECK", "CHECK on null", "NOT NULL", "generated", "varchar"],
)
def test_rows_that_the_table_would_refuse_fail_while_they_are_computed(tables, ruled, changed, says):
    """The table would reject them too, since the check uses Delta's own rules."""
    rows = row_of(tables, **changed)
    with pytest.raises(Exception, match=says):
        ruled.checked(rows).collect()
    with pytest.raises(Exception, match=r"CONSTRAINT|LENGTH|NULL|Generated") as refused:
        rows.write.format("delta").mode("append").save(ruled._path)
    assert is_final(refused.value)


@pytest.mark.parametrize("changed", [{}, {"twice": None}, {"short": None}])
def test_rows_that_the_table_takes_are_left_as_they_are(tables, ruled, changed):
    rows = row_of(tables, **changed)
    found = ruled.checked(rows)
    assert (found.schema.names, found.collect()) == (rows.schema.names, rows.collect())
    rows.write.format("delta").mode("append").save(ruled._path)


def test_columns_that_the_rows_do_not_have(tables, ruled):
    assert ruled.columns(pa.schema([("number", pa.int64()), ("a`b", pa.string())])) == ["number", "a`b"]
    with pytest.raises(SchemaError, match=r"'a`b' of .* must not be null"):
        ruled.columns(pa.schema([("number", pa.int64())]))


@pytest.mark.slow
def test_narrower_numbers_in_a_column_that_a_constraint_names(job):
    """Delta itself does not widen them there."""
    constrain(job, "number >= 0")
    handle = job.prepare(schema=pa.schema([("number", pa.int32())]))
    assert job.commit(handle) == [Outcome.COMMITTED]
    assert job.numbers() == [0]


def test_a_batch_that_the_table_would_refuse_is_not_decided(job):
    """The error names the constraint. Once the constraint is dropped, the query continues."""
    sent = make_orders(job.folder / "orders", files=4)
    constrain(job, f"number <> {sent[-1]}")
    with pytest.raises(SparkonceError, match="CHECK constraint some"):
        job.query()
    log = DecisionLog(LocalFiles(job.folder / "query")).read(LogView())
    decided = -1 if log.newest_decision is None else log.newest_decision.batch
    assert decided < 1
    assert job.versions() == 1 + decided + 1
    constrain(job, None)
    job.query()
    assert job.numbers() == sent


def constrain(job: DeltaJob, check: str | None) -> None:
    """Does the same as ALTER TABLE … ADD CONSTRAINT, which would require Delta's SQL extension in the session."""
    log = job.path / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    (metadata,) = (action for action in first if "metaData" in action)
    metadata["metaData"]["configuration"] = {} if check is None else {"delta.constraints.some": check}
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 3}}
    version = log / f"{job.versions() + 1:020}.json"
    version.write_text("\n".join(map(json.dumps, (protocol, metadata))))


# --- temporary and permanent errors ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_constraint_that_comes_after_the_decision(job):
    """Retrying would not help, so the query must stop immediately, and keeps the rows."""
    handle = job.prepare(batch=1)
    constrain(job, "number < 0")
    (answer,) = job.sink().committer().commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "CHECK constraint some" in answer.reason
    constrain(job, None)
    assert job.commit(handle) == [Outcome.COMMITTED]


def test_a_metastore_that_is_away_for_a_while(job, monkeypatch):
    """Spark reports this as an `AnalysisException` too."""
    java = job.spark._jvm
    words = java.scala.jdk.javaapi.CollectionConverters.asScala(java.java.util.HashMap())
    words = (
        words.updated("clazz", "HiveException")
        .updated("msg", "Connection refused")
        .toMap(getattr(java.scala.Predef, "$conforms")())
    )
    cause = java.scala.Option.apply(java.java.io.IOException("Connection refused"))
    error = java.org.apache.spark.sql.AnalysisException("_LEGACY_ERROR_TEMP_3065", words, cause)
    handle = job.prepare()

    def away(*_: object) -> None:
        raise convert_exception(error)

    with monkeypatch.context() as broken:
        broken.setattr(_DeltaTable, "append", away)
        (answer,) = job.sink().committer().commit([handle])
    assert answer.outcome is Outcome.RETRY, answer.reason
    assert "Connection refused" in answer.reason
    assert job.commit(handle) == [Outcome.COMMITTED]


def test_a_session_without_the_jar_is_told_how_to_get_it(tables, monkeypatch):
    """This is what a notebook's builder does to a running session: Spark keeps the setting and downloads nothing."""
    asked = "io.delta:delta-absent_2.13:4.0.0"
    monkeypatch.setattr(DeltaSink, "needs", ("delta-absent", "io.delta.tables.Absent"))
    kept = driver_session("delta")._jsparkSession.sessionState().conf()
    kept.setConfString("spark.jars.packages", asked)
    try:
        with pytest.raises(ConfigurationError, match="does not have delta-absent") as told:
            DeltaSink("/nowhere").preflight(QUERY, None)
    finally:
        kept.unsetConf("spark.jars.packages")
    assert told.value.message.startswith(f"spark.jars.packages={asked} is set and had no effect")
