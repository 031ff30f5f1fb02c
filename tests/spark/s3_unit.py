"""A query that reads files of orders and writes them to a bucket, as `spark.pipeline` starts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.faults import Watched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.pipeline import Config
    from sparkonce import KafkaSink
    from sparkonce.spark.views import Sinks


def orders(spark: SparkSession, config: Config) -> DataFrame:
    """Two files in a batch, which come to several slots."""
    rows = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 2).json(config.beside["orders"])
    return rows.repartition(config.slots)


def sinks(config: Config, kafka: KafkaSink) -> Sinks:
    from sparkonce import FilesSink

    files = FilesSink(config.beside["path"], store_options=config.beside["options"])
    return Watched(files, desk=config.desk, points=config.points)
