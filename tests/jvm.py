"""A JVM with Spark's jars and no session: it starts sooner, and has Hadoop's clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.conf import SparkConf
from pyspark.java_gateway import launch_gateway

from sparkonce.spark.checkpoints.hadoop import HadoopFiles
from sparkonce_lab.rig.kafka.jars import artifact_name, resolve, spark_jars_folder


def jars_beside_spark(library: str) -> list[Path]:
    """A library's jars, without those that Spark has."""
    in_spark = sorted({artifact_name(jar.name) for jar in spark_jars_folder().glob("*.jar")})
    return resolve([library], exclude=in_spark)


@contextmanager
def bare_jvm(jars: Sequence[Path] = ()) -> Iterator[Any]:
    conf = SparkConf(loadDefaults=False)
    if jars:
        conf.set("spark.driver.extraClassPath", ":".join(map(str, jars)))
    gateway = launch_gateway(conf=conf)
    try:
        yield gateway.jvm
    finally:
        process = gateway.proc
        gateway.shutdown()
        process.stdin.close()
        process.wait(30)


def hadoop_conf(jvm: Any, settings: Mapping[str, str] | None = None) -> Any:
    conf = jvm.org.apache.hadoop.conf.Configuration()
    for name, value in (settings or {}).items():
        conf.set(name, value)
    return conf


def hadoop_files(jvm: Any, url: str, settings: Mapping[str, str] | None = None) -> HadoopFiles:
    return HadoopFiles.opened(jvm, hadoop_conf(jvm, settings), url)
