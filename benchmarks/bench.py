"""The machine under test: one broker, one Spark, and the queries that are compared."""

from __future__ import annotations

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


class Variant(str, Enum):
    """Where the rows go."""

    NOOP = "spark to nowhere"
    SPARK = "spark's kafka sink"
    AT_LEAST_ONCE = "sparkonce at-least-once"
    EXACTLY_ONCE = "sparkonce exactly-once"
    FLINK = "flink exactly-once"

    @property
    def letter(self) -> str:
        """Short name in tables."""
        return "abcde"[list(Variant).index(self)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What every measurement needs.

    Attributes:
        spark: The session.
        bootstrap: The broker's address.
        folder: For checkpoints; deleted at the end.
        broker_pid: The broker's process.
        jvm_pid: Spark's process: driver and executor in one.
    """

    spark: SparkSession
    bootstrap: str
    folder: Path
    broker_pid: int
    jvm_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A query that runs.

    Attributes:
        query: Spark's handle.
        exactly_once: Ours, if the variant is one of ours.
        topic: Where the rows go; exists while the query runs.
    """

    query: StreamingQuery
    exactly_once: ExactlyOnce | None
    topic: str

    def wait_for_batch(self, batch: int, limit_s: float) -> None:
        """Waits until Spark has reported a batch.

        Raises:
            RuntimeError: if the query ended.
            TimeoutError: if it has not got so far in time.
        """
        give_up_at = time.monotonic() + limit_s
        # Not PySpark's ``lastProgress``: its hundreds of calls to the JVM took a tenth of this machine.
        while (last := self.query._jsq.lastProgress()) is None or last.batchId() < batch:
            if not self.query.isActive:
                raise RuntimeError(f"the query ended: {self.query.exception()}")
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"batch {batch} was not done within {limit_s:.0f} s")
            time.sleep(POLL_S)


@contextmanager
def machine() -> Iterator[Bench]:
    """Starts broker and Spark, and ends and deletes everything however the block is left."""
    folder = Path(tempfile.mkdtemp(prefix="sparkonce-bench-"))
    # The broker runs as in production: all compilers, its own garbage collector, no flags for a fast start.
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
    """Runs a query into a topic of its own; both are gone when the block is left.

    Args:
        bench: The machine.
        variant: Where the rows go.
        rows: A streaming DataFrame with ``key`` and ``value``.
        trigger: Spark's processing time.
        max_row_bytes: If rows are larger than the defaults of brokers and producers allow.
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
            if variant is Variant.SPARK:
                writer = writer.format("kafka").option("kafka.bootstrap.servers", bench.bootstrap).option("topic", name)
                # Spark keeps a query's producer for later ones with the same settings, and a flush waits for all that
                # it holds: rows left from a query stopped before, whose topic is gone, hold it up for two minutes.
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
    """Writes as many bytes as the next run does, and deletes them: in a virtual machine, memory that the page cache
    takes for the first time costs more than memory which it takes again."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(size_bytes >> 20):
            file.write(bytes(1 << 20))


def delete_topic(bootstrap: str, name: str) -> None:
    """Frees the disk before the next query."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([name])[name].result(30)
