"""The checks and log lines before a query's first batch, about its source, slots, size, columns and other queries."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.harness import new_name
from spark.in_process import IDS, MARKS, CrashError, Stream, crash_at, ended
from sparkonce import ExactlyOnce, KafkaSink, read_kafka
from sparkonce.errors import PreflightError
from sparkonce.protocol.state import Phase
from sparkonce.sink import Facts
from sparkonce.sources import topics as kafka_checks
from sparkonce.spark import classic
from sparkonce_lab.kafka import create_topic, produce
from sparkonce_lab.rig.process import free_port

pytestmark = MARKS


@pytest.fixture
def said(caplog) -> Callable[[], str]:
    """Returns the warnings so far."""
    caplog.set_level(logging.WARNING, "sparkonce")
    return lambda: "\n".join(record.getMessage() for record in caplog.records)


def sink_of(stream: Stream, **more: Any) -> KafkaSink:
    return KafkaSink({"bootstrap.servers": stream.bootstrap}, **{"topic": stream.target, **more})


def run(stream: Stream, df: DataFrame, checkpoint: str = "", **more: Any) -> None:
    """Runs a query into the target. ``more`` contains settings of the sink."""
    folder = str(stream.checkpoint) + checkpoint
    once = ExactlyOnce(sink_of(stream, **more), checkpoint=folder, display=False)
    ended(once.start(df, trigger={"availableNow": True}))


def source(stream: Stream, servers: str = "", **which: Any) -> DataFrame:
    return read_kafka(stream.spark, {"bootstrap.servers": servers or stream.bootstrap}, **which)


class Stop(KafkaSink):
    """Refuses to start, after everything about the plan and the source was logged."""

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        raise PreflightError("Far enough.")


def not_run(stream: Stream, df: DataFrame, **sinks: Any) -> None:
    stop = Stop({"bootstrap.servers": stream.bootstrap}, topic=stream.target)
    given = {stop: sinks.get("view")}
    with pytest.raises(PreflightError, match="Far enough"):
        ExactlyOnce(given, checkpoint=str(stream.checkpoint), display=False).start(df, output_mode="update")


@pytest.mark.parametrize(
    ("servers", "words"),
    [("127.0.0.1:{port}", "did not answer within 1 s"), ("no.such.host.invalid:9092", "DNS Resolution failure")],
)
def test_a_source_whose_brokers_are_not_there_is_refused_by_name(stream, servers, words, monkeypatch):
    assert kafka_checks.LIMIT_S == 15.0
    monkeypatch.setattr(kafka_checks, "LIMIT_S", 1.0)
    servers = servers.format(port=free_port())
    with pytest.raises(PreflightError, match=rf"(?s)Kafka source's bootstrap.servers='{servers}'.*{words}") as told:
        run(stream, source(stream, servers, topics=stream.source))
    assert "Check the addresses" in told.value.next_step
    assert not (stream.checkpoint / "offsets").exists()


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ({"topics": "{source},{missing}"}, "Topic '{missing}', which this query reads, does not exist"),
        ({"partitions": {"{source}": [0, 4]}}, "'{source}', which this query reads, has no partition 4: it has 4"),
    ],
)
def test_a_topic_that_is_missing_is_refused_by_name(stream, which, words, monkeypatch):
    monkeypatch.setattr(kafka_checks, "_SURE_AFTER_S", 0.0)
    names = {"source": stream.source, "missing": new_name("missing")}

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {key.format(**names): one for key, one in value.items()}
        return value.format(**names)

    with pytest.raises(PreflightError, match=re.escape(words.format(**names))):
        run(stream, source(stream, **{key: named(value) for key, value in which.items()}))
    assert not (stream.checkpoint / "offsets").exists()


def test_a_pattern_that_matches_no_topic_is_told(stream, said):
    not_run(stream, source(stream, pattern=f"{stream.source}-nothing.*").drop("partition"))
    assert f"matches pattern='{stream.source}-nothing.*'" in said()


def test_what_is_decided_is_finished_without_asking_source_or_executors(stream, monkeypatch):
    with pytest.raises(CrashError):
        stream.run(listener=crash_at(Phase.FINISHING, 0))
    with monkeypatch.context() as patch:
        patch.setattr(kafka_checks, "ask_sources", lambda *_, **__: pytest.fail("the source was asked"))
        patch.setattr(classic, "check_executors", lambda *_: pytest.fail("the executors were asked"))
        stream.run()
    assert stream.keys() == IDS


@pytest.mark.parametrize("more", [0, 2])
def test_a_partition_that_the_source_brings_along_is_refused_or_told(stream, said, more):
    """The rows would go to their original partitions, regardless of their keys, or nowhere if it does not exist."""
    wide = new_name("wide")
    create_topic(stream.bootstrap, wide, stream.partitions + more)
    rows = source(stream, topics=wide)
    words = "the column 'partition' of the Kafka source, and are written by it"
    if more:
        with pytest.raises(PreflightError, match=rf"{words}: the source's topic has 6 partitions, .* has 4\.") as told:
            run(stream, rows)
        assert "df.drop('partition')" in told.value.next_step
    else:
        run(stream, rows)
        assert words in said()


@pytest.mark.parametrize(
    ("plan", "view"),
    [
        (lambda df: df.drop("partition"), None),
        (lambda df: df.withColumn("partition", F.col("partition").cast("int")), None),
        (lambda df: df, lambda df: df.select("key", "value")),
    ],
    ids=["dropped", "cast", "not in the view"],
)
def test_a_partition_that_is_meant_or_dropped_is_not_told(stream, said, plan, view):
    not_run(stream, plan(source(stream, topics=stream.source)), view=view)
    assert "'partition'" not in said()


def test_only_the_source_that_gave_the_partition_counts(stream, said):
    wide = new_name("wide")
    create_topic(stream.bootstrap, wide, stream.partitions + 2)
    keys = source(stream, topics=wide).select(F.col("key").alias("other"))
    not_run(stream, source(stream, topics=stream.source).join(keys, F.expr("key = other")))
    assert "column 'partition' of the Kafka source" in said()
    with pytest.raises(PreflightError, match="the source's topic has 6 partitions"):
        run(stream, source(stream, partitions={wide: [4, 5]}))


@pytest.mark.slow
def test_a_query_that_has_run_is_not_refused_for_its_partition(stream, said):
    wide = new_name("wide")
    create_topic(stream.bootstrap, wide, stream.partitions + 2)
    run(stream, source(stream, topics=wide).drop("partition"))
    produce(stream.bootstrap, wide, [{"key": "a", "value": "a", "partition": 0}])
    run(stream, source(stream, topics=wide).drop("partition"))
    run(stream, source(stream, topics=wide))
    assert "column 'partition' of the Kafka source" in said()


def test_a_view_that_keeps_the_sources_partition_is_told(stream, said):
    not_run(stream, source(stream, topics=stream.source), view=lambda df: df.where("offset > 1"))
    assert "column 'partition' of the Kafka source" in said()


def in_sql(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("records")
    select = "WITH some AS (SELECT key, value FROM records) SELECT /*+ REPARTITION(20) */ * FROM some"
    return df.sparkSession.sql(select)


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy("key").count().selectExpr("key", "cast(count as string) value")


@pytest.mark.parametrize(
    ("plan", "view", "is_told"),
    [
        (counted, None, True),
        (lambda df: counted(df).repartition(20), None, False),
        (lambda df: counted(df).where("value > 1").coalesce(3), None, False),
        (lambda df: df.select("key", "value").union(df.select("key", "value")), None, False),
        (lambda df: in_sql(df), None, False),
        (lambda df: df.select("key", "value"), counted, True),
        (counted, lambda df: df.coalesce(2), False),
    ],
    ids=["grouped", "spread", "merged", "twice", "sql", "view", "in the view"],
)
def test_a_shuffle_into_more_slots_than_the_cores_are_worth_is_told(stream, said, plan, view, is_told):
    before = stream.spark.conf.get("spark.sql.shuffle.partitions")
    stream.spark.conf.set("spark.sql.shuffle.partitions", "200")
    try:
        not_run(stream, plan(source(stream, topics=stream.source)), view=view)
    finally:
        stream.spark.conf.set("spark.sql.shuffle.partitions", str(before))
    assert ("slots" in said()) == is_told, said()
    assert ("has 200 slots (spark.sql.shuffle.partitions=200)" in said()) == is_told
    assert ("up to 200 transactions" in said()) == is_told
