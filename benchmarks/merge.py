"""Measures a query that merges into a table, against `foreachBatch` with the MERGE of Delta's or Iceberg's manual.

    python3 dev.py run python benchmarks/merge.py [--table delta] [--rows 200000] [--batches 5] [--rounds 3]

Both read the same Parquet files, one a batch, and update half of their rows and insert the others. They run in turn in
one session, into tables that are equal at the start of each round. The ratio of a round is that of the medians of its
batches' times, and that of the CPU seconds of the whole queries, which depend less on who shares the machine. The
medians of the ratios are what counts. Prints a line of JSON for each query.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil
from pyspark.sql import DataFrame, SparkSession

from sparkonce import DeltaSink, ExactlyOnce, IcebergSink, spark_packages
from sparkonce.rig.kafka.jars import artifact_name, resolve, spark_jars_folder

Run = Callable[[DataFrame, str, str], None]
_PER_TABLE = 4


def main() -> int:
    given = _parse()
    with tempfile.TemporaryDirectory() as folder:
        spark = _session(Path(folder))
        rows, places = given.rows, f"{folder}/source"
        for batch in range(given.batches + 1):  # the first one warms up
            first = (batch + _PER_TABLE) * rows // 2 - rows // 2
            new = spark.range(first, first + rows).selectExpr("id", "rand(7) n", "md5(cast(id as string)) word")
            new.coalesce(2).write.mode("append").parquet(places)
        ratios: dict[str, list[float]] = {"seconds": [], "cpu_seconds": []}
        for number in range(given.rounds + 1):
            taken, used = {}, {}
            for kind in ("foreachBatch", "sparkonce") if number % 2 else ("sparkonce", "foreachBatch"):
                before = _cpu_s()
                taken[kind] = _measured(spark, given, Path(folder), kind, number)
                used[kind] = _cpu_s() - before
                _say(
                    round=number, kind=kind, batch_s=[round(one, 2) for one in taken[kind]], cpu_s=round(used[kind], 1)
                )
            if number:  # the first round warms up
                ratios["seconds"].append(median(taken["foreachBatch"]) / median(taken["sparkonce"]))
                ratios["cpu_seconds"].append(used["foreachBatch"] / used["sparkonce"])
        for unit, found in ratios.items():
            shown = [round(one, 3) for one in found]
            _say(table=given.table, rows=rows, of=unit, ratios=shown, median=round(median(found), 3))
    return 0


def _cpu_s() -> float:
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def _measured(spark: SparkSession, given: argparse.Namespace, folder: Path, kind: str, number: int) -> list[float]:
    """Returns the seconds of each batch but the first."""
    name = f"{kind.lower()}_{number}"
    target = f"ice.db.{name}" if given.table == "iceberg" else str(folder / name)
    start = spark.range(_PER_TABLE * given.rows // 2).selectExpr("id", "0D n", "'' word").repartition(4)
    if given.table == "iceberg":
        start.writeTo(target).using("iceberg").tableProperty("write.merge.mode", given.mode).create()
    else:
        start.write.format("delta").save(target)
    source = spark.readStream.schema(start.schema).option("maxFilesPerTrigger", 2).parquet(f"{folder}/source")
    checkpoint = f"{folder}/checkpoint-{name}"
    if kind == "sparkonce":
        sink = (IcebergSink if given.table == "iceberg" else DeltaSink)(target, merge_on=["id"])
        once = ExactlyOnce(sink, checkpoint=checkpoint, display=False)
        query = once.start(source, trigger={"availableNow": True})
    else:
        merge = _merge_iceberg if given.table == "iceberg" else _merge_delta
        writer = source.writeStream.foreachBatch(lambda rows, _: merge(rows, target)).trigger(availableNow=True)
        query = writer.option("checkpointLocation", checkpoint).start()
    query.awaitTermination()
    taken = [one["durationMs"]["addBatch"] / 1000 for one in query.recentProgress if one["numInputRows"]]
    found = spark.table(target) if given.table == "iceberg" else spark.read.format("delta").load(target)
    expected = (_PER_TABLE + given.batches + 1) * given.rows // 2
    if found.count() != expected:
        raise SystemExit(f"{kind}: {found.count()} rows of {expected}")
    return taken[1:]


def _merge_delta(rows: DataFrame, target: str) -> None:
    spark = rows.sparkSession
    table = spark._jvm.io.delta.tables.DeltaTable.forPath(spark._jsparkSession, target).alias("target")
    made = table.merge(rows._jdf.alias("source"), "target.id = source.id")
    made.whenMatched().updateAll().whenNotMatched().insertAll().execute()


def _merge_iceberg(rows: DataFrame, target: str) -> None:
    rows.createOrReplaceTempView("updates")
    rows.sparkSession.sql(
        f"MERGE INTO {target} AS target USING updates AS source ON target.id = source.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def _session(folder: Path) -> SparkSession:
    in_spark = sorted({artifact_name(jar.name) for jar in spark_jars_folder().glob("*.jar")})
    libraries = [spark_packages(**wanted).split(",")[-1] for wanted in ({"delta": True}, {"iceberg": True})]
    jars = [str(jar) for library in libraries for jar in resolve([library], exclude=in_spark)]
    settings = {
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "4",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(folder / "warehouse"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--table", choices=["delta", "iceberg"], default="delta")
    parser.add_argument("--mode", choices=["copy-on-write", "merge-on-read"], default="copy-on-write")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _say(**values: object) -> None:
    sys.stdout.write(json.dumps({"at": time.strftime("%T"), **values}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
