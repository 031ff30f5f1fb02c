"""ETL: validates Avro messages from Kafka, and writes each identity number once per window of 20 s, exactly once.

Without ``--bootstrap``, the example tests itself with a separate broker and Schema Registry, and counts the rows. On
your servers::

    spark-submit --packages "$(python -c 'import sparkonce; print(sparkonce.spark_packages())')" examples/etl.py \\
        --bootstrap broker:9092 --registry http://registry:8081 --checkpoint /data/checkpoints/etl

docs/examples.md compares it line by line with the Flink job that it replaces.
"""

from __future__ import annotations

import logging
import sys
from enum import Enum
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from late_rows import LateRows
from sparkonce import ExactlyOnce, GroupOffsets, KafkaSink, read_kafka
from sparkonce.avro import SchemaRegistry, from_registry_avro

SOURCE = "flink-identify"
TARGET = "suibianfade"
SLOTS = 5
GROUP = "identify-etl"
MESSAGE = {
    "type": "record",
    "name": "Message",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "identifyNumber", "type": ["null", "string"], "default": None},
    ],
}
"""The fields that the job reads, even if newer versions of the subject add fields."""

TRANSACTION_TIMEOUT_MS = 10 * 60 * 1000


class Clock(str, Enum):
    """The time that determines a row's window."""

    RECORD = "record"
    """The record's own timestamp in Kafka, or the beginning of the batch if the timestamp is in the future."""
    PROCESSING = "processing"
    """The beginning of the batch that reads the record."""


def people(records: DataFrame, registry: SchemaRegistry) -> DataFrame:
    """Maps each message to a person, and keeps the record's timestamp.

    Args:
        records: The Kafka source's columns.
        registry: The registry with the schema of the subject ``flink-identify-value``.
    """
    message = from_registry_avro("value", subject=f"{SOURCE}-value", registry=registry, reader=MESSAGE)
    return records.select(message.alias("message"), "timestamp").select(
        "message.id", "message.name", "message.identifyNumber", "timestamp"
    )


def plan(records: DataFrame, registry: SchemaRegistry, *, clock: Clock, window: str, lateness: str) -> DataFrame:
    """Transforms Kafka's records into output records for Kafka.

    Args:
        records: The Kafka source's columns.
        registry: See `people`.
        clock: The time that determines a row's window.
        window: The length of a window, such as ``20 seconds``.
        lateness: The maximum delay of a row behind the newest row, such as ``1 minute``.

    Returns:
        ``key``, the start of a window in UTC, and ``value``, an identity number: each number once per window, emitted
        after the watermark has passed the window's end.
    """
    at = F.current_timestamp()  # one value per batch, recorded in the checkpoint, so a replay uses the same value
    if clock is Clock.RECORD:
        # Reject times in the future: a single one would advance the watermark and make all later rows late.
        at = F.least("timestamp", at)
    return (
        people(records, registry)
        .where(F.length("identifyNumber") == 18)
        .withColumn("at", at)
        .withWatermark("at", lateness)
        .groupBy(F.window("at", window), "identifyNumber")
        .count()
        .select(
            F.date_format("window.start", "yyyy-MM-dd HH:mm:ss").alias("key"),
            F.col("identifyNumber").alias("value"),
        )
    )


def session() -> SparkSession:
    """Returns the session. The arguments of spark-submit determine its master and packages."""
    return (
        SparkSession.builder.appName("identify-etl")
        .config("spark.sql.shuffle.partitions", SLOTS)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def main(
    bootstrap: Annotated[
        str | None, typer.Option(help="Your brokers. If omitted, the example starts one and tests itself.")
    ] = None,
    registry: Annotated[str, typer.Option(help="The URL of the Schema Registry.")] = "http://localhost:8081",
    checkpoint: Annotated[
        str, typer.Option(help="A path or URL for positions, state, and decisions. Never delete it.")
    ] = "",
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between batches, and so between commits.")] = 60.0,
    clock: Annotated[Clock, typer.Option(help="The time that determines a row's window.")] = Clock.RECORD,
    window: Annotated[str, typer.Option(help="The length of a window.")] = "20 seconds",
    lateness: Annotated[str, typer.Option(help="The maximum delay of a row behind the newest one.")] = "1 minute",
    max_offsets: Annotated[int | None, typer.Option(help="The maximum records per batch. Defaults to all.")] = None,
) -> None:
    """Write each identity number once per window of 20 s, from Kafka to Kafka exactly once."""
    if bootstrap is None:
        from tryout import EtlSample, try_out

        raise typer.Exit(try_out(__file__, EtlSample(clock=clock.value, window=window), sys.argv[1:]))

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("sparkonce").setLevel(logging.INFO)  # each commit: batch, transactional id, producer id, epoch

    spark = session()
    spark.streams.addListener(LateRows())
    kafka = {"bootstrap.servers": bootstrap}
    records = read_kafka(spark, kafka, topics=SOURCE, starting="earliest", max_offsets_per_trigger=max_offsets)
    sink = KafkaSink(
        {**kafka, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS},
        topic=TARGET,
        prefix="identify-etl",
    )
    exactly_once = ExactlyOnce(sink, checkpoint=checkpoint, group_offsets=GroupOffsets(GROUP, kafka))
    query = exactly_once.start(
        plan(records, SchemaRegistry({"url": registry}), clock=clock, window=window, lateness=lateness),
        trigger={"processingTime": f"{checkpoint_every} seconds"},
        query_name="identify-etl",
    )
    query.awaitTermination()


if __name__ == "__main__":
    typer.run(main)
