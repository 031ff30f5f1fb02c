"""The Iceberg sink: the conformance suite, and its behavior when things go wrong. Readers use Spark."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Lock
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark.harness import new_name
from spark.in_process import SPARK
from spark.table_job import NEW, OLD, QUERY, TableJob, WaitingRows
from sparkonce import IcebergSink
from sparkonce.errors import PreflightError, SchemaError
from sparkonce.protocol.handles import COMMITTED, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.sinks.tables.iceberg import KEEP_NOTES, NOTE, _IcebergTable
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder

pytestmark = SPARK
END_OF_TIME_MS = 4102444800000
ICE = "spark.sql.catalog.ice"


def make_table(spark: SparkSession, columns: str = "number bigint, word string", more: str = "") -> str:
    name = f"ice.db.{new_name('t').replace('-', '_')}"
    spark.sql(f"create table {name} ({columns}) using iceberg {more}")
    return name


def numbers_in(spark: SparkSession, table: str) -> list[int]:
    """Returns what a new reader finds, since each session's catalog caches tables for half a minute."""
    spark.catalog.refreshTable(table)
    return sorted(row[0] for row in spark.table(table).select("number").collect())


@pytest.mark.slow
class TestIceberg(WaitingRows):
    @pytest.fixture(autouse=True)
    def _table(self, tables, tmp_path) -> None:
        self.spark, self.root, self.name = tables, tmp_path, make_table(tables)

    def make_sink(self, **more: Any) -> IcebergSink:
        return IcebergSink(self.name, folder=self.root / "rows", **more)

    def visible(self) -> Sequence[int]:
        return numbers_in(self.spark, self.name)


class IcebergJob(TableJob):
    def __init__(self, spark: SparkSession, folder: Path, table: str) -> None:
        self.table = table
        super().__init__(spark, folder)

    def sink(self) -> IcebergSink:
        return IcebergSink(self.table, folder=self.folder / "rows")

    def numbers(self) -> list[int]:
        return numbers_in(self.spark, self.table)

    def java(self) -> Any:
        return _IcebergTable(self.spark, self.table)._load()

    def snapshots(self) -> int:
        """Returns the number of snapshots that led to the current state of the table."""
        return len(self.spark._jvm.org.apache.iceberg.util.SnapshotUtil.currentAncestorIds(self.java()))

    def branches(self) -> list[str]:
        return sorted(set(self.java().refs()) - {"main"})

    def another_writes(self, number: int) -> None:
        self.spark.createDataFrame([(number, "other")], "number bigint, word string").writeTo(self.table).append()

    def expire(self) -> None:
        self.java().expireSnapshots().expireOlderThan(END_OF_TIME_MS).retainLast(1).commit()

    def forget_notes(self) -> None:
        update = self.java().updateProperties()
        for key in list(self.java().properties()):
            if str(key).startswith(NOTE):
                update.remove(key)
        update.commit()

    def traces(self) -> list[tuple[tuple[str, str | int], ...]]:
        return [trace.committed for trace in self.sink().committer().list_traces(QUERY, self.facts)]


@pytest.fixture
def job(tables, tmp_path) -> IcebergJob:
    return IcebergJob(tables, tmp_path, make_table(tables))


def test_a_batch_is_one_snapshot(job):
    handles = [job.prepare(slot=slot) for slot in range(4)]
    assert job.commit(*handles) == [Outcome.COMMITTED] * 4
    assert (job.numbers(), job.snapshots(), job.branches()) == ([0, 1, 2, 3], 1, [])


@pytest.mark.parametrize(("method", "kind"), [("_publish", _IcebergTable), ("note_done", WriteAheadFolder)])
def test_a_driver_that_is_killed_before_and_after_the_commit(job, method, kind):
    handles = [job.prepare(slot=slot) for slot in range(2)]
    job.commit_killed(kind, method, *handles)
    assert job.numbers() == ([] if method == "_publish" else [0, 1])
    assert set(job.commit(*handles)) <= COMMITTED
    assert job.commit(handles[0]) == [Outcome.ALREADY_COMMITTED]
    assert (job.numbers(), job.snapshots()) == ([0, 1], 1)


def test_what_a_killed_driver_staged_is_swept(job):
    """The next run removes it, whether or not the rows were committed by then, and removes no other branch."""
    handle = job.prepare()
    job.commit_killed(_IcebergTable, "_publish", handle)
    assert job.commit(handle) == [Outcome.COMMITTED]
    job.java().manageSnapshots().createBranch("audit").commit()
    (left,) = set(job.branches()) - {"audit"}
    committer = job.sink().committer()
    assert committer.list_lingering([job.owner(NEW)]) == []
    lingering = committer.list_lingering([job.owner(OLD)])
    assert [left in str(one.transaction) for one in lingering] == [True]
    for _ in range(2):
        assert [one.outcome for one in committer.abort(lingering)] == [Outcome.ABORTED]
    assert (job.branches(), job.numbers()) == (["audit"], [0])


@pytest.mark.parametrize(
    "change",
    ["expired", *(pytest.param(each, marks=pytest.mark.slow) for each in ("notes unset", "rolled back", "rewritten"))],
)
def test_the_table_knows_what_it_has_when_it_was_changed(job, change):
    """Another writer's snapshot follows the batch. A deliberate rollback is not written again."""

    def _everything() -> Any:
        from pyspark.sql import functions

        return functions.lit(True)

    job.another_writes(1)
    before = job.java().currentSnapshot().snapshotId()
    handle = job.prepare()
    job.commit_unnoticed(handle)
    job.another_writes(2)
    left = [0, 1, 2]
    if change == "expired":
        job.expire()
    elif change == "rolled back":
        job.java().manageSnapshots().rollbackTo(before).commit()
        left = [1]
    elif change == "notes unset":
        job.forget_notes()
    else:
        job.spark.table(job.table).where("number > 0").coalesce(1).writeTo(job.table).overwrite(_everything())
        left = [1, 2]
    assert job.traces() == [handle.transaction]
    assert job.commit(handle) == [Outcome.ALREADY_COMMITTED]
    assert job.numbers() == left


@pytest.mark.slow
def test_a_table_that_was_rolled_back_with_its_notes_takes_the_rows_again(job):
    """As when an operator rolls back the query and the table together."""
    job.another_writes(1)
    before = job.java().currentSnapshot().snapshotId()
    handle = job.prepare()
    job.commit_unnoticed(handle)
    job.java().manageSnapshots().rollbackTo(before).commit()
    job.forget_notes()
    assert job.traces() == []
    assert job.commit(handle) == [Outcome.COMMITTED]
    assert job.numbers() == [0, 1]


def test_what_was_forgotten_is_not_taken_for_absent(job, monkeypatch):
    """The notes are about later batches, and the snapshot has expired."""
    monkeypatch.setattr("sparkonce.sinks.tables.iceberg.KEEP_NOTES", 2)
    first, *later = [job.prepare(batch=batch) for batch in range(3)]
    job.commit_unnoticed(first)
    for handle in later:
        assert job.commit(handle) == [Outcome.COMMITTED]
    job.expire()
    assert len(job.traces()) == 2
    assert job.commit(first) == [Outcome.UNKNOWN]
    assert job.numbers() == [0, 100, 200]


@pytest.mark.slow
def test_notes_of_other_queries_stay(job, monkeypatch):
    monkeypatch.setattr("sparkonce.sinks.tables.iceberg.KEEP_NOTES", 1)
    stranger = f"{NOTE}iceberg.{'0' * 12}.{OLD.position}-{OLD.nonce}.0.0.{'a' * 12}"
    job.java().updateProperties().set(stranger, '{"sparkonce":{"digest":"","first":{},"members":1}}').commit()
    for batch in range(2):
        job.commit(job.prepare(batch=batch))
    notes = [key for key in job.java().properties() if str(key).startswith(NOTE)]
    assert (len(notes), stranger in notes) == (2, True)
    assert KEEP_NOTES > 1


def test_two_drivers_at_once_without_locks(job, monkeypatch):
    """Both have written next to another writer, and neither has seen the others' snapshots.

    Iceberg publishes an id only once.

    They write in turn, since they share a session here, whose catalog keeps one state of the table for both.
    """
    monkeypatch.setattr("sparkonce.sinks.write_ahead.application._lock", lambda _: True)
    handles = [job.prepare(slot=slot) for slot in range(2)]
    both, turn = Barrier(2, timeout=60), Lock()
    load, staged = _IcebergTable._load, []

    def meet(self: _IcebergTable, branch: str, *more: Any) -> None:
        def load_together(table: _IcebergTable) -> Any:
            loaded = load(table)
            staged.append(branch)
            turn.release()
            both.wait()
            if staged[0] == branch:
                job.another_writes(7)
            both.wait()
            return loaded

        with monkeypatch.context() as together:
            together.setattr(self, "_load", lambda: load_together(self))
            publish(self, branch, *more)

    def append_in_turn(self: _IcebergTable, *given: Any) -> None:
        assert turn.acquire(timeout=60)
        append(self, *given)

    append, publish = _IcebergTable.append, _IcebergTable._publish
    monkeypatch.setattr(_IcebergTable, "append", append_in_turn)
    monkeypatch.setattr(_IcebergTable, "_publish", meet)
    committers = [job.sink().committer() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda one: one.commit(handles), committers))
    assert len(staged) == 2
    assert {one.outcome for some in answers for one in some} <= COMMITTED, answers
    assert (job.numbers(), job.snapshots(), job.branches()) == ([0, 1, 7], 2, [])


@pytest.mark.slow
def test_a_partitioned_table_with_columns_that_the_rows_do_not_have(tables, tmp_path):
    columns = "more struct<a: int>, Number bigint not null, word string"
    job = IcebergJob(tables, tmp_path, make_table(tables, columns, "partitioned by (bucket(2, number))"))
    narrow = pa.schema([("number", pa.int32())])
    assert job.sink().columns(narrow) == ["number"]
    assert job.commit(*(job.prepare(slot=slot, schema=narrow) for slot in range(2))) == [Outcome.COMMITTED] * 2
    assert job.numbers() == [0, 1]
    assert sorted(map(tuple, tables.table(job.table).collect())) == [(None, 0, None), (None, 1, None)]
    with pytest.raises(SchemaError, match=r"'Number' of .* must not be null"):
        job.sink().columns(pa.schema([("word", pa.string())]))


@pytest.mark.parametrize("other", [False, True], ids=["by-the-same-session", "by-another-session"])
def test_a_table_that_was_replaced_is_not_written_to(job, *, other):
    """Another session has its own catalog, so nothing tells this session's catalog that its cached table is gone."""
    handle, committer = job.prepare(), job.run_of_its_own()
    replacing = job.spark.newSession() if other else job.spark
    for setting in ("", ".type", ".warehouse"):
        replacing.conf.set(f"{ICE}{setting}", job.spark.conf.get(f"{ICE}{setting}"))
    replacing.sql(f"drop table {job.table}")
    replacing.sql(f"create table {job.table} (number bigint, word string) using iceberg")
    (answer,) = committer.commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "deleted or replaced" in answer.reason
    assert job.numbers() == []


@pytest.mark.slow
def test_rows_that_the_table_does_not_take(job):
    """The table's columns were changed after the start."""
    handle = job.prepare()
    job.java().updateSchema().deleteColumn("word").commit()
    (answer,) = job.sink().committer().commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "word" in answer.reason
    assert (job.numbers(), job.branches()) == ([], [])


def test_a_session_that_stages_everything_is_refused(job):
    job.spark.conf.set("spark.wap.id", "audit")
    try:
        with pytest.raises(PreflightError, match=r"spark\.wap\.id=audit"):
            job.sink().preflight(QUERY, None)
    finally:
        job.spark.conf.unset("spark.wap.id")


def test_a_query_that_crashes(job):
    assert job.query_that_crashes(Phase.FINISHING) == job.numbers()
    assert (job.snapshots(), job.branches()) == (2, [])
