"""Measures the files sink, compared with Spark's own file sink: Parquet on a local disk.

    python3 dev.py run python benchmarks/files.py [--quick] [--rounds 3] [--rows 200000] [--partitions]
                                                   [--at-least-once]

Spark's sink calls no fsync, and commits through a list of files in ``_spark_metadata``, which only Spark reads. The
files sink makes every file durable before the decision, and every reader sees only committed rows.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import duckdb
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sinks import Contender, Load, compare, machine
from sparkonce import ExactlyOnce, FilesSink, Guarantee


def ours(name: str, guarantee: Guarantee, partition_by: tuple[str, ...]) -> Contender:
    def start(rows: DataFrame, folder: Path) -> StreamingQuery:
        sink = FilesSink(folder / "out", partition_by=partition_by, guarantee=guarantee)
        return ExactlyOnce(sink, checkpoint=str(folder / "checkpoint"), display=False).start(rows)

    return Contender(name=name, start=start, count=count)


def spark(partition_by: tuple[str, ...]) -> Contender:
    def start(rows: DataFrame, folder: Path) -> StreamingQuery:
        writer = rows.writeStream.format("parquet").option("path", str(folder / "out"))
        return writer.partitionBy(*partition_by).option("checkpointLocation", str(folder / "checkpoint")).start()

    return Contender(name="spark's parquet sink", start=start, count=count)


def count(folder: Path) -> int:
    ((rows,),) = duckdb.sql(f"SELECT count(*) FROM read_parquet('{folder}/out/**/*.parquet')").fetchall()
    return int(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of small batches, to check that it works")
    parser.add_argument("--partitions", action="store_true", help="partition by a column of 100 values")
    parser.add_argument("--at-least-once", action="store_true", help="also measure our sink at that guarantee")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=200_000, help="rows per batch; five batches are measured")
    given = parser.parse_args()
    load = Load(file_rows=25_000, measured=2) if given.quick else Load(file_rows=given.rows // 4, measured=5)
    by = ("part",) if given.partitions else ()
    contenders = [ours("sparkonce exactly-once", Guarantee.EXACTLY_ONCE, by)]
    if given.at_least_once:
        contenders.append(ours("sparkonce at-least-once", Guarantee.AT_LEAST_ONCE, by))
    contenders.append(spark(by))
    with machine(load) as on:
        compare(on, contenders, rounds=1 if given.quick else given.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
