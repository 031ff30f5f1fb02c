"""Plans of queries that read files, which needs no connector. Their output is each id once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark import plans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.pipeline import Config


def files(spark: SparkSession, config: Config) -> DataFrame:
    """The rows of two files in a batch."""
    rows = spark.readStream.schema("id string").option("maxFilesPerTrigger", 2).json(config.files)
    return rows.withColumnRenamed("id", "key")


def distinct(spark: SparkSession, config: Config) -> DataFrame:
    """Each id once, wherever it comes again."""
    return files(spark, config).dropDuplicates(["key"])


def shuffled(spark: SparkSession, config: Config) -> DataFrame:
    """Rows behind a shuffle without a number of partitions, which adaptive execution may merge."""
    rows = files(spark, config) if config.files else plans.stateless(spark, config)
    return rows.repartition("key")
