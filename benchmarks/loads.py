"""The loads for all variants: rows that Spark generates, or a topic with rows."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench import Bench, Variant
from session import PARTITIONS
from sparkonce import read_kafka
from sparkonce.sinks.kafka.settings import DEFAULTS
from sparkonce_lab.kafka import create_topic

_DIGITS = 20
_KEYS = 1000
_CHUNK = 8000
_FILL_LIMIT_S = 900.0
_filled: dict[tuple[str, int], tuple[str, int]] = {}
"""The topic that this process has filled for each broker and row size, with the number of its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The rows that every variant gets.

    Attributes:
        name: The name in tables.
        row_bytes: The size of a value.
        batch_rows: The number of rows in a batch.
        warm: The number of batches at the start of every query that do not count.
        measured: The number of batches that count.
        shape: ``generated`` generates rows. The other shapes read a topic: ``values`` without keys, ``keys`` with keys,
            and ``windows`` with sums by key in windows of 20 seconds.
        compression: The compression of the output.
    """

    name: str
    row_bytes: int
    batch_rows: int
    warm: int
    measured: int
    shape: str = "generated"
    compression: str = ""

    @property
    def topic_rows(self) -> int:
        """The rows that one query reads, including one batch to end the measurement and one that may start after it."""
        return self.batch_rows * (self.warm + self.measured + 2)

    def rows(self, bench: Bench, variant: Variant) -> DataFrame:
        """Returns a streaming DataFrame with ``value``, and with ``key`` if the rows have keys."""
        if self.shape == "generated":
            return generated(bench, self.row_bytes, self.batch_rows)
        source = read_topic(bench, variant, filled(bench, self), self.batch_rows)
        text = F.col("value").cast("string")
        if self.shape == "windows":
            number = F.substring(text, 1, 10).cast("long")
            rows = source.select(F.col("key"), number.alias("number"), F.timestamp_millis(number).alias("at"))
            window = F.window("at", "20 seconds")
            sums = rows.withWatermark("at", "1 second").groupBy(window, "key").agg(F.sum("number").alias("sum"))
            text = F.concat_ws(",", F.unix_millis("window.start"), "sum")
            return sums.select("key", text.alias("value"))
        key = ["key"] if self.shape == "keys" else []
        return source.select(*key, text.alias("value"))


def read_topic(bench: Bench, variant: Variant, topic: str, batch_rows: int | None = None) -> DataFrame:
    """Returns the rows of a topic, read by `read_kafka`, or by Spark's source with the consumer's own defaults."""
    if variant is not Variant.PLAIN:
        given = {"bootstrap.servers": bench.bootstrap}
        return read_kafka(bench.spark, given, topics=topic, max_offsets_per_trigger=batch_rows)
    reader = bench.spark.readStream.format("kafka").option("kafka.bootstrap.servers", bench.bootstrap)
    reader = reader if batch_rows is None else reader.option("maxOffsetsPerTrigger", batch_rows)
    reader = reader.option("kafka.isolation.level", "read_committed").option("startingOffsets", "earliest")
    return reader.option("subscribe", topic).load()


def generated(bench: Bench, row_bytes: int, batch_rows: int) -> DataFrame:
    """Returns a stream that takes little CPU. Each value is a number with leading zeros, followed by a constant."""
    source = (
        bench.spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", batch_rows)
        .option("numPartitions", PARTITIONS)
        .option("startTimestamp", 1)
        .load()
    )
    number = F.lpad(F.col("value").cast("string"), _DIGITS, "0" * _DIGITS)
    return source.select(F.concat(number, F.lit("x" * (row_bytes - _DIGITS))).alias("value"))


def filled(bench: Bench, load: Load) -> str:
    """Returns a topic with at least the load's rows. The numbers ascend in each partition and for each key."""
    place = (bench.bootstrap, load.row_bytes)
    topic, count = _filled.get(place, (f"bench-in-{load.row_bytes}-{time.time_ns()}", 0))
    if not count:
        create_topic(bench.bootstrap, topic, PARTITIONS)
    if count < load.topic_rows:
        _fill(bench.bootstrap, topic, count, load)
        _filled[place] = (topic, load.topic_rows)
    return topic


class _Counted:
    """Counts acknowledged rows."""

    def __init__(self) -> None:
        self.rows = 0

    def on_acknowledged(self, rows: int) -> None:
        self.rows += rows

    def on_refused(self, error: object, topic: str, partition: int, size: int) -> None:
        raise RuntimeError(f"Partition {partition} of {topic} refused a row of {size} bytes: {error}")

    def on_error(self, error: object) -> None: ...

    def on_stats(self, text: str) -> None: ...

    def on_identity(self, producer_id: int, epoch: int) -> None: ...


def _fill(bootstrap: str, topic: str, first: int, load: Load) -> None:
    from sparkonce.sinks.kafka.batch_producer import BatchProducer  # commits that are compared may lack it

    counted = _Counted()
    producer = BatchProducer({**DEFAULTS, "bootstrap.servers": bootstrap}, counted)
    filler = pa.scalar("abcdefghij" * 100)
    filler = pa.scalar(filler.as_py()[: load.row_bytes - 10])
    deadline = time.monotonic() + _FILL_LIMIT_S
    for start in range(first, load.topic_rows, _CHUNK):
        numbers = pa.array(range(start, min(start + _CHUNK, load.topic_rows)), pa.int64())
        texts = pc.utf8_lpad(numbers.cast(pa.string()), 10, "0")
        modulo = pc.subtract(numbers, pc.multiply(pc.divide(numbers, _KEYS), _KEYS))
        keys = pc.utf8_lpad(modulo.cast(pa.string()), 4, "0")
        rows = pa.record_batch(
            {
                "key": keys,
                "value": pc.binary_join_element_wise(texts, filler, ""),
                "partition": pc.subtract(modulo, pc.multiply(pc.divide(modulo, PARTITIONS), PARTITIONS)).cast(
                    pa.int32()
                ),
            }
        )
        while len(producer) + len(numbers) > 60_000 or len(producer) * load.row_bytes > 40_000_000:
            producer.poll(0.1)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} was not filled within {_FILL_LIMIT_S:.0f} s")
        producer.produce(topic, rows)
    producer.flush(max(1.0, deadline - time.monotonic()))
    producer.destroy()
    if counted.rows != load.topic_rows - first:
        raise RuntimeError(f"{topic} has {counted.rows} rows more, not {load.topic_rows - first}")
