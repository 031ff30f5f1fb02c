"""Stateful enrichment: deduplicates orders and payments, joins them, and writes to Kafka exactly once.

Without ``--bootstrap``, the example tests itself with a separate broker, and counts the rows. On your servers::

    spark-submit --packages "$(python -c 'import sparkonce; print(sparkonce.spark_packages())')" \\
        examples/enrichment.py --bootstrap broker:9092 --checkpoint /data/checkpoints/paid-orders

docs/examples.md compares it line by line with the same job in Flink.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from late_rows import LateRows
from sparkonce import ExactlyOnce, KafkaSink, read_kafka

ORDERS = "orders"
PAYMENTS = "order-payments"
TARGET = "paid-orders"
SLOTS = 4
ORDER = "order_id string, customer string, amount bigint, ordered_at timestamp"
PAYMENT = "payment_id string, order_id string, method string, paid_at timestamp"
PAID_WITHIN = "10 minutes"
BAD_JSON = {"mode": "FAILFAST"}
"""Makes invalid JSON stop the query. Spark's default is nulls, and a row without an id would vanish in the join."""


def events(records: DataFrame, fields: str) -> DataFrame:
    """Returns the fields in the JSON values of a topic."""
    event = F.from_json(F.col("value").cast("string"), fields, BAD_JSON)
    return records.select(event.alias("event")).select("event.*")


def plan(orders: DataFrame, payments: DataFrame, *, lateness: str) -> DataFrame:
    """Transforms the records of two topics into output records for Kafka.

    Args:
        orders: The Kafka source's columns. Values are JSON with the fields of `ORDER`.
        payments: The same for payments, with the fields of `PAYMENT`.
        lateness: The maximum delay of an event, or of its duplicate, behind the newest event of the same kind.

    Returns:
        ``key``, the order's id, and ``value``, JSON with the order and its payment: one row for each payment that
        arrived within `PAID_WITHIN` of its order.
    """
    ordered = (
        events(orders, ORDER).withWatermark("ordered_at", lateness).dropDuplicatesWithinWatermark(["order_id"])
    ).alias("ordered")
    paid = (
        events(payments, PAYMENT).withWatermark("paid_at", lateness).dropDuplicatesWithinWatermark(["payment_id"])
    ).alias("paid")
    joined = ordered.join(
        paid,
        F.expr(
            f"""
            ordered.order_id = paid.order_id
            AND paid_at BETWEEN ordered_at AND ordered_at + INTERVAL {PAID_WITHIN}
            """
        ),
    )
    enriched = F.struct("ordered.order_id", "customer", "amount", "payment_id", "method")
    return joined.select(F.col("ordered.order_id").alias("key"), F.to_json(enriched).alias("value"))


def session() -> SparkSession:
    """Returns the session. The arguments of spark-submit determine its master and packages.

    The state of a join contains all rows that wait for their counterpart. RocksDB keeps it out of the JVM's heap, and
    writes only changes in each batch.
    """
    return (
        SparkSession.builder.appName("paid-orders")
        .config("spark.sql.shuffle.partitions", SLOTS)
        .config("spark.sql.session.timeZone", "UTC")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", True)
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
    lateness: Annotated[str, typer.Option(help="The maximum delay of an event behind the newest one.")] = "2 minutes",
    max_offsets: Annotated[int | None, typer.Option(help="The maximum number of records per topic and batch.")] = None,
) -> None:
    """Join orders with their payments, from Kafka to Kafka exactly once."""
    if bootstrap is None:
        from tryout import EnrichmentSample, try_out

        raise typer.Exit(try_out(__file__, EnrichmentSample(), sys.argv[1:]))

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("sparkonce").setLevel(logging.INFO)  # each commit: batch, transactional id, producer id, epoch

    spark = session()
    spark.streams.addListener(LateRows())
    kafka = {"bootstrap.servers": bootstrap}
    orders = read_kafka(spark, kafka, topics=ORDERS, starting="earliest", max_offsets_per_trigger=max_offsets)
    payments = read_kafka(spark, kafka, topics=PAYMENTS, starting="earliest", max_offsets_per_trigger=max_offsets)
    sink = KafkaSink(kafka, topic=TARGET, prefix="paid-orders")
    query = ExactlyOnce(sink, checkpoint=checkpoint).start(
        plan(orders, payments, lateness=lateness),
        trigger={"processingTime": f"{checkpoint_every} seconds"},
        query_name="paid-orders",
    )
    query.awaitTermination()


if __name__ == "__main__":
    typer.run(main)
