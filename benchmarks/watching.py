"""Measures the cost of observing a batch: its phases, figures, timeline and display, on a driver without Spark.

    python3 dev.py run python benchmarks/watching.py [--batches 2000]

Runs each batch twice, without a listener and with the one that `ExactlyOnce` uses. The sink is in memory, and the log
is on disk. Measures the CPU time of the thread that runs the batches. The difference is the cost of observing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

from sparkonce.decision_log import DecisionLog
from sparkonce.driver.run import RunDriver
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.sink import Owner, WriterContext
from sparkonce.sinks.memory import MemoryServer, MemorySink
from sparkonce.storage.local import LocalFiles
from sparkonce.watch.listener import QueryListener

QUERY = "7f6e5d4c-0000-4000-8000-000000000001"
SLOTS = 4


def main() -> int:
    batches = _parse().batches
    with tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as folder:
        bare, watched = (
            _Query(Path(folder, "bare"), None),
            _Query(Path(folder, "watched"), QueryListener(display=False)),
        )
        took = [(bare.cpu_ms(batch), watched.cpu_ms(batch)) for batch in range(batches)]
        bare.close()
        watched.close()
    table = Table("CPU per batch", "median", "10 %", "90 %")
    without, with_it = zip(*took[batches // 10 :], strict=True)
    differences = [more - less for less, more in zip(without, with_it, strict=True)]
    for name, values in (("not watched", without), ("watched", with_it), ("difference", differences)):
        tenths = quantiles(values, n=10)
        table.add_row(name, *(f"{value:.3f} ms" for value in (median(values), tenths[0], tenths[-1])))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0


class _Query:
    """A query without Spark."""

    def __init__(self, folder: Path, listener: QueryListener | None) -> None:
        folder.mkdir()
        self._sink, self._listener = MemorySink(MemoryServer(), timeout_s=900.0), listener
        log = DecisionLog(LocalFiles(folder))
        self._driver = RunDriver(run="r1", query=QUERY, sinks={"memory": self._sink}, log=log, listener=listener)
        if listener is not None:
            listener.begin_run(QUERY, "r1", self._driver, LocalFiles(folder))

    def cpu_ms(self, batch: int) -> float:
        """Runs a batch, and returns the CPU time of this thread, in milliseconds."""
        asked = BatchAsked(batch=batch, offsets=_offsets(batch), previous_offsets=_offsets(batch - 1) or None)
        began_s = time.thread_time()
        done = self._driver.run_batch(asked, _Work(self._sink))
        if self._listener is not None:
            self._listener.committed(done)
        return 1000 * (time.thread_time() - began_s)

    def close(self) -> None:
        self._driver.close()
        if self._listener is not None:
            self._listener.end_run("r1")


def _offsets(batch: int) -> tuple[str, ...]:
    return (f'{{"t":{{"0":{batch}}}}}',) if batch >= 0 else ()


class _Work:
    """Prepares transactions without rows."""

    def __init__(self, sink: MemorySink) -> None:
        self._sink = sink

    def write(
        self,
        sinks: Mapping[str, Owner],
        only: frozenset[tuple[str, int]] | None,  # noqa: ARG002 - every slot is written
        computed: Callable[[], None] | None = None,  # noqa: ARG002 - there are no rows to compute
    ) -> tuple[Sequence[Handle], bool]:
        return [_prepared(self._sink, owner, slot) for owner in sinks.values() for slot in range(SLOTS)], False

    def run_into_nothing(self) -> None:
        pass

    def is_stopped(self) -> bool:
        return False


def _prepared(sink: MemorySink, owner: Owner, slot: int) -> Handle:
    writer = sink.writer(WriterContext(owner=owner, batch=0, slot=slot, copy=f"1.{slot}.0"))
    opened_ms = time.time_ns() // 1_000_000
    writer.begin()
    return Handle(sink=sink.name, slot=slot, opened_ms=opened_ms, transaction=transaction_fields(writer.prepare()))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="benchmarks/watching.py"
    )
    parser.add_argument("--batches", type=int, default=2000)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
