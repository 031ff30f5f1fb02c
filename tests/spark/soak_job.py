"""A query of thousands of small batches that reports its memory and files: ``python -m spark.soak_job CONFIG``.

CONFIG is JSON: ``spark`` is a `spark.pipeline.Config` for the session, ``topic``, ``conninfo`` and ``files`` are the
targets, and ``measure`` lists the batches after which the query measures itself; it ends after the last. Spark itself
is configured to keep little information about finished batches, jobs and tasks, so that any growth comes from
sparkonce.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce import ExactlyOnce, FilesSink, KafkaSink, PostgresSink
from startup import light_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkonce.protocol.state import Phase

ROWS, SLOTS = 4, 2
"""The rows and slots of each batch."""

_LITTLE = {
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.ui.retainedDeadExecutors": "1",
    "spark.sql.streaming.checkpointFileManagerClass": light_files(),
}
_STILL_FREED = 0.99
_A_TABLE = 1 << 20
"""A block of this size is Python's table of interned strings, which is occasionally moved and would count as growth."""


def main(text: str) -> None:
    from spark.pipeline import Config, session
    from sparkonce.protocol.state import Phase

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    soak = json.loads(text)
    config = Config.of_json(json.dumps({**soak["spark"], "spark": _LITTLE}))
    spark = session(config)
    records_read = count_records_read()
    last = threading.Event()

    def listen(phase: Phase, batch: int) -> None:
        if phase is Phase.IDLE and batch in soak["measure"]:
            found = {"batch": batch, "records_read": records_read(), **measured(spark, Path(config.checkpoint))}
            print(json.dumps({"event": "measured", **found}), flush=True)  # noqa: T201 - for `sparkonce_lab.rig.child`
            if batch == soak["measure"][-1]:
                last.set()

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", SLOTS)
    rows = source.load().selectExpr("cast(value as string) as key", "cast(value as string) as value")
    sinks = (
        KafkaSink({"bootstrap.servers": config.bootstrap}, topic=soak["topic"]),
        PostgresSink(soak["conninfo"], table="soaked"),
        FilesSink(soak["files"]),
    )
    once = ExactlyOnce(dict.fromkeys(sinks), checkpoint=config.checkpoint, listener=listen, display=False)
    tracemalloc.start()
    query = once.start(rows)
    while query.isActive and not last.wait(0.1):
        pass
    query.stop()
    if error := query.exception():
        raise error


# --- what it holds ----------------------------------------------------------------------------------------------------


def count_records_read() -> Callable[[], int]:
    """Returns a function that returns how many records of the decision log have been read since this call."""
    from sparkonce.decision_log import DecisionLog

    whole, found = DecisionLog.read_bytes, [0]

    def read(log: DecisionLog, position: int) -> Sequence[bytes]:
        records = whole(log, position)
        found[0] += len(records)
        return records

    DecisionLog.read_bytes = read
    return lambda: found[0]


def measured(spark: SparkSession, checkpoint: Path) -> dict[str, int]:
    """Returns the memory of the driver, the JVM and the workers after garbage collection, and the size of the files."""
    from sparkonce_lab.rig.child import session_of

    gc.collect()
    found = {
        "python_bytes": sum(one.size for one in tracemalloc.take_snapshot().traces if one.size < _A_TABLE),
        "python_objects": len(gc.get_objects()),
        "heap_bytes": heap(spark.sparkContext._jvm),
    }
    for pid in session_of(os.getpid()):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
        role = "driver" if pid == os.getpid() else "jvm" if words.endswith(b"java") else "workers"
        status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        for name, value in (
            ("processes", 1),
            ("rss_bytes", int(status["VmRSS"].split()[0]) * 1024),
            ("threads", int(status["Threads"])),
            ("handles", sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())),
        ):
            found[f"{role}_{name}"] = found.get(f"{role}_{name}", 0) + value
    for name, folder in (("log", checkpoint / "sparkonce"), ("checkpoint", checkpoint)):
        files = [path for path in folder.rglob("*") if path.is_file()]
        found |= {f"{name}_files": len(files), f"{name}_bytes": sum(path.stat().st_size for path in files)}
    return found


def heap(jvm: Any) -> int:
    """Returns the live heap of the JVM. Several collections are needed, since Spark's cleanup runs after each one."""
    runtime = jvm.java.lang.Runtime.getRuntime()
    held, before = 0, 0
    while not held or held < before * _STILL_FREED:
        before = held
        for _ in range(2):
            jvm.java.lang.System.gc()
        held = runtime.totalMemory() - runtime.freeMemory()
    return held


if __name__ == "__main__":
    main(sys.argv[1])
