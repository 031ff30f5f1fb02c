"""Measures the cost of exactly-once, compared with Spark's own Kafka sink, on this machine.

    python3 dev.py run python benchmarks/run.py [--quick] [--only throughput|latency|memory] [--rounds 3]
        [--load "topic, 100 B"] [--variant bde]

Starts a broker and a Spark. The variants take turns in every round, so that changes in the machine's speed favor none
of them. Ratios are computed within a round, and the result is their median over the rounds. Prints tables, and writes
everything to ``benchmarks/results/<commit>.json`` (or ``--output``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

import flink
import latency
import memory
import throughput
from bench import Bench, Variant, machine
from loads import Load, filled
from report import FEW_ROWS, paired, show, targets
from session import CORES, PARTITIONS

KINDS = ("throughput", "latency", "memory")
LOADS = (
    Load(name="made, 100 B", row_bytes=100, batch_rows=2_000_000, warm=2, measured=5),
    Load(name="made, 200 rows", row_bytes=100, batch_rows=200, warm=60, measured=40),
    Load(name="topic, 200 rows", row_bytes=100, batch_rows=200, warm=60, measured=40, shape="values"),
    Load(name="made, 1 KB", row_bytes=1000, batch_rows=300_000, warm=2, measured=5),
    Load(name="topic, 100 B", row_bytes=100, batch_rows=2_000_000, warm=2, measured=5, shape="values"),
    Load(name="topic, 1 KB", row_bytes=1000, batch_rows=300_000, warm=2, measured=5, shape="values"),
    Load(name="keys, 100 B", row_bytes=100, batch_rows=2_000_000, warm=2, measured=5, shape="keys"),
    Load(name="lz4, 100 B", row_bytes=100, batch_rows=2_000_000, warm=2, measured=5, shape="values", compression="lz4"),
    Load(name="windows, 100 B", row_bytes=100, batch_rows=2_000_000, warm=2, measured=5, shape="windows"),
)
"""The loads: rows that Spark generates; batches so small that only fixed costs matter; topics with and without keys and
compression; and sums of windows."""

MOST_WARM_RUNS, COMPILERS_REST = 4, 0.03
"""A variant is warm once compilers take less than this share of a run's time. The first value limits the runs."""
MOST_ROUNDS, STABLE = 3, 0.01
"""Rounds are added, up to this factor, until the median ratios change by less than this share."""
TRIGGERS_MS = (1000, 200)
# The bytes of a row, and the rows of a batch.
SIZES = ((100, 250_000), (100, 1_000_000), (100, 4_000_000), (100_000, 16_000), (1_000_000, 800))
QUICK_SIZES = ((100, 1_000_000), (100_000, 4_000))

_progress = Console(stderr=True)


def main() -> int:
    given = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raise SystemExit, so that the context managers clean up
    results: dict[str, Any] = {"machine": _machine(), "quick": given.quick, "rounds": given.rounds}
    try:
        with machine() as bench:
            results["machine"]["files"] = tempfile.gettempdir()
            for kind in given.only:
                _MEASURE[kind](bench, given, results)
    except KeyboardInterrupt:
        _progress.print("stopped; nothing is written")
        return 130
    claims = targets(results)
    results["targets"] = [asdict(claim) for claim in claims]
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(results, indent=1))
    show(Console(width=None if sys.stdout.isatty() else 140), results, claims)
    _progress.print(f"written to {given.output}")
    return 0


def _measure_throughput(bench: Bench, given: argparse.Namespace, results: dict[str, Any]) -> None:
    runs = results["throughput"] = []
    for load in given.load:
        with _measures(bench, given, load) as measures:
            for variant, measure in measures.items():
                _warm(variant, load, measure)
            number = 0
            while measures and (number < given.rounds or not (given.quick or _is_stable(runs, load, number, given))):
                for variant in _in_turn(number, tuple(measures)):
                    found = measures[variant]()
                    named = {"round": number, "variant": variant.letter, "load": load.name}
                    runs.append({**named, **asdict(load), **found})
                    _tell(number, variant, f"{load.name}: {found['rows_per_s']:,.0f} rows/s")
                number += 1


def _warm(variant: Variant, load: Load, measure: Callable[[], dict[str, Any]]) -> None:
    """Runs a variant until the compilers of Spark's JVM are idle.

    Flink's JVM does not report its compilers, so it runs the maximum number of times.
    """
    for _ in range(MOST_WARM_RUNS):
        found = measure()
        compiling = found.get("compiling", 1.0)
        _progress.print(
            f"warming  ({variant.letter}) {load.name}: {found['rows_per_s']:,.0f} rows/s, compiling {compiling:.0%}",
            highlight=False,
        )
        if compiling < COMPILERS_REST:
            return


def _is_stable(runs: list[dict[str, Any]], load: Load, rounds: int, given: argparse.Namespace) -> bool:
    """Returns True if the last two rounds have changed no median ratio by more than `STABLE`, or at the last round."""
    measure = "add_batch_ms" if load.batch_rows < FEW_ROWS else "rows_per_s"
    own = [run for run in runs if run["load"] == load.name and measure in run]
    for one, other in combinations([variant.letter for variant in given.variant], 2):
        ratios = paired(own, measure, one, other, lambda x, y: x / y)
        if len(ratios) > 2 and abs(median(ratios) / median(ratios[:-2]) - 1) > STABLE:
            return rounds >= MOST_ROUNDS * given.rounds
    return True


@contextmanager
def _measures(
    bench: Bench, given: argparse.Namespace, load: Load
) -> Iterator[dict[Variant, Callable[[], dict[str, Any]]]]:
    """Yields a function that measures each variant. Flink, which has a separate JVM, and Spark's source read topics."""
    found = {
        variant: partial(throughput.measure, bench, variant, load)
        for variant in given.variant
        if variant is not Variant.FLINK and (variant is not Variant.PLAIN or load.shape != "generated")
    }
    if Variant.FLINK not in given.variant or load.shape == "generated":
        yield found
        return
    with flink.pipeline(bench, load, filled(bench, load)) as run:
        yield {**found, Variant.FLINK: run}


def _measure_latency(bench: Bench, given: argparse.Namespace, results: dict[str, Any]) -> None:
    runs = results["latency"] = []
    warm_s, measured_s = (4, 8) if given.quick else (8, 25)
    for number in range(given.rounds):
        for trigger_ms in TRIGGERS_MS:
            for variant in _in_turn(number, (Variant.SPARK, Variant.EXACTLY_ONCE, Variant.PLAIN)):
                found = latency.measure(bench, variant, trigger_ms, warm_s=warm_s, measured_s=measured_s)
                runs.append({"round": number, "variant": variant.letter, "trigger_ms": trigger_ms, **found})
                _tell(number, variant, f"{trigger_ms} ms: p50 {found['p50_ms']:.0f} ms, p99 {found['p99_ms']:.0f} ms")


def _measure_memory(bench: Bench, given: argparse.Namespace, results: dict[str, Any]) -> None:
    idle = results["idle_worker_mib"] = memory.idle_mib(bench)
    runs = results["memory"] = []
    for row_bytes, batch_rows in QUICK_SIZES if given.quick else SIZES:
        found = memory.measure(bench, row_bytes, batch_rows, idle)
        runs.append(found)
        _tell(0, Variant.EXACTLY_ONCE, f"{batch_rows:,} rows of {row_bytes:,} B: {found['extra_mib']:.0f} MiB extra")


_MEASURE = {"throughput": _measure_throughput, "latency": _measure_latency, "memory": _measure_memory}


def _in_turn(number: int, variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
    """Returns the variants in an order that rotates with every round, so that none always follows the same one."""
    first = number % len(variants)
    return variants[first:] + variants[:first]


def _tell(number: int, variant: Variant, what: str) -> None:
    _progress.print(f"round {number + 1}  ({variant.letter}) {variant.value:24} {what}", highlight=False)


def _machine() -> dict[str, Any]:
    names = ("sparkonce", "pyspark", "pyarrow", "confluent-kafka")
    return {
        "commit": _commit(),
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "spark_cores": CORES,
        "partitions": PARTITIONS,
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def _commit() -> str:
    """Returns the commit, with a suffix if there are uncommitted changes."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="benchmarks/run.py"
    )
    parser.add_argument("--quick", action="store_true", help="shorter runs and one round, to check that it works")
    parser.add_argument("--only", action="append", choices=KINDS, help="one kind of measurement; may be repeated")
    names, letters = {load.name: load for load in LOADS}, {variant.letter: variant for variant in Variant}
    parser.add_argument("--load", action="append", choices=tuple(names), help="one load; may be repeated")
    parser.add_argument("--variant", default="abcdef", help="letters of the variants to compare in throughput")
    parser.add_argument("--rounds", type=int, help="the minimum number of rounds; 3 by default")
    parser.add_argument("--output", type=Path, help="benchmarks/results/<commit>.json by default")
    given = parser.parse_args()
    if unknown := set(given.variant) - letters.keys():
        parser.error(f"--variant={given.variant}: there is no variant {sorted(unknown)}; there are {sorted(letters)}.")
    given.variant = tuple(letters[letter] for letter in dict.fromkeys(given.variant))
    chosen = [names[name] for name in given.load or names]
    given.load = [
        replace(load, batch_rows=max(200, load.batch_rows // 4), measured=2) if given.quick else load for load in chosen
    ]
    given.output = given.output or Path(__file__).parent / "results" / f"{_commit()}.json"
    given.only = given.only or KINDS
    given.rounds = given.rounds or (1 if given.quick else 3)
    return given


if __name__ == "__main__":
    sys.exit(main())
