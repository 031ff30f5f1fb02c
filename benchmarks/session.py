"""The Spark session of the benchmarks, and a log file for the output of stopped queries."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

CORES = 2
PARTITIONS = 2 * CORES


@contextmanager
def stderr_into(log: Path) -> Iterator[None]:
    """Redirects the standard error of processes started in the block to a file, because stopped queries write a lot."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def session(folder: Path, jars: Sequence[Path] = (), conf: Mapping[str, str] | None = None) -> SparkSession:
    """Returns a session on `CORES` cores.

    Args:
        folder: The folder for files that Spark writes.
        jars: Jars for Spark's class path.
        conf: Additional settings of Spark.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("sparkonce benchmark")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
