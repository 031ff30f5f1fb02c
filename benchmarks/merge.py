"""Measures a query that merges into a table, against `foreachBatch` with the MERGE of Delta's or Iceberg's manual.

    python3 dev.py run python benchmarks/merge.py [--table delta] [--rows 200000] [--rounds 5] [--partitions 4]

Both read the same Parquet files, one per batch. Half of the rows update the table, and the others are inserted. The
queries run in alternating order (A B, B A, A B, …) in one session, into tables that are equal at the start of each
round. A round's ratio of seconds is that of the median batches. Its ratio of CPU seconds is that of the whole queries,
including all processes of Spark, and depends less on other load on the machine. The results are the medians of the
ratios. Prints a line of JSON for each query and, at the end, the medians with the lowest and highest ratio, and the
number of Spark's jobs per batch.
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
from sparkonce_lab.rig.kafka.jars import artifact_name, resolve, spark_jars_folder

Run = Callable[[DataFrame, str, str], None]
_PER_TABLE = 4


def main() -> int:
    given = _parse()
    with tempfile.TemporaryDirectory() as folder:
        spark = _session(Path(folder), given.partitions)
        rows, places = given.rows, f"{folder}/source"
        for batch in range(given.batches + 1):  # the first batch warms up the query
            first = (batch + _PER_TABLE) * rows // 2 - rows // 2
            new = spark.range(first, first + rows).selectExpr("id", "rand(7) n", "md5(cast(id as string)) word")
            new.coalesce(2).write.mode("append").parquet(places)
        ratios: dict[str, list[float]] = {"seconds": [], "cpu_seconds": []}
        for number in range(given.rounds + 1):
            taken, used = {}, {}
            for kind in ("foreachBatch", "sparkonce") if number % 2 else ("sparkonce", "foreachBatch"):
                taken[kind], used[kind], jobs = _measured(spark, given, Path(folder), kind, number)
                seconds = [round(one, 2) for one in taken[kind]]
                _say(round=number, kind=kind, batch_s=seconds, cpu_s=round(used[kind], 1), jobs_a_batch=jobs)
            if number:  # the first round warms up the session
                ratios["seconds"].append(median(taken["foreachBatch"]) / median(taken["sparkonce"]))
                ratios["cpu_seconds"].append(used["foreachBatch"] / used["sparkonce"])
        for unit, found in ratios.items():
            middle, least, most = (round(one, 3) for one in (median(found), min(found), max(found)))
            _say(
                table=given.table,
                rows=rows,
                partitions=given.partitions,
                of=unit,
                median=middle,
                lowest=least,
                highest=most,
                rounds=len(found),
            )
    return 0


def _cpu_s() -> float:
    """Returns the CPU seconds of all processes, including those that have ended."""
    own = psutil.Process()
    return float(sum(sum(each.cpu_times()[:4]) for each in (own, *own.children(recursive=True))))


def _jobs(spark: SparkSession) -> int:
    """Returns the number of jobs so far."""
    return int(spark._jsc.sc().dagScheduler().nextJobId())


def _measured(
    spark: SparkSession, given: argparse.Namespace, folder: Path, kind: str, number: int
) -> tuple[list[float], float, float]:
    """Returns the seconds of each batch but the first, the query's CPU seconds, and its jobs per batch."""
    name = f"{kind.lower()}_{number}"
    target = f"ice.db.{name}" if given.table == "iceberg" else str(folder / name)
    start = spark.range(_PER_TABLE * given.rows // 2).selectExpr("id", "0D n", "'' word").repartition(4)
    if given.table == "iceberg":
        start.writeTo(target).using("iceberg").tableProperty("write.merge.mode", given.mode).create()
    else:
        start.write.format("delta").save(target)
    source = spark.readStream.schema(start.schema).option("maxFilesPerTrigger", 2).parquet(f"{folder}/source")
    checkpoint = f"{folder}/checkpoint-{name}"
    cpu_s, jobs = _cpu_s(), _jobs(spark)
    if kind == "sparkonce":
        sink = (IcebergSink if given.table == "iceberg" else DeltaSink)(target, merge_on=["id"])
        once = ExactlyOnce(sink, checkpoint=checkpoint, display=False)
        query = once.start(source, trigger={"availableNow": True})
    else:
        merge = _merge_iceberg if given.table == "iceberg" else _merge_delta
        writer = source.writeStream.foreachBatch(lambda rows, _: merge(rows, target)).trigger(availableNow=True)
        query = writer.option("checkpointLocation", checkpoint).start()
    query.awaitTermination()
    cpu_s, jobs = _cpu_s() - cpu_s, _jobs(spark) - jobs
    taken = [one["durationMs"]["addBatch"] / 1000 for one in query.recentProgress if one["numInputRows"]]
    found = spark.table(target) if given.table == "iceberg" else spark.read.format("delta").load(target)
    expected = (_PER_TABLE + given.batches + 1) * given.rows // 2
    if found.count() != expected:
        raise SystemExit(f"{kind}: {found.count()} rows of {expected}")
    return taken[1:], cpu_s, round(jobs / (given.batches + 1), 1)


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


def _session(folder: Path, partitions: int) -> SparkSession:
    in_spark = sorted({artifact_name(jar.name) for jar in spark_jars_folder().glob("*.jar")})
    libraries = [spark_packages(**wanted).split(",")[-1] for wanted in ({"delta": True}, {"iceberg": True})]
    jars = [str(jar) for library in libraries for jar in resolve([library], exclude=in_spark)]
    settings = {
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": str(partitions),
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
    parser.add_argument("--partitions", type=int, default=4, help="partitions per shuffle; Spark's default is 200")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def _say(**values: object) -> None:
    sys.stdout.write(json.dumps({"at": time.strftime("%T"), **values}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
