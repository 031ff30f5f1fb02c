"""Measures the Redis sink, compared with foreachBatch and a pipelined client in each partition.

    python3 dev.py run python benchmarks/redis_sink.py [--rows 200000] [--rounds 3] [--increments]

Starts a redis-server and a Spark. Every contender writes the same rows, with 18 bytes of key and 84 of value, from one
streaming query to an empty server; see ``sinks.py`` for how they take turns. With ``--increments``, they instead add
numbers to the same keys.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from sinks import Contender, Load, compare, machine
from sparkonce import ExactlyOnce, Guarantee, RedisSink
from sparkonce_lab.rig.servers.redis import RedisServer

PIPELINE_ROWS = 1_000


def main() -> int:
    given = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raise SystemExit, so that the context managers clean up
    load = Load(file_rows=given.rows // 4, columns=("id", "note"))
    with tempfile.TemporaryDirectory(prefix="sparkonce-redis-") as folder:
        # Turn off rewrites of the append-only file, which would slow down some contenders but not others.
        settings = {"appendfsync": given.appendfsync, "auto-aof-rewrite-percentage": "0"}
        with (
            RedisServer(Path(folder) / "data", settings=settings) as server,
            machine(load, server_pid=server.pid) as on,
        ):
            compare(on, contenders(server, load, increments=given.increments), rounds=given.rounds)
    return 0


def contenders(server: RedisServer, load: Load, *, increments: bool) -> list[Contender]:
    client = redis.Redis(port=server.port)

    def count(_: Path) -> int:
        """Counts the rows. Every batch has the same ones: multiplies the keys by batches, or adds up the numbers."""
        keys = [key for key in client.scan_iter(count=10_000) if key.startswith(b"user:")]
        if not increments:
            return len(keys) * load.batches
        return sum(int(value) for start in range(0, len(keys), 10_000) for value in client.mget(keys[start:][:10_000]))

    def clean() -> None:
        client.flushall()
        client.bgrewriteaof()

    def ours(guarantee: Guarantee) -> Callable[[DataFrame, Path], StreamingQuery]:
        shape: dict[str, Any] = {"structure": "increment", "amount": "value"} if increments else {}

        def start(rows: DataFrame, folder: Path) -> StreamingQuery:
            sink = RedisSink(server.url, guarantee=guarantee, **shape)
            exactly_once = ExactlyOnce(sink, checkpoint=str(folder / "checkpoint"), display=False)
            return exactly_once.start(_shaped(rows, increments), trigger={"processingTime": "0 seconds"})

        return start

    def usual(rows: DataFrame, folder: Path) -> StreamingQuery:
        write = _pipelined(server.port, increments)
        writer = _shaped(rows, increments).writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        return writer.foreachBatch(lambda batch, _: batch.foreachPartition(write)).start()

    return [
        Contender(name="sparkonce exactly-once", start=ours(Guarantee.EXACTLY_ONCE), count=count, clean=clean),
        Contender(name="sparkonce at-least-once", start=ours(Guarantee.AT_LEAST_ONCE), count=count, clean=clean),
        Contender(name="foreachBatch, pipeline", start=usual, count=count, clean=clean),
    ]


def _shaped(rows: DataFrame, increments: bool) -> DataFrame:
    value = F.lit(1).cast("long") if increments else F.col("note")
    return rows.select(
        F.concat(F.lit("user:"), F.lpad(F.col("id").cast("string"), 13, "0")).alias("key"), value.alias("value")
    )


def _pipelined(port: int, increments: bool) -> Callable[[Iterator[Row]], None]:
    def write(rows: Iterator[Row]) -> None:
        client = redis.Redis(port=port)
        pipeline = client.pipeline(transaction=False)
        waiting = 0
        for row in rows:
            if increments:
                pipeline.incrby(row.key, row.value)
            else:
                pipeline.set(row.key, row.value)
            waiting += 1
            if waiting == PIPELINE_ROWS:
                pipeline.execute()
                waiting = 0
        pipeline.execute()
        client.close()

    return write


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows per batch; five batches are measured")
    parser.add_argument("--rounds", type=int, default=3, help="measurements per contender")
    parser.add_argument("--appendfsync", default="always", choices=("always", "everysec", "no"))
    parser.add_argument("--increments", action="store_true", help="add numbers instead of setting texts")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
