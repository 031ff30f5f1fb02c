"""The windowed sum, Kafka to Kafka exactly once: what each customer paid in each window of 10 s.

By event time, with a watermark and rows that come late, or by processing time (``--clock processing``).
Without ``--bootstrap`` it tries itself out: on a broker of its own, with rows that it counts. On your servers::

    spark-submit --packages "$(python -c 'import sparkonce; print(sparkonce.spark_packages())')" \\
        examples/windowed_sum.py --bootstrap broker:9092 --checkpoint /data/checkpoints/sums

docs/examples.md explains it line by line against the same job in Flink.
"""

from __future__ import annotations

import logging
import sys
from enum import Enum
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from late_rows import LateRows
from sparkonce import ExactlyOnce, KafkaSink, read_kafka

SOURCE = "payments"
TARGET = "sums"
SLOTS = 4
PAYMENT = "customer string, amount bigint, at timestamp"
BAD_JSON = {"mode": "FAILFAST"}
"""Ends the query. Spark's default makes nulls of it, and a row without a time is in no window: it would be gone."""


class Clock(str, Enum):
    """Which time puts a payment into a window."""

    EVENT = "event"
    """When it was made: the field ``at`` of the payment."""
    PROCESSING = "processing"
    """When the batch began that reads it."""


def plan(records: DataFrame, *, clock: Clock, window: str, lateness: str) -> DataFrame:
    """The job: from Kafka's records to Kafka's records.

    Args:
        records: The Kafka source's columns. Values are JSON with the fields of `PAYMENT`.
        clock: Which time puts a payment into a window.
        window: How long a window is, such as ``10 seconds``.
        lateness: How much later than the newest payment another may come, such as ``30 seconds``.

    Returns:
        ``key``, the customer, and ``value``, JSON with the window's start, the sum and how many payments it is of: one
        row for each customer and window, when the watermark has passed the window's end.
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
    """Where it runs (``--master``) and with which packages is spark-submit's to say."""
    return (
        SparkSession.builder.appName("windowed-sum")
        .config("spark.sql.shuffle.partitions", SLOTS)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def main(
    bootstrap: Annotated[
        str | None, typer.Option(help="Your brokers. Without: a broker of its own, for a try.")
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="A path or a URL: keeps positions, state and decisions. Never delete it.")
    ] = "",
    checkpoint_every: Annotated[float, typer.Option(help="Seconds from one batch, and commit, to the next.")] = 5.0,
    clock: Annotated[Clock, typer.Option(help="Which time puts a payment into a window.")] = Clock.EVENT,
    window: Annotated[str, typer.Option(help="How long a window is.")] = "10 seconds",
    lateness: Annotated[str, typer.Option(help="How much later than the newest payment another may come.")] = (
        "30 seconds"
    ),
    max_offsets: Annotated[int | None, typer.Option(help="At most so many records a batch. Without: all.")] = None,
) -> None:
    """What each customer paid in each window of 10 s, from Kafka to Kafka exactly once."""
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
