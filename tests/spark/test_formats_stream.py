"""Queries that write by ``format("sparkonce-kafka")``: each trap of Spark's stream writers in Python, counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import sparkonce
from kafka_transactions import await_markers
from spark import formats_struck
from spark.formats_struck import AFTER, BEFORE, DEPOSED, DRIVER, PROCESS, StruckKafka
from spark.harness import new_name
from spark.in_process import MARKS, Stream, ended, travelling
from spark.processes import path_of_tests
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol.view import LogView
from sparkonce.rig.kafka import Cluster
from sparkonce.testing.kafka import create_topic, read_committed

pytestmark = MARKS

IDS = [f"{number:05d}" for number in range(1_000)]
LARGE = "00777"


@pytest.fixture(scope="module")
def formats(spark: SparkSession) -> SparkSession:
    sparkonce.register(spark)
    with travelling(formats_struck):
        spark.dataSource.register(StruckKafka)
    return spark


@pytest.fixture
def stream(formats: SparkSession, kafka: Cluster, tmp_path: Path) -> Stream:
    return Stream(formats, kafka, tmp_path, IDS)


def written(stream: Stream, name: str = "sparkonce-kafka", rows: DataFrame | None = None, **options: str) -> None:
    rows = stream.records(400) if rows is None else rows
    writer = rows.writeStream.format(name).trigger(availableNow=True)
    writer = writer.option("kafka.bootstrap.servers", stream.bootstrap).option("topic", stream.target)
    ended(writer.option("checkpointLocation", str(stream.checkpoint)).options(**options).start())


def strike(tmp_path: Path, when: str, what: str = PROCESS, batch: int = 1) -> dict[str, str]:
    return {"name": "struck-kafka", "strike": f"{when} {what} {batch} {tmp_path / 'struck'}"}


def log_of(stream: Stream) -> LogView:
    return DecisionLog(LocalLogStore(stream.checkpoint)).read(LogView())


def test_a_run_claims_once_and_each_row_is_there_once(stream: Stream) -> None:
    written(stream)
    assert stream.keys() == IDS
    view = log_of(stream)
    assert [decision.batch for decision in view.decisions] == [0, 1, 2]
    assert len(view.runs) == 1
    assert stream.transactions("Ongoing") == {}


@pytest.mark.drawn(2, "formats")
def test_a_batch_that_spark_asks_for_again_is_not_written_again(stream: Stream) -> None:
    written(stream)
    (stream.checkpoint / "commits" / "2").unlink()
    (stream.checkpoint / "commits" / ".2.crc").unlink(missing_ok=True)
    written(stream)
    assert stream.keys() == IDS


@pytest.mark.drawn(2, "formats")
def test_killed_before_the_decision_nothing_of_the_batch_is_left(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException):
        written(stream, **strike(tmp_path, BEFORE))
    assert stream.keys() == IDS[:400]
    assert stream.transactions("Ongoing") == {}  # Spark has called abort
    written(stream)
    assert stream.keys() == IDS


@pytest.mark.drawn(2, "formats")
def test_killed_after_the_decision_nothing_of_the_batch_is_undone(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException):
        written(stream, **strike(tmp_path, AFTER))
    assert stream.keys() == IDS[:800]  # abort has found the decision, and finished the batch
    written(stream)
    assert stream.keys() == IDS


@pytest.mark.drawn(2, "formats")
def test_a_run_that_is_deposed_while_its_tasks_write_decides_nothing(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="newer run has claimed"):
        written(stream, **strike(tmp_path, DEPOSED))
    assert stream.keys() == IDS[:400]
    written(stream)
    assert stream.keys() == IDS
    assert stream.transactions("Ongoing") == {}


@pytest.mark.drawn(2, "formats")
def test_a_row_that_is_refused_stops_the_query_and_leaves_nothing_open(stream: Stream) -> None:
    rows = stream.records(400)
    large = F.when(F.col("key") == LARGE, F.rpad("value", 2_000_000, "x")).otherwise(F.col("value"))
    with pytest.raises(StreamingQueryException, match="too large"):
        written(stream, rows=rows.withColumn("value", large))
    assert stream.keys() == IDS[:400]
    assert stream.transactions("Ongoing") == {}
    written(stream)
    assert stream.keys() == IDS


@pytest.mark.drawn(2, "formats")
def test_state_goes_on_behind_a_decided_batch(stream: Stream, tmp_path: Path) -> None:
    """The rows of a decided batch are thrown away, but its plan runs: the state store needs its version."""
    rows = stream.records(400).withColumn("key", F.expr("'k' || (cast(key as int) % 10)")).dropDuplicates(["key"])
    with pytest.raises(StreamingQueryException):
        written(stream, rows=rows, **strike(tmp_path, AFTER, batch=0))
    written(stream, rows=rows)
    assert stream.keys() == sorted(f"k{number}" for number in range(10))


@pytest.mark.drawn(2, "formats")
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


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_driver_that_is_killed_at_its_decision_loses_and_doubles_nothing(
    kafka: Cluster, tmp_path: Path, when: str
) -> None:
    """A driver, its JVM and its workers (SIGKILL), three times, each in another batch; then one that ends."""
    topic = new_name("killed")
    create_topic(kafka.bootstrap, topic, 2)
    given = {"rows": "200", "batches": "6", "format": "struck-kafka", "topic": topic}
    given |= {"kafka.bootstrap.servers": kafka.bootstrap, "checkpointLocation": str(tmp_path / "checkpoint")}
    for batch in (0, 2, 3):
        struck = tmp_path / f"struck-{batch}"
        assert run_job({**given, "strike": f"{when} {DRIVER} {batch} {struck}"}, tmp_path) == -signal.SIGKILL
        assert struck.exists()
    assert run_job(given, tmp_path) == 0, (tmp_path / "job.log").read_text()[-3000:]
    await_markers(kafka.bootstrap)
    values = sorted(int(record.value or b"") for record in read_committed(kafka.bootstrap, topic))
    assert len(values) >= 1_200
    assert values == list(range(len(values)))


def run_job(given: dict[str, str], folder: Path) -> int:
    """Runs a query in a process and session of its own, to its end, and returns its exit code."""
    with (folder / "job.log").open("ab") as log:
        command = [sys.executable, "-m", "spark.formats_job", json.dumps(given)]
        own = {**os.environ, **path_of_tests(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(folder)}
        own["SPARK_LOCAL_IP"] = "127.0.0.1"
        done = subprocess.run(
            command, stdout=log, stderr=log, env=own, start_new_session=True, check=False, timeout=900
        )
    return done.returncode
