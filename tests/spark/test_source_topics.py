"""A source topic is deleted and created again, with more records than had been read from the old one."""

from __future__ import annotations

import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from conformance.folder_sink import FolderSink
from eventually import eventually
from spark.in_process import MARKS, CrashError, Stream, crash_at, ended
from sparkonce import ExactlyOnce, read_kafka
from sparkonce.errors import PreflightError
from sparkonce.protocol.state import Phase
from sparkonce_lab.kafka import create_topic, produce
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

OLD = [f"old-{number:05d}" for number in range(800)]
NEW = [f"new-{number:05d}" for number in range(2_000)]


def test_what_is_decided_of_the_old_one_is_finished_and_nothing_of_the_new_one_is_passed_over(spark, kafka, tmp_path):
    limit_s = 60.0

    def make_again(stream: Stream) -> None:
        admin = AdminClient({"bootstrap.servers": stream.bootstrap})
        for done in admin.delete_topics([stream.source]).values():
            done.result(limit_s)
        eventually(lambda: stream.source not in admin.list_topics(timeout=limit_s).topics, "the topic is gone")
        create_topic(stream.bootstrap, stream.source, stream.partitions)
        stream.send(NEW)

    stream = Stream(spark, kafka, tmp_path, OLD)
    with pytest.raises(CrashError):
        stream.run(listener=crash_at(Phase.FINISHING, 1))
    make_again(stream)
    for _ in range(2):
        with pytest.raises(PreflightError, match=f"Topic '{stream.source}'.* was deleted and recreated") as told:
            stream.run()
        assert "new checkpoint" in told.value.next_step
        assert stream.keys() == OLD
    assert stream.transactions("Ongoing") == {}


@pytest.mark.slow
def test_a_topic_of_another_name_is_refused_before_spark_plans_a_batch_of_it(spark, kafka, tmp_path):
    """The new topic has the same rows, as in a mirror.

    They would be written again, since Spark is configured to ignore data loss.
    """
    stream = Stream(spark, kafka, tmp_path, OLD)
    stream.run()
    before, copy = stream.source, f"mirror.{stream.source}"
    create_topic(stream.bootstrap, copy, stream.partitions)
    stream.source = copy
    stream.send(OLD)

    def copied(_: DataFrame) -> DataFrame:
        servers = {"bootstrap.servers": stream.bootstrap}
        read = read_kafka(spark, servers, topics=copy, fail_on_data_loss=False)
        return read.selectExpr("cast(key as string) as key", "cast(value as string) as value")

    for _ in range(2):
        with pytest.raises(PreflightError, match=f"has read topic '{before}'; now it should read topic '{copy}'"):
            stream.run(copied)
    assert stream.keys() == OLD
    stream.source = before
    stream.send(NEW)
    stream.run()
    assert stream.keys() == [*NEW, *OLD]


@pytest.mark.slow
def test_a_cluster_that_went_back_stops_the_query_until_it_is_told_to_read_on(spark, tmp_path, caplog):
    """This also works once the topic has grown past the read offset, where its first new records would be skipped."""
    cluster, saved, sent = Cluster(folder=tmp_path / "cluster"), tmp_path / "saved", iter(range(1_000))

    def put(source: Path, target: Path) -> None:
        cluster.close()
        subprocess.run(["rm", "-rf", str(target)], check=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)
        cluster.start()

    def send(count: int) -> None:
        produce(cluster.bootstrap, "source", [{"value": str(number)} for number in islice(sent, count)])

    def run(**more: Any) -> list[int]:
        rows = read_kafka(spark, {"bootstrap.servers": cluster.bootstrap}, topics="source", **more)
        numbers = rows.selectExpr("cast(cast(value as string) as bigint) number")
        once = ExactlyOnce(FolderSink(tmp_path / "sink"), checkpoint=str(tmp_path / "checkpoint"), display=False)
        try:
            ended(once.start(numbers, trigger={"availableNow": True}))
        finally:
            once.close()
        files = (tmp_path / "sink" / "committed").iterdir()
        return sorted(int(line) for file in files for line in file.read_text().split())

    with cluster:
        create_topic(cluster.bootstrap, "source", 1)
        send(10)
        run()
        put(cluster.folder, saved)
        send(10)
        assert run() == list(range(20))
        put(saved, cluster.folder)
        with pytest.raises(StreamingQueryException, match="not available in Kafka any more"):
            run()
        assert "partition 0 ends at offset 10, and this query has read it up to 20" in caplog.text
        send(15)
        with pytest.raises(PreflightError, match="ended at offset 10 when the last batch was planned"):
            run()
        assert run(fail_on_data_loss=False) == list(range(35))
        send(5)
        assert run() == list(range(40))
