"""Queries that read RabbitMQ queues. Each message appears in the output once, whatever dies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from eventually import eventually
from shared_servers import rabbit_server
from spark.in_process import LIMIT_S, SPARK, stopped
from sparkonce import ExactlyOnce, FilesSink
from sparkonce.errors import PreflightError
from sparkonce.files import whole_batches
from sparkonce_lab.systems.rabbitmq import RabbitQueueSystem
from sparkonce_rabbitmq import read_rabbitmq_queue

pytestmark = SPARK


@pytest.fixture
def rabbit(tmp_path: Path) -> RabbitQueueSystem:
    system = RabbitQueueSystem(server=rabbit_server())
    system.start(tmp_path)
    return system


class Reading:
    """A query that copies a queue to files, on one checkpoint.

    Args:
        spark: The session.
        server: The server.
        folder: The folder for the checkpoint and the files.
        given: The arguments of `read_rabbitmq_queue`.
    """

    def __init__(self, spark: SparkSession, rabbit: RabbitQueueSystem, folder: Path, **given: Any) -> None:
        self.checkpoint, self.out = folder / "checkpoint", folder / "out"
        self._spark, self._rabbit, self._given = spark, rabbit, given

    def rows(self) -> DataFrame:
        settings = self._rabbit.settings()
        found = read_rabbitmq_queue(self._spark, settings, checkpoint=self.checkpoint, **self._given)
        return found.selectExpr("cast(value as string) as value")

    def once(self) -> ExactlyOnce:
        return ExactlyOnce(FilesSink(self.out), checkpoint=str(self.checkpoint), display=False)

    def run(self, wanted: Callable[[Counter[str]], bool]) -> Counter[str]:
        """Runs until the files have the expected rows."""
        query = self.once().start(self.rows(), trigger={"processingTime": "0 seconds"})
        try:
            eventually(lambda: not query.isActive or wanted(self.found()), "all is there")
            if (failed := query.exception()) is not None:
                raise failed
        finally:
            stopped(query)
        return self.found()

    def crash_in(self, batch: int) -> None:
        """Runs until a batch is written, and fails then."""
        once = self.once()

        def take(rows: DataFrame, number: int) -> None:
            if number == batch:
                raise KeyError(number)
            once(rows, number)

        writer = self.rows().writeStream.option("checkpointLocation", str(self.checkpoint))
        with pytest.raises(StreamingQueryException):
            writer.foreachBatch(take).start().awaitTermination(int(LIMIT_S))
        once.close()

    def found(self) -> Counter[str]:
        import pyarrow.parquet as pq

        return Counter(one for path in whole_batches(self.out) for one in pq.read_table(path).column(0).to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classic", pytest.param("quorum", marks=pytest.mark.slow)])
def test_each_message_is_there_once_after_a_crash_and_the_queue_is_empty(
    spark: SparkSession, rabbit: RabbitQueueSystem, tmp_path: Path, kind: str
) -> None:
    def numbered(first: int, end: int) -> list[str]:
        return [f"m{number}" for number in range(first, end)]

    queue = rabbit.declare(kind)
    rabbit.publish(queue, numbered(0, 100))
    reading = Reading(spark, rabbit, tmp_path, queue=queue, max_rows_per_batch=40)
    reading.crash_in(1)
    assert reading.found() == Counter(numbered(0, 40))
    planned = json.loads((reading.checkpoint / "offsets" / "1").read_text().splitlines()[-1])
    rabbit.publish(queue, numbered(100, 120))
    assert reading.run(lambda found: len(found) >= 120) == Counter(numbered(0, 120))
    assert planned == json.loads((reading.checkpoint / "offsets" / "1").read_text().splitlines()[-1])
    again = Reading(spark, rabbit, tmp_path, queue=queue)
    rabbit.publish(queue, numbered(120, 125))
    assert again.run(lambda found: len(found) >= 125) == Counter(numbered(0, 125))
    rabbit.publish(queue, ["last"])
    again.run(lambda found: "last" in found)
    assert len(rabbit.peek(queue)) <= 1, "the last batch is acknowledged if the query still runs then"


@pytest.mark.slow
def test_a_queue_that_is_missing_refuses_the_start(
    spark: SparkSession, rabbit: RabbitQueueSystem, tmp_path: Path
) -> None:
    with pytest.raises(PreflightError, match="no queue 'no-such'"):
        read_rabbitmq_queue(spark, rabbit.settings(), queue="no-such", checkpoint=tmp_path)
