"""Starts Spark's JVM in half the time: the classes that it always loads, read and verified once, kept in an archive.

The archive (JEP 350) is made by a first run, which costs some ten seconds more, and is kept in the cache folder. A JVM
that it does not fit goes without.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sparkonce.embedded.jars import cache_folder, file_lock, find_java

JVM_FLAGS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Xshare:auto"
_LIMIT_S = 300.0


def jvm_flags() -> str:
    """Returns what goes into ``spark.driver.extraJavaOptions``."""
    java = subprocess.run([find_java(), "-version"], capture_output=True, check=True).stderr
    made_for = hashlib.sha256(java + JVM_FLAGS.encode()).hexdigest()[:12]
    archive = cache_folder() / "cds" / f"spark-{importlib.metadata.version('pyspark')}-{made_for}.jsa"
    with file_lock(archive.with_suffix(".lock"), time.monotonic() + _LIMIT_S):
        if not archive.exists():
            _make(archive)
    return f"{JVM_FLAGS} -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"


def _make(archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".making-") as folder:
        new = Path(folder, archive.name)
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [sys.executable, __file__, str(new), folder]
        run = subprocess.run(command, env=environment, capture_output=True, timeout=_LIMIT_S, check=False)
        if not new.exists():
            raise RuntimeError(f"no archive was made:\n{run.stderr.decode(errors='replace')[-2000:]}")
        new.rename(archive)


def _load_classes(archive: str, folder: str) -> None:
    """Does what every query under test does, so that its classes are loaded."""
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    flags = f"{JVM_FLAGS} -XX:ArchiveClassesAtExit={archive} -Djava.io.tmpdir={folder}"
    own = {"spark.driver.extraJavaOptions": flags, "spark.local.dir": folder, "spark.ui.enabled": "false"}
    shuffled = {"spark.sql.shuffle.partitions": "4"}
    spark = SparkSession.builder.master("local[2]").config(map={**own, **shuffled}).getOrCreate()

    def run_batch(rows: DataFrame, _: int) -> None:
        rows.mapInArrow(lambda batches: batches, rows.schema).collect()
        rows.write.format("noop").mode("overwrite").save()

    rows = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    distinct = rows.selectExpr("cast(value % 100 as string) as key").dropDuplicates(["key"])
    distinct.writeStream.foreachBatch(run_batch).trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    # The JVM writes the archive when it ends, which it does when its standard input is closed.
    jvm = SparkContext._gateway.proc
    SparkContext._gateway.shutdown()
    jvm.stdin.close()
    jvm.wait(_LIMIT_S)


if __name__ == "__main__":
    _load_classes(*sys.argv[1:])
