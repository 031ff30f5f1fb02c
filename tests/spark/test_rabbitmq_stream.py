"""Queries that read RabbitMQ streams: the messages in a batch, and in its replay after a crash."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from shared_servers import rabbit_server
from spark.in_process import LIMIT_S, SPARK, CrashError, Query, crash_at, ended, stopped
from sparkonce import ExactlyOnce, FilesSink, Guarantee, explain
from sparkonce.analysis.findings import Role
from sparkonce.errors import PreflightError
from sparkonce.files import whole_batches
from sparkonce.protocol.state import Phase
from sparkonce_lab.systems.rabbitmq import RabbitStreamSystem
from sparkonce_rabbitmq import read_rabbitmq_stream
from sparkonce_rabbitmq.stream.asking import StreamAsker
from tryout.bulk import make_orders

pytestmark = SPARK

Seen = dict[int, list[tuple[str, int, bytes]]]
"""The stream, the offset and the value of each row, by batch."""


@pytest.fixture
def rabbit(tmp_path) -> RabbitStreamSystem:
    system = RabbitStreamSystem(server=rabbit_server())
    system.start(tmp_path)
    return system


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


class Reading:
    """A query that keeps the rows of its batches, on one checkpoint."""

    def __init__(self, spark: SparkSession, rabbit: RabbitStreamSystem, folder: Path, **given: Any) -> None:
        self.checkpoint = folder / "checkpoint"
        self._spark, self._rabbit, self._given = spark, rabbit, given

    def run(self, *, crash_in: int | None = None) -> Seen:
        """Runs until everything is read and recorded as done, or until it crashes in a batch that it has read."""
        seen: Seen = defaultdict(list)

        def take(rows: DataFrame, batch: int) -> None:
            found = rows.select("stream", "offset", "value").collect()
            seen[batch] = sorted((row["stream"], row["offset"], bytes(row["value"])) for row in found)
            if batch == crash_in:
                raise KeyError(batch)

        rows = read_rabbitmq_stream(self._spark, self._rabbit.settings(), **{"body": "raw", **self._given})
        query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint)).start()
        try:
            if crash_in is None:
                query.processAllAvailable()
            else:
                with pytest.raises(StreamingQueryException):
                    query.awaitTermination(int(LIMIT_S))
        finally:
            stopped(query)
        return seen

    def ends(self, batch: int) -> dict[str, dict[str, int]]:
        """Returns the positions that Spark has stored for the end of a batch."""
        return json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])


def values(seen: Seen) -> list[bytes]:
    return [value for batch in sorted(seen) for _, _, value in seen[batch]]


@pytest.mark.slow
def test_a_crashed_batch_has_the_same_rows_again_and_the_next_one_goes_on(spark, rabbit, tmp_path):
    one, two = rabbit.client.create(), rabbit.client.create()
    rabbit.client.publish(one, numbered(0, 400), at_once=64)
    rabbit.client.publish(two, numbered(400, 500), at_once=64)
    reading = Reading(spark, rabbit, tmp_path, streams=[one, two], max_rows_per_batch=200)
    crashed = reading.run(crash_in=1)
    assert {batch: len(rows) for batch, rows in crashed.items()} == {0: 200, 1: 200}
    planned = reading.ends(1)
    rabbit.client.publish(one, numbered(500, 600))
    again = reading.run()
    assert again[1] == crashed[1]
    assert reading.ends(1) == planned
    assert sorted(values(crashed) + values({**again, 1: []}), key=int) == numbered(0, 600)
    assert all(len(rows) <= 200 for rows in again.values())
    rabbit.client.publish(two, numbered(600, 610))
    assert values(reading.run()) == numbered(600, 610), "after a restart without a crash"


@pytest.mark.slow
def test_a_crashed_first_batch_begins_where_it_began(spark, rabbit, tmp_path):
    stream = rabbit.client.create()
    rabbit.client.publish(stream, numbered(0, 100))
    reading = Reading(spark, rabbit, tmp_path, streams=stream, starting="latest", offset_name="job")
    assert values(reading.run()) == []
    rabbit.client.publish(stream, numbered(100, 150))
    crashed = reading.run(crash_in=1)
    (reading.checkpoint / "offsets" / "0").unlink()
    (reading.checkpoint / "commits" / "0").unlink()
    (reading.checkpoint / "offsets" / "1").rename(reading.checkpoint / "offsets" / "0")
    for hidden in reading.checkpoint.rglob(".*.crc"):
        hidden.unlink()
    rabbit.client.publish(stream, numbered(150, 160))
    again = reading.run()
    assert [again[0], values(again)] == [crashed[1], numbered(100, 160)], "latest is another place by now"
    asker = StreamAsker(rabbit.settings(), patience_s=30)
    stored = asker._connection(stream).query_offset(stream, "job")
    asker.close()
    assert stored >= 149, "the offset of a finished batch is stored"


def test_a_query_of_ours_reads_it_exactly_once(spark, rabbit, tmp_path):
    stream = rabbit.client.create()
    rabbit.client.publish(stream, numbered(0, 300), at_once=64)
    rows = read_rabbitmq_stream(spark, rabbit.settings(), streams=stream, max_rows_per_batch=None, body="raw")
    for end in (300, 350):
        once = ExactlyOnce(FilesSink(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), display=False)
        ended(once.start(rows.selectExpr("cast(value as string) as value"), trigger={"availableNow": True}))
        found = [one for path in whole_batches(tmp_path / "out") for one in pq.read_table(path)["value"].to_pylist()]
        assert sorted(found, key=int) == [str(number) for number in range(end)]
        rabbit.client.publish(stream, numbered(300, 350))


def test_explain_knows_the_source(spark, rabbit, tmp_path):
    stream = rabbit.client.create()
    rabbit.client.publish(stream, numbered(0, 10))
    rows = read_rabbitmq_stream(spark, rabbit.settings(), streams=stream)
    (source,) = [part for part in explain(rows.select("value"), FilesSink(tmp_path)).parts if part.role is Role.SOURCE]
    assert (source.name, source.level) == (f"rabbitmq_stream: {stream}", Guarantee.EXACTLY_ONCE)
    assert "guest" not in rows._jdf.queryExecution().toString()


def test_a_stream_that_is_missing_refuses_the_start(spark, rabbit, tmp_path):
    rows = read_rabbitmq_stream(spark, rabbit.settings(), streams="no-such")
    once = ExactlyOnce(FilesSink(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), display=False)
    with pytest.raises(PreflightError, match="The stream 'no-such', which this query reads, does not exist"):
        once.start(rows.select("value"))


def test_a_query_that_crashes_at_each_phase(spark, rabbit, tmp_path):
    rabbit.place()
    sent = make_orders(tmp_path / "orders", files=8)
    rows = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 2).json(str(tmp_path / "orders"))

    def run(listener: Callable[[Phase, int], None] | None = None) -> None:
        sink, checkpoint = rabbit.sink(folder=None), str(tmp_path / "checkpoint")
        values = rows.selectExpr("cast(id as string) as value")
        Query(sink, checkpoint=checkpoint, listener=listener, display=False).write(values)

    for phase in (Phase.WRITING, Phase.CLAIMING, Phase.DECIDING, Phase.FINISHING, Phase.IDLE):
        with pytest.raises(CrashError):
            run(crash_at(phase, 1))
    run()
    assert sorted(rabbit.visible()) == sent
