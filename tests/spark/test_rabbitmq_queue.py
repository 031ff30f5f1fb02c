"""Queries that read RabbitMQ queues. Each message appears in the output once, no matter which process dies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

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
def rabbit(tmp_path) -> RabbitQueueSystem:
    system = RabbitQueueSystem(server=rabbit_server())
    system.start(tmp_path)
    return system


@pytest.mark.slow
def test_each_message_is_there_once_after_a_crash_and_the_queue_is_empty(spark, rabbit, tmp_path):
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    queue = rabbit.declare("classic")

    def numbered(first: int, end: int) -> list[str]:
        return [f"m{number}" for number in range(first, end)]

    def rows(**given: Any) -> DataFrame:
        found = read_rabbitmq_queue(spark, rabbit.settings(), queue=queue, checkpoint=checkpoint, **given)
        return found.selectExpr("cast(value as string) as value")

    def found() -> Counter[str]:
        return Counter(one for path in whole_batches(out) for one in pq.read_table(path).column(0).to_pylist())

    def run(wanted: Callable[[Counter[str]], bool], **given: Any) -> Counter[str]:
        """Runs until the files have the expected rows."""
        once = ExactlyOnce(FilesSink(out), checkpoint=str(checkpoint), display=False)
        query = once.start(rows(**given), trigger={"processingTime": "0 seconds"})
        try:
            eventually(lambda: not query.isActive or wanted(found()), "all is there")
            if (failed := query.exception()) is not None:
                raise failed
        finally:
            stopped(query)
        return found()

    def planned() -> Any:
        return json.loads((checkpoint / "offsets" / "1").read_text().splitlines()[-1])

    rabbit.publish(queue, numbered(0, 100))
    once = ExactlyOnce(FilesSink(out), checkpoint=str(checkpoint), display=False)

    def fail_in_batch_1(taken: DataFrame, number: int) -> None:
        if number == 1:
            raise KeyError(number)
        once(taken, number)

    writer = rows(max_rows_per_batch=40).writeStream.option("checkpointLocation", str(checkpoint))
    with pytest.raises(StreamingQueryException):
        writer.foreachBatch(fail_in_batch_1).start().awaitTermination(int(LIMIT_S))
    once.close()
    assert found() == Counter(numbered(0, 40))
    before = planned()
    rabbit.publish(queue, numbered(100, 120))
    assert run(lambda found: len(found) >= 120, max_rows_per_batch=40) == Counter(numbered(0, 120))
    assert planned() == before
    rabbit.publish(queue, numbered(120, 125))
    assert run(lambda found: len(found) >= 125) == Counter(numbered(0, 125))
    rabbit.publish(queue, ["last"])
    run(lambda found: "last" in found)
    assert len(rabbit.peek(queue)) <= 1, "the last batch is acknowledged if the query still runs then"


@pytest.mark.slow
def test_a_queue_that_is_missing_refuses_the_start(spark, rabbit, tmp_path):
    with pytest.raises(PreflightError, match="no queue 'no-such'"):
        read_rabbitmq_queue(spark, rabbit.settings(), queue="no-such", checkpoint=tmp_path)
