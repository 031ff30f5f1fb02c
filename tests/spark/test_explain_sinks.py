"""The analyser's verdicts on our own sinks and their readers, each proved by an injury."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from spark.harness import new_name
from spark.in_process import MARKS, CrashError, Stream, call_at, crash_at, ended
from spark.injuries import Proof, Verdict, proof
from sparkonce import ExactlyOnce, Guarantee, KafkaSink, explain
from sparkonce.analysis.model import Explanation
from sparkonce.errors import PreflightError, TransactionTooOldError
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.testing.kafka import create_topic, read_uncommitted

pytestmark = MARKS

IDS = [f"{number:04d}" for number in range(200)]
"""One batch of at most 100 rows after the other."""

COMMITTED = {"isolation.level": "read_committed"}
TIMEOUT_MS = 10_000
"""A first batch on a busy machine takes up to 5 s; one that took longer than this would be given the broker's limit."""


def plain(rows: DataFrame) -> DataFrame:
    return rows


@pytest.fixture
def stream(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> Stream:
    return Stream(spark, kafka, tmp_path, IDS, partitions=2)


def explained(
    stream: Stream,
    plan: Callable[[DataFrame], DataFrame] = plain,
    *,
    sink: Any = None,
    timeout: int | None = None,
    **more: Any,
) -> Explanation:
    """What the analyser says of the query that `Stream.run` starts."""
    settings = {"bootstrap.servers": stream.bootstrap}
    if timeout is not None:
        settings["transaction.timeout.ms"] = str(timeout)
    ours = KafkaSink(settings, topic=stream.target, **(sink or {}))
    return explain(plan(stream.records(100)), ExactlyOnce(ours, checkpoint=str(stream.checkpoint)), **more)


def run(stream: Stream, *args: Any, **more: Any) -> None:
    stream.run(*args, rows_per_batch=100, **more)


def uncommitted(stream: Stream) -> Counter[str]:
    return Counter((record.key or b"").decode() for record in read_uncommitted(stream.bootstrap, stream.target))


@pytest.mark.proves(
    query="Kafka → `ExactlyOnce(KafkaSink)`, read_committed readers",
    verdict="exactly-once",
    injury="driver dies before the decision, or after Kafka's commits and before Spark's",
    seen="each row once",
)
@pytest.mark.parametrize("phase", [Phase.DECIDING, Phase.IDLE])
@proof
def test_our_kafka_sink(stream: Stream, verdict: Verdict, phase: Phase) -> Proof:
    verdict.of(explained(stream, reader=COMMITTED), "two-phase commit")
    yield
    with pytest.raises(CrashError):
        run(stream, listener=crash_at(phase, 1))
    run(stream)
    assert stream.keys() == IDS


@pytest.mark.proves(
    query="Kafka → `ExactlyOnce(KafkaSink)`, nobody says how it is read",
    verdict="at-least-once (reader)",
    injury="driver dies before the decision; Kafka's default reader",
    seen="rows of the aborted transactions beside those of the second run",
)
@proof
def test_a_reader_with_the_default_isolation(stream: Stream, verdict: Verdict) -> Proof:
    verdict.of(explained(stream), "its isolation level is not given")
    verdict.of(explained(stream, reader={"group.id": "mine"}), "isolation.level is not set")
    verdict.of(explained(stream, reader="spark"), "Spark's Kafka source")
    verdict.of(explained(stream, reader="read_uncommitted"), "read_uncommitted")
    yield
    with pytest.raises(CrashError):
        run(stream, listener=crash_at(Phase.DECIDING, 1))
    run(stream)
    assert stream.keys() == IDS
    found = uncommitted(stream)
    assert set(found) == set(IDS)
    assert set(found.values()) == {1, 2}
    assert Counter(by_librdkafka(stream)) == Counter(IDS), "its default is read_committed"
    assert Counter(by_spark(stream)) == found, "its default is read_uncommitted"


def by_librdkafka(stream: Stream) -> list[str]:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": stream.bootstrap, "group.id": "defaults", "enable.partition.eof": True}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(stream.target, partition, 0) for partition in range(stream.partitions)])
    found: list[str] = []
    at_end = 0
    while at_end < stream.partitions:
        for message in consumer.consume(1000, timeout=1):
            if message.error() is None:
                found.append(message.key().decode())
            else:
                at_end += 1
    consumer.close()
    return found


def by_spark(stream: Stream) -> list[str]:
    reader = stream.spark.read.format("kafka").option("kafka.bootstrap.servers", stream.bootstrap)
    return [row[0].decode() for row in reader.option("subscribe", stream.target).load().select("key").collect()]


@pytest.mark.proves(
    query="Kafka → KafkaSink with `AT_LEAST_ONCE`",
    verdict="at-least-once (sink)",
    injury="driver dies after the rows are written, before the decision",
    seen="rows doubled, none missing",
)
@proof
def test_at_least_once(stream: Stream, verdict: Verdict) -> Proof:
    sink = {"guarantee": Guarantee.AT_LEAST_ONCE}
    verdict.of(explained(stream, sink=sink), "AT_LEAST_ONCE")
    yield
    with pytest.raises(CrashError):
        run(stream, sink=sink, listener=crash_at(Phase.DECIDING, 1))
    run(stream, sink=sink)
    found = Counter(stream.keys())
    assert set(found) == set(IDS)
    assert set(found.values()) == {1, 2}


@pytest.mark.proves(
    query="Kafka → KafkaSink with `AT_MOST_ONCE`",
    verdict="at-most-once (sink)",
    injury="driver dies after the decision, before the rows are written",
    seen="rows missing, none doubled",
)
@proof
def test_at_most_once(stream: Stream, verdict: Verdict) -> Proof:
    sink = {"guarantee": Guarantee.AT_MOST_ONCE}
    verdict.of(explained(stream, sink=sink), "AT_MOST_ONCE")
    yield
    with pytest.raises(CrashError):
        run(stream, sink=sink, listener=crash_at(Phase.DELIVERING, 1))
    run(stream, sink=sink)
    found = Counter(stream.keys())
    assert set(found.values()) == {1}
    assert len(found) == len(IDS) - 100


def with_uuid(rows: DataFrame) -> DataFrame:
    return rows.withColumn("value", F.expr("uuid()"))


@pytest.mark.proves(
    query="Kafka with `uuid()` → `ExactlyOnce(KafkaSink)`",
    verdict="exactly-once",
    injury="driver dies after the decision",
    seen="each row once, with one value",
)
@proof
def test_a_plan_that_draws_anew(stream: Stream, verdict: Verdict) -> Proof:
    verdict.of(explained(stream, with_uuid, reader="read_committed"), "Each row still appears once")
    yield
    with pytest.raises(CrashError):
        run(stream, with_uuid, listener=crash_at(Phase.FINISHING, 1))
    run(stream, with_uuid)
    assert stream.keys() == IDS


@pytest.mark.proves(
    query="Kafka with `uuid()` → KafkaSink with `AT_LEAST_ONCE`",
    verdict="at-least-once (engine, sink)",
    injury="driver dies before the decision",
    seen="rows doubled with two values each, so no reader can tell",
)
@proof
def test_a_plan_that_draws_anew_at_least_once(stream: Stream, verdict: Verdict) -> Proof:
    sink = {"guarantee": Guarantee.AT_LEAST_ONCE}
    verdict.of(explained(stream, with_uuid, sink=sink), "cannot be recognised")
    yield
    with pytest.raises(CrashError):
        run(stream, with_uuid, sink=sink, listener=crash_at(Phase.DECIDING, 1))
    run(stream, with_uuid, sink=sink)
    written = read_uncommitted(stream.bootstrap, stream.target)
    assert len(written) == len(IDS) + 100
    assert len({record.value for record in written}) == len(written)


@pytest.mark.proves(
    query="Kafka → `ExactlyOnce(KafkaSink)` with `transaction.timeout.ms=10000`",
    verdict="exactly-once",
    injury="against the condition: a batch takes longer than its transactions may live",
    seen="the query stops undecided; with a longer timeout each row once",
)
@proof
def test_a_batch_that_takes_longer_than_its_transactions(stream: Stream, verdict: Verdict) -> Proof:
    verdict.of(explained(stream, timeout=TIMEOUT_MS, reader=COMMITTED), "every batch is done within 10 seconds")
    slow = call_at(Phase.DECIDING, 1, stream.await_aborted)
    yield
    with pytest.raises(TransactionTooOldError):
        run(stream, settings={"transaction.timeout.ms": TIMEOUT_MS}, listener=slow)
    keys = stream.keys()
    assert len(keys) == len(set(keys)) == 100, "the first batch, and nothing of the second"
    run(stream)
    assert stream.keys() == IDS


@pytest.mark.proves(
    query="Kafka → `ExactlyOnce(KafkaSink)` with `transaction.timeout.ms=10000`, away for an hour",
    verdict="exactly-once",
    injury="driver dies after the decision and stays away until Kafka has aborted its transactions",
    seen="written again from Spark's replay: each row once",
)
@proof
def test_a_driver_that_stays_away(stream: Stream, verdict: Verdict) -> Proof:
    explanation = explained(stream, timeout=TIMEOUT_MS, reader=COMMITTED, downtime="1h")
    verdict.of(explanation, "written again from Spark's replay")
    yield
    with pytest.raises(CrashError):
        run(stream, settings={"transaction.timeout.ms": TIMEOUT_MS}, listener=crash_at(Phase.FINISHING, 1))
    stream.await_aborted()
    run(stream)
    assert stream.keys() == IDS


@pytest.mark.proves(
    query="Kafka → `ExactlyOnce(KafkaSink)` with `transaction.timeout.ms` above the broker's maximum",
    verdict="exactly-once",
    injury="it is started",
    seen="refused, naming both",
)
@proof
def test_a_timeout_that_the_broker_does_not_allow(stream: Stream, verdict: Verdict) -> Proof:
    verdict.of(explained(stream, timeout=86_400_000, reader=COMMITTED), "refused at start")
    yield
    with pytest.raises(PreflightError, match=r"transaction\.max\.timeout\.ms"):
        run(stream, settings={"transaction.timeout.ms": 86_400_000})
    assert stream.keys() == []


@pytest.mark.proves(
    query="Kafka → `ExactlyOnce` of two KafkaSinks, one of them `AT_LEAST_ONCE`",
    verdict="at-least-once (sink)",
    injury="driver dies before the decision",
    seen="doubled in the weak one only",
)
@proof
def test_two_sinks_are_as_good_as_the_weaker(stream: Stream, kafka: Cluster, verdict: Verdict) -> Proof:
    other = new_name("other")
    create_topic(kafka.bootstrap, other, 1)
    settings = {"bootstrap.servers": kafka.bootstrap}

    def both(**more: Any) -> ExactlyOnce:
        sinks = [
            KafkaSink(settings, topic=stream.target, name="strong"),
            KafkaSink(settings, topic=other, name="weak", guarantee=Guarantee.AT_LEAST_ONCE),
        ]
        return ExactlyOnce(sinks, checkpoint=str(stream.checkpoint), display=False, **more)

    rows = stream.records(100)
    verdict.of(explain(rows, both(), reader=COMMITTED), "AT_LEAST_ONCE")
    yield
    query = both(listener=crash_at(Phase.DECIDING, 1)).start(rows, trigger={"availableNow": True})
    verdict.of(explain(query, reader=COMMITTED), "AT_LEAST_ONCE")
    with pytest.raises(StreamingQueryException, match="DECIDING of batch 1"):
        ended(query)
    ended(both().start(rows, trigger={"availableNow": True}))
    assert stream.keys() == IDS
    assert len(read_uncommitted(kafka.bootstrap, other)) == len(IDS) + 100


@pytest.mark.proves(
    query="Kafka → a function that calls `ExactlyOnce`, in foreachBatch",
    verdict="exactly-once",
    injury="driver dies after the decision",
    seen="each row once",
)
@proof
def test_a_function_around_ours(stream: Stream, verdict: Verdict) -> Proof:
    sink = KafkaSink({"bootstrap.servers": stream.bootstrap}, topic=stream.target)
    crash = [True]

    def listen(phase: Phase, batch: int) -> None:
        if crash and (phase, batch) == (Phase.FINISHING, 1):
            crash.clear()
            raise CrashError

    exactly_once = ExactlyOnce(sink, checkpoint=str(stream.checkpoint), display=False, listener=listen)

    def write(rows: DataFrame, batch: int) -> None:
        exactly_once(rows, batch)

    writer = stream.records(100).writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True)
    verdict.of(explain(writer, reader=COMMITTED), "passes each batch to ExactlyOnce")
    yield
    with pytest.raises(StreamingQueryException, match="CrashError"):
        ended(writer.start())
    ended(writer.start())
    exactly_once.close()
    assert stream.keys() == IDS
