"""Measures the latency of rows in a Kafka-to-Kafka query: from production until a read_committed reader sees them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import probe
from bench import Bench, Variant, delete_topic, running
from loads import read_topic
from processes import end_workers
from session import PARTITIONS
from sparkonce_lab.kafka import create_topic

ROWS_PER_S = 1000
ROW_BYTES = 100
FIRST_BATCH_LIMIT_S = 60.0


def measure(bench: Bench, variant: Variant, trigger_ms: int, *, warm_s: int, measured_s: int) -> dict[str, Any]:
    """Measures one variant with a steady low rate of rows."""
    source = f"bench-in-{time.time_ns()}"
    create_topic(bench.bootstrap, source, PARTITIONS)
    rows = read_topic(bench, variant, source).select("key", "value")
    try:
        with running(bench, variant, rows, trigger=f"{trigger_ms} milliseconds") as run:
            run.wait_for_batch(0, FIRST_BATCH_LIMIT_S)
            found = _probe(bench, source, run.topic, warm_s, measured_s)
            if not run.query.isActive:
                raise RuntimeError(f"the query ended: {run.query.exception()}")
            if found["missing"] or found["doubled"]:
                raise RuntimeError(
                    f"{found['missing']} rows missing and {found['doubled']} doubled in {run.topic}; the query's last "
                    f"batch was {run.query.lastProgress}"
                )
            finishing = [one.seconds.get("finishing", 0.0) * 1000 for one in _last_batches(run.exactly_once)]
            return {**found, "finishing_ms": median(finishing) if finishing else None}
    finally:
        delete_topic(bench.bootstrap, source)
        end_workers(bench.jvm_pid)


def _last_batches(ours: Any) -> list[Any]:
    """Returns the batches with the most transactions, without the first ones, which warm up the query."""
    batches = ours.progress()[3:] if ours is not None else []
    most = max((one.transactions for one in batches), default=0)
    return [one for one in batches if one.transactions == most]


def _probe(bench: Bench, source: str, target: str, warm_s: int, measured_s: int) -> dict[str, Any]:
    given = {
        "bootstrap": bench.bootstrap,
        "source": source,
        "target": target,
        "partitions": PARTITIONS,
        "rate": ROWS_PER_S,
        "row-bytes": ROW_BYTES,
        "warm-s": warm_s,
        "measured-s": measured_s,
    }
    command = [sys.executable, str(Path(probe.__file__)), *(f"--{name}={value}" for name, value in given.items())]
    limit_s = warm_s + measured_s + probe.TAIL_S + 2 * probe.SETTLE_S
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
