"""Halves the start-up time of Spark's JVM with a class data archive, whose classes are already parsed and verified."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile

from eventually import LIMIT_S
from sparkonce_lab.rig.java import find_java
from sparkonce_lab.rig.kafka.jars import archive_flags, cache_folder

JVM_FLAGS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:-UsePerfData -Xshare:auto"
"""With only one compiler tier, the default code cache of the JVM is 48 MB.

A session that hundreds of tests share fills it, and from then on interprets all new code.
"""


def jvm_flags() -> str:
    """Returns the value for ``spark.driver.extraJavaOptions``. The first call creates the archive in half a minute."""
    java = subprocess.run([find_java(), "-version"], capture_output=True, check=True).stderr
    made_for = hashlib.sha256(java + JVM_FLAGS.encode()).hexdigest()[:12]
    kept = cache_folder() / "classes" / f"spark-{importlib.metadata.version('pyspark')}-{made_for}.jsa"
    return " ".join((JVM_FLAGS, *archive_flags(kept, _record_classes)))


def light_files() -> str:
    """Returns a class for ``spark.sql.streaming.checkpointFileManagerClass`` that starts no child processes.

    The default class starts a dozen processes (stat, chmod) for the files of a batch, which is a quarter of the batch's
    time.
    """
    spark = tuple(map(int, importlib.metadata.version("pyspark").split(".")[:2]))
    package = "streaming.checkpointing" if spark >= (4, 1) else "streaming"
    return f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"


def _record_classes(flag: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [sys.executable, __file__, flag, folder]
        subprocess.run(command, env=environment, timeout=LIMIT_S, check=True, capture_output=True)


def _load_classes(flag: str, folder: str) -> None:
    """Does what every query under test does, so that its classes are loaded."""
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    flags = f"{JVM_FLAGS} {flag} -Djava.io.tmpdir={folder}"
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
    # The JVM writes the archive when it exits. It exits when its standard input is closed.
    jvm = SparkContext._gateway.proc
    SparkContext._gateway.shutdown()
    jvm.stdin.close()
    jvm.wait(LIMIT_S)


if __name__ == "__main__":
    _load_classes(*sys.argv[1:])
