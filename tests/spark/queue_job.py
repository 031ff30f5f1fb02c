"""A query that reads a RabbitMQ queue: its plan, what is published, and what must come of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rabbit_queues import new_queue, publish
from spark.harness import AnyJob
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.rabbitmq import RabbitServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.pipeline import Config

SOURCE = "sparkonce.tests.queue"
"""A setting of the session that tells a plan where to read."""


def copied(spark: SparkSession, config: Config) -> DataFrame:
    """Copies ids of messages."""
    from sparkonce import read_rabbitmq_queue
    from sparkonce.sinks.rabbitmq.server import RabbitMQ

    where = json.loads(spark.conf.get(SOURCE))
    rows = read_rabbitmq_queue(
        spark,
        RabbitMQ(**where["server"]),
        queue=where["queue"],
        acknowledge=where["acknowledge"],
        checkpoint=config.checkpoint,
        max_rows_per_batch=config.rows_per_batch,
    )
    return rows.selectExpr("message_id as key")


class QueueJob(AnyJob):
    """A job that copies a queue.

    Args:
        server: The server of the queue.
        bootstrap: The broker.
        folder: A new one.
        kind: Of the queue.
        acknowledge: See `read_rabbitmq_queue`.
        more: Of `AnyJob`.
    """

    def __init__(
        self, server: RabbitServer, bootstrap: str, folder: Path, *, kind: str, acknowledge: str, **more: Any
    ) -> None:
        self.server, self.queue = server, new_queue(server, kind)
        address = {"host": HOST, "port": server.port}
        where = {"server": address, "queue": self.queue, "acknowledge": acknowledge}
        settings = {SOURCE: json.dumps(where)}
        trigger = {"processingTime": "0 seconds"}
        plan = "spark.queue_job:copied"
        super().__init__(bootstrap, folder, sources=0, plan=plan, sql=settings, trigger=trigger, **more)
        self.expected: Counter[tuple[str, str]] = Counter()

    def publish(self, count: int) -> None:
        """Publishes new messages."""
        names = [f"{number:08d}" for number in range(len(self.expected), len(self.expected) + count)]
        publish(self.server, self.queue, names)
        self.expected.update((name, "") for name in names)
