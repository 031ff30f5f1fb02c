"""A query that reads RabbitMQ streams: its plan, what is published, and what must come of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from rabbit_streams import new_stream, publish
from spark.harness import AnyJob
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.rabbitmq import RabbitServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.pipeline import Config

SOURCE = "sparkonce.tests.rabbitmq"
"""A setting of the session that tells a plan where to read."""

EPOCH_S = 1_700_000_000
WINDOW_S, DELAY_S = 10, 120
LAST_S = 1_000_000
"""The second of the closing event, which ends every window before it."""


def windowed(spark: SparkSession, config: Config) -> DataFrame:
    """Sums amounts by group in windows of ten seconds. A row's key tells group, window and sum."""
    from sparkonce import RabbitMQ, read_rabbitmq_stream

    where = json.loads(spark.conf.get(SOURCE))
    rows = read_rabbitmq_stream(
        spark,
        RabbitMQ(**where["server"]),
        streams=where["streams"],
        max_rows_per_batch=config.rows_per_batch,
        body="raw",
    )
    event = F.from_json(F.col("value").cast("string"), "g string, s long, v long")
    events = rows.select(event.alias("e")).select("e.*").withColumn("time", F.timestamp_seconds(F.col("s") + EPOCH_S))
    window = F.window("time", f"{WINDOW_S} seconds")
    summed = events.withWatermark("time", f"{DELAY_S} seconds").groupBy(window, "g").agg(F.sum("v").alias("total"))
    start = F.unix_seconds("window.start") - EPOCH_S
    return summed.select(F.concat_ws("|", "g", start.cast("string"), F.col("total").cast("string")).alias("key"))


class RabbitJob(AnyJob):
    """A job that sums events of two streams.

    Args:
        server: The server of the streams.
        bootstrap: The broker.
        folder: A new one.
        rows: The number of events.
        more: Of `AnyJob`.
    """

    def __init__(self, server: RabbitServer, bootstrap: str, folder: Path, *, rows: int, **more: Any) -> None:
        self.server, self.streams = server, [new_stream(server, "events") for _ in range(2)]
        where = {"server": {"host": HOST, "stream_port": server.stream_port}, "streams": self.streams}
        settings = {SOURCE: json.dumps(where), "spark.sql.streaming.noDataMicroBatches.enabled": "true"}
        trigger = {"processingTime": "0 seconds"}
        super().__init__(
            *(bootstrap, folder), sources=0, plan="spark.rabbit_job:windowed", sql=settings, trigger=trigger, **more
        )
        chance = random.Random(rows)
        late = sorted(range(rows), key=lambda second: second + chance.uniform(0, DELAY_S / 4))
        events = [(f"g{second % 3}", second, second % 7 + 1) for second in late]
        for number, stream in enumerate(self.streams):
            publish(server, stream, [_message(*event) for event in events[number::2]])
        self.expected = Counter((key, "") for key in _sums(events))

    def close_windows(self) -> None:
        """Publishes what ends every window."""
        for stream in self.streams:
            publish(self.server, stream, [_message("last", LAST_S, 0)])


def _message(group: str, second: int, amount: int) -> bytes:
    return json.dumps({"g": group, "s": second, "v": amount}).encode()


def _sums(events: Sequence[tuple[str, int, int]]) -> list[str]:
    found: Counter[tuple[str, int]] = Counter()
    for group, second, amount in events:
        found[group, second - second % WINDOW_S] += amount
    return [f"{group}|{start}|{total}" for (group, start), total in found.items()]
