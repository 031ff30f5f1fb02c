"""The machine under test: a broker, a Spark session, and the queries to be compared."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from session import PARTITIONS, session, stderr_into
from sparkonce import ExactlyOnce, Guarantee, KafkaSink
from sparkonce_lab.kafka import create_topic
from sparkonce_lab.rig.kafka import Cluster, spark_kafka_jars

POLL_S = 0.25
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 8 << 30


class Variant(str, Enum):
    """The ways to write the rows."""

    NOOP = "spark to nowhere"
    SPARK = "spark's kafka sink"
    AT_LEAST_ONCE = "sparkonce at-least-once"
    EXACTLY_ONCE = "sparkonce exactly-once"
    FLINK = "flink exactly-once"
    PLAIN = "spark's kafka source and sink"

    @property
    def letter(self) -> str:
        """The variant's short name in tables."""
        return "abcdef"[list(Variant).index(self)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The processes and folders that every measurement uses.

    Attributes:
        spark: The session.
        bootstrap: The broker's address.
        folder: The folder for checkpoints, which is deleted at the end.
        broker_pid: The process id of the broker.
        jvm_pid: The process id of Spark's JVM, which is driver and executor in one.
    """

    spark: SparkSession
    bootstrap: str
    folder: Path
    broker_pid: int
    jvm_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running query.

    Attributes:
        query: Spark's handle.
        exactly_once: The `ExactlyOnce` object, if the variant uses sparkonce.
        topic: The topic that the query writes to, which exists while the query is running.
    """

    query: StreamingQuery
    exactly_once: ExactlyOnce | None
    topic: str

    def wait_for_batch(self, batch: int, limit_s: float) -> None:
        """Waits until Spark has reported a batch.

        Raises:
            RuntimeError: If the query has ended.
            TimeoutError: If Spark has not reported the batch in time.
        """
        give_up_at = time.monotonic() + limit_s
        # Do not use PySpark's ``lastProgress``: its hundreds of calls to the JVM took a tenth of this machine's CPU.
        while (last := self.query._jsq.lastProgress()) is None or last.batchId() < batch:
            if not self.query.isActive:
                raise RuntimeError(f"the query ended: {self.query.exception()}")
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"batch {batch} was not done within {limit_s:.0f} s")
            time.sleep(POLL_S)


@contextmanager
def machine() -> Iterator[Bench]:
    """Starts a broker and Spark. When the block ends, stops both and deletes everything.

    All files are in memory if there is room. With rows of 1 KB, a disk would limit every variant, by whatever it still
    has to write back.
    """
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
    folder = Path(tempfile.mkdtemp(prefix="sparkonce-bench-"))
    # Run the broker as in production: all compilers, its own garbage collector, and no flags for a fast start.
    broker = Cluster(heap="1g", jvm_flags=(), overrides={"log.segment.delete.delay.ms": 1000})
    spark = None
    try:
        broker.start()
        with stderr_into(folder / "spark.log"):
            spark = session(folder, spark_kafka_jars())
        yield Bench(
            spark=spark,
            bootstrap=broker.bootstrap,
            folder=folder,
            broker_pid=broker.brokers[0].pid or 0,
            jvm_pid=int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()),
        )
    finally:
        try:
            if spark is not None:
                spark.stop()
        finally:
            broker.close()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(
    bench: Bench,
    variant: Variant,
    rows: DataFrame,
    *,
    trigger: str = "0 seconds",
    max_row_bytes: int | None = None,
    compression: str = "",
) -> Iterator[Running]:
    """Runs a query that writes to a new topic. When the block ends, stops the query and deletes the topic.

    Args:
        bench: The machine.
        variant: The way to write the rows.
        rows: A streaming DataFrame with ``key`` and ``value``.
        trigger: Spark's processing time.
        max_row_bytes: The size of the largest row, if it exceeds the defaults of brokers and producers.
        compression: Kafka's ``compression.type``; empty for none.
    """
    name = f"bench-{variant.letter}-{time.time_ns()}"
    larger = {} if max_row_bytes is None else {"max.message.bytes": str(max_row_bytes)}
    create_topic(bench.bootstrap, name, PARTITIONS, larger)
    ours = None
    query = None
    try:
        if variant in (Variant.AT_LEAST_ONCE, Variant.EXACTLY_ONCE):
            guarantee = Guarantee.EXACTLY_ONCE if variant is Variant.EXACTLY_ONCE else Guarantee.AT_LEAST_ONCE
            settings: dict[str, Any] = {"bootstrap.servers": bench.bootstrap}
            if max_row_bytes is not None:
                settings["message.max.bytes"] = max_row_bytes
            if compression:
                settings["compression.type"] = compression
            sink = KafkaSink(settings, topic=name, guarantee=guarantee)
            ours = ExactlyOnce(sink, checkpoint=str(bench.folder / name), display=False)
            query = ours.start(rows, trigger={"processingTime": trigger}, query_name=name)
        else:
            writer = rows.writeStream.queryName(name).option("checkpointLocation", str(bench.folder / name))
            if variant in (Variant.SPARK, Variant.PLAIN):
                writer = writer.format("kafka").option("kafka.bootstrap.servers", bench.bootstrap).option("topic", name)
                # Use a new producer. Spark reuses a query's producer for later queries with the same settings, and a
                # flush waits for all of its rows. If an earlier query's topic has been deleted, its rows hold up the
                # flush for two minutes.
                writer = writer.option("kafka.client.id", name)
                if compression:
                    writer = writer.option("kafka.compression.type", compression)
            else:
                writer = writer.format("noop")
            query = writer.trigger(processingTime=trigger).start()
        yield Running(query=query, exactly_once=ours, topic=name)
    finally:
        if query is not None:
            query.stop()
        delete_topic(bench.bootstrap, name)
        shutil.rmtree(bench.folder / name, ignore_errors=True)


def touch_memory(folder: Path, size_bytes: int) -> None:
    """Writes as many bytes as the next run writes, and deletes them.

    In a virtual machine, memory that the page cache uses for the first time costs more than memory that it reuses.
    """
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(size_bytes >> 20):
            file.write(bytes(1 << 20))


def delete_topic(bootstrap: str, name: str) -> None:
    """Deletes a topic, to free disk space before the next query."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([name])[name].result(30)
