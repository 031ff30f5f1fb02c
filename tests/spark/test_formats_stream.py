"""Queries that write with ``format("sparkonce-kafka")``, for each pitfall of Spark's stream writers in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from spark.formats_struck import AFTER, BEFORE, DEPOSED, register
from spark.in_process import MARKS, Stream, ended
from sparkonce.log import DecisionLog
from sparkonce.protocol.view import LogView
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

IDS = [f"{number:05d}" for number in range(1_000)]
LARGE = "00777"


@pytest.fixture(scope="module")
def formats(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture
def stream(formats: SparkSession, kafka: Cluster, tmp_path: Path) -> Stream:
    return Stream(formats, kafka, tmp_path, IDS)


def written(stream: Stream, name: str = "sparkonce-kafka", rows: DataFrame | None = None, **options: str) -> None:
    rows = stream.records(400) if rows is None else rows
    writer = rows.writeStream.format(name).trigger(availableNow=True)
    writer = writer.option("kafka.bootstrap.servers", stream.bootstrap).option("topic", stream.target)
    ended(writer.option("checkpointLocation", str(stream.checkpoint)).options(**options).start())


def strike(tmp_path: Path, when: str, batch: int = 1) -> dict[str, str]:
    return {"name": "struck-kafka", "strike": f"{when} {batch} {tmp_path / 'struck'}"}


@pytest.mark.slow
def test_a_run_claims_once_and_each_row_is_there_once(stream: Stream) -> None:
    def log_of(stream: Stream) -> LogView:
        return DecisionLog(LocalFiles(stream.checkpoint)).read(LogView())

    written(stream)
    assert stream.keys() == IDS
    view = log_of(stream)
    assert [decision.batch for decision in view.decisions] == [0, 1, 2]
    assert len(view.runs) == 1
    assert stream.transactions("Ongoing") == {}


@pytest.mark.slow
def test_a_batch_that_spark_asks_for_again_is_not_written_again(stream: Stream) -> None:
    written(stream)
    (stream.checkpoint / "commits" / "2").unlink()
    (stream.checkpoint / "commits" / ".2.crc").unlink(missing_ok=True)
    written(stream)
    assert stream.keys() == IDS


@pytest.mark.slow
def test_killed_before_the_decision_nothing_of_the_batch_is_left(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException):
        written(stream, **strike(tmp_path, BEFORE))
    assert stream.keys() == IDS[:400]
    assert stream.transactions("Ongoing") == {}  # Spark has called abort
    written(stream)
    assert stream.keys() == IDS


def test_killed_after_the_decision_nothing_of_the_batch_is_undone(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException):
        written(stream, **strike(tmp_path, AFTER))
    assert stream.keys() == IDS[:800]  # abort found the decision, and finished the batch
    written(stream)
    assert stream.keys() == IDS


@pytest.mark.slow
def test_a_run_that_is_deposed_while_its_tasks_write_decides_nothing(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="newer run has claimed"):
        written(stream, **strike(tmp_path, DEPOSED))
    assert stream.keys() == IDS[:400]
    written(stream)
    assert stream.keys() == IDS
    assert stream.transactions("Ongoing") == {}


@pytest.mark.slow
def test_a_row_that_is_refused_stops_the_query_and_leaves_nothing_open(stream: Stream) -> None:
    rows = stream.records(400)
    large = F.when(F.col("key") == LARGE, F.rpad("value", 2_000_000, "x")).otherwise(F.col("value"))
    with pytest.raises(StreamingQueryException, match="too large"):
        written(stream, rows=rows.withColumn("value", large))
    assert stream.keys() == IDS[:400]
    assert stream.transactions("Ongoing") == {}
    written(stream)
    assert stream.keys() == IDS


@pytest.mark.slow
def test_state_goes_on_behind_a_decided_batch(stream: Stream, tmp_path: Path) -> None:
    """The rows of a decided batch are discarded, but its plan must run, since the state store needs its version."""
    rows = stream.records(400).withColumn("key", F.expr("'k' || (cast(key as int) % 10)")).dropDuplicates(["key"])
    with pytest.raises(StreamingQueryException):
        written(stream, rows=rows, **strike(tmp_path, AFTER, batch=0))
    written(stream, rows=rows)
    assert stream.keys() == sorted(f"k{number}" for number in range(10))


def test_what_cannot_be_exact_is_refused(stream: Stream, tmp_path: Path) -> None:
    counts = stream.records(400).groupBy("key").count().selectExpr("key", "cast(count as string) value")
    complete = counts.writeStream.format("sparkonce-kafka").outputMode("complete").trigger(availableNow=True)
    complete = complete.option("kafka.bootstrap.servers", stream.bootstrap).option("topic", stream.target)
    with pytest.raises(StreamingQueryException, match=r"outputMode\('complete'\) replace"):
        ended(complete.option("checkpointLocation", str(tmp_path / "complete")).start())
    stream.spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "by-setting"))
    try:
        unnamed = stream.records(400).writeStream.format("sparkonce-kafka").trigger(availableNow=True)
        with pytest.raises(StreamingQueryException, match="checkpointLocation"):
            ended(unnamed.option("kafka.bootstrap.servers", stream.bootstrap).option("topic", stream.target).start())
    finally:
        stream.spark.conf.unset("spark.sql.streaming.checkpointLocation")
    with pytest.raises(StreamingQueryException, match="has no option 'guarantee'"):
        written(stream, guarantee="at-least-once")
    assert stream.keys() == []
