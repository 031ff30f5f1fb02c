"""Measures rows per second in steady state, CPU seconds, and the time of each phase."""

from __future__ import annotations

import time
from datetime import datetime
from statistics import median
from typing import Any

from bench import Bench, Running, Variant, running, touch_memory
from loads import Load
from processes import CpuClock, end_workers

BATCH_LIMIT_S = 120.0


def measure(bench: Bench, variant: Variant, load: Load) -> dict[str, Any]:
    """Runs one variant of Spark through its warm-up and measured batches."""
    rows = load.rows(bench, variant)
    touch_memory(bench.folder, load.topic_rows * load.row_bytes)
    compilers = bench.spark.sparkContext._jvm.java.lang.management.ManagementFactory.getCompilationMXBean()
    before_ms, began_s = compilers.getTotalCompilationTime(), time.monotonic()
    clock = CpuClock(bench.jvm_pid, bench.broker_pid)
    try:
        with clock.ticking(), running(bench, variant, rows, compression=load.compression) as run:
            # Wait for one more batch, because its start ends the pause after the last measured one.
            last = load.warm + load.measured
            run.wait_for_batch(last, BATCH_LIMIT_S * (last + 1))
            compiled_ms = compilers.getTotalCompilationTime() - before_ms
            return {**_summary(run, clock, load), "compiling": compiled_ms / 1000 / (time.monotonic() - began_s)}
    finally:
        end_workers(bench.jvm_pid)


def _summary(run: Running, clock: CpuClock, load: Load) -> dict[str, Any]:
    progress = {one["batchId"]: one for one in run.query.recentProgress}
    batches = range(load.warm, load.warm + load.measured)
    start, end = _began_s(progress[batches[0]]), _began_s(progress[batches[-1] + 1])
    rows = load.batch_rows * load.measured
    cpu = clock.used(start, end)
    spark_ms = _medians([progress[batch]["durationMs"] for batch in batches])
    return {
        "rows": rows,
        "wall_s": end - start,
        "rows_per_s": rows / (end - start),
        "cpu_s": cpu,
        "cpu_us_per_row": sum(cpu.values()) / rows * 1e6,
        "spark_ms": spark_ms,
        "add_batch_ms": spark_ms["addBatch"],
        "phases_ms": _phases_ms(run, batches),
    }


def _phases_ms(run: Running, batches: range) -> dict[str, float]:
    if run.exactly_once is None:
        return {}
    done = [one for one in run.exactly_once.progress() if one.batch in batches]
    return _medians([{phase: seconds * 1000 for phase, seconds in one.seconds.items()} for one in done])


def _medians(batches: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for batch in batches for name in batch)
    return {name: median(batch.get(name, 0.0) for batch in batches) for name in names}


def _began_s(progress: Any) -> float:
    return datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()
