"""Flink's part of the benchmark: the same exactly-once pipeline, in a separate JVM with as many cores as Spark."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import Bench, delete_topic, touch_memory
from processes import CpuClock
from session import CORES, PARTITIONS
from sparkonce_lab.kafka import create_topic
from sparkonce_lab.rig.kafka import resolve

if TYPE_CHECKING:
    from loads import Load

FLINK, CONNECTOR = "2.2.1", "5.0.0-2.2"
CHECKPOINT_MS = 1000
LIMIT_S = 900.0
_END_LIMIT_S = 30.0
_OPENED = ("java.base/java.lang", "java.base/java.util", "java.base/java.time")
_SOURCE = Path(__file__).parent / "flink_job" / "Pipeline.java"
_WANTED = (
    f"org.apache.flink:flink-streaming-java:{FLINK}",
    f"org.apache.flink:flink-clients:{FLINK}",
    f"org.apache.flink:flink-connector-base:{FLINK}",
    f"org.apache.flink:flink-connector-kafka:{CONNECTOR}",
    "org.slf4j:slf4j-nop:1.7.36",
)


@contextmanager
def pipeline(bench: Bench, load: Load, source: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """Starts Flink's JVM for a topic. Yields a function that runs the job once, through the whole topic.

    One JVM serves all runs, like Spark's JVM, because its compilers improve it over several runs. Between runs it is
    paused, so that it takes no CPU from other variants.
    """
    given = {
        "bootstrap": bench.bootstrap,
        "source": source,
        "shape": load.shape,
        "compression": load.compression,
        "checkpoint-ms": CHECKPOINT_MS,
        "cores": CORES,
        "folder": bench.folder,
    }
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
    arguments = [f"--{name}={value}" for name, value in given.items()]
    command = ["java", "-Xms2g", "-Xmx3g", *opened, "-cp", _classes(bench.folder), "Pipeline", *arguments]
    said = bench.folder / "flink.log"
    with said.open("w") as log:
        jvm = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        yield lambda: _run(bench, load, jvm, said)
    finally:
        jvm.kill()
        jvm.communicate(timeout=_END_LIMIT_S)


def _run(bench: Bench, load: Load, jvm: subprocess.Popen[str], said: Path) -> dict[str, Any]:
    """Runs the job once.

    Raises:
        RuntimeError: If the job fails or takes too long. The message contains the end of its output.
    """
    if jvm.stdin is None or jvm.stdout is None:
        raise RuntimeError("Flink's JVM has no pipes.")
    topic = f"bench-flink-{time.time_ns()}"
    create_topic(bench.bootstrap, topic, PARTITIONS)
    touch_memory(bench.folder, load.topic_rows * load.row_bytes)
    jvm.send_signal(signal.SIGCONT)
    clock, limit = CpuClock(jvm.pid, bench.broker_pid), threading.Timer(LIMIT_S, jvm.kill)
    try:
        limit.start()
        with clock.ticking():
            jvm.stdin.write(f"{topic}\n")
            jvm.stdin.flush()
            told = jvm.stdout.readline()
        if not told:
            raise RuntimeError(f"Flink failed: {said.read_text().strip()[-2000:]}")
    finally:
        limit.cancel()
        jvm.send_signal(signal.SIGSTOP)
        delete_topic(bench.bootstrap, topic)
    found = json.loads(told)
    rows, ended = found["rows"], found["began"] + found["seconds"]
    used = clock.used(found["began"], ended)
    cpu = {kind: used[kind] for kind in ("jvm", "broker")}
    return {
        "rows": rows,
        "wall_s": found["seconds"],
        "rows_per_s": rows / found["seconds"],
        "cpu_s": cpu,
        "cpu_us_per_row": sum(cpu.values()) / rows * 1e6,
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
