"""Measures the sink for RabbitMQ's streams, compared with foreachBatch and rstream in each partition.

    python3 dev.py run python benchmarks/rabbitmq_sink.py [--rows 200000] [--rounds 3]

Starts a RabbitMQ and a Spark. Every contender publishes the same rows, about 100 bytes each, from one streaming query
to an empty stream; see ``sinks.py`` for how they take turns. The rstream variant publishes batches of 1,000 messages
without a name, and waits for all confirms, which is at-least-once.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rstream
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery

from sinks import Contender, Load, compare, machine
from sparkonce import ExactlyOnce, Guarantee
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer
from sparkonce_lab.systems.rabbitmq import StreamClient
from sparkonce_rabbitmq import RabbitMQ, RabbitMQStreamSink

AT_ONCE = 1_000
STREAM = "rows"


def main() -> int:
    given = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raise SystemExit, so that the context managers clean up
    load = Load(file_rows=given.rows // 4, columns=("id", "note"))
    with (
        tempfile.TemporaryDirectory(prefix="sparkonce-rabbitmq-") as folder,
        RabbitServer(Path(folder) / "data") as server,
        machine(load, server_pid=server.pid) as on,
    ):
        compare(on, contenders(server), rounds=given.rounds)
    return 0


def contenders(server: RabbitServer) -> list[Contender]:
    witness = StreamClient(HOST, server.stream_port)
    witness.create(STREAM)

    def count(_: Path) -> int:
        return len(witness.messages(STREAM))

    def clean() -> None:
        witness.delete(STREAM)
        witness.create(STREAM)

    def ours(guarantee: Guarantee) -> Callable[[DataFrame, Path], StreamingQuery]:
        def start(rows: DataFrame, folder: Path) -> StreamingQuery:
            address = RabbitMQ(host=HOST, stream_port=server.stream_port)
            sink = RabbitMQStreamSink(address, stream=STREAM, body="raw", guarantee=guarantee)
            exactly_once = ExactlyOnce(sink, checkpoint=str(folder / "checkpoint"), display=False)
            return exactly_once.start(_shaped(rows), trigger={"processingTime": "0 seconds"})

        return start

    def usual(rows: DataFrame, folder: Path) -> StreamingQuery:
        write = _publishing(server.stream_port)
        writer = _shaped(rows).writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        return writer.foreachBatch(lambda batch, _: batch.foreachPartition(write)).start()

    return [
        Contender(name="sparkonce exactly-once", start=ours(Guarantee.EXACTLY_ONCE), count=count, clean=clean),
        Contender(name="sparkonce at-least-once", start=ours(Guarantee.AT_LEAST_ONCE), count=count, clean=clean),
        Contender(name="foreachBatch, rstream", start=usual, count=count, clean=clean),
    ]


def _shaped(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("concat('user:', id, ' ', note) AS value")


def _publishing(port: int) -> Callable[[Iterator[Row]], None]:
    def write(rows: Iterator[Row]) -> None:
        asyncio.run(publish([row.value.encode() for row in rows]))

    async def publish(bodies: list[bytes]) -> None:
        left, done = len(bodies), asyncio.Event()

        def confirmed(_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done.set()

        if not bodies:
            return
        async with rstream.Producer(HOST, port=port, username="guest", password="guest") as producer:
            for at in range(0, len(bodies), AT_ONCE):
                await producer.send_batch(STREAM, bodies[at : at + AT_ONCE], on_publish_confirm=confirmed)
            await done.wait()

    return write


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows per batch")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
