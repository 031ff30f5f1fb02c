"""What the broker or a setting does not allow is reported at the start if possible, and never leaves partial output."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from spark.harness import new_name
from spark.in_process import MARKS, Stream
from sparkonce.errors import ConfigurationError, PreflightError, PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce_lab.kafka import create_topic, read_committed
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

IDS = [f"{number:05d}" for number in range(1_000)]
LARGE = "00777"


def test_a_message_too_large_stops_the_query_and_nothing_of_its_batch_is_seen(
    spark: SparkSession, kafka: Cluster, tmp_path: Path
) -> None:
    def raise_the_limit(bootstrap: str, topic: str) -> None:
        entry = ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for answer in admin.incremental_alter_configs([resource]).values():
            answer.result(30)

    stream = Stream(spark, kafka, tmp_path, IDS, target_config={"max.message.bytes": "20000"})

    def with_one_large_row(rows: DataFrame) -> DataFrame:
        large = F.rpad("value", 50_000, "x")
        return rows.withColumn("value", F.when(F.col("key") == LARGE, large).otherwise(F.col("value")))

    with pytest.raises(
        PrepareError, match=rf"{stream.target}.*MSG_SIZE_TOO_LARGE|{stream.target}.*[Tt]oo large"
    ) as told:
        stream.run(with_one_large_row)
    assert told.value.details["batch"] == 1
    assert stream.keys() == IDS[:400]
    assert stream.transactions("Ongoing") == {}

    raise_the_limit(kafka.bootstrap, stream.target)
    # A task that was killed with its batch may have opened a transaction after the last sweep, so sweep after each
    # batch.
    stream.run(with_one_large_row, sweep_every_s=0)
    assert stream.keys() == IDS


@pytest.mark.slow
def test_another_cluster_than_before_is_told_at_the_start(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> None:
    stream = Stream(spark, kafka, tmp_path, IDS)
    stream.run()
    record_files = sorted((stream.checkpoint / "sparkonce" / "records").iterdir())
    with Cluster() as other:
        create_topic(other.bootstrap, stream.target, stream.partitions)
        with pytest.raises(PreflightError, match=f"{other.cluster_id}.*{kafka.cluster_id}"):
            stream.run(settings={"bootstrap.servers": other.bootstrap})
        assert read_committed(other.bootstrap, stream.target) == []
    assert sorted((stream.checkpoint / "sparkonce" / "records").iterdir()) == record_files


@pytest.mark.slow
def test_a_topic_of_one_row_that_is_missing_stops_the_query(
    spark: SparkSession, kafka: Cluster, tmp_path: Path
) -> None:
    stream = Stream(spark, kafka, tmp_path, IDS)
    missing = new_name("missing")

    def one_row_elsewhere(rows: DataFrame) -> DataFrame:
        return rows.withColumn("topic", F.when(F.col("key") == LARGE, missing).otherwise(stream.target))

    with pytest.raises(PrepareError, match=missing) as told:
        stream.run(one_row_elsewhere, sink={"topic": None}, settings={"topic.metadata.propagation.max.ms": 500})
    assert told.value.details["batch"] == 1
    assert stream.keys() == IDS[:400]
    assert stream.transactions("Ongoing") == {}


SPECULATION = "spark.speculation"


def test_speculation_beside_an_at_most_once_sink_is_refused(
    spark: SparkSession, kafka: Cluster, tmp_path: Path
) -> None:
    rejects = "spark.sql.legacy.setCommandRejectsSparkCoreConfs"
    stream = Stream(spark, kafka, tmp_path, IDS)
    spark.conf.set(rejects, "false")  # otherwise Spark does not allow changing static settings
    spark.conf.set(SPECULATION, "true")
    try:
        with pytest.raises(ConfigurationError, match=r"spark\.speculation=true, and sinks \['kafka'\]"):
            stream.run(sink={"guarantee": Guarantee.AT_MOST_ONCE})
    finally:
        spark.conf.unset(SPECULATION)
        spark.conf.unset(rejects)
    assert stream.keys() == []
