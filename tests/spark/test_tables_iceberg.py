"""The Iceberg sink: the conformance suite, and what goes wrong. Readers ask with a plain read of the table."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark.harness import new_name
from spark.in_process import MARKS
from spark.table_stage import ARROW, NEW, OLD, QUERY, SLOW, Stage, tables
from sparkonce import IcebergSink
from sparkonce.errors import PreflightError, SchemaError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import COMMITTED, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.spark.tables.committer import Label
from sparkonce.spark.tables.iceberg import KEEP_NOTES, NOTE, _IcebergTable
from sparkonce.testing.conformance import SinkConformance

__all__ = ["tables"]

pytestmark = [mark for mark in MARKS if mark.name != "kafka"]
END_OF_TIME_MS = 4102444800000


def make_table(spark: SparkSession, columns: str = "number bigint, word string", more: str = "") -> str:
    name = f"ice.db.{new_name('t').replace('-', '_')}"
    spark.sql(f"create table {name} ({columns}) using iceberg {more}")
    return name


def numbers_in(spark: SparkSession, table: str) -> list[int]:
    """As a reader who has just come sees it: each session's catalog keeps what it has loaded for half a minute."""
    spark.catalog.refreshTable(table)
    return sorted(row[0] for row in spark.table(table).select("number").collect())


class TestIceberg(SinkConformance):
    visible_within_s = 0.0

    @pytest.fixture(autouse=True)
    def _table(self, tables: SparkSession, tmp_path: Path) -> None:
        self.spark, self.root, self.name = tables, tmp_path, make_table(tables)

    def make_sink(self) -> IcebergSink:
        return IcebergSink(self.name, folder=self.root / "rows")

    def make_second_sink(self) -> IcebergSink:
        return IcebergSink(self.name, folder=self.root / "rows", name="beside")

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"number": list(range(start, start + count)), "word": ["w"] * count})

    def visible(self) -> Sequence[int]:
        return numbers_in(self.spark, self.name)

    def expire(self, handle: Handle) -> bool:
        (self.root / "rows" / "iceberg" / "prepared" / str(handle["name"])).unlink()
        return True

    def restart_server(self) -> bool:
        return True  # the table is files

    def test_another_process_commits(self) -> None:
        pytest.skip("the other process would have to start a Spark of its own")


class IcebergStage(Stage):
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
        """That made the table what it is."""
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
def stage(tables: SparkSession, tmp_path: Path) -> IcebergStage:
    return IcebergStage(tables, tmp_path, make_table(tables))


def test_a_batch_is_one_snapshot(stage: IcebergStage) -> None:
    handles = [stage.prepare(slot=slot) for slot in range(4)]
    assert stage.commit(*handles) == [Outcome.COMMITTED] * 4
    assert (stage.numbers(), stage.snapshots(), stage.branches()) == ([0, 1, 2, 3], 1, [])


@pytest.mark.parametrize(("method", "kind"), [("_publish", _IcebergTable), ("note_done", WriteAheadFolder)])
def test_a_driver_that_is_killed_before_and_after_the_commit(stage: IcebergStage, method: str, kind: type) -> None:
    handles = [stage.prepare(slot=slot) for slot in range(2)]
    stage.commit_killed(kind, method, *handles)
    assert stage.numbers() == ([] if method == "_publish" else [0, 1])
    assert set(stage.commit(*handles)) <= COMMITTED
    assert stage.commit(handles[0]) == [Outcome.ALREADY_COMMITTED]
    assert (stage.numbers(), stage.snapshots()) == ([0, 1], 1)


def test_what_a_killed_driver_staged_is_swept(stage: IcebergStage) -> None:
    """By the run that comes after it, whether the rows have been committed since or not; and nobody else's."""
    handle = stage.prepare()
    stage.commit_killed(_IcebergTable, "_publish", handle)
    assert stage.commit(handle) == [Outcome.COMMITTED]
    stage.java().manageSnapshots().createBranch("audit").commit()
    (left,) = set(stage.branches()) - {"audit"}
    committer = stage.sink().committer()
    assert committer.list_lingering([stage.owner(NEW)]) == []
    lingering = committer.list_lingering([stage.owner(OLD)])
    assert [left in str(one.transaction) for one in lingering] == [True]
    for _ in range(2):
        assert [one.outcome for one in committer.abort(lingering)] == [Outcome.ABORTED]
    assert (stage.branches(), stage.numbers()) == (["audit"], [0])


def test_a_failed_attempt_leaves_nothing(stage: IcebergStage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("the catalog is away")

    handle = stage.prepare()
    with monkeypatch.context() as broken:
        broken.setattr(_IcebergTable, "_publish", fail)
        assert stage.commit(handle) == [Outcome.RETRY]
    assert (stage.numbers(), stage.branches()) == ([], [])
    assert stage.commit(handle) == [Outcome.COMMITTED]


@pytest.mark.parametrize("change", ["expired", "rolled back", "notes unset", "rewritten"])
def test_the_table_knows_what_it_has_when_it_was_changed(stage: IcebergStage, change: str) -> None:
    """Another writer's snapshot comes after the batch. What was rolled back on purpose is not written again."""
    stage.another_writes(1)
    before = stage.java().currentSnapshot().snapshotId()
    handle = stage.prepare()
    stage.commit_unnoticed(handle)
    stage.another_writes(2)
    left = [0, 1, 2]
    if change == "expired":
        stage.expire()
    elif change == "rolled back":
        stage.java().manageSnapshots().rollbackTo(before).commit()
        left = [1]
    elif change == "notes unset":
        stage.forget_notes()
    else:
        stage.spark.table(stage.table).where("number > 0").coalesce(1).writeTo(stage.table).overwrite(_everything())
        left = [1, 2]
    assert stage.traces() == [handle.transaction]
    assert stage.commit(handle) == [Outcome.ALREADY_COMMITTED]
    assert stage.numbers() == left


def _everything() -> Any:
    from pyspark.sql import functions

    return functions.lit(True)


def test_a_table_that_was_rolled_back_with_its_notes_takes_the_rows_again(stage: IcebergStage) -> None:
    """What an operator does who takes query and table back together."""
    stage.another_writes(1)
    before = stage.java().currentSnapshot().snapshotId()
    handle = stage.prepare()
    stage.commit_unnoticed(handle)
    stage.java().manageSnapshots().rollbackTo(before).commit()
    stage.forget_notes()
    assert stage.traces() == []
    assert stage.commit(handle) == [Outcome.COMMITTED]
    assert stage.numbers() == [0, 1]


def test_what_was_forgotten_is_not_taken_for_absent(stage: IcebergStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notes are of later batches, and the snapshot is expired."""
    monkeypatch.setattr("sparkonce.spark.tables.iceberg.KEEP_NOTES", 2)
    first, *later = [stage.prepare(batch=batch) for batch in range(3)]
    stage.commit_unnoticed(first)
    for handle in later:
        assert stage.commit(handle) == [Outcome.COMMITTED]
    stage.expire()
    assert len(stage.traces()) == 2
    assert stage.commit(first) == [Outcome.UNKNOWN]
    assert stage.numbers() == [0, 100, 200]


def test_notes_of_other_queries_stay(stage: IcebergStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkonce.spark.tables.iceberg.KEEP_NOTES", 1)
    stranger = f"{NOTE}iceberg.{'0' * 12}.{OLD.position}-{OLD.nonce}.0.0.{'a' * 12}"
    stage.java().updateProperties().set(stranger, '{"sparkonce":{"digest":"","first":{},"members":1}}').commit()
    for batch in range(2):
        stage.commit(stage.prepare(batch=batch))
    notes = [key for key in stage.java().properties() if str(key).startswith(NOTE)]
    assert (len(notes), stranger in notes) == (2, True)
    assert KEEP_NOTES > 1


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another writer"])
def test_two_drivers_at_once_without_locks(stage: IcebergStage, monkeypatch: pytest.MonkeyPatch, beside: bool) -> None:
    """Both have written, and neither has seen the other's snapshot: Iceberg publishes an id once."""
    monkeypatch.setattr("sparkonce.sinks.write_ahead.application._lock", lambda _: True)
    handles = [stage.prepare(slot=slot) for slot in range(2)]
    both = Barrier(2, timeout=60)
    load, staged = _IcebergTable._load, []

    def meet(self: _IcebergTable, branch: str, *more: Any) -> None:
        def load_together(table: _IcebergTable) -> Any:
            loaded = load(table)
            staged.append(branch)
            both.wait()
            if beside and staged[0] == branch:
                stage.another_writes(7)
            both.wait()
            return loaded

        with monkeypatch.context() as together:
            together.setattr(self, "_load", lambda: load_together(self))
            publish(self, branch, *more)

    publish = _IcebergTable._publish
    monkeypatch.setattr(_IcebergTable, "_publish", meet)
    committers = [stage.sink().committer() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda one: one.commit(handles), committers))
    assert len(staged) == 2
    assert {one.outcome for some in answers for one in some} <= COMMITTED, answers
    assert stage.numbers() == ([0, 1, 7] if beside else [0, 1])
    assert (stage.snapshots(), stage.branches()) == (2 if beside else 1, [])


def test_other_writers_commit_meanwhile(stage: IcebergStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the begin of the last transaction and its commit: Iceberg makes it again, on what they left."""
    handle, calls, tell = stage.prepare(), [0], Label.to_text

    def write_meanwhile(label: Label) -> str:
        calls[0] += 1
        if calls[0] == 2:  # the first is for the staged snapshot
            stage.another_writes(7)
        return tell(label)

    monkeypatch.setattr(Label, "to_text", write_meanwhile)
    assert stage.commit(handle) == [Outcome.COMMITTED]
    assert (calls, stage.traces()) == ([2], [handle.transaction])
    assert (stage.numbers(), stage.snapshots(), stage.branches()) == ([0, 7], 2, [])


def test_subsets_of_a_batch(stage: IcebergStage) -> None:
    handles = [stage.prepare(slot=slot) for slot in range(3)]
    assert stage.commit(handles[1]) == [Outcome.COMMITTED]
    assert stage.commit(*handles) == [Outcome.COMMITTED, Outcome.ALREADY_COMMITTED, Outcome.COMMITTED]
    assert (stage.numbers(), stage.snapshots()) == ([0, 1, 2], 2)


def test_a_partitioned_table_with_columns_that_the_rows_do_not_have(tables: SparkSession, tmp_path: Path) -> None:
    columns = "more struct<a: int>, Number bigint not null, word string"
    stage = IcebergStage(tables, tmp_path, make_table(tables, columns, "partitioned by (bucket(2, number))"))
    narrow = pa.schema([("number", pa.int32())])
    assert stage.sink().columns(narrow) == ["number"]
    assert stage.commit(*(stage.prepare(slot=slot, schema=narrow) for slot in range(2))) == [Outcome.COMMITTED] * 2
    assert stage.numbers() == [0, 1]
    assert sorted(map(tuple, tables.table(stage.table).collect())) == [(None, 0, None), (None, 1, None)]
    with pytest.raises(SchemaError, match=r"'Number' of .* must not be null"):
        stage.sink().columns(pa.schema([("word", pa.string())]))


def test_nulls_that_the_table_would_refuse_fail_while_they_are_computed(tables: SparkSession, tmp_path: Path) -> None:
    sink = IcebergSink(make_table(tables, "`a``b` bigint not null, word string"), folder=tmp_path / "rows")
    rows = tables.sql("select 1L as `A``b`, cast(null as string) as word")
    assert (sink.checked(rows).columns, sink.checked(rows).collect()) == (rows.columns, rows.collect())
    with pytest.raises(Exception, match="`a``b` must not be null"):
        sink.checked(tables.sql("select cast(null as bigint) as `a``b`")).collect()


def test_a_table_that_was_replaced_is_not_written_to(stage: IcebergStage) -> None:
    handle, committer = stage.prepare(), stage.run_of_its_own()
    stage.spark.sql(f"drop table {stage.table}")
    stage.spark.sql(f"create table {stage.table} (number bigint, word string) using iceberg")
    (answer,) = committer.commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "deleted or replaced" in answer.reason
    assert stage.numbers() == []


def test_rows_that_the_table_does_not_take(stage: IcebergStage) -> None:
    """Its columns were changed after the start."""
    handle = stage.prepare()
    stage.java().updateSchema().deleteColumn("word").commit()
    (answer,) = stage.sink().committer().commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "word" in answer.reason
    assert (stage.numbers(), stage.branches()) == ([], [])


def test_what_the_table_is_is_remembered(stage: IcebergStage) -> None:
    assert stage.sink().preflight(QUERY, stage.facts) == stage.facts
    other = IcebergSink(make_table(stage.spark), folder=stage.folder / "rows")
    with pytest.raises(PreflightError, match="has written to the table"):
        other.preflight(QUERY, stage.facts)
    with pytest.raises(PreflightError, match="create the table first"):
        IcebergSink("ice.db.none", folder=stage.folder / "rows").preflight(QUERY, None)


def test_a_session_that_stages_everything_is_refused(stage: IcebergStage) -> None:
    stage.spark.conf.set("spark.wap.id", "audit")
    try:
        with pytest.raises(PreflightError, match=r"spark\.wap\.id=audit"):
            stage.sink().preflight(QUERY, None)
    finally:
        stage.spark.conf.unset("spark.wap.id")


def test_it_says_on_what_it_depends(stage: IcebergStage) -> None:
    assert any("'sparkonce.'" in condition for condition in stage.sink().conditions())


def test_columns_are_held_against_the_table(stage: IcebergStage) -> None:
    assert stage.sink().columns(ARROW) == ["number", "word"]
    with pytest.raises(SchemaError, match="'more' is none of"):
        stage.sink().columns(pa.schema([("more", pa.int64())]))
    with pytest.raises(SchemaError, match=r"'word' is a int64, and in .* it is a string"):
        stage.sink().columns(pa.schema([("word", pa.int64())]))


@pytest.mark.parametrize("phase", [*SLOW, Phase.FINISHING])
def test_a_query_that_crashes(stage: IcebergStage, phase: Phase | None) -> None:
    assert stage.query_that_crashes(phase) == stage.numbers()
    assert (stage.snapshots(), stage.branches()) == (2, [])
