"""The Delta sink, by the conformance suite and against what goes wrong.

A read by Spark takes a second, and the suite asks often: its reader takes what the table's log names as the Delta
protocol says, without Spark. Elsewhere readers ask with a plain read of the table.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark.in_process import LIMIT_S, MARKS, crash_at
from spark.table_session import table_session
from sparkonce import ExactlyOnce
from sparkonce.errors import ConfigurationError, PreflightError, SchemaError, UnknownOutcomeError
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import COMMITTED, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import Phase
from sparkonce.sinks.base import Owner, WriterContext
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.spark.tables.delta import DeltaSink, _DeltaTable
from sparkonce.testing.conformance import SinkConformance
from tryout.bulk import make_orders

pytestmark = [mark for mark in MARKS if mark.name != "kafka"]
QUERY = "7f6e5d4c0000"
SCHEMA = "number bigint, word string"


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with table_session(spark, tmp_path_factory.mktemp("warehouse")) as made:
        yield made


def make_table(spark: SparkSession, path: Path) -> None:
    spark.createDataFrame([], SCHEMA).write.format("delta").save(str(path))


def numbers_in(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row[0] for row in spark.read.format("delta").load(str(path)).select("number").collect())


def live_files(path: Path) -> set[str]:
    """What the table's log has added and not removed; it has no checkpoint before its tenth version."""
    files: set[str] = set()
    for version in sorted((path / "_delta_log").glob("*.json")):
        for action in map(json.loads, version.read_text().splitlines()):
            files -= {action["remove"]["path"]} if "remove" in action else set()
            files |= {action["add"]["path"]} if "add" in action else set()
    return files


def numbers_by_the_log(path: Path) -> list[int]:
    return sorted(number for file in live_files(path) for number in pq.read_table(path / file)["number"].to_pylist())


@pytest.fixture(scope="module")
def empty_table(tables: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To be copied, in a hundredth of the time that it takes to make one."""
    path = tmp_path_factory.mktemp("empty") / "table"
    make_table(tables, path)
    return path


class TestDelta(SinkConformance):
    visible_within_s = 0.0

    @pytest.fixture(autouse=True)
    def _table(self, empty_table: Path, tmp_path: Path) -> None:
        self.root = tmp_path
        shutil.copytree(empty_table, tmp_path / "table")

    def make_sink(self) -> DeltaSink:
        return DeltaSink(str(self.root / "table"), folder=self.root / "rows")

    def make_second_sink(self) -> DeltaSink:
        return DeltaSink(str(self.root / "table"), folder=self.root / "rows", name="beside")

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"number": list(range(start, start + count)), "word": ["w"] * count})

    def visible(self) -> Sequence[int]:
        return numbers_by_the_log(self.root / "table")

    def expire(self, handle: Handle) -> bool:
        (self.root / "rows" / "delta" / "prepared" / str(handle["name"])).unlink()
        return True

    def restart_server(self) -> bool:
        return True  # the table is files

    def test_another_process_commits(self) -> None:
        pytest.skip("the other process would have to start a Spark of its own")


class Stage:
    def __init__(
        self, spark: SparkSession, folder: Path, empty_table: Path, waiting: str = "rows", name: str = "delta"
    ) -> None:
        self.spark, self.folder, self.path = spark, folder, folder / "table"
        self.waiting, self.name = waiting, name
        shutil.copytree(empty_table, self.path)
        self.facts = self.sink().preflight(QUERY, None)

    def sink(self) -> DeltaSink:
        return DeltaSink(str(self.path), folder=self.folder / self.waiting, name=self.name)

    def prepare(self, batch: int = 0, slot: int = 0) -> Handle:
        owner = Owner(query=QUERY, token=Token(3, "0" * 8), facts=self.facts)
        writer = self.sink().writer(WriterContext(owner=owner, batch=batch, slot=slot, copy="1.1.0"))
        writer.begin()
        writer.write(pa.record_batch({"number": [100 * batch + slot], "word": [None]}, schema=ARROW))
        fields = transaction_fields(writer.prepare())
        writer.close()
        return Handle(sink=self.name, slot=slot, rows=1, transaction=fields)

    def commit(self, *handles: Handle) -> list[Outcome]:
        return [answer.outcome for answer in self.sink().committer().commit(handles)]

    def numbers(self) -> list[int]:
        return numbers_in(self.spark, self.path)

    def versions(self) -> int:
        return len(list((self.path / "_delta_log").glob("*.json"))) - 1


ARROW = pa.schema([("number", pa.int64()), ("word", pa.string())])


@pytest.fixture
def stage(tables: SparkSession, tmp_path: Path, empty_table: Path) -> Stage:
    return Stage(tables, tmp_path, empty_table)


class KilledError(BaseException):
    pass


def killed(*_: object) -> None:
    raise KilledError


def test_a_batch_is_one_version(stage: Stage) -> None:
    handles = [stage.prepare(slot=slot) for slot in range(4)]
    assert stage.commit(*handles) == [Outcome.COMMITTED] * 4
    assert (stage.numbers(), stage.versions()) == ([0, 1, 2, 3], 1)
    assert numbers_by_the_log(stage.path) == [0, 1, 2, 3]


@pytest.mark.parametrize(("waiting", "name"), [("_rows/.rows/a*b?[c]{d,e}\\f %20", "delta"), ("rows", "_delta.x")])
def test_names_that_mean_something_to_spark(
    tables: SparkSession, tmp_path: Path, empty_table: Path, waiting: str, name: str
) -> None:
    """It takes paths for patterns, and passes over files that begin with an underscore or a dot."""
    (tmp_path / "_rows/.rows/axb!cd").mkdir(parents=True)
    stage = Stage(tables, tmp_path, empty_table, waiting, name)
    assert stage.commit(*(stage.prepare(slot=slot) for slot in range(2))) == [Outcome.COMMITTED] * 2
    assert stage.numbers() == [0, 1]


@pytest.mark.parametrize(("method", "kind"), [("append", _DeltaTable), ("note_done", WriteAheadFolder)])
def test_a_driver_that_is_killed_before_and_after_the_write(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, method: str, kind: type
) -> None:
    handles = [stage.prepare(slot=slot) for slot in range(2)]
    with monkeypatch.context() as broken:
        broken.setattr(kind, method, killed)
        with pytest.raises(KilledError):
            stage.commit(*handles)
    assert set(stage.commit(*handles)) <= COMMITTED
    assert stage.commit(handles[0]) == [Outcome.ALREADY_COMMITTED]
    assert (stage.numbers(), stage.versions()) == ([0, 1], 1)


def test_a_write_that_delta_skips_is_not_taken_for_done(stage: Stage) -> None:
    """It has seen a later version of the application's id: the rows are in no version (delta-io/delta#1141)."""
    early, late = stage.prepare(batch=0), stage.prepare(batch=5)
    assert stage.commit(late) == [Outcome.COMMITTED]
    committer = stage.sink().committer()
    (answer,) = committer.commit([early])
    assert answer.outcome is Outcome.UNKNOWN
    assert "no version of it carries them" in answer.reason
    with pytest.raises(UnknownOutcomeError):
        committer.commit([early])
    assert stage.numbers() == [500]


def test_versions_that_were_forgotten_are_not_taken_for_absent(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = stage.prepare()
    with monkeypatch.context() as broken:
        broken.setattr(WriteAheadFolder, "note_done", killed)
        with pytest.raises(KilledError):
            stage.commit(handle)
    monkeypatch.setattr(_DeltaTable, "labels", lambda *_, **__: [])
    monkeypatch.setattr(_DeltaTable, "remembers_since_ms", lambda *_: 2**62)
    assert stage.commit(handle) == [Outcome.UNKNOWN]
    assert stage.numbers() == [0]


def test_two_drivers_at_once_without_locks(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta lets one of them in: the same application id cannot commit twice at once."""
    monkeypatch.setattr("sparkonce.sinks.write_ahead.application._lock", lambda _: True)
    waiting = {who: [stage.prepare(slot=slot) for slot in range(2)] if who == 0 else [] for who in range(2)}
    waiting[1] = waiting[0]
    committers = {who: stage.sink().committer() for who in waiting}
    for _ in range(5):
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda who: committers[who].commit(waiting[who]), waiting))
        assert {one.outcome for some in answers for one in some} <= COMMITTED | {Outcome.RETRY}, answers
    assert {one.outcome for some in answers for one in some} <= COMMITTED
    assert (stage.numbers(), stage.versions()) == ([0, 1], 1)


def test_what_the_table_is_is_remembered(stage: Stage, tmp_path: Path) -> None:
    assert stage.sink().preflight(QUERY, stage.facts) == stage.facts
    make_table(stage.spark, tmp_path / "other")
    other = DeltaSink(str(tmp_path / "other"), folder=stage.folder / "rows")
    with pytest.raises(PreflightError, match="has written to the table"):
        other.preflight(QUERY, stage.facts)
    with pytest.raises(PreflightError, match="create the table first"):
        DeltaSink(str(tmp_path / "none"), folder=stage.folder / "rows").preflight(QUERY, None)


def test_columns_are_held_against_the_table(stage: Stage) -> None:
    assert stage.sink().columns(ARROW) == ["number", "word"]
    assert stage.sink().columns(pa.schema([("NUMBER", pa.int32())])) == ["NUMBER"]
    with pytest.raises(SchemaError, match="'more' is none of"):
        stage.sink().columns(pa.schema([("more", pa.int64())]))
    with pytest.raises(SchemaError, match=r"'word' is a int64, and in .* it is a string"):
        stage.sink().columns(pa.schema([("word", pa.int64())]))


SLOW = [pytest.param(phase, marks=pytest.mark.slow) for phase in (None, Phase.DECIDING, Phase.IDLE)]


@pytest.mark.parametrize("phase", [*SLOW, Phase.FINISHING])
def test_a_query_that_crashes(stage: Stage, phase: Phase | None) -> None:
    sent = make_orders(stage.folder / "orders", files=4)
    for listener in (None if phase is None else crash_at(phase, 1), None):
        rows = stage.spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 2)
        once = ExactlyOnce(
            DeltaSink(str(stage.path)), checkpoint=str(stage.folder / "query"), listener=listener, display=False
        )
        orders = rows.json(str(stage.folder / "orders")).withColumnRenamed("id", "number")
        query = once.start(orders, trigger={"availableNow": True})
        try:
            query.awaitTermination(LIMIT_S)
        except StreamingQueryException as error:
            if "CrashError" not in str(error):
                raise
    assert stage.numbers() == sent
    assert stage.versions() == 2


def test_files_that_spark_is_told_to_skip_are_not_skipped(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = [stage.prepare(slot=slot) for slot in range(2)]
    append = _DeltaTable.append

    def spoilt(self: _DeltaTable, paths: Sequence[str], *rest: Any) -> None:
        """After the driver has seen that the checksums are right."""
        monkeypatch.undo()
        Path(paths[1]).write_bytes(b"PAR1")
        append(self, paths, *rest)

    monkeypatch.setattr(_DeltaTable, "append", spoilt)
    stage.spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        assert stage.commit(*handles) == [Outcome.RETRY] * 2
    finally:
        stage.spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert stage.versions() == 0


def test_a_cluster_whose_own_file_system_is_another(stage: Stage) -> None:
    handle = stage.prepare()
    sink = DeltaSink(stage.path.as_uri(), folder=stage.folder / "rows")
    stage.spark.conf.set("fs.defaultFS", "elsewhere://cluster")
    try:
        (answer,) = sink.committer().commit([handle])
    finally:
        stage.spark.conf.unset("fs.defaultFS")
    assert answer.outcome is Outcome.COMMITTED, answer.reason
    assert stage.numbers() == [0]


def test_conditions_are_those_of_the_table() -> None:
    conditions = " ".join(DeltaSink("p").conditions())
    assert "logRetentionDuration" in conditions
    assert "the function" not in conditions


def test_a_path_or_a_table() -> None:
    for settings in ({}, {"path": "p", "table": "t"}):
        with pytest.raises(ConfigurationError, match="one of them"):
            DeltaSink(**settings)
