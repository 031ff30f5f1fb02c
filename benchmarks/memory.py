"""Measures the memory that a Python worker needs beyond an idle one, for growing sizes of batches and rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from bench import Bench, Variant, running
from loads import generated
from processes import end_workers, memory_mib, workers
from session import PARTITIONS

LIMIT_S = 300.0
MEASURED_BATCHES = 3


def idle_mib(bench: Bench) -> float:
    """Returns the memory of a worker that has run a function over Arrow batches, but no code of sparkonce."""
    end_workers(bench.jvm_pid)

    def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 0)

    try:
        for _ in range(3):
            bench.spark.range(PARTITIONS, numPartitions=PARTITIONS).mapInArrow(nothing, "id long").collect()
        return max(memory_mib(worker.pid, "VmRSS") for worker in workers(bench.jvm_pid))
    finally:
        end_workers(bench.jvm_pid)


def measure(bench: Bench, row_bytes: int, batch_rows: int, idle: float) -> dict[str, Any]:
    """Measures the peak memory of a worker while batches were written exactly-once."""
    rows = generated(bench, row_bytes, batch_rows)
    room = row_bytes + 100_000 if row_bytes > 900_000 else None
    try:
        with running(bench, Variant.EXACTLY_ONCE, rows, max_row_bytes=room) as run:
            run.wait_for_batch(MEASURED_BATCHES - 1, LIMIT_S)
            peak = max(memory_mib(worker.pid, "VmHWM") for worker in workers(bench.jvm_pid))
    finally:
        end_workers(bench.jvm_pid)
    return {"row_bytes": row_bytes, "batch_rows": batch_rows, "peak_mib": peak, "extra_mib": peak - idle}
