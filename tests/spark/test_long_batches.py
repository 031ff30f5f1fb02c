"""A batch that takes longer than the transaction timeout, such as a first backlog, with a real Spark."""

from __future__ import annotations

import logging
import time

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.in_process import MARKS, CrashError, Stream, crash_at
from sparkonce import KafkaSink
from sparkonce.protocol.state import Phase
from sparkonce.spark.views import Sinks
from sparkonce_lab.kafka import create_topic

pytestmark = MARKS

IDS = [f"{number:05d}" for number in range(200)]
LIVES = {"transaction.timeout.ms": 1_000}


def slowly(rows: DataFrame) -> DataFrame:
    """All rows take two seconds. They are large, so Python passes them on a hundred at a time."""

    @F.udf("string")
    def work(value: str) -> str:
        time.sleep(0.01)
        return value.ljust(2_000)

    return rows.select("key", work("value").alias("value"))


@pytest.fixture
def stream(own_session, kafka, tmp_path) -> Stream:
    own_session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    return Stream(own_session, kafka, tmp_path, IDS, partitions=1)


def test_it_is_computed_first_and_then_written(stream, caplog):
    with caplog.at_level(logging.WARNING, "sparkonce"):
        (done,) = stream.run(slowly, settings=LIVES)
    assert "transactions of sink kafka live 1 s: what it wrote is undone" in caplog.text
    assert done.rows == {"kafka": len(IDS)}
    assert stream.keys() == IDS
    assert stream.transactions("Ongoing") == {}
    timeouts = {one.timeout_ms for one in stream.transactions("CompleteCommit").values()}
    assert timeouts == {900_000}, "they live as long as the broker allows"


@pytest.mark.slow
def test_of_several_views_all_are_computed_before_the_first_is_written(stream):
    def both(whole: KafkaSink) -> Sinks:
        even = KafkaSink(whole.settings, topic=stream.source + "-even", name="even")
        return {whole: None, even: lambda rows: rows.where("cast(key as int) % 2 = 0")}

    create_topic(stream.bootstrap, stream.source + "-even", 1)
    (done,) = stream.run(slowly, settings=LIVES, sinks=both)
    assert done.rows == {"kafka": len(IDS), "even": len(IDS) // 2}
    assert (stream.keys(), stream.keys(stream.source + "-even")) == (IDS, IDS[::2])


@pytest.mark.slow
def test_a_batch_that_is_not_decided_can_be_taken_apart(stream, tmp_path):
    """As described in docs/operations.md: its offsets are moved away, and Spark plans a smaller batch instead."""
    stream.run()
    stream.send(IDS)
    with pytest.raises(CrashError):
        stream.run(listener=crash_at(Phase.DECIDING, 1))
    for name in ("1", ".1.crc"):
        (stream.checkpoint / "offsets" / name).replace(tmp_path / name)
    assert [done.rows["kafka"] for done in stream.run(rows_per_batch=50)] == [50] * 4
    assert stream.keys() == sorted(IDS * 2)
