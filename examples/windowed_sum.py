"""The windowed sum, Kafka to Kafka exactly once: the payments of each customer in each window of 10 s.

It uses event time, with a watermark and late rows, or processing time (``--clock processing``). Without
``--bootstrap``, the example tests itself with a separate broker, and counts the rows. On your servers::

    spark-submit --packages "$(python -c 'import sparkonce; print(sparkonce.spark_packages())')" \\
        examples/windowed_sum.py --bootstrap broker:9092 --checkpoint /data/checkpoints/sums

docs/examples.md compares it line by line with the same job in Flink.
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
from sparkonce import ExactlyOnce, KafkaSink, read_kafka

SOURCE = "payments"
TARGET = "sums"
SLOTS = 4
PAYMENT = "customer string, amount bigint, at timestamp"
BAD_JSON = {"mode": "FAILFAST"}
"""Makes invalid JSON stop the query. Spark's default is nulls, and a row without a time would be in no window."""


class Clock(str, Enum):
    """The time that determines a payment's window."""

    EVENT = "event"
    """The time of the payment: its field ``at``."""
    PROCESSING = "processing"
    """The beginning of the batch that reads the payment."""


def plan(records: DataFrame, *, clock: Clock, window: str, lateness: str) -> DataFrame:
    """Transforms Kafka's records into output records for Kafka.

    Args:
        records: The Kafka source's columns. Values are JSON with the fields of `PAYMENT`.
        clock: The time that determines a payment's window.
        window: The length of a window, such as ``10 seconds``.
        lateness: The maximum delay of a payment behind the newest one, such as ``30 seconds``.

    Returns:
        ``key``, the customer, and ``value``, JSON with the window's start, the sum and the number of payments: one row
        for each customer and window, emitted after the watermark has passed the window's end.
    """
    payment = F.from_json(F.col("value").cast("string"), PAYMENT, BAD_JSON)
    payments = records.select(payment.alias("payment")).select("payment.*")
    if clock is Clock.PROCESSING:
        payments = payments.withColumn("at", F.current_timestamp())
    sums = (
        payments.withWatermark("at", lateness)
        .groupBy(F.window("at", window), "customer")
        .agg(F.sum("amount").alias("sum"), F.count("*").alias("payments"))
    )
    start = F.date_format("window.start", "yyyy-MM-dd HH:mm:ss").alias("window")
    return sums.select(F.col("customer").alias("key"), F.to_json(F.struct(start, "sum", "payments")).alias("value"))


def session() -> SparkSession:
    """Returns the session. The arguments of spark-submit determine its master and packages."""
    return (
        SparkSession.builder.appName("windowed-sum")
        .config("spark.sql.shuffle.partitions", SLOTS)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def main(
    bootstrap: Annotated[
        str | None, typer.Option(help="Your brokers. If omitted, the example starts one and tests itself.")
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="A path or URL for positions, state, and decisions. Never delete it.")
    ] = "",
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between batches, and so between commits.")] = 5.0,
    clock: Annotated[Clock, typer.Option(help="The time that determines a payment's window.")] = Clock.EVENT,
    window: Annotated[str, typer.Option(help="The length of a window.")] = "10 seconds",
    lateness: Annotated[str, typer.Option(help="The maximum delay of a payment behind the newest one.")] = (
        "30 seconds"
    ),
    max_offsets: Annotated[int | None, typer.Option(help="The maximum records per batch. Defaults to all.")] = None,
) -> None:
    """Sum each customer's payments in each window of 10 s, from Kafka to Kafka exactly once."""
    if bootstrap is None:
        from tryout import SumSample, try_out

        raise typer.Exit(try_out(__file__, SumSample(clock=clock.value, window=window), sys.argv[1:]))

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("sparkonce").setLevel(logging.INFO)  # each commit: batch, transactional id, producer id, epoch

    spark = session()
    spark.streams.addListener(LateRows())
    kafka = {"bootstrap.servers": bootstrap}
    records = read_kafka(spark, kafka, topics=SOURCE, starting="earliest", max_offsets_per_trigger=max_offsets)
    sink = KafkaSink(kafka, topic=TARGET, prefix="windowed-sum")
    query = ExactlyOnce(sink, checkpoint=checkpoint).start(
        plan(records, clock=clock, window=window, lateness=lateness),
        trigger={"processingTime": f"{checkpoint_every} seconds"},
        query_name="windowed-sum",
    )
    query.awaitTermination()


if __name__ == "__main__":
    typer.run(main)
