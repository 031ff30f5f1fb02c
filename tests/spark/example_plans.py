"""The plans of the examples, for the harness that runs several queries in one Spark. See `spark.plans`.

A record's key is its timestamp, in milliseconds since the epoch, and so many are sent that Kafka would not take them
with it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from spark.plans import records
from sparkonce.avro import SchemaRegistry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.pipeline import Config

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import enrichment
import etl
import windowed_sum

REGISTRY = "sparkonce.tests.registry"
AT_ONCE = {"window": "100 milliseconds", "lateness": "0 seconds"}
"""By processing time, a batch's rows come out in the next one."""


def etl_by_record(spark: SparkSession, config: Config) -> DataFrame:
    sent = records(spark, config)
    timed = sent.withColumn("timestamp", F.timestamp_millis(F.col("key").cast("string").cast("long")))
    return etl.plan(timed, registry(spark), clock=etl.Clock.RECORD, window="20 seconds", lateness="5 seconds")


def etl_by_processing(spark: SparkSession, config: Config) -> DataFrame:
    return etl.plan(records(spark, config), registry(spark), clock=etl.Clock.PROCESSING, **AT_ONCE)


def sum_by_event(spark: SparkSession, config: Config) -> DataFrame:
    clock = windowed_sum.Clock.EVENT
    return windowed_sum.plan(records(spark, config), clock=clock, window="10 seconds", lateness="30 seconds")


def sum_by_processing(spark: SparkSession, config: Config) -> DataFrame:
    return windowed_sum.plan(records(spark, config), clock=windowed_sum.Clock.PROCESSING, **AT_ONCE)


def join(spark: SparkSession, config: Config) -> DataFrame:
    return enrichment.plan(records(spark, config, 0), records(spark, config, 1), lateness="2 minutes")


def registry(spark: SparkSession) -> SchemaRegistry:
    return SchemaRegistry({"url": spark.conf.get(REGISTRY)})
