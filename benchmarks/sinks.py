"""The common parts of the benchmarks of sinks: a Spark session, a source, contenders that take turns, and a table.

A contender starts its query, and counts the rows that its target contains after that. All contenders get the same
stream: a folder of Parquet files, with a fixed number of files per batch. They take turns in every round, so that
changes in the machine's speed favor none of them. Ratios are computed within a round, and the result is their median
over the rounds.

    from sinks import Contender, Load, compare, machine

    with machine(Load()) as on:
        compare(on, [Contender(name="ours", start=…, count=…), Contender(name="spark's", start=…, count=…)])

``start(rows, folder)`` starts the query on a streaming DataFrame, with its checkpoint in ``folder / "checkpoint"``, and
returns Spark's `StreamingQuery`. ``count(folder)`` returns the number of rows that a reader of the target sees. Each
run has a new folder, which is deleted after the run.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from processes import daemons, end_workers, memory_mib, workers
from session import CORES, session, stderr_into

POLL_S = 0.25
"""The interval between polls of the progress, in seconds. Polls cost CPU that the contenders need."""
LIMIT_S = 600.0
NOTE_BYTES = 84

_progress = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The amount of data for each contender.

    Attributes:
        file_rows: The number of rows in a source file.
        files: The number of source files in a batch. Spark may read several of them in one slot.
        warm: The number of batches at the start of every run that do not count.
        measured: The number of batches that count.
        columns: The columns of `make_source` that the rows have; empty for all of them.
        note_bytes: The approximate length of a row's text; 0 for a length that makes rows of about 120 bytes.
        slots: The number of slots that write a batch; 0 for Spark's default.
    """

    file_rows: int = 100_000
    files: int = 4
    warm: int = 2
    measured: int = 5
    columns: tuple[str, ...] = ()
    note_bytes: int = 0
    slots: int = 0

    @property
    def batch_rows(self) -> int:
        """The number of rows in a batch."""
        return self.file_rows * self.files

    @property
    def batches(self) -> int:
        """The number of batches: one more than counts, because its start ends the pause after the last one."""
        return self.warm + self.measured + 1


ONE_SLOT = Load(file_rows=1_000_000, files=1, warm=0, measured=1, note_bytes=1024, slots=1)
"""A million rows of 1 KB in one slot, to measure the memory of its worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to write the rows.

    Attributes:
        name: The name in the table.
        start: Starts the query on the rows. All of its files go to the folder.
        count: Returns the number of rows that a reader of the target sees after the query has ended.
        clean: Empties a target that is not in the folder.
    """

    name: str
    start: Callable[[DataFrame, Path], StreamingQuery]
    count: Callable[[Path], int]
    clean: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The objects that every run uses."""

    spark: SparkSession
    folder: Path
    load: Load
    jvm_pid: int
    server_pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The results of one run of a contender.

    Attributes:
        rows_per_s: The rate in steady state, over the measured batches including all pauses between them.
        cpu_us_per_row: The CPU time per row of Spark's process and its Python workers, over the whole run.
        server_us_per_row: The CPU time per row of the target's server, over the whole run; 0 if it is not measured.
        worker_mib: The peak memory of any Python worker; 0 if there was none.
        batch_ms: The median duration of the measured batches, according to Spark's phases.
    """

    rows_per_s: float
    cpu_us_per_row: float
    server_us_per_row: float
    worker_mib: float
    batch_ms: dict[str, float] = field(default_factory=dict)

    @property
    def all_us_per_row(self) -> float:
        """The CPU time per row of all processes. On a busy machine, its ratio varies less than that of the rates."""
        return self.cpu_us_per_row + self.server_us_per_row


@contextmanager
def machine(
    load: Load, *, jars: Sequence[Path] = (), conf: dict[str, str] | None = None, server_pid: int | None = None
) -> Iterator[Machine]:
    """Starts Spark and creates the source. When the block ends, stops Spark and deletes everything.

    The CPU of a server process is shown separately from Spark's, because both share the cores of this machine.
    """
    folder = Path(tempfile.mkdtemp(prefix="sparkonce-bench-"))
    spark = None
    try:
        with stderr_into(folder / "spark.log"):
            spark = session(folder, jars, conf)
        make_source(spark, folder / "source", load)
        jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
        yield Machine(spark=spark, folder=folder, load=load, jvm_pid=jvm, server_pid=server_pid)
    finally:
        try:
            if spark is not None:
                spark.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def make_source(spark: SparkSession, folder: Path, load: Load) -> None:
    """Creates the files of all batches, with about 120 bytes per row. Files after the first batch are hard links."""
    note = F.concat(F.sha2(F.col("id").cast("string"), 256), F.lit(" paid at the counter"))
    rows = spark.range(load.batch_rows, numPartitions=load.files).select(
        "id",
        F.concat(F.lit("key-"), (F.col("id") % 10_007).cast("string")).alias("key"),
        (F.col("id") % 100).cast("int").alias("part"),
        (F.rand(7) * 1000).alias("amount"),
        F.timestamp_micros(F.lit(1_700_000_000_000_000) + F.col("id") * 1000).alias("at"),
        F.repeat(note, max(1, load.note_bytes // NOTE_BYTES)).alias("note"),
    )
    first = folder.with_name("first")
    rows.write.parquet(str(first))
    folder.mkdir()
    for number in range(load.batches):
        for part, path in enumerate(sorted(first.glob("*.parquet"))):
            (folder / f"{number:04}-{part:02}.parquet").hardlink_to(path)


def measure(on: Machine, contender: Contender) -> Run:
    """Runs one contender through its warm-up and measured batches, and counts the rows in its target.

    Raises:
        RuntimeError: If the query fails, or if the target does not contain every row exactly once.
    """
    folder = on.folder / f"run-{time.time_ns()}"
    folder.mkdir()
    end_workers(on.jvm_pid)
    rows = _stream(on)
    cpu_before, server_before = _cpu_s(on.jvm_pid), _server_cpu_s(on)
    try:
        query = contender.start(rows, folder)
        try:
            _wait(query, on.load.batches - 1)
            peak = max((memory_mib(worker.pid, "VmHWM") for worker in workers(on.jvm_pid)), default=0.0)
            progress = {one["batchId"]: one for one in query.recentProgress}
        finally:
            query.stop()
        cpu_s, server_s = _cpu_s(on.jvm_pid) - cpu_before, _server_cpu_s(on) - server_before
        found, wanted = contender.count(folder), on.load.batch_rows * on.load.batches
        if found != wanted:
            raise RuntimeError(f"{contender.name}: {wanted} rows were written, and a reader sees {found}")
    finally:
        contender.clean()
        shutil.rmtree(folder, ignore_errors=True)
    return _summary(on.load, progress, cpu_s, server_s, peak)


def compare(
    on: Machine, contenders: Sequence[Contender], *, rounds: int = 3, warming: bool = True
) -> dict[str, list[Run]]:
    """Runs all contenders in turn, round by round, and prints the table. The others are compared with the last one.

    An additional first round does not count, because the JVM gets faster with every query, which favors later ones.
    Without that round, compare only memory.
    """
    found: dict[str, list[Run]] = {contender.name: [] for contender in contenders}
    for number in range(-1 if warming else 0, rounds):
        first = number % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            run = measure(on, contender)
            _progress.print(
                f"{'warming' if number < 0 else f'round {number + 1}'}  {contender.name:32} "
                f"{run.rows_per_s:>10,.0f} rows/s  {run.cpu_us_per_row:.2f} CPU µs/row  "
                f"{run.server_us_per_row:.2f} of the server  {run.worker_mib:.0f} MiB"
            )
            if number >= 0:
                found[contender.name].append(run)
    _show(on.load, found, contenders[-1].name)
    return found


def _show(load: Load, found: dict[str, list[Run]], reference: str) -> None:
    rounds = len(found[reference])
    table = Table(
        title=f"{load.measured} batches of {load.batch_rows:,} rows, {CORES} cores, medians of {rounds} rounds"
    )
    table.add_column("", no_wrap=True)
    for name in (
        "rows/s",
        f"of {reference}",
        "lowest to highest",
        "the same by CPU",
        "lowest to highest",
        "CPU µs/row",
        "server's",
        "worker MiB",
        "addBatch ms",
    ):
        table.add_column(name, justify="right")
    for name, runs in found.items():
        pairs = list(zip(runs, found[reference], strict=True))
        ratios = [one.rows_per_s / other.rows_per_s for one, other in pairs]
        by_cpu = [other.all_us_per_row / one.all_us_per_row for one, other in pairs]
        table.add_row(
            name,
            f"{median(run.rows_per_s for run in runs):,.0f}",
            f"{median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            f"{median(by_cpu):.2f}",
            f"{min(by_cpu):.2f} to {max(by_cpu):.2f}",
            f"{median(run.cpu_us_per_row for run in runs):.2f}",
            f"{median(run.server_us_per_row for run in runs):.2f}",
            f"{max(run.worker_mib for run in runs):.0f}",
            f"{median(run.batch_ms.get('addBatch', 0.0) for run in runs):.0f}",
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _stream(on: Machine) -> DataFrame:
    source = str(on.folder / "source")
    schema = on.spark.read.parquet(source).schema
    rows = on.spark.readStream.schema(schema).option("maxFilesPerTrigger", on.load.files).parquet(source)
    rows = rows.select(*on.load.columns) if on.load.columns else rows
    return rows.coalesce(on.load.slots) if on.load.slots else rows


def _wait(query: StreamingQuery, batch: int) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while (last := query.lastProgress) is None or last["batchId"] < batch:
        if not query.isActive:
            raise RuntimeError(f"the query ended: {query.exception()}")
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"batch {batch} was not done within {LIMIT_S:.0f} s")
        time.sleep(POLL_S)


def _summary(load: Load, progress: dict[int, Any], cpu_s: float, server_s: float, worker_mib: float) -> Run:
    batches = [progress[number] for number in range(load.warm, load.warm + load.measured)]
    seconds = _began_s(progress[load.warm + load.measured]) - _began_s(batches[0])
    names = {name for one in batches for name in one["durationMs"]}
    return Run(
        rows_per_s=load.batch_rows * load.measured / seconds,
        cpu_us_per_row=cpu_s / (load.batch_rows * load.batches) * 1e6,
        server_us_per_row=server_s / (load.batch_rows * load.batches) * 1e6,
        worker_mib=worker_mib,
        batch_ms={name: median(one["durationMs"].get(name, 0) for one in batches) for name in names},
    )


def _began_s(progress: Any) -> float:
    return datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()


def _server_cpu_s(on: Machine) -> float:
    """Returns the server's CPU seconds, including its child processes, such as PostgreSQL's for each connection."""
    if on.server_pid is None:
        return 0.0
    server = psutil.Process(on.server_pid)
    return sum(_used_s(process) for process in (server, *server.children(recursive=True)))


def _cpu_s(jvm_pid: int) -> float:
    spark = psutil.Process(jvm_pid)
    python = (*daemons(jvm_pid), *workers(jvm_pid))
    return _used_s(spark, ended=False) + sum(_used_s(process) for process in python)


def _used_s(process: psutil.Process, *, ended: bool = True) -> float:
    """Returns the CPU seconds of a process, including its children that have ended."""
    try:
        times = process.cpu_times()
    except psutil.Error:  # the process has ended, and its CPU time now counts toward its parent's
        return 0.0
    used = times.user + times.system
    return float(used + times.children_user + times.children_system if ended else used)
