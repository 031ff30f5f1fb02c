"""`read_kafka` with a real broker: what is read, from where, and as which user."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import DataFrame, SparkSession

from eventually import LIMIT_S
from secured import PASSWORD, make_keys, secured_cluster
from spark.harness import new_name
from spark.in_process import MARKS
from sparkonce import read_kafka
from sparkonce.errors import ConfigurationError
from sparkonce.spark.plans import source_facts
from sparkonce_lab.kafka import create_topic, produce
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


def filled_topic(bootstrap: str, *, rows: int = 10) -> str:
    """A topic whose records are numbers, partition by partition, with timestamps one second apart from noon on."""
    topic = new_name("numbers")
    create_topic(bootstrap, topic, 2)
    noon_ms = int(NOON.timestamp() * 1000)
    produce(
        bootstrap,
        topic,
        (
            {"value": str(each).encode(), "partition": each % 2, "timestamp": noon_ms + 1000 * each}
            for each in range(rows)
        ),
    )
    return topic


def numbers(stream: DataFrame, folder: Path) -> list[int]:
    """Reads everything that is available now."""
    found: list[int] = []

    def take(rows: DataFrame, _: int) -> None:
        found.extend(int(row["value"]) for row in rows.selectExpr("cast(value as string) as value").collect())

    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / new_name("checkpoint")))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(int(LIMIT_S))
    finally:
        query.stop()
    return sorted(found)


def reader(spark: SparkSession, kafka: Cluster, **arguments: Any) -> DataFrame:
    return read_kafka(spark, {"bootstrap.servers": kafka.bootstrap}, **arguments)


def test_where_it_starts(spark, kafka, tmp_path):
    topic = filled_topic(kafka.bootstrap)

    def read(starting: Any) -> list[int]:
        return numbers(reader(spark, kafka, topics=topic, starting=starting), tmp_path)

    assert numbers(reader(spark, kafka, topics=topic), tmp_path) == list(range(10))
    assert read("latest") == []
    assert read(NOON + timedelta(seconds=4)) == list(range(4, 10))
    assert read({topic: {0: 3, 1: "latest"}}) == [6, 8]
    assert read({topic: {0: NOON + timedelta(seconds=8), 1: NOON}}) == [1, 3, 5, 7, 8, 9]


def test_what_it_reads(spark, kafka, tmp_path):
    one, two = filled_topic(kafka.bootstrap, rows=4), filled_topic(kafka.bootstrap, rows=6)
    both = sorted([*range(4), *range(6)])
    assert numbers(reader(spark, kafka, topics=[one, two]), tmp_path) == both
    assert numbers(reader(spark, kafka, pattern=f"(\\Q{one}\\E|{two})"), tmp_path) == both
    assert numbers(reader(spark, kafka, partitions={two: [1]}), tmp_path) == [1, 3, 5]


def test_rows_of_an_aborted_transaction_are_read_only_if_that_is_asked_for(spark, kafka, tmp_path):
    topic = filled_topic(kafka.bootstrap, rows=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": new_name("aborts")})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"1000", partition=0)
    producer.flush(LIMIT_S)
    producer.abort_transaction(LIMIT_S)
    assert numbers(reader(spark, kafka, topics=topic), tmp_path) == [0, 1]
    dirty = reader(spark, kafka, topics=topic, isolation_level="read_uncommitted")
    assert numbers(dirty, tmp_path) == [0, 1, 1000]


@pytest.mark.parametrize("said", [{"max_offsets_per_trigger": 4}, {}], ids=["said", "default"])
def test_batches_are_bounded(spark, kafka, tmp_path, monkeypatch, said):
    defaults = read_kafka.__kwdefaults__
    assert defaults["max_offsets_per_trigger"] == 1_000_000
    monkeypatch.setitem(defaults, "max_offsets_per_trigger", 4)
    topic = filled_topic(kafka.bootstrap)
    sizes: list[int] = []
    stream = reader(spark, kafka, topics=topic, **said)
    writer = stream.writeStream.foreachBatch(lambda rows, _: sizes.append(rows.count()))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(int(LIMIT_S))
    assert sizes == [4, 4, 2]


def test_a_poll_returns_a_whole_fetch_unless_the_user_says_otherwise(spark, kafka):
    """After each poll, Spark asks for two offsets. With Kafka's own default, that would be every 500 records."""

    def polled(settings):
        stream = read_kafka(spark, {"bootstrap.servers": kafka.bootstrap, **settings}, topics="t")
        [source] = source_facts(stream._jdf.queryExecution().analyzed())
        return source.options["kafka.max.poll.records"], source.options["kafka.fetch.max.wait.ms"]

    assert polled({}) == ("10000", "1")
    assert polled({"max.poll.records": 500, "fetch.wait.max.ms": 20}) == ("500", "20")


def test_headers_are_a_column_if_asked_for(spark, kafka):
    assert "headers" not in reader(spark, kafka, topics="t").columns
    assert "headers" in reader(spark, kafka, topics="t", headers=True).columns


def test_two_isolation_levels_are_refused(spark):
    settings = {"bootstrap.servers": "nowhere:1", "isolation.level": "read_uncommitted"}
    with pytest.raises(ConfigurationError, match=r"read_uncommitted.*read_committed"):
        read_kafka(spark, settings, topics="t")


@pytest.mark.slow
def test_librdkafkas_settings_lead_through_tls_and_logins(spark, tmp_path):
    keys = make_keys(tmp_path)
    with secured_cluster(keys) as secured:
        topic = filled_topic(secured.bootstrap)
        tls = {
            "bootstrap.servers": secured.bootstrap_of("TLS"),
            "security.protocol": "ssl",
            "ssl.ca.location": str(keys / "ca.pem"),
            "ssl.certificate.location": str(keys / "client.pem"),
            "ssl.key.location": str(keys / "client.java.key"),
            "ssl.key.password": PASSWORD,
        }
        with pytest.raises(ConfigurationError, match="PBES2"):
            read_kafka(spark, {**tls, "ssl.key.location": str(keys / "client.locked.key")}, topics=topic)
        assert numbers(read_kafka(spark, tls, topics=topic), tmp_path) == list(range(10))
        readable = [(ResourceType.TOPIC, topic), (ResourceType.GROUP, "*")]
        rule = ("User:plain", "*", AclOperation.READ, AclPermissionType.ALLOW)
        rules = [AclBinding(kind, name, ResourcePatternType.LITERAL, *rule) for kind, name in readable]
        admin = AdminClient({"bootstrap.servers": secured.bootstrap})
        for answer in admin.create_acls(rules).values():
            answer.result(LIMIT_S)
        login = {
            "bootstrap.servers": secured.bootstrap_of("SASL"),
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "plain",
            "sasl.password": PASSWORD,
        }
        assert numbers(read_kafka(spark, login, topics=topic), tmp_path) == list(range(10))
