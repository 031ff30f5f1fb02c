"""Keeps a history of customers' addresses in a Delta table, exactly once: a slowly changing dimension of type 2.

A change has two effects on the table: it ends the customer's current version, and begins a new one. A MERGE has one
effect for each row of a batch, so a customer's first change in a batch becomes two rows. The row with a key matches the
current version, and ends it. The row without a key matches nothing, and is inserted.

Without ``--changes``, the example tests itself: it generates changes, and compares the table with the expected result.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from sparkonce import DeltaSink, ExactlyOnce, spark_packages

CHANGE = "customer string, address string, since bigint"
HISTORY = f"{CHANGE}, until bigint"
DELTA = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
SNAPSHOT = "spark.databricks.delta.snapshotPartitions"


def versions(changes: DataFrame) -> DataFrame:
    """Returns the rows to merge for a batch's changes: those that begin a version, and those that end one."""
    by_customer = Window.partitionBy("customer").orderBy("since", "address")
    ordered = changes.withColumn("until", F.lead("since").over(by_customer))
    ordered = ordered.withColumn("is_first", F.row_number().over(by_customer) == 1)
    begin = ordered.selectExpr("cast(null as string) as customer", "customer as name", "address", "since", "until")
    end = ordered.where("is_first").selectExpr("customer", "customer as name", "address", "since", "until")
    return begin.unionByName(end)


def sink_of(table: str) -> DeltaSink:
    """Returns the sink, which ends the current version for a row with a customer, and inserts a row without one."""
    return DeltaSink(
        table,
        merge_on=["customer"],
        merge_where="target.until IS NULL",
        when_matched={"until": "source.since"},
        when_not_matched={
            "customer": "source.name",
            "address": "source.address",
            "since": "source.since",
            "until": "source.until",
        },
        insert_when="source.customer IS NULL",
    )


def query(table: str, checkpoint: str, **more: object) -> ExactlyOnce:
    return ExactlyOnce({sink_of(table): versions}, checkpoint=checkpoint, **more)


def read(spark: SparkSession, changes: Path) -> DataFrame:
    return spark.readStream.schema(CHANGE).option("maxFilesPerTrigger", 1).json(str(changes))


def create(spark: SparkSession, table: str) -> None:
    spark.createDataFrame([], HISTORY).write.format("delta").mode("ignore").save(table)


def main(
    changes: Annotated[Path | None, typer.Option(help="A folder of JSON lines. If omitted, a sample is used.")] = None,
    table: Annotated[str, typer.Option(help="The table's location. Created if it does not exist.")] = "customers",
    checkpoint: Annotated[str, typer.Option(help="A path or URL for positions, waiting rows, and decisions.")] = "",
) -> None:
    """Keep the history of customers' addresses in a Delta table, exactly once."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    builder = SparkSession.builder.appName("customer-history").config("spark.sql.catalog.spark_catalog", DELTA)
    builder = builder.config("spark.sql.shuffle.partitions", "4").config(SNAPSHOT, "2")  # 200 and 50 by default
    spark = builder.config("spark.jars.packages", spark_packages(delta=True)).getOrCreate()
    if changes is not None:
        create(spark, table)
        query(table, checkpoint).start(read(spark, changes), trigger={"availableNow": True}).awaitTermination()
        return

    from tryout.bulk import show
    from tryout.history import history_of, make_changes

    with tempfile.TemporaryDirectory() as folder:
        sent = make_changes(Path(folder) / "changes")
        create(spark, f"{folder}/table")
        started = query(f"{folder}/table", f"{folder}/state").start(
            read(spark, Path(folder) / "changes"), trigger={"availableNow": True}
        )
        started.awaitTermination()
        found = [tuple(row) for row in spark.read.format("delta").load(f"{folder}/table").collect()]
        raise typer.Exit(show(history_of(sent), found))


if __name__ == "__main__":
    typer.run(main)
