"""Counts what one steady Kafka-to-Kafka batch calls in the driver's Python, by room.

    python3 dev.py run python benchmarks/batch_calls.py

Runs a query of small batches, and lets ``sys.setprofile`` count the calls of one of them, in the thread that runs it.
Prints the functions, the files and the changes of file, and the CPU that the other batches took in this thread.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, ClassVar

from confluent_kafka import Producer
from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table

import sparkonce
from bench import machine
from session import PARTITIONS
from sparkonce import ExactlyOnce, KafkaSink
from sparkonce_lab.kafka import create_topic

PACKAGE = str(Path(sparkonce.__file__).parent)
BATCHES, ROWS_PER_BATCH = 40, 100
WARM, TRACED = 10, 30
LIMIT_S = 600.0


class Calls:
    """Counts calls of sparkonce's functions while it is the thread's profiler.

    Attributes:
        functions: The calls, by file and function.
        changes: How often a call or a return led to another file of sparkonce, by the file that it led to.
    """

    def __init__(self) -> None:
        self.functions: Counter[tuple[str, str]] = Counter()
        self.changes: Counter[str] = Counter()
        self._stack: list[str] = [""]

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return
        file = frame.f_code.co_filename.removeprefix(f"{PACKAGE}/")
        if event == "call":
            self.functions[file, frame.f_code.co_qualname] += 1
            self.changes[file] += file != self._stack[-1]
            self._stack.append(file)
        elif event == "return":
            self._stack.pop()
            self.changes[self._stack[-1]] += file != self._stack[-1]

    def table(self) -> Table:
        """Returns the counts of each room, and of all."""
        table = Table("room", "files", "functions", "calls", "changes of file")
        rooms = sorted({file.partition("/")[0] for file, _ in self.functions})
        for room in (*rooms, ""):
            mine = {one: count for one, count in self.functions.items() if one[0].startswith(room)}
            table.add_row(
                room or "all",
                str(len({file for file, _ in mine})),
                str(len(mine)),
                str(sum(mine.values())),
                str(sum(count for file, count in self.changes.items() if file.startswith(room))),
            )
        return table


class Traced(ExactlyOnce):
    """Traces one batch, and measures the CPU of the others."""

    calls = Calls()
    cpu_ms: ClassVar[list[float]] = []

    def __call__(self, df: DataFrame, batch: int) -> None:
        if batch == TRACED:
            sys.setprofile(self.calls)
        began_s = time.thread_time()
        try:
            super().__call__(df, batch)
        finally:
            sys.setprofile(None)
        if batch >= WARM and batch != TRACED:
            self.cpu_ms.append(1000 * (time.thread_time() - began_s))


def main() -> int:
    with machine() as bench:
        for topic in ("in", "out"):
            create_topic(bench.bootstrap, topic, PARTITIONS)
        producer = Producer({"bootstrap.servers": bench.bootstrap})
        for number in range(BATCHES * ROWS_PER_BATCH):
            producer.produce("in", f"row {number}".encode(), partition=number % PARTITIONS)
        producer.flush()
        rows = (
            bench.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", bench.bootstrap)
            .option("subscribe", "in")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
            .load()
            .select("value")
        )
        sink = KafkaSink({"bootstrap.servers": bench.bootstrap}, topic="out")
        once = Traced(sink, checkpoint=str(bench.folder / "checkpoint"), display=False)
        query = once.start(rows, trigger={"availableNow": True})
        if not query.awaitTermination(int(LIMIT_S)):
            raise TimeoutError(f"The query did not end within {LIMIT_S:.0f} s.")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(once.calls.table())
    console.print(f"CPU of the thread, median of {len(once.cpu_ms)} batches: {median(once.cpu_ms):.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
