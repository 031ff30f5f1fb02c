"""The analyser's verdicts on Kafka, as source and as Spark's own sink, each proved by an injury."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from eventually import eventually
from spark.harness import new_name
from spark.in_process import LIMIT_S, MARKS
from spark.injuries import ROWS, Kept, Proof, Verdict, forget, forget_commit, once, proof, run, twice
from sparkonce import explain
from sparkonce.analysis.findings import Role
from sparkonce.analysis.model import Explanation
from sparkonce.rig.kafka import Cluster
from sparkonce.testing.kafka import create_topic, end_offsets, produce, read_committed

pytestmark = MARKS

MORE = [f"more-{number:03d}" for number in range(20)]


class Topic:
    """A topic of one partition, with rows."""

    def __init__(self, spark: SparkSession, kafka: Cluster, **config: str) -> None:
        self.spark = spark
        self.bootstrap = kafka.bootstrap
        self.name = new_name("topic")
        create_topic(self.bootstrap, self.name, 1, config)

    def send(self, rows: list[str]) -> None:
        produce(self.bootstrap, self.name, [{"value": row.encode()} for row in rows])

    def send_in_transaction(self, rows: list[str], *, commit: bool) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": new_name("id")})
        producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
        for row in rows:
            producer.produce(self.name, row.encode())
        assert producer.flush(LIMIT_S) == 0
        producer.commit_transaction(LIMIT_S) if commit else producer.abort_transaction(LIMIT_S)

    def delete_all(self) -> None:
        """What retention does with old segments, at once."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        end = end_offsets(self.bootstrap, self.name)[0]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for done in admin.delete_records([TopicPartition(self.name, 0, end)]).values():
            assert done.result(LIMIT_S).low_watermark == end

    def values(self) -> Counter[str]:
        return Counter((record.value or b"").decode() for record in read_committed(self.bootstrap, self.name))

    def read(self, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", self.name).option("startingOffsets", "earliest")
        return reader.options(**options).load().selectExpr("cast(value as string) as value")


@pytest.fixture
def topic(spark: SparkSession, kafka: Cluster) -> Topic:
    found = Topic(spark, kafka, **{"retention.ms": str(7 * 86_400_000)})
    found.send(ROWS)
    return found


def to_folder(plan: DataFrame, folder: Path) -> Any:
    writer = plan.writeStream.format("text").option("path", str(folder / "out"))
    return writer.option("checkpointLocation", str(folder / "checkpoint"))


def folder_rows(spark: SparkSession, folder: Path) -> Counter[str]:
    return Counter(row[0] for row in spark.read.text(str(folder / "out")).collect())


def to_kafka(plan: DataFrame, target: Topic, folder: Path, **options: Any) -> Any:
    writer = plan.writeStream.format("kafka").option("kafka.bootstrap.servers", target.bootstrap)
    writer = writer.option("topic", target.name).options(**options)
    return writer.option("checkpointLocation", str(folder / "checkpoint"))


def says(explanation: Explanation, role: Role, words: str) -> bool:
    part = explanation.part(role)
    return any(words in text for text in (*part.reasons, *part.conditions, *part.notes))


@pytest.mark.proves(
    query="Kafka → files",
    verdict="exactly-once",
    injury="driver dies before the batch is entered in `_spark_metadata`",
    seen="each row once",
)
@proof
def test_kafka_replays(topic: Topic, spark: SparkSession, tmp_path: Path, verdict: Verdict) -> Proof:
    writer = to_folder(topic.read(), tmp_path)
    verdict.of(explain(writer, downtime="1 day"), "keeps records for 7 days, longer than the downtime")
    yield
    run(writer)
    forget_commit(tmp_path / "checkpoint")
    forget(tmp_path / "out" / "_spark_metadata")
    topic.send(MORE)  # not into the batch that is replayed
    run(writer)
    assert folder_rows(spark, tmp_path) == once([*ROWS, *MORE])


@pytest.mark.proves(
    query="Kafka with `failOnDataLoss=false` → files",
    verdict="at-most-once (source)",
    injury="records are deleted while the query is away, as retention does",
    seen="rows missing, no error",
)
@proof
def test_lost_records_that_nobody_tells_of(
    topic: Topic, spark: SparkSession, tmp_path: Path, verdict: Verdict
) -> Proof:
    writer = to_folder(topic.read(failOnDataLoss="false"), tmp_path)
    verdict.of(explain(writer), "failOnDataLoss=false")
    yield
    run(writer)
    topic.send(["gone"])
    topic.delete_all()
    topic.send(MORE)
    run(writer)
    assert folder_rows(spark, tmp_path) == once([*ROWS, *MORE])


@pytest.mark.proves(
    query="Kafka → files",
    verdict="exactly-once",
    injury="the same, against the condition",
    seen="the query stops with an error",
)
@proof
def test_lost_records_that_stop_the_query(topic: Topic, tmp_path: Path, verdict: Verdict) -> Proof:
    writer = to_folder(topic.read(), tmp_path)
    verdict.of(explain(writer), "downtime is never longer than 7 days")
    yield
    run(writer)
    topic.send(["gone"])
    topic.delete_all()
    topic.send(MORE)
    with pytest.raises(StreamingQueryException, match=r"data may have been lost|failOnDataLoss"):
        run(writer)


@pytest.mark.proves(
    query="Kafka with `retention.ms` of an hour → files, away for two hours",
    verdict="at-most-once (source)",
    injury="the same",
    seen="the query stops, and the rows are gone",
)
@proof
def test_retention_that_is_shorter_than_the_downtime(
    spark: SparkSession, kafka: Cluster, tmp_path: Path, verdict: Verdict
) -> Proof:
    topic = Topic(spark, kafka, **{"retention.ms": "3600000"})
    topic.send(ROWS)
    writer = to_folder(topic.read(), tmp_path)
    assert explain(writer, downtime="30 minutes").level.value == "exactly-once"
    verdict.of(explain(writer, downtime="2h"), "keeps records for 1 hour (retention.ms)")
    yield
    run(writer)
    topic.send(MORE)
    topic.delete_all()
    topic.send(["after"])
    with pytest.raises(StreamingQueryException):
        run(writer)
    # All that can be done now is to go on without them.
    run(to_folder(topic.read(failOnDataLoss="false"), tmp_path))
    assert folder_rows(spark, tmp_path) == once([*ROWS, "after"])


@pytest.mark.proves(
    query="Kafka, written in transactions, read with the default isolation → files",
    verdict="at-least-once (source)",
    injury="a writer aborts its transaction and writes the rows again",
    seen="rows doubled",
)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@proof
def test_aborted_rows_in_the_source(
    spark: SparkSession, kafka: Cluster, tmp_path: Path, verdict: Verdict, isolation: str
) -> Proof:
    topic = Topic(spark, kafka)
    assert not says(explain(to_folder(topic.read(), tmp_path)), Role.SOURCE, "is written in transactions")
    topic.send_in_transaction(ROWS, commit=False)
    topic.send_in_transaction(ROWS, commit=True)
    writer = to_folder(topic.read(**{"kafka.isolation.level": isolation}), tmp_path)
    explanation = explain(writer)
    if isolation == "read_uncommitted":
        verdict.of(explanation, f"{topic.name} is written in transactions")
    else:
        assert explanation.level.value == "exactly-once"
    yield
    run(writer)
    assert folder_rows(spark, tmp_path) == (twice() if isolation == "read_uncommitted" else once())


@pytest.mark.proves(
    query="Kafka → Spark's Kafka sink",
    verdict="at-least-once (sink)",
    injury="driver dies after the batch is written, before Spark's commit",
    seen="every row doubled",
)
@proof
def test_sparks_kafka_sink(
    topic: Topic, spark: SparkSession, kafka: Cluster, tmp_path: Path, verdict: Verdict
) -> Proof:
    target = Topic(spark, kafka)
    writer = to_kafka(topic.read(), target, tmp_path)
    verdict.of(explain(writer, reader="read_committed"), "without transactions")
    yield
    run(writer)
    forget_commit(tmp_path / "checkpoint")
    run(writer)
    assert target.values() == twice()


@pytest.mark.proves(
    query="Kafka from `latest` → foreachBatch, no checkpointLocation",
    verdict="at-most-once (engine)",
    injury="the query is stopped, rows come, and it is started again",
    seen="rows missing, no error",
)
@proof
def test_no_checkpoint_and_the_end_of_the_topic(topic: Topic, verdict: Verdict) -> Proof:
    kept = Kept()
    writer = topic.read(startingOffsets="latest").writeStream.foreachBatch(kept)
    verdict.of(explain(writer), "starts at the end")
    yield
    query = writer.trigger(processingTime="0 seconds").start()
    eventually(lambda: query.lastProgress, "the query has begun")
    topic.send(MORE)
    eventually(lambda: sum(kept.values().values()) == len(MORE), "rows that come meanwhile are read")
    query.stop()
    topic.send(["missed"])
    query = writer.start()
    eventually(lambda: query.lastProgress, "the query has begun again")
    topic.send(["after"])
    eventually(lambda: kept.values()["after"], "rows that come later are read")
    query.stop()
    assert kept.values() == once([*MORE, "after"])


@pytest.mark.proves(
    query="Kafka → Spark's Kafka sink with `asyncProgressTrackingEnabled`",
    verdict="at-least-once (engine, sink)",
    injury="the query is stopped in order between two of its asynchronous checkpoints",
    seen="rows of batches that were complete doubled",
)
@proof
def test_progress_that_is_stored_later(
    topic: Topic, spark: SparkSession, kafka: Cluster, tmp_path: Path, verdict: Verdict
) -> Proof:
    target = Topic(spark, kafka)
    options = {"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "3600000"}
    plan = topic.read(maxOffsetsPerTrigger=20)
    writer = to_kafka(plan, target, tmp_path, **options).trigger(processingTime="0 seconds")
    verdict.of(explain(writer), "asyncProgressTrackingEnabled=true")
    yield
    query = writer.start()
    verdict.of(explain(query), "asyncProgressTrackingEnabled=true")
    eventually(
        lambda: sum(done["numInputRows"] for done in query.recentProgress) >= len(ROWS), "three batches are done"
    )
    query.stop()
    assert target.values() == once()
    query = writer.start()
    eventually(lambda: sum(target.values().values()) > len(ROWS), "some rows are written again")
    query.stop()
    assert set(target.values()) == set(ROWS)


@pytest.mark.proves(
    query="Kafka → Spark's Kafka sink, continuous trigger",
    verdict="at-least-once (engine, sink)",
    injury="the query is stopped before the end of its epoch",
    seen="every row doubled",
)
@proof
def test_a_continuous_query(
    topic: Topic, spark: SparkSession, kafka: Cluster, tmp_path: Path, verdict: Verdict
) -> Proof:
    target = Topic(spark, kafka)
    writer = to_kafka(topic.read(), target, tmp_path).trigger(continuous="1 hour")
    verdict.of(explain(writer), "continuous trigger")
    yield
    for copies in (1, 2):
        query = writer.start()
        eventually(lambda: sum(target.values().values()) >= copies * len(ROWS), "the rows are written")  # noqa: B023
        verdict.of(explain(query), "continuous trigger")
        query.stop()
    assert target.values() == twice()


def test_a_compacted_topic(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> None:
    """Told, and not injured: Kafka's cleaner works when it likes."""
    topic = Topic(spark, kafka, **{"cleanup.policy": "compact"})
    explanation = explain(to_folder(topic.read(), tmp_path))
    assert explanation.level.value == "at-most-once"
    assert says(explanation, Role.SOURCE, "cleanup.policy=compact")
