"""A query moves with its source to a mirror that MirrorMaker 2 has made: by a new checkpoint, never by the old one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from eventually import eventually
from mirror_maker import READ_COMMITTED, SAME_NAMES, MirrorMaker
from spark.in_process import MARKS, Stream
from sparkonce import read_kafka
from sparkonce.errors import PreflightError
from sparkonce.rig.kafka import Cluster
from sparkonce.testing.kafka import read_committed

pytestmark = [*MARKS, pytest.mark.slow]

OLD = [f"{number:05d}" for number in range(400)]
NEW = [f"{number:05d}" for number in range(400, 600)]
LIMIT_S = 180.0


@pytest.fixture(scope="module")
def new() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


def rows(cluster: Cluster, topic: str) -> list[str]:
    """Reads what a read_committed reader finds; nothing if there is no such topic yet."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    if topic not in admin.list_topics(timeout=LIMIT_S).topics:
        return []
    return sorted((record.value or b"").decode() for record in read_committed(cluster.bootstrap, topic))


def test_a_query_that_moves_with_its_source_and_target_begins_anew_at_the_mirror(
    spark: SparkSession, kafka: Cluster, new: Cluster, tmp_path: Path
) -> None:
    stream = Stream(spark, kafka, tmp_path, OLD)
    stream.run()
    pause = datetime.now(timezone.utc)
    topics = f"{stream.source}|{stream.target}"
    with MirrorMaker(tmp_path / "mirror", kafka, new, topics, **READ_COMMITTED, **SAME_NAMES) as mirror:
        for topic in (stream.source, stream.target):
            eventually(lambda topic=topic: rows(new, topic) == OLD, f"{topic} is mirrored", limit_s=LIMIT_S)
        assert mirror.stop(), "in order"
    stream.bootstrap = new.bootstrap

    def from_pause(_: DataFrame) -> DataFrame:
        latest = {"startingOffsetsByTimestampStrategy": "latest"}
        servers = {"bootstrap.servers": new.bootstrap}
        read = read_kafka(spark, servers, topics=stream.source, starting=pause, options=latest)
        return read.selectExpr("cast(key as string) as key", "cast(value as string) as value")

    stream.run(from_pause, checkpoint=tmp_path / "new")
    assert rows(new, stream.target) == OLD
    stream.send(NEW)
    stream.run(from_pause, checkpoint=tmp_path / "new")
    assert rows(new, stream.target) == [*OLD, *NEW]
    assert rows(kafka, stream.target) == OLD
    with pytest.raises(PreflightError, match=f"leads to the cluster '{new.cluster_id}'"):
        stream.run()
    with pytest.raises(PreflightError, match=f"Topic '{stream.source}'.* was deleted and made again"):
        stream.run(sink={"former_cluster_id": kafka.cluster_id})
    assert rows(new, stream.target) == [*OLD, *NEW]


def test_a_checkpoint_is_refused_at_a_mirror_that_has_named_the_topic_after_its_cluster(
    spark: SparkSession, kafka: Cluster, new: Cluster, tmp_path: Path
) -> None:
    stream = Stream(spark, kafka, tmp_path, OLD)
    stream.run()
    with MirrorMaker(tmp_path / "mirror", kafka, new, stream.source, **READ_COMMITTED) as mirror:
        copy = mirror.topic(stream.source)
        eventually(lambda: rows(new, copy) == OLD, f"{copy} is there", limit_s=LIMIT_S)

    def mirrored(_: DataFrame) -> DataFrame:
        read = read_kafka(spark, {"bootstrap.servers": new.bootstrap}, topics=copy)
        return read.selectExpr("cast(key as string) as key", "cast(value as string) as value")

    with pytest.raises(
        PreflightError, match=f"has read topic '{stream.source}' until now, and is to read topic '{copy}'"
    ):
        stream.run(mirrored)
    stream.send(NEW)
    stream.run()
    assert stream.keys() == [*OLD, *NEW]
