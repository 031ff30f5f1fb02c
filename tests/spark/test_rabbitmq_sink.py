"""The sink for streams in a real query, which crashes in each phase and in the middle of publishing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from shared_servers import USES_RABBIT, rabbit_server
from spark.in_process import MARKS, crash_at
from sparkonce import ExactlyOnce, Guarantee, explain
from sparkonce.protocol.state import Phase
from sparkonce_lab.systems.rabbitmq import RabbitStreamSystem
from sparkonce_rabbitmq.sinks.connection import PublisherConnection
from sparkonce_rabbitmq.sinks.messages import Frame
from tryout.bulk import make_orders

pytestmark = [*(mark for mark in MARKS if mark.name != "kafka"), USES_RABBIT]
LIMIT_S = 500


class Query:
    """Writes all orders to a new stream."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.rabbit = RabbitStreamSystem(server=rabbit_server())
        self.rabbit.start(folder)
        self.rabbit.place()
        self.sent = make_orders(folder / "orders", files=8)

    def run(self, crash: Phase | None = None) -> None:
        """Runs to the end, unless it crashes in batch 1 or while publishing."""
        rows = (
            self.spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 2).json(str(self.folder / "orders"))
        )
        sink = self.rabbit.sink(folder=None)
        listener = None if crash is None else crash_at(crash, 1)
        once = ExactlyOnce(sink, checkpoint=str(self.folder / "checkpoint"), listener=listener, display=False)
        query = once.start(rows.selectExpr("cast(id as string) as value"), trigger={"availableNow": True})
        try:
            assert query.awaitTermination(LIMIT_S)
        except StreamingQueryException as error:
            if "CrashError" not in str(error):
                raise
        finally:
            query.stop()


def test_a_query_that_crashes_at_each_phase(spark: SparkSession, tmp_path: Path) -> None:
    phases = [Phase.CLAIMING, Phase.WRITING, Phase.DECIDING, Phase.FINISHING, Phase.IDLE]
    query = Query(spark, tmp_path)
    for phase in phases:
        query.run(phase)
    query.run()
    assert sorted(query.rabbit.visible()) == query.sent


@pytest.mark.slow
def test_a_query_that_loses_its_connection_after_each_frame(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, lost = PublisherConnection.publish, []

    def lose(self: PublisherConnection, frame: Frame) -> None:
        publish(self, frame)
        if len(lost) % 2 == 0:
            lost.append("the confirms were read, and nobody heard of it")
            raise ConnectionError(lost[-1])
        lost.append("")

    monkeypatch.setattr(PublisherConnection, "publish", lose)
    query = Query(spark, tmp_path)
    query.run()
    assert sorted(query.rabbit.visible()) == query.sent
    assert sum(map(bool, lost)) >= 4


def test_explain_names_the_conditions(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path)
    sink = query.rabbit.sink(folder=None)
    rows = spark.readStream.schema("id bigint").json(str(tmp_path / "orders")).selectExpr("'x' as value")
    told = explain(rows, ExactlyOnce(sink, checkpoint=str(tmp_path / "checkpoint")))
    assert told.part("sink").level is Guarantee.EXACTLY_ONCE
    for words in ("visible one by one", "three replicas", "fewer than 255 publishers"):
        assert words in str(told.to_json())
