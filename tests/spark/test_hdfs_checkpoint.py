"""Queries whose checkpoint, and with it the decision log, is in HDFS."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from hdfs_native import Client
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from conformance.write_ahead_targets import AppendingTarget
from shared_servers import hdfs_server
from spark.in_process import SPARK, crash_at, stopped
from sparkonce import ExactlyOnce, FilesSink, WriteAheadSink
from sparkonce.protocol.state import Phase
from sparkonce.write_ahead import Applies
from sparkonce_lab.rig.servers.hdfs import Hdfs

pytestmark = SPARK

ROWS = 10


@pytest.fixture(scope="module")
def hdfs() -> Hdfs:
    return hdfs_server()


@pytest.fixture
def folder() -> str:
    return f"/checkpoints/{secrets.token_hex(6)}"


@pytest.fixture
def hdfs_by_default(spark: SparkSession, hdfs: Hdfs) -> Iterator[Hdfs]:
    spark.conf.set("fs.defaultFS", hdfs.url)
    yield hdfs
    spark.conf.unset("fs.defaultFS")


def start(once: ExactlyOnce, spark: SparkSession, until: int, column: str = "value") -> None:
    """Runs until so many batches are done, or the query fails."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2).load()
    query = once.start(rows.selectExpr(f"value AS {column}"))
    try:
        while not once.progress() or once.progress()[-1].batch < until:
            assert not query.awaitTermination(1)
    finally:
        stopped(query)


def written(folder: Path) -> list[int]:
    return sorted(ds.dataset(folder, format="parquet").to_table().column("value").to_pylist())


def records(hdfs: Hdfs, folder: str) -> list[str]:
    return [one.path.rpartition("/")[2] for one in Client(hdfs.url).list_status(f"{folder}/sparkonce/records")]


@pytest.mark.slow
def test_a_run_that_ends_after_the_decision(spark: SparkSession, hdfs: Hdfs, folder: str, tmp_path: Path) -> None:
    out, checkpoint = tmp_path / "out", f"{hdfs.url}{folder}"
    with pytest.raises(StreamingQueryException, match="FINISHING of batch 1"):
        start(ExactlyOnce(FilesSink(out), checkpoint=checkpoint, listener=crash_at(Phase.FINISHING, 1)), spark, 9)
    assert written(out) == list(range(ROWS)), "batch 1 is decided, and not committed"
    assert len(records(hdfs, folder)) >= 3, "a claim and two decisions"
    again = ExactlyOnce(FilesSink(out), checkpoint=checkpoint)
    start(again, spark, 3)
    found = written(out)
    assert found == list(range(len(found)))
    assert len(found) >= 4 * ROWS
    assert [name for name in records(hdfs, folder) if name.startswith(".")] == []


@pytest.mark.slow
def test_rows_wait_there_for_a_function(spark: SparkSession, hdfs: Hdfs, folder: str, tmp_path: Path) -> None:
    """The sink is given no folder for its rows."""
    target, checkpoint = AppendingTarget(tmp_path / "target"), f"{hdfs.url}{folder}"
    sink = WriteAheadSink(target, applies=Applies.NEITHER)
    with pytest.raises(StreamingQueryException, match="FINISHING of batch 1"):
        start(ExactlyOnce(sink, checkpoint=checkpoint, listener=crash_at(Phase.FINISHING, 1)), spark, 9, "number")
    assert sorted(target.visible()) == list(range(ROWS)), "batch 1 is decided, and not committed"
    assert Client(hdfs.url).list_status(f"{folder}/sparkonce-write-ahead/write-ahead/rows"), "its rows wait"
    start(ExactlyOnce(sink, checkpoint=checkpoint), spark, 2, "number")
    found = sorted(target.visible())
    assert found == list(range(len(found)))
    assert len(found) >= 3 * ROWS


@pytest.mark.slow
def test_a_path_is_in_the_default_store(
    spark: SparkSession, hdfs_by_default: Hdfs, folder: str, tmp_path: Path
) -> None:
    start(ExactlyOnce(FilesSink(tmp_path / "out"), checkpoint=folder), spark, 0)
    assert len(records(hdfs_by_default, folder)) >= 2
    assert not Path(folder).exists()
