"""Plans of queries that output each id once. A plan takes the session and the `Config`, and returns the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.pipeline import Config


def records(spark: SparkSession, config: Config, source: int = 0) -> DataFrame:
    """Returns the rows of a source, in the schema of Spark's Kafka source."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", config.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", config.sources[source])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", config.rows_per_batch)
        .load()
    )


def stateless(spark: SparkSession, config: Config) -> DataFrame:
    """Passes rows through in the source's partitions. Files need no connector; there are two files per batch."""
    if config.files:
        rows = spark.readStream.schema("id string").option("maxFilesPerTrigger", 2).json(config.files)
        return rows.withColumnRenamed("id", "key")
    return records(spark, config).select(F.col("key").cast("string").alias("key"))


def distinct(spark: SparkSession, config: Config) -> DataFrame:
    """Outputs each id once, no matter where in the topic it is repeated.

    The ids seen so far are state, distributed by a shuffle.
    """
    return stateless(spark, config).dropDuplicates(["key"])


def moody(spark: SparkSession, config: Config) -> DataFrame:
    """Computes different rows each time."""
    return distinct(spark, config).withColumn("value", F.expr("uuid()"))


def shuffled(spark: SparkSession, config: Config) -> DataFrame:
    """Shuffles rows without a fixed number of partitions, so that adaptive execution may merge them."""
    return stateless(spark, config).repartition("key")
