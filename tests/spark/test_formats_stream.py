"""Queries that write with ``format("sparkonce-kafka")``, for each pitfall of Spark's stream writers in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from spark.formats_struck import AFTER, register
from spark.in_process import MARKS, Stream, ended
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

IDS = [f"{number:05d}" for number in range(1_000)]


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


def test_killed_after_the_decision_nothing_of_the_batch_is_undone(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException):
        written(stream, "struck-kafka", strike=f"{AFTER} 1 {tmp_path / 'struck'}")
    assert stream.keys() == IDS[:800]  # abort found the decision, and finished the batch
    written(stream)
    assert stream.keys() == IDS


@pytest.mark.slow
def test_state_goes_on_behind_a_decided_batch(stream: Stream, tmp_path: Path) -> None:
    """The rows of a decided batch are discarded, but its plan must run, since the state store needs its version."""
    rows = stream.records(400).withColumn("key", F.expr("'k' || (cast(key as int) % 10)")).dropDuplicates(["key"])
    with pytest.raises(StreamingQueryException):
        written(stream, "struck-kafka", rows, strike=f"{AFTER} 0 {tmp_path / 'struck'}")
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
