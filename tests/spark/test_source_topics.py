"""A topic that a query reads is deleted and made again, with more records than were read of the old one."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from eventually import eventually
from spark.in_process import MARKS, CrashError, Stream, crash_at
from sparkonce.embedded import Cluster
from sparkonce.errors import PreflightError
from sparkonce.protocol.state import Phase
from sparkonce.testing.kafka import create_topic

pytestmark = MARKS

OLD = [f"old-{number:05d}" for number in range(800)]
NEW = [f"new-{number:05d}" for number in range(2_000)]
LIMIT_S = 60.0


def make_again(stream: Stream) -> None:
    admin = AdminClient({"bootstrap.servers": stream.bootstrap})
    for done in admin.delete_topics([stream.source]).values():
        done.result(LIMIT_S)
    eventually(lambda: stream.source not in admin.list_topics(timeout=LIMIT_S).topics, "the topic is gone")
    create_topic(stream.bootstrap, stream.source, stream.partitions)
    stream.send(NEW)


def test_what_is_decided_of_the_old_one_is_finished_and_nothing_of_the_new_one_is_passed_over(
    spark: SparkSession, kafka: Cluster, tmp_path: Path
) -> None:
    stream = Stream(spark, kafka, tmp_path, OLD)
    with pytest.raises(CrashError):
        stream.run(listener=crash_at(Phase.FINISHING, 1))
    make_again(stream)
    for _ in range(2):
        with pytest.raises(PreflightError, match=f"topic '{stream.source}'.* was deleted and made again") as told:
            stream.run()
        assert "new checkpoint" in told.value.next_step
        assert stream.keys() == OLD
    assert stream.transactions("Ongoing") == {}
