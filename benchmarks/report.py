"""Compares the measured values with the targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import Variant
from processes import KINDS

Runs = list[dict[str, Any]]
FEW_ROWS = 10_000
"""Batches with fewer rows are measured by their time instead of their rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A claim about a measured value.

    Attributes:
        claim: The claim in words, with its bound.
        value: The median over the rounds.
        spread: The value of every round, which shows the noise.
        reached: True if the value is within the bound.
        unit: The unit of the value; empty for a ratio.
    """

    claim: str
    value: float
    spread: tuple[float, ...]
    reached: bool
    unit: str = ""


def targets(results: dict[str, Any]) -> list[Target]:
    """Returns every claim for which there are results."""
    found: list[Target] = []
    throughput, latency, memory = (results.get(name, []) for name in ("throughput", "latency", "memory"))
    for load in dict.fromkeys(run["load"] for run in throughput):
        runs = [run for run in throughput if run["load"] == load]
        small = runs[0]["row_bytes"] <= 100
        if runs[0]["batch_rows"] < FEW_ROWS:
            found += [
                _at_most(f"{load}: addBatch of (d) ≤ 1.7 of ({letter})", ratios, 1.7, "")
                for letter in "bf"
                if (ratios := paired(runs, "add_batch_ms", "d", letter, lambda d, other: d / other))
            ]
            continue
        spark, flink = (1.3, 0.65) if small else (1.2, 0.7)
        for letter, bound in (("b", spark), ("c", 0.98), ("e", flink), ("f", spark)):
            if ratios := paired(runs, "rows_per_s", "d", letter, lambda d, other: d / other):
                found.append(_at_least(f"{load}: (d) ≥ {bound} of ({letter}) in rows/s", ratios, bound))
        if commits := [run["phases_ms"]["finishing"] for run in runs if run["variant"] == "d"]:
            found.append(_at_most(f"{load}: commit of 4 transactions ≤ 50 ms", commits, 50.0, "ms"))
    for trigger in dict.fromkeys(run["trigger_ms"] for run in latency):
        runs = [run for run in latency if run["trigger_ms"] == trigger]
        found += [
            _at_most(f"trigger {trigger} ms: p50 of (d) ≤ ({letter}) + 40 ms", more, 40.0, "ms")
            for letter in "bf"
            if (more := paired(runs, "p50_ms", "d", letter, lambda d, other: d - other))
        ]
    if memory:
        extra = [run["extra_mib"] for run in memory]
        worst = _at_most("extra memory of a Python worker ≤ 300 MiB", extra, 300.0, "MiB")
        found.append(Target(**{**asdict(worst), "value": max(extra), "reached": max(extra) <= 300.0}))
    return found


def paired(
    runs: Runs, measure: str, left: str, right: str, compare: Callable[[float, float], float]
) -> tuple[float, ...]:
    """Returns one value per round. Compares only variants of the same round, because the machine's speed changes."""
    by = {(run["round"], run["variant"]): run[measure] for run in runs}
    rounds = sorted({number for number, _ in by})
    return tuple(compare(by[n, left], by[n, right]) for n in rounds if (n, left) in by and (n, right) in by)


def _at_least(claim: str, values: tuple[float, ...], bound: float) -> Target:
    return Target(claim=claim, value=median(values), spread=values, reached=median(values) >= bound)


def _at_most(claim: str, values: tuple[float, ...] | list[float], bound: float, unit: str) -> Target:
    middle = median(values)
    return Target(claim=claim, value=middle, spread=tuple(values), reached=middle <= bound, unit=unit)


def show(console: Console, results: dict[str, Any], claims: list[Target]) -> None:
    """Prints every table for which there are results."""
    for load in dict.fromkeys(run["load"] for run in results.get("throughput", [])):
        runs = [run for run in results["throughput"] if run["load"] == load]
        console.print(_throughput_table(load, runs), _phase_table(load, runs))
    if results.get("latency"):
        console.print(_latency_table(results["latency"]))
    if results.get("memory"):
        console.print(_memory_table(results))
    console.print(_target_table(claims))


def _throughput_table(load: str, runs: Runs) -> Table:
    table = Table(title=f"{load}: medians of the rounds; ratios are medians of paired rounds")
    table.add_column("", no_wrap=True)
    for name in ("rows/s", "of (a)", "of (b)", "of (c)", "of (e)", "of (f)", "CPU µs/row:", *KINDS):
        table.add_column(name, justify="right")
    for variant in Variant:
        own = [run for run in runs if run["variant"] == variant.letter]
        if not own:
            continue
        others = [paired(runs, "rows_per_s", variant.letter, other, lambda x, y: x / y) for other in "abcef"]
        table.add_row(
            f"({variant.letter}) {variant.value}",
            f"{median(run['rows_per_s'] for run in own):,.0f}",
            *(f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "" for ratios in others),
            f"{median(run['cpu_us_per_row'] for run in own):.2f}",
            *(f"{median(run['cpu_s'].get(kind, 0.0) / run['rows'] * 1e6 for run in own):.2f}" for kind in KINDS),
        )
    return table


def _phase_table(load: str, runs: Runs) -> Table:
    table = Table(title=f"{load}: median milliseconds of a batch's phases")
    table.add_column("", no_wrap=True)
    table.add_column("Spark's own", overflow="fold")
    table.add_column("sparkonce's, inside addBatch", overflow="fold")
    for variant in Variant:
        own = [run for run in runs if run["variant"] == variant.letter]
        if own:
            cells = (_phases([run[name] for run in own]) for name in ("spark_ms", "phases_ms"))
            table.add_row(f"({variant.letter}) {variant.value}", *cells)
    return table


def _phases(runs: list[dict[str, float]]) -> str:
    names = dict.fromkeys(name for run in runs for name in run)
    middles = {name: median(run.get(name, 0.0) for run in runs) for name in names}
    return ", ".join(f"{name} {middle:.0f}" for name, middle in middles.items() if middle >= 0.5)


def _latency_table(runs: Runs) -> Table:
    table = Table(title="milliseconds from produced to visible to a read_committed reader, medians of the rounds")
    for name in ("trigger", "", "p50", "p99", "commit"):
        table.add_column(name, justify="right" if name else "left")
    for key in dict.fromkeys((run["trigger_ms"], run["variant"]) for run in runs):
        own = [run for run in runs if (run["trigger_ms"], run["variant"]) == key]
        finishing = [run["finishing_ms"] for run in own if run["finishing_ms"] is not None]
        variant = next(one for one in Variant if one.letter == key[1])
        table.add_row(
            f"{key[0]} ms",
            f"({variant.letter}) {variant.value}",
            f"{median(run['p50_ms'] for run in own):,.0f}",
            f"{median(run['p99_ms'] for run in own):,.0f}",
            f"{median(finishing):,.0f}" if finishing else "",
        )
    return table


def _memory_table(results: dict[str, Any]) -> Table:
    table = Table(title=f"memory of a Python worker; an idle one has {results['idle_worker_mib']:.0f} MiB")
    for name in ("row bytes", "rows of a batch", "peak MiB", "extra MiB"):
        table.add_column(name, justify="right")
    for run in results["memory"]:
        cells = (f"{run['row_bytes']:,}", f"{run['batch_rows']:,}", f"{run['peak_mib']:.0f}", f"{run['extra_mib']:.0f}")
        table.add_row(*cells)
    return table


def _target_table(claims: list[Target]) -> Table:
    table = Table(title="what is to be reached")
    for name in ("claim", "measured", "lowest to highest", "reached"):
        table.add_column(name)
    for claim in claims:
        digits = 0 if claim.unit else 2
        low, high = (f"{value:.{digits}f}" for value in (min(claim.spread), max(claim.spread)))
        verdict = "[green]yes[/]" if claim.reached else "[red]no[/]"
        table.add_row(claim.claim, f"{claim.value:.{digits}f} {claim.unit}", f"{low} to {high}", verdict)
    return table
