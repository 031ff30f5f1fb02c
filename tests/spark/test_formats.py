"""Batch jobs and queries that write with ``format("sparkonce-…")``, counted at the servers.

A batch job is one decision for its name. ``struck-kafka`` and so on are the same formats, except that their decision
log kills its own process, once, before or after a decision is put.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from psycopg.conninfo import conninfo_to_dict
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import forwarding_log
import sparkonce
from forwarding_log import ForwardingLog
from kafka_transactions import await_markers
from shared_servers import mariadb_server, postgres_server, redis_server, s3_server
from spark.harness import new_name
from spark.in_process import MARKS, Stream, ended, travelling
from sparkonce.decision_log import DecisionLog, Landed, Taken
from sparkonce.protocol import codec
from sparkonce.protocol.view import Commit
from sparkonce.spark.formats.options import session_settings
from sparkonce.spark.formats.sources import FormatSource, sources
from sparkonce.storage.files import CheckpointFiles
from sparkonce_lab.kafka import create_topic, list_transactions, read_committed
from sparkonce_lab.systems.base import System
from sparkonce_lab.systems.files import FilesSystem
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.systems.redis import RedisSystem
from sparkonce_lab.systems.s3 import S3System

pytestmark = MARKS

IDS = [f"{number:05d}" for number in range(1_000)]
BEFORE, AFTER = "before", "after"


class Striking(ForwardingLog):
    """Kills its process at the decision of one batch.

    Args:
        log: The wrapped log.
        strike: `BEFORE` or `AFTER` the put, the batch, and a file that is created then, so that it happens once.
    """

    def __init__(self, log: DecisionLog, strike: str) -> None:
        super().__init__(log)
        self._when, batch, struck = strike.split(" ", 2)
        self._batch, self._struck = int(batch), Path(struck)

    def put_bytes(self, position: int, data: bytes) -> Landed | Taken:
        record = codec.decode_record(data)
        if not isinstance(record, Commit) or record.batch != self._batch or self._struck.exists():
            return super().put_bytes(position, data)
        self._struck.touch()
        if self._when == AFTER:
            super().put_bytes(position, data)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("this process is dead")


class Struck(FormatSource):
    """One more option says when to strike."""

    @classmethod
    def name(cls) -> str:
        return cls.of.name.replace("sparkonce", "struck")

    def _lower_options(self) -> dict[str, str]:
        return {name: value for name, value in super()._lower_options().items() if name != "strike"}

    def _log_at(self, files: CheckpointFiles) -> DecisionLog:
        log = super()._log_at(files)
        strike = {name.lower(): value for name, value in dict(self.options).items()}.get("strike")
        return log if strike is None else Striking(log, strike)


@pytest.fixture(scope="module")
def formats(spark) -> SparkSession:
    sparkonce.register(spark)
    with travelling(sys.modules[__name__], forwarding_log):
        for source in sources(session_settings(spark)):
            spark.dataSource.register(type(source.__name__, (Struck, source), {}))
    return spark


# --- batch jobs -------------------------------------------------------------------------------------------------------


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
def job(formats, kafka, tmp_path) -> Job:
    topic = new_name("job")
    create_topic(kafka.bootstrap, topic, 2)
    return Job(formats, kafka.bootstrap, topic, tmp_path / "log")


def test_a_job_is_written_once_under_its_name(job):
    job.run()
    job.run()
    assert job.keys() == IDS
    job.run(job=new_name("another"))
    assert job.keys() == sorted(IDS + IDS)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_job_that_was_killed_at_its_decision_is_written_once(job, when, tmp_path):
    with pytest.raises(Py4JJavaError):
        job.run(f"struck-kafka {when} 0 {tmp_path / 'struck'}")
    assert job.keys() == ([] if when == BEFORE else IDS)
    assert not job.is_open()
    job.run()
    assert job.keys() == IDS


@pytest.mark.slow
def test_a_job_that_fails_leaves_nothing_open_and_may_be_run_again(job):
    with pytest.raises(PySparkException, match="too large"):
        job.run(longest=2_000_000)
    assert not job.is_open()
    job.run()
    assert job.keys() == IDS


@pytest.mark.slow
def test_a_job_that_is_decided_is_not_written_elsewhere_under_its_name(job):
    job.run()
    with pytest.raises(PySparkException, match="has written to another target"):
        job.run(topic="elsewhere")


def test_a_job_needs_a_name_a_log_and_append(job):
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
def test_a_job_whose_log_is_gone_is_refused_by_what_the_server_remembers(job):
    job.run()
    shutil.rmtree(job.log)
    with pytest.raises(PySparkException, match="remembers more of this query"):
        job.run()
    assert job.keys() == IDS


@pytest.mark.slow
def test_sql_writes_once_for_each_job_that_an_insert_names(job):
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
def test_sql_writes_once_for_the_job_that_a_view_names(job):
    options = {"kafka.bootstrap.servers": job.bootstrap, "topic": job.topic, "job": job.topic, "log": str(job.log)}
    given = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    job.spark.sql(f"CREATE TEMPORARY VIEW orders (key STRING, value STRING) USING `sparkonce-kafka` OPTIONS ({given})")
    try:
        for _ in range(2):
            job.spark.sql("INSERT INTO orders VALUES ('a', 'x'), ('b', 'y')")
    finally:
        job.spark.sql("DROP VIEW orders")
    assert job.keys() == ["a", "b"]


SYSTEMS: Mapping[str, Callable[[Path], System]] = {
    "postgres, two_phase": lambda _: PostgresSystem(server=postgres_server()),
    "postgres, staged": lambda _: PostgresSystem(commit="staged", server=postgres_server()),
    "mysql, two_phase": lambda _: MySQLSystem(server=mariadb_server()),
    "mysql, staged": lambda _: MySQLSystem(commit="staged", server=mariadb_server()),
    "redis": lambda _: RedisSystem(server=redis_server()),
    "files": FilesSystem,
    "files, s3": lambda _: S3System(server=s3_server()),
}
SLOW = ("postgres, staged", "mysql, two_phase", "files, s3")


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in SYSTEMS]
)
def test_a_job_that_is_killed_after_its_decision_writes_each_row_once(formats, tmp_path, case):
    def options_of(arguments: dict[str, Any]) -> dict[str, str]:
        """Returns a sink's arguments as the options of its format."""
        if "conninfo" in arguments:
            to = conninfo_to_dict(arguments.pop("conninfo"))
            arguments["url"] = f"jdbc:postgresql://{to['host']}:{to['port']}/{to['dbname']}?connect_timeout=10"
            arguments |= {"user": to["user"], "dbtable": f"{arguments.pop('schema')}.{arguments.pop('table')}"}
        elif "settings" in arguments:
            to = arguments.pop("settings")
            arguments["url"] = f"jdbc:mariadb://{to['host']}:{to['port']}/{to['database']}?ssl_disabled=true"
            arguments |= {"user": to["user"], "password": to["password"], "dbtable": arguments.pop("table")}
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in arguments.items()}

    rows = formats.range(90, numPartitions=2).selectExpr("id number", "1 amount")
    with SYSTEMS[case](tmp_path / "out").placed(tmp_path, "number bigint", "amount int") as system:
        name, options = case.partition(",")[0], options_of(system.arguments())

        def write(job: str, name: str = f"sparkonce-{name}", **more: str) -> None:
            writer = rows.write.format(name).mode("append").options(**options, **more)
            writer.options(job=job, log=str(tmp_path / "log")).save()

        with pytest.raises(Py4JJavaError):
            write("one", f"struck-{name}", strike=f"{AFTER} 0 {tmp_path / 'struck'}")
        assert (tmp_path / "struck").exists(), "it failed before the decision"
        assert sorted(system.visible()) == list(range(90))
        for _ in range(2):
            write("one")
            assert sorted(system.visible()) == list(range(90))
        write("two")
        assert sorted(system.visible()) == sorted([*range(90)] * 2)
        assert system.left_open() == []


# --- queries ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream(formats, kafka, tmp_path) -> Stream:
    return Stream(formats, kafka, tmp_path, IDS)


def written(stream: Stream, name: str = "sparkonce-kafka", rows: DataFrame | None = None, **options: str) -> None:
    rows = stream.records(400) if rows is None else rows
    writer = rows.writeStream.format(name).trigger(availableNow=True)
    writer = writer.option("kafka.bootstrap.servers", stream.bootstrap).option("topic", stream.target)
    ended(writer.option("checkpointLocation", str(stream.checkpoint)).options(**options).start())


def test_killed_after_the_decision_nothing_of_the_batch_is_undone(stream, tmp_path):
    with pytest.raises(StreamingQueryException):
        written(stream, "struck-kafka", strike=f"{AFTER} 1 {tmp_path / 'struck'}")
    assert stream.keys() == IDS[:800]  # abort found the decision, and finished the batch
    written(stream)
    assert stream.keys() == IDS


@pytest.mark.slow
def test_state_goes_on_behind_a_decided_batch(stream, tmp_path):
    """The rows of a decided batch are discarded, but its plan must run, since the state store needs its version."""
    rows = stream.records(400).withColumn("key", F.expr("'k' || (cast(key as int) % 10)")).dropDuplicates(["key"])
    with pytest.raises(StreamingQueryException):
        written(stream, "struck-kafka", rows, strike=f"{AFTER} 0 {tmp_path / 'struck'}")
    written(stream, rows=rows)
    assert stream.keys() == sorted(f"k{number}" for number in range(10))


def test_what_cannot_be_exact_is_refused(stream, tmp_path):
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
