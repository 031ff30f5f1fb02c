"""A query of its own process that writes by a format: ``python -m spark.formats_job JSON``; for kills of a driver."""

from __future__ import annotations

import json
import sys

from pyspark import cloudpickle
from pyspark.sql import SparkSession

import sparkonce
from spark import formats_struck


def main(given: dict[str, str]) -> None:
    """Writes so many batches of Spark's rate source, as many rows each, and ends."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in json.loads(given.pop("spark", "{}")).items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    try:
        cloudpickle.register_pickle_by_value(formats_struck)
        sparkonce.register(spark)
        formats_struck.register_struck(spark)
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", given.pop("rows"))
        rows = rows.option("numPartitions", 3).load().selectExpr("cast(value as string) as value")
        batches = int(given.pop("batches"))
        query = rows.writeStream.format(given.pop("format")).options(**given).start()
        while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < batches - 1):
            query.awaitTermination(1)
        query.stop()
        if query.exception() is not None:
            raise query.exception()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
