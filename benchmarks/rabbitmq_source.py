"""Measures reading a RabbitMQ stream, compared with a simple loop: rstream's consumer with a callback.

The loop runs in plain Python, and in a Python data source of Spark that yields tuples, as in Spark's guide.

    python3 dev.py run python benchmarks/rabbitmq_source.py [--rows 500000] [--size 100] [--rounds 5]

All variants read the same messages. They take turns in every round. The result is the median over the rounds, without
the first one. The query's time is that of its single batch, including the query for offsets.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from rich.console import Console
from rich.table import Table
from rstream import Consumer, ConsumerOffsetSpecification, MessageContext, OffsetType, Producer, RawMessage

from session import session
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer
from sparkonce_rabbitmq import RabbitMQ, read_rabbitmq_stream
from sparkonce_rabbitmq.stream.asking import StreamAsker
from sparkonce_rabbitmq.stream.positions import beginning, ranges_of
from sparkonce_rabbitmq.stream.reading import RangeReader

STREAM = "measured"
PIECE = 1000
GUEST = "guest"
LOOP, READER = "rstream's consumer, in plain Python", "our reader, in plain Python"
OBVIOUS, QUERY = "rstream's consumer, in a query of Spark", "our source, in a query of Spark"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds; the first does not count")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as folder,
        RabbitServer(Path(folder) / "rabbit") as server,
    ):
        asyncio.run(fill(server, given.rows, given.size))
        settings = RabbitMQ(host=HOST, stream_port=server.stream_port)
        spark = session(Path(folder))
        spark.dataSource.register(ObviousSource)
        obvious = spark.readStream.format("obvious").option("port", server.stream_port).option("rows", given.rows)
        ours = read_rabbitmq_stream(spark, settings, streams=STREAM, max_rows_per_batch=None, body="raw")
        ways: dict[str, Callable[[], float]] = {
            LOOP: lambda: asyncio.run(loop(server.stream_port, given.rows)),
            READER: lambda: reader(settings, given.rows),
            OBVIOUS: lambda: query(obvious.load(), Path(folder), given.rows),
            QUERY: lambda: query(ours, Path(folder), given.rows),
        }
        took: dict[str, list[float]] = defaultdict(list)
        for number in range(given.rounds):
            for way, run in ways.items():
                seconds = run()
                if number:
                    took[way].append(seconds)
        spark.stop()
    show(took, given.rows, given.size)
    return 0


async def fill(server: RabbitServer, rows: int, size: int) -> None:
    async with Producer(HOST, server.stream_port, username=GUEST, password=GUEST) as producer:
        await producer.create_stream(STREAM)
        for first in range(0, rows, PIECE):
            piece = [RawMessage(b"%08d" % number + b"." * (size - 8)) for number in range(first, first + PIECE)]
            await producer.send_batch(STREAM, piece)
    asker = StreamAsker(RabbitMQ(host=HOST, stream_port=server.stream_port), patience_s=60)
    while asker.ends((STREAM,))[STREAM].get("offset") != rows:
        await asyncio.sleep(0.1)
    asker.close()


async def collect(port: int, rows: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    done = asyncio.Event()

    def take(message: bytes, context: MessageContext) -> None:
        found.append((context.offset, message))
        if len(found) == rows:
            done.set()

    consumer = Consumer(HOST, port, username=GUEST, password=GUEST)
    await consumer.start()
    await consumer.subscribe(STREAM, take, offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None))
    await done.wait()
    await consumer.close()
    return found


async def loop(port: int, rows: int) -> float:
    began = time.perf_counter()
    await collect(port, rows)
    return time.perf_counter() - began


class ObviousSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "obvious"

    def schema(self) -> str:
        return "offset long, value binary"

    def streamReader(self, schema: object) -> ObviousReader:  # noqa: ARG002, N802 - Spark's
        return ObviousReader(int(self.options["port"]), int(self.options["rows"]))


class ObviousReader(DataSourceStreamReader):
    def __init__(self, port: int, rows: int) -> None:
        self._port, self._rows = port, rows

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's
        return {"next": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's
        return {"next": self._rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(None)] if start != end else []

    def read(self, _: InputPartition) -> Iterator[tuple[int, bytes]]:
        return iter(asyncio.run(collect(self._port, self._rows)))


def reader(settings: RabbitMQ, rows: int) -> float:
    began = time.perf_counter()
    asker = StreamAsker(settings, patience_s=30)
    end = asker.next_position({STREAM: beginning(0)}, asker.ends((STREAM,)), None)
    asker.close()
    (part,) = ranges_of({STREAM: beginning(0)}, end)
    read = sum(map(len, RangeReader(settings, part, patience_s=30).batches()))
    assert read == rows, read
    return time.perf_counter() - began


def query(df: DataFrame, folder: Path, rows: int) -> float:
    checkpoint = tempfile.mkdtemp(dir=folder)
    running = df.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    running.awaitTermination()
    (batch,) = [one for one in running.recentProgress if one["numInputRows"]]
    assert batch["numInputRows"] == rows, batch["numInputRows"]
    return float(batch["durationMs"]["triggerExecution"]) / 1000


def show(took: dict[str, list[float]], rows: int, size: int) -> None:
    table = Table("reads by", "rows/s", "ratio to rstream's there", title=f"{rows:,} messages of {size} bytes")
    for way, seconds in took.items():
        beside = took[OBVIOUS if way in (OBVIOUS, QUERY) else LOOP]
        ratio = statistics.median(one / own for one, own in zip(beside, seconds, strict=True))
        table.add_row(way, f"{rows / statistics.median(seconds):,.0f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
