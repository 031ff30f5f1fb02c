"""Measures the cost of a Schema Registry's header, compared with a plain ``from_avro`` of the same records without it.

    python3 dev.py run python benchmarks/avro.py [--rows 1000000] [--rounds 7]

The records with and without the header are two columns of one table in memory, which also has the other columns of
Spark's Kafka source. Each variant also reads topic, partition and offset, and discards the result. The variants take
turns in every round. The result is the median of the ratios within a round: one of the elapsed times, and one of the
CPU times of Spark's JVM, which depend less on other load on the machine. The first two rounds do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from rich.console import Console
from rich.table import Table

from session import CORES, session
from sparkonce.avro import SchemaRegistry, decode_registry_avro, from_registry_avro, to_registry_avro
from sparkonce_lab.registry import RegistryServer
from sparkonce_lab.rig.kafka import spark_avro_jars

VERSIONS = 5
WARM = 2
LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "com.example",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "currency", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
    ],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds; the first two do not count")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as folder, RegistryServer() as server:
        spark = session(Path(folder), spark_avro_jars())
        try:
            run(spark, server, Path(folder), given.rows, given.rounds)
        finally:
            spark.stop()
    return 0


def run(spark: SparkSession, server: RegistryServer, folder: Path, rows: int, rounds: int) -> None:
    registry = SchemaRegistry({"url": server.url})
    for older in range(VERSIONS - 1):
        # Register versions that no record uses, because a plan must handle all versions of a subject.
        extra = {"name": f"extra_{older}", "type": ["null", "string"], "default": None}
        server.register("many-value", {**ORDER, "fields": [*ORDER["fields"], extra]})
    for subject in ("orders-value", "many-value"):
        server.register(subject, ORDER)
    records = source(spark, registry, folder, rows)
    of = {"subject": "orders-value", "registry": registry}
    located = ("topic", "partition", "offset")

    def column(made: Column) -> Callable[[], DataFrame]:
        return lambda: records.select(*located, made.alias("it"))

    decoding = {
        "bare from_avro, no header": column(from_avro("bare", json.dumps(ORDER))),
        "bare from_avro(substring(value, 6))": column(from_avro(F.substring("value", 6, 1 << 30), json.dumps(ORDER))),
        "from_registry_avro": column(from_registry_avro("value", **of)),
        f"  {VERSIONS} versions": column(from_registry_avro("value", registry=registry, subject="many-value")),
        "  on_error=dead-letter": column(from_registry_avro("value", on_error="dead-letter", **of)),
        "  on_error=drop": lambda: decode_registry_avro(records, on_error="drop", **of).select(*located, "record"),
    }
    encoding = {
        "bare to_avro, no header": column(to_avro(F.col("order"), json.dumps(ORDER))),
        "to_registry_avro": column(to_registry_avro("order", schema=ORDER, topic="orders", registry=registry)),
    }
    console = Console(width=120)
    for title, variants in (("decoding", decoding), ("encoding", encoding)):
        console.print(measured(spark, title, variants, rows, rounds))


def source(spark: SparkSession, registry: SchemaRegistry, folder: Path, rows: int) -> DataFrame:
    """Returns Kafka's columns, held in memory. Each record is there with its header, without it, and as a struct."""
    number = F.col("id")
    line = F.struct(F.concat(F.lit("sku-"), number).alias("sku"), (number % 9).cast("int").alias("n"))
    order = F.struct(
        number,
        F.concat(F.lit("customer-"), number).alias("customer"),
        (number * 1.5).alias("amount"),
        F.when(number % 3 > 0, "EUR").alias("currency"),
        F.timestamp_millis(number).alias("at"),
        F.array(line, line).alias("lines"),
    )
    made = (
        spark.range(0, rows, 1, 2 * CORES)
        .select(number.alias("offset"), order.alias("order"))
        .select(
            F.lit("orders").alias("topic"),
            F.spark_partition_id().alias("partition"),
            "offset",
            "order",
            to_avro("order", json.dumps(ORDER)).alias("bare"),
            to_registry_avro("order", schema=ORDER, topic="orders", registry=registry).alias("value"),
        )
    )
    made.write.parquet(str(folder / "records"))
    records = spark.read.parquet(str(folder / "records")).cache()
    records.count()
    return records


def measured(
    spark: SparkSession, title: str, variants: dict[str, Callable[[], DataFrame]], rows: int, rounds: int
) -> Table:
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    names = list(variants)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            wall, processor = time.perf_counter(), processor_s(jvm)
            variants[name]().write.format("noop").mode("overwrite").save()
            taken[name].append((time.perf_counter() - wall, processor_s(jvm) - processor))
    bare = taken[names[0]][WARM:]
    table = Table(title=f"{title}: {rows:,} records, {rounds - WARM} rounds, {CORES} cores")
    for heading in ("", "seconds", "of bare, wall", "of bare, JVM's processor time"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in names:
        own = taken[name][WARM:]
        ratios = [
            statistics.median(base[which] / one[which] for base, one in zip(bare, own, strict=True)) for which in (0, 1)
        ]
        seconds = statistics.median(one[0] for one in own)
        table.add_row(name, f"{seconds:.2f}", *(f"{ratio:.2f}" for ratio in ratios))
    return table


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
