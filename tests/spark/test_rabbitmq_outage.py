"""RabbitMQ is away for more than a minute, while queries read it and write to it: nothing is lost, nothing doubled."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import rabbit_queues
import rabbit_streams
from eventually import eventually
from spark.in_process import SPARK, stopped
from sparkonce import (
    ExactlyOnce,
    RabbitMQ,
    RabbitMQQueueSink,
    RabbitMQStreamSink,
    read_rabbitmq_queue,
    read_rabbitmq_stream,
)
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.rabbitmq import RabbitServer
from sparkonce.sinks.rabbitmq.queue_publisher import DEDUPLICATION_HEADER
from sparkonce.testing.systems.rabbitmq import StreamWitness

pytestmark = [
    *SPARK,
    pytest.mark.slow,
    pytest.mark.skipif(not RabbitServer.is_installed(), reason="rabbitmq-server is not installed"),
]

AWAY_S = 65.0
BEFORE, HALF, ALL = 100, 1000, 1100


class Queries:
    """A query from a stream to a stream, and one from a queue to a queue."""

    def __init__(self, spark: SparkSession, server: RabbitServer, folder: Path) -> None:
        self.server = server
        settings = RabbitMQ(host=HOST, port=server.port, stream_port=server.stream_port, timeout_s=5.0)
        self.witness = StreamWitness(HOST, server.stream_port)
        self.streams = [rabbit_streams.new_stream(server) for _ in range(2)]
        self.queues = [rabbit_queues.new_queue(server, "classic") for _ in range(2)]
        checkpoint = folder / "queues"
        rows = {
            folder / "streams": read_rabbitmq_stream(spark, settings, streams=self.streams[0], body="raw"),
            checkpoint: read_rabbitmq_queue(spark, settings, queue=self.queues[0], checkpoint=checkpoint),
        }
        sinks = [
            RabbitMQStreamSink(settings, stream=self.streams[1], body="raw"),
            RabbitMQQueueSink(settings, queue=self.queues[1]),
        ]
        self.publish(0, BEFORE)
        self.running: list[StreamingQuery] = []
        seen = [lambda: len(self.in_stream()) == BEFORE, lambda: self.in_queue().total() == BEFORE]
        for (place, read), sink, is_seen in zip(rows.items(), sinks, seen, strict=True):
            once = ExactlyOnce(sink, checkpoint=str(place), display=False)
            self.running.append(once.start(read.select("value"), trigger={"processingTime": "0 seconds"}))
            self._await(is_seen, "the first rows are there")  # one starts after the other: a start is heavy

    def publish(self, first: int, end: int) -> None:
        names = [str(number) for number in range(first, end)]
        rabbit_streams.publish(self.server, self.streams[0], [name.encode() for name in names])
        rabbit_queues.publish(self.server, self.queues[0], names)

    def in_stream(self) -> list[int]:
        return sorted(int(body) for body in self.witness.messages(self.streams[1]))

    def in_queue(self) -> Counter[str]:
        """The messages that a reader has who drops each id that it has seen."""
        found = rabbit_queues.peek(self.server, self.queues[1])
        return Counter({properties.headers[DEDUPLICATION_HEADER]: body.decode() for properties, body in found}.values())

    def await_rows(self, end: int) -> None:
        self._await(lambda: len(self.in_stream()) >= end, f"the stream has {end} rows")
        self._await(lambda: self.in_queue().total() >= end, f"the queue has {end} rows")

    def _await(self, ask: Callable[[], bool], what: str) -> None:
        eventually(lambda: any(not query.isActive for query in self.running) or ask(), what)
        for query in self.running:
            assert query.exception() is None, query.exception()


def test_a_server_that_is_away_for_more_than_a_minute(spark: SparkSession, tmp_path: Path) -> None:
    with RabbitServer(tmp_path / "rabbit" / "data") as server:
        queries = Queries(spark, server, tmp_path)
        try:
            queries.publish(BEFORE, HALF)  # these are being read, or written, when it goes
            server.kill()
            threading.Event().wait(AWAY_S)  # the fault itself
            server.start()
            queries.await_rows(HALF)
            queries.publish(HALF, ALL)
            queries.await_rows(ALL)
        finally:
            for query in queries.running:
                stopped(query)
        assert queries.in_stream() == list(range(ALL))
        assert queries.in_queue() == Counter(map(str, range(ALL)))
