"""Several sinks as one unit, each with its own view of the batch."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conformance.folder_sink import FolderSink
from spark.harness import new_name
from spark.in_process import IDS, LIMIT_S, MARKS, Stream
from sparkonce import ExactlyOnce, KafkaSink
from sparkonce.errors import ConfigurationError, PrepareError
from sparkonce.spark.views import Share, Sinks, computed_once
from sparkonce_lab.kafka import create_topic

pytestmark = [*MARKS, pytest.mark.usefixtures("travels")]


class Unit:
    """A query that writes all rows to a topic, those of every tenth id to another, and sums to a folder.

    The sums have one slot, the topics have four.
    """

    def __init__(self, stream: Stream, folder: Path) -> None:
        self.stream = stream
        self.other = new_name("other")
        create_topic(stream.bootstrap, self.other, 2)
        self.folder = folder / "sums"
        self.tenths: Callable[[DataFrame], DataFrame] = lambda df: df.where("key like '%0'")

    def sinks(self, kafka: KafkaSink) -> Sinks:
        tenths = KafkaSink({"bootstrap.servers": self.stream.bootstrap}, topic=self.other, name="tenths")
        return {kafka: None, tenths: self.tenths, FolderSink(self.folder, name="sums"): sums}

    def run(self, plan: Callable[[DataFrame], DataFrame] = lambda rows: rows, **more: object) -> None:
        self.stream.run(plan, sinks=self.sinks, **more)

    def sums(self) -> list[int]:
        return sorted(int(line) for path in self.committed() for line in path.read_text().splitlines())

    def committed(self) -> list[Path]:
        return list((self.folder / "committed").iterdir())

    def check(self) -> None:
        assert self.stream.keys() == IDS
        assert self.stream.keys(self.other) == [key for key in IDS if key.endswith("0")]
        # For each batch of 400 rows, the sum of its ids. Together, they are the sum of all ids.
        assert sum(self.sums()) == sum(map(int, IDS))
        assert len(self.sums()) == 3
        assert self.stream.transactions("Ongoing") == {}
        assert [*(self.folder / "open").iterdir(), *(self.folder / "prepared").iterdir()] == []


def sums(df: DataFrame) -> DataFrame:
    return df.groupBy().agg(F.sum(F.expr("try_cast(key as long)")).alias("number"))


@pytest.fixture
def unit(stream, tmp_path) -> Unit:
    return Unit(stream, tmp_path)


def test_each_sink_takes_its_view_and_the_batch_is_computed_once(unit):
    computed, active = unit.stream.spark.sparkContext.accumulator(0), SparkSession.getActiveSession()

    @F.udf("string")
    def counted(key: str) -> str:
        computed.add(1)
        return key

    unit.run(lambda rows: rows.withColumn("key", counted("key")))
    unit.check()
    assert computed.value == len(IDS)
    assert SparkSession.getActiveSession() is active, "A batch's own session is the active one of this process now."


def test_a_batch_leaves_no_session_behind(spark):
    """Spark 4.0.0 never frees a cloned session, so a query with one batch per second would use a gigabyte per hour."""

    def sessions(spark: SparkSession) -> int:
        """Counts the sessions in the JVM after a full garbage collection."""
        jvm, new_array = spark._jvm, spark.sparkContext._gateway.new_array
        gc.collect()  # what Python refers to stays alive
        server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
        # The server's own class cannot be reached by reflection, but its interface can.
        (invoke,) = (
            method
            for method in jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethods()
            if method.getName() == "invoke"
        )
        given, signature, arguments = new_array(jvm.Object, 1), new_array(jvm.String, 1), new_array(jvm.Object, 4)
        given[0], signature[0] = new_array(jvm.String, 0), "[Ljava.lang.String;"
        arguments[0] = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
        arguments[1], arguments[2], arguments[3] = "gcClassHistogram", given, signature
        found = [line.split() for line in invoke.invoke(server, arguments).splitlines()]
        return next(int(words[1]) for words in found if words[3:4] == ["org.apache.spark.sql.classic.SparkSession"])

    conf = "spark.sql.sources.bucketing.autoBucketedScan.enabled"
    before = sessions(spark)
    try:
        for value in ("true", "false", "true"):
            spark.conf.set(conf, value)
            with computed_once(spark.range(3), [Share(view=lambda df: df, sinks={})]) as kept:
                assert kept.storageLevel.useMemory
            assert spark.conf.get(conf) == value
    finally:
        spark.conf.unset(conf)
    with computed_once(spark.range(3), [Share(view=lambda df: df, sinks={})]):
        pass
    assert spark.conf.get(conf) == "true"
    assert sessions(spark) <= before


def test_what_one_cannot_prepare_none_shows(unit):
    unit.run(rows_per_batch=1_000)
    unit.stream.send(["0x", "10"])
    unit.tenths = lambda df: df.withColumn(
        "value", F.when(F.col("key") == "10", F.raise_error(F.lit("no tens"))).otherwise(F.col("value"))
    )
    with pytest.raises(PrepareError, match="no tens"):
        unit.run()
    assert unit.stream.keys() == IDS
    assert len(unit.committed()) == 1
    # Tasks that Spark is ending may still have opened a transaction, which the next run's sweep finds.
    unit.tenths = lambda df: df.where("key = '10'")
    unit.run()
    assert unit.stream.keys() == sorted([*IDS, "0x", "10"])
    assert unit.stream.keys(unit.other)[-1] == "10"
    assert len(unit.committed()) == 2
    assert unit.stream.transactions("Ongoing") == {}


@pytest.mark.slow
def test_a_query_that_is_stopped_before_its_jobs_begin_does_not_run_them_to_their_end(spark, tmp_path):
    """Spark cancels a query's jobs once. We have to cancel those that begin after that."""
    reached, ended = threading.Event(), tmp_path / "ended"

    @F.udf("long")
    def endless(number: int) -> int:
        time.sleep(30.0)
        ended.touch()
        return number

    def wait_for_stop(df: DataFrame) -> DataFrame:
        if threading.current_thread() is not threading.main_thread() and not df.isEmpty():
            reached.set()
            thread = spark.sparkContext._jvm.java.lang.Thread
            while not thread.currentThread().isInterrupted():
                time.sleep(0.01)
        return df.select(endless("number").alias("number"))

    one, other = FolderSink(tmp_path / "one", name="one"), FolderSink(tmp_path / "other", name="other")
    views = {one: wait_for_stop, other: lambda df: df.select(endless("number").alias("number"))}
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
    query = ExactlyOnce(views, checkpoint=str(tmp_path / "checkpoint"), display=False).start(
        rows.withColumnRenamed("value", "number")
    )
    assert reached.wait(LIMIT_S)
    query.stop()
    gc.collect()
    assert query.exception() is None
    assert not ended.exists()


def test_a_view_must_be_a_function_that_gives_a_frame(tmp_path):
    sink = FolderSink(tmp_path)
    with pytest.raises(ConfigurationError, match="The view of sink 'folder' is 'number > 3'"):
        ExactlyOnce({sink: "number > 3"}, checkpoint=str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"sinks=\['folder', 'folder'\]"):
        ExactlyOnce({sink: None, FolderSink(tmp_path): None}, checkpoint=str(tmp_path))
