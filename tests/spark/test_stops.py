"""A query that is stopped, or whose batch fails, leaves nothing open that its tasks begin late."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from conformance.folder_sink import FolderCommitter, FolderSink, FolderWriter
from eventually import eventually
from spark.in_process import LIMIT_S, MARKS
from sparkonce import ExactlyOnce
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.state import Phase
from sparkonce.sink import Owner, WriterContext
from sparkonce.spark.query_end import wait_until_closed

pytestmark = [*MARKS, pytest.mark.usefixtures("travels")]

WAITING, SWEPT = "waiting", "swept"


class LateWriter(FolderWriter):
    """Begins only after the sweep that follows its slot, if it lives that long."""

    def __init__(self, sink: FolderSink, context: WriterContext) -> None:
        super().__init__(sink, context)
        self.root = sink.root

    def begin(self) -> None:
        (self.root / WAITING).touch()
        while not (self.root / SWEPT).exists():
            time.sleep(0.01)
        super().begin()


class TellingCommitter(FolderCommitter):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        found = super().list_lingering(owners)
        if (self.sink.root / WAITING).exists():
            (self.sink.root / SWEPT).touch()
        return found


def active_tasks(spark: SparkSession, query: StreamingQuery) -> int:
    tracker = spark.sparkContext.statusTracker()
    jobs = [job for number in tracker.getJobIdsForGroup(str(query.runId)) if (job := tracker.getJobInfo(number))]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def test_a_stopped_query_sweeps_when_its_tasks_have_ended(spark, tmp_path):
    root = tmp_path / "sink"
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
    sink = FolderSink(root)
    sink.halves = (LateWriter, TellingCommitter)
    once = ExactlyOnce(sink, checkpoint=str(tmp_path / "checkpoint"), display=False)
    query = once.start(rows.withColumnRenamed("value", "number"))
    eventually((root / WAITING).exists, "a slot is about to begin")
    query.stop()
    gc.collect()
    assert query.exception() is None
    assert (root / SWEPT).exists()
    eventually(lambda: not active_tasks(spark, query), "no task is at work any more")
    assert not [path for state in ("open", "prepared") for path in (root / state).iterdir()]


class CountedCommitter(FolderCommitter):
    open = 0
    """How many are open."""

    def __init__(self, sink: FolderSink) -> None:
        super().__init__(sink)
        CountedCommitter.open += 1

    def close(self) -> None:
        super().close()
        CountedCommitter.open -= 1


@pytest.fixture
def sink(tmp_path) -> FolderSink:
    CountedCommitter.open, made = 0, FolderSink(tmp_path / "sink")
    made.halves = (FolderWriter, CountedCommitter)
    return made


def numbers(spark: SparkSession, folder: Path, number: int) -> DataFrame:
    """A streaming source of files, and a new file for it."""
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.json").write_text(json.dumps({"number": number}))
    return spark.readStream.schema("number bigint").json(str(folder))


@pytest.mark.parametrize("once_all_is_read", [True, False])
def test_a_query_that_has_ended_frees_its_connections(spark, tmp_path, sink, *, once_all_is_read):
    """Users need not close it: the object, and Spark's reference to it, may live as long as the session."""
    rows = numbers(spark, tmp_path / "source", 0)
    once = ExactlyOnce(sink, checkpoint=str(tmp_path / "checkpoint"), display=False)
    query = once.start(rows, trigger={"availableNow": True} if once_all_is_read else None)
    if once_all_is_read:
        assert query.awaitTermination(LIMIT_S)
    else:
        eventually(once.progress, "a batch is committed")
        assert CountedCommitter.open == 1
        query.stop()
    eventually(lambda: CountedCommitter.open == 0, "the committer is closed")
    assert len(once.progress()) == 1
    gc.collect()


@pytest.mark.parametrize("closes", [True, False])
def test_a_query_of_another_writer_is_closed_when_it_ends(spark, tmp_path, sink, *, closes):
    rows = numbers(spark, tmp_path / "source", 0)
    once = ExactlyOnce(sink, checkpoint=str(tmp_path / "checkpoint"), display=False)
    once.close()
    for number in (1, 2):
        writer = rows.writeStream.foreachBatch(once).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.queryName("totals").trigger(availableNow=True).start()
        assert query.awaitTermination(LIMIT_S)
        if closes:
            once.close()
        else:
            wait_until_closed(query.runId)
        assert CountedCommitter.open == 0
        watched = once.listener.figures.watched()
        assert (watched.name, watched.phase, watched.batch) == ("totals", Phase.IDLE, number - 1)
        assert [one.kind for one in watched.events] == ["started", "ended"]
        numbers(spark, tmp_path / "source", number)


@pytest.mark.slow
def test_a_query_of_another_writer_that_is_stopped_in_a_batch_has_ended(spark, tmp_path):
    """The query ends without an error, since somebody stopped it on purpose and no alarm is needed."""
    once = ExactlyOnce(FolderSink(tmp_path / "sink"), checkpoint=str(tmp_path / "checkpoint"), display=False)
    began = tmp_path / "began"

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began.touch()
        time.sleep(60)  # until its task is killed
        yield from batches

    rows = numbers(spark, tmp_path / "source", 0).mapInArrow(hold, "number long")
    writer = rows.writeStream.foreachBatch(once).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    eventually(began.exists, "a task has begun")
    query.stop()
    wait_until_closed(query.runId)
    watched = once.listener.figures.watched()
    assert (watched.phase, watched.totals.stops) == (Phase.IDLE, {})
    assert [one.kind for one in watched.events] == ["started", "ended"]
    gc.collect()
