"""Measures the sink for Pravega, compared with foreachBatch and Pravega's Python client in each partition.

    python3 dev.py run uv pip install pravega==0.3.8
    python3 dev.py run python benchmarks/pravega_sink.py [--rows 100000] [--rounds 3]

Starts a Pravega and a Spark. Every contender writes the same rows, about 100 bytes each, from one streaming query to an
empty stream; see ``sinks.py`` for how they take turns. The client writes without transactions, and flushes at the end
of a partition, which is at-least-once.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sinks import Contender, Load, compare, machine
from sparkonce import ExactlyOnce
from sparkonce_lab.rig.kafka.jars import artifact_name, resolve, spark_jars_folder
from sparkonce_lab.rig.servers.pravega import PravegaServer
from sparkonce_pravega import PravegaSink
from sparkonce_pravega.cluster import CLIENT_JAR

SCOPE, STREAM, SEGMENTS = "bench", "rows", 4


def main() -> int:
    given = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raise SystemExit, so that the context managers clean up
    load = Load(file_rows=given.rows // 4, columns=("id", "note"))
    in_spark = sorted({artifact_name(jar.name) for jar in spark_jars_folder().glob("*.jar")})
    with (
        tempfile.TemporaryDirectory(prefix="sparkonce-pravega-") as folder,
        PravegaServer(Path(folder) / "settings") as server,
        machine(load, jars=resolve([CLIENT_JAR], exclude=in_spark), server_pid=server.pid) as on,
    ):
        compare(on, contenders(on.spark, server), rounds=given.rounds)
    return 0


def contenders(spark: SparkSession, server: PravegaServer) -> list[Contender]:
    jvm = spark._jvm
    client = jvm.io.pravega.client
    config = client.ClientConfig.builder().controllerURI(jvm.java.net.URI.create(server.url)).build()
    streams = client.admin.StreamManager.create(config)
    streams.createScope(SCOPE)
    policy = client.stream.ScalingPolicy.fixed(SEGMENTS)
    shape = client.stream.StreamConfiguration.builder().scalingPolicy(policy).build()
    streams.createStream(SCOPE, STREAM, shape)

    def count(_: Path) -> int:
        reader, everywhere = client.BatchClientFactory.withScope(SCOPE, config), client.stream.StreamCut.UNBOUNDED
        serializer, found = client.stream.impl.ByteBufferSerializer(), 0
        try:
            ranges = reader.getSegments(client.stream.Stream.of(SCOPE, STREAM), everywhere, everywhere).getIterator()
            while ranges.hasNext():
                events = reader.readSegment(ranges.next(), serializer)
                found += int(jvm.com.google.common.collect.Iterators.size(events))
                events.close()
        finally:
            reader.close()
        return found

    def clean() -> None:
        streams.sealStream(SCOPE, STREAM)
        streams.deleteStream(SCOPE, STREAM)
        streams.createStream(SCOPE, STREAM, shape)

    def ours(rows: DataFrame, folder: Path) -> StreamingQuery:
        sink = PravegaSink(server.url, scope=SCOPE, stream=STREAM)
        exactly_once = ExactlyOnce(sink, checkpoint=str(folder / "checkpoint"), display=False)
        return exactly_once.start(_shaped(rows), trigger={"processingTime": "0 seconds"})

    def usual(rows: DataFrame, folder: Path) -> StreamingQuery:
        write = _writing(server.url)
        writer = _shaped(rows).writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        return writer.foreachBatch(lambda batch, _: batch.foreachPartition(write)).start()

    return [
        Contender(name="sparkonce exactly-once", start=ours, count=count, clean=clean),
        Contender(name="foreachBatch, pravega_client", start=usual, count=count, clean=clean),
    ]


def _shaped(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("concat('user:', id, ' ', note) AS value")


def _writing(controller: str) -> Callable[[Iterator[Row]], None]:
    def write(rows: Iterator[Row]) -> None:
        import pravega_client

        manager = pravega_client.StreamManager(controller.removeprefix("tcp://"))  # the writer ends with it
        writer = manager.create_writer(SCOPE, STREAM)
        for row in rows:
            writer.write_event_bytes(row.value.encode())
        writer.flush()

    return write


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="rows per batch")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
