"""The plans of queries whose output is each id once. A plan gets the session and the `Config`, and gives the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.pipeline import Config


def records(spark: SparkSession, config: Config, source: int = 0) -> DataFrame:
    """A source's rows, as Spark's Kafka source gives them."""
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
    """Each row as it comes, in the source's own partitions. Of files, which need no connector, two are a batch."""
    if config.files:
        rows = spark.readStream.schema("id string").option("maxFilesPerTrigger", 2).json(config.files)
        return rows.withColumnRenamed("id", "key")
    return records(spark, config).select(F.col("key").cast("string").alias("key"))


def distinct(spark: SparkSession, config: Config) -> DataFrame:
    """Each id once, wherever in the topic it comes again: what has been seen is state, spread by a shuffle."""
    return stateless(spark, config).dropDuplicates(["key"])


def moody(spark: SparkSession, config: Config) -> DataFrame:
    """Rows that are others each time that they are computed."""
    return distinct(spark, config).withColumn("value", F.expr("uuid()"))


def shuffled(spark: SparkSession, config: Config) -> DataFrame:
    """Rows behind a shuffle without a number of partitions, which adaptive execution may merge."""
    return stateless(spark, config).repartition("key")
