"""Measures reading a Pravega stream, compared with a simple loop: a reader of a reader group, in Java.

The loop runs in the session's JVM, and discards the events. The source runs in a Spark query, which also discards the
rows.

    python3 dev.py run python benchmarks/pravega_source.py [--rows 500000] [--size 100] [--rounds 5]

Both read the same events, from two segments. They take turns in every round. The result is the median over the rounds,
without the first one. The query's time is that of its single batch, including the query for the tail.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from session import session
from sparkonce import spark_packages
from sparkonce_lab.rig.kafka.jars import artifact_name, resolve, spark_jars_folder
from sparkonce_lab.rig.servers.pravega import PravegaServer
from sparkonce_pravega import read_pravega

SCOPE, STREAM = "bench", "measured"
LOOP, QUERY = "a reader group's reader, in plain Java", "our source, in a query of Spark"

_JAVA = """
import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.impl.ByteBufferSerializer;
import java.nio.ByteBuffer;

public class Loop {
    public void fill(ClientConfig config, String scope, String stream, int rows, int size) {
        EventStreamClientFactory factory = EventStreamClientFactory.withScope(scope, config);
        EventWriterConfig settings = EventWriterConfig.builder().build();
        EventStreamWriter writer = factory.createEventWriter(stream, new ByteBufferSerializer(), settings);
        for (int row = 0; row < rows; row++) {
            writer.writeEvent(String.valueOf(row), ByteBuffer.wrap(new byte[size]));
        }
        writer.flush();
        writer.close();
        factory.close();
    }

    public void read(ClientConfig config, String scope, String stream, String group, int rows) {
        ReaderGroupManager groups = ReaderGroupManager.withScope(scope, config);
        groups.createReaderGroup(group, ReaderGroupConfig.builder().stream(scope + "/" + stream).build());
        EventStreamClientFactory factory = EventStreamClientFactory.withScope(scope, config);
        EventStreamReader reader =
            factory.createReader("one", group, new ByteBufferSerializer(), ReaderConfig.builder().build());
        int found = 0;
        while (found < rows) {
            EventRead event = reader.readNextEvent(2000);
            if (event.getEvent() != null) {
                byte[] value = new byte[((ByteBuffer) event.getEvent()).remaining()];
                ((ByteBuffer) event.getEvent()).get(value);
                found++;
            }
        }
        reader.close();
        factory.close();
        groups.close();
    }
}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds; the first does not count")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as folder,
        PravegaServer(Path(folder) / "server") as server,
    ):
        spark = session(Path(folder), jars=client_jars())
        pravega = spark._jvm.io.pravega.client
        config = pravega.ClientConfig.builder().controllerURI(spark._jvm.java.net.URI.create(server.url)).build()
        java = compiled(spark)
        create(pravega, config)
        java.fill(config, SCOPE, STREAM, given.rows, given.size)
        ours = read_pravega(spark, server.url, scope=SCOPE, stream=STREAM, max_bytes_per_batch=None)
        took: dict[str, list[float]] = defaultdict(list)
        for number in range(given.rounds):
            ways: dict[str, Callable[[], float]] = {
                LOOP: lambda number=number: loop(java, config, f"group{number}", given.rows),
                QUERY: lambda: query(ours, Path(folder), given.rows),
            }
            for way, run in ways.items():
                seconds = run()
                if number:
                    took[way].append(seconds)
        spark.stop()
    show(took, given.rows, given.size)
    return 0


def client_jars() -> list[Path]:
    in_spark = sorted({artifact_name(jar.name) for jar in spark_jars_folder().glob("*.jar")})
    return list(resolve([spark_packages(pravega=True).split(",")[-1]], exclude=in_spark))


def compiled(spark: SparkSession) -> Any:
    compiler = spark._jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(spark._jvm.io.pravega.client.ClientConfig.builder().getClass().getClassLoader())
    compiler.setSourceVersion(8)
    compiler.setTargetVersion(8)
    compiler.cook(_JAVA)
    return compiler.getClassLoader().loadClass("Loop").newInstance()


def create(pravega: Any, config: Any) -> None:
    manager = pravega.admin.StreamManager.create(config)
    manager.createScope(SCOPE)
    settings = pravega.stream.StreamConfiguration.builder().scalingPolicy(pravega.stream.ScalingPolicy.fixed(2))
    manager.createStream(SCOPE, STREAM, settings.build())
    manager.close()


def loop(java: Any, config: Any, group: str, rows: int) -> float:
    began = time.perf_counter()
    java.read(config, SCOPE, STREAM, group, rows)
    return time.perf_counter() - began


def query(df: DataFrame, folder: Path, rows: int) -> float:
    checkpoint = tempfile.mkdtemp(dir=folder)
    running = df.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    running.awaitTermination()
    (batch,) = [one for one in running.recentProgress if one["numInputRows"]]
    assert batch["numInputRows"] == rows, batch["numInputRows"]
    return float(batch["durationMs"]["triggerExecution"]) / 1000


def show(took: dict[str, list[float]], rows: int, size: int) -> None:
    table = Table("reads by", "rows/s", "ratio", title=f"{rows:,} events of {size} bytes")
    for way, seconds in took.items():
        ratio = statistics.median(one / own for one, own in zip(took[LOOP], seconds, strict=True))
        table.add_row(way, f"{rows / statistics.median(seconds):,.0f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
