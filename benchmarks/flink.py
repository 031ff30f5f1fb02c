"""Flink's part of the benchmark: the same pipeline, exactly-once, in a JVM of its own with as many cores as Spark."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import Bench, delete_topic
from session import CORES, PARTITIONS
from sparkonce.rig.kafka import resolve
from sparkonce.testing.kafka import create_topic

if TYPE_CHECKING:
    from loads import Load

FLINK, CONNECTOR = "2.2.1", "5.0.0-2.2"
CHECKPOINT_MS = 1000
LIMIT_S = 900.0
_OPENED = ("java.base/java.lang", "java.base/java.util", "java.base/java.time")
_SOURCE = Path(__file__).parent / "flink_job" / "Pipeline.java"
_WANTED = (
    f"org.apache.flink:flink-streaming-java:{FLINK}",
    f"org.apache.flink:flink-clients:{FLINK}",
    f"org.apache.flink:flink-connector-base:{FLINK}",
    f"org.apache.flink:flink-connector-kafka:{CONNECTOR}",
    "org.slf4j:slf4j-nop:1.7.36",
)


def measure(bench: Bench, load: Load, source: str) -> dict[str, Any]:
    """Runs Flink over a topic, once to warm up and once to be measured.

    Raises:
        RuntimeError: if the job failed, with the end of what it said.
    """
    topics = [f"bench-flink-{kind}-{time.time_ns()}" for kind in ("warm", "measured")]
    for topic in topics:
        create_topic(bench.bootstrap, topic, PARTITIONS)
    given = {
        "bootstrap": bench.bootstrap,
        "source": source,
        "warm": topics[0],
        "target": topics[1],
        "shape": load.shape,
        "compression": load.compression,
        "checkpoint-ms": CHECKPOINT_MS,
        "cores": CORES,
        "folder": bench.folder,
    }
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
    arguments = [f"--{name}={value}" for name, value in given.items()]
    command = ["java", "-Xms2g", "-Xmx3g", *opened, "-cp", _classes(bench.folder), "Pipeline", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"Flink failed: {done.stderr.strip()[-2000:]}")
    finally:
        for topic in topics:
            delete_topic(bench.bootstrap, topic)
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        "rows": found["rows"],
        "wall_s": found["seconds"],
        "rows_per_s": found["rows"] / found["seconds"],
        "cpu_s": {"flink jvm": found["cpu_s"]},
        "cpu_us_per_row": found["cpu_s"] / found["rows"] * 1e6,
        "spark_ms": {},
        "phases_ms": {},
    }


@cache
def _classes(folder: Path) -> str:
    """Returns the class path, with the job compiled into this folder."""
    if shutil.which("javac") is None:
        raise RuntimeError("There is no javac: install a JDK, or leave Flink out (--variant).")
    path = ":".join(map(str, resolve(_WANTED)))
    compiled = folder / "flink-classes"
    subprocess.run(["javac", "-nowarn", "-cp", path, "-d", str(compiled), str(_SOURCE)], check=True, timeout=300)
    return f"{compiled}:{path}"
