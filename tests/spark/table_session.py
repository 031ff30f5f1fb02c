"""A second session of the tests' Spark, with the catalogs of Delta and Iceberg, without their extensions to SQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.databricks.delta.snapshotPartitions": "1",  # Delta spreads a table's state over 50 tasks by default
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",  # each of its stages is a job of its own
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
}


@contextmanager
def table_session(spark: SparkSession, warehouse: Path) -> Iterator[SparkSession]:
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    sessions.clearActiveSession()
    sessions.clearDefaultSession()
    builder = sessions.builder()
    folders = {"spark.sql.catalog.ice.warehouse": str(warehouse), "spark.sql.warehouse.dir": str(warehouse)}
    for name, value in {**SETTINGS, **folders}.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    sessions.setActiveSession(made)
    try:
        yield SparkSession(spark.sparkContext, made)
    finally:
        sessions.setDefaultSession(spark._jsparkSession)
        sessions.setActiveSession(spark._jsparkSession)
