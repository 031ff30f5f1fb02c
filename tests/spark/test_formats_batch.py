"""Batch jobs that write with ``format("sparkonce-…")``: one decision for each job name, counted at the servers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from kafka_transactions import await_markers
from spark.formats_struck import AFTER, BEFORE, register
from spark.harness import new_name
from spark.in_process import MARKS
from sparkonce_lab.kafka import create_topic, list_transactions, read_committed
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

IDS = [f"{number:05d}" for number in range(1_000)]


@pytest.fixture(scope="module")
def formats(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


class Job(NamedTuple):
    """A job with its topic and the folder of its log."""

    spark: SparkSession
    bootstrap: str
    topic: str
    log: Path

    def run(self, name: str = "sparkonce-kafka", *, job: str = "", topic: str = "", longest: int = 5) -> None:
        rows = self.spark.range(len(IDS)).repartition(3).select(F.format_string("%05d", "id").alias("key"))
        rows = rows.withColumn("value", F.when(F.col("key") == IDS[7], F.lpad("key", longest, "x")).otherwise("v"))
        writer = rows.write.mode("append").option("kafka.bootstrap.servers", self.bootstrap)
        name, _, strike = name.partition(" ")
        writer = writer.format(name).option("topic", topic or self.topic)
        writer = writer.options(job=job or self.topic, log=str(self.log))
        (writer.option("strike", strike) if strike else writer).save()

    def keys(self) -> list[str]:
        await_markers(self.bootstrap)
        return sorted(record.key.decode() for record in read_committed(self.bootstrap, self.topic) if record.key)

    def is_open(self) -> bool:
        return bool(list_transactions(self.bootstrap, states=("Ongoing",)))


@pytest.fixture
def job(formats: SparkSession, kafka: Cluster, tmp_path: Path) -> Job:
    topic = new_name("job")
    create_topic(kafka.bootstrap, topic, 2)
    return Job(formats, kafka.bootstrap, topic, tmp_path / "log")


def test_a_job_is_written_once_under_its_name(job: Job) -> None:
    job.run()
    job.run()
    assert job.keys() == IDS
    job.run(job=new_name("another"))
    assert job.keys() == sorted(IDS + IDS)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_job_that_was_killed_at_its_decision_is_written_once(job: Job, when: str, tmp_path: Path) -> None:
    with pytest.raises(Py4JJavaError):
        job.run(f"struck-kafka {when} 0 {tmp_path / 'struck'}")
    assert job.keys() == ([] if when == BEFORE else IDS)
    assert not job.is_open()
    job.run()
    assert job.keys() == IDS


@pytest.mark.slow
def test_a_job_that_fails_leaves_nothing_open_and_may_be_run_again(job: Job) -> None:
    with pytest.raises(PySparkException, match="too large"):
        job.run(longest=2_000_000)
    assert not job.is_open()
    job.run()
    assert job.keys() == IDS


@pytest.mark.slow
def test_a_job_that_is_decided_is_not_written_elsewhere_under_its_name(job: Job) -> None:
    job.run()
    with pytest.raises(PySparkException, match="has written to another target"):
        job.run(topic="elsewhere")


def test_a_job_needs_a_name_a_log_and_append(job: Job) -> None:
    rows = job.spark.range(3).selectExpr("cast(id as string) value").write.format("sparkonce-kafka")
    rows = rows.option("kafka.bootstrap.servers", job.bootstrap).option("topic", job.topic)
    with pytest.raises(PySparkException, match="job='' is"):
        rows.mode("append").save()
    rows = rows.option("job", job.topic)
    with pytest.raises(PySparkException, match="log='' is"):
        rows.mode("append").save()
    with pytest.raises(PySparkException, match="replace them"):
        rows.mode("overwrite").option("log", str(job.log)).save()
    assert job.keys() == []


@pytest.mark.slow
def test_a_job_whose_log_is_gone_is_refused_by_what_the_server_remembers(job: Job) -> None:
    job.run()
    shutil.rmtree(job.log)
    with pytest.raises(PySparkException, match="remembers more of this query"):
        job.run()
    assert job.keys() == IDS


@pytest.mark.slow
def test_sql_writes_once_for_each_job_that_an_insert_names(job: Job) -> None:
    job.spark.sql("CREATE TABLE formats_orders (key STRING, value STRING) USING `sparkonce-kafka`")
    options = {"kafka.bootstrap.servers": job.bootstrap, "topic": job.topic, "log": str(job.log)}
    try:
        for name in ("one", "one", "two"):
            given = ", ".join(f"'{option}' '{value}'" for option, value in {**options, "job": name}.items())
            job.spark.sql(f"INSERT INTO formats_orders WITH ({given}) VALUES ('a', 'x'), ('b', 'y')")  # noqa: S608
    finally:
        job.spark.sql("DROP TABLE formats_orders")
    assert job.keys() == ["a", "a", "b", "b"]


@pytest.mark.slow
def test_sql_writes_once_for_the_job_that_a_view_names(job: Job) -> None:
    options = {"kafka.bootstrap.servers": job.bootstrap, "topic": job.topic, "job": job.topic, "log": str(job.log)}
    given = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    job.spark.sql(f"CREATE TEMPORARY VIEW orders (key STRING, value STRING) USING `sparkonce-kafka` OPTIONS ({given})")
    try:
        for _ in range(2):
            job.spark.sql("INSERT INTO orders VALUES ('a', 'x'), ('b', 'y')")
    finally:
        job.spark.sql("DROP VIEW orders")
    assert job.keys() == ["a", "b"]
