"""Keeps what each test and each fixture took, as a file for each run, and sums it.

``pytest --timings=FILE`` writes a line of JSON for each test's set-up, call and tear-down, and for each fixture, in the
process that had it. ``python3 dev.py test`` keeps them in ``.timings/first.jsonl`` (``all.jsonl``, ``long.jsonl``)::

    python3 dev.py timings                   the last run of the first tier, summed, and what changed
    python3 dev.py timings all               that of ``--all``
    python3 dev.py timings first --mutants   which test catches which mutant, and how long it takes
    python3 dev.py timings first --keep      writes the sums into tests/timings.csv, which is committed; with --mutants
                                             these into tests/mutants.csv

A second here is a second of one worker, of which three work side by side.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
RUNS = HERE.parent / ".timings"
KEPT = HERE / "timings.csv"
KEPT_MUTANTS = HERE / "mutants.csv"
TIERS = ("first", "all", "long")
DEAREST = 10

MUTANTS = (
    ("protocol", "model/test_mutants.py::test_a_broken_rule_is_found"),
    ("simulation", "simulation/test_mutants.py::test_a_wrong_rule_is_found_made_small_and_found_again"),
    ("verifier", "verifying/test_verifier.py::test_a_broken_sparkonce_is_caught"),
    ("crash matrix", "crashes/test_matrix_catches.py::"),
    ("conformance", "conformance/test_suite_catches.py::"),
)
"""Where sparkonce, or a sink, is broken on purpose, and a test sees it caught."""


# --- kept by a run ----------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--timings", metavar="FILE", help="write what each test and fixture took, as lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--timings"):
        config.pluginmanager.register(_Recorder(Path(path), config), "sparkonce-timings")


class _Recorder:
    """Writes a file for each process, and makes one of them in the process that reports."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self._path = path
        worker = config.workerinput["workerid"] if hasattr(config, "workerinput") else ""
        self._is_worker = bool(worker)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._is_worker:
            for old in self._parts():
                old.unlink()
        self._file = path.with_name(f"{path.name}.{worker or 'main'}").open("w", buffering=1)
        self._shares_work = bool(getattr(config.option, "numprocesses", None)) and not self._is_worker

    def _parts(self) -> list[Path]:
        return sorted(self._path.parent.glob(f"{self._path.name}.*"))

    def _write(self, kind: str, name: str, seconds: float, **more: str) -> None:
        self._file.write(json.dumps({"kind": kind, "name": name, "seconds": round(seconds, 4), **more}) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self._shares_work:
            self._write(report.when or "", without_group(report.nodeid), report.duration)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[None]:
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            self._write("fixture", fixturedef.argname, time.perf_counter() - began)

    def pytest_sessionfinish(self) -> None:
        self._file.close()
        if not self._is_worker:
            parts = self._parts()
            self._path.write_text("".join(part.read_text() for part in parts))
            for part in parts:
                part.unlink()


def without_group(node: str) -> str:
    """Returns a test's id without the group that xdist has put behind it."""
    return node[: node.rfind("@")] if node.rfind("@") > node.rfind("]") else node


# --- summed -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Test:
    """One test of a run: its file below tests/, its name with its parameters, its seconds."""

    file: str
    name: str
    seconds: float

    @property
    def folder(self) -> str:
        return self.file.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Holds what a run has kept."""

    tests: tuple[Test, ...]
    fixtures: Counter[str]

    @classmethod
    def read(cls, path: Path) -> Recorded:
        seconds: dict[str, float] = defaultdict(float)
        fixtures: Counter[str] = Counter()
        for line in path.read_text().splitlines():
            one = json.loads(line)
            if one["kind"] == "fixture":
                fixtures[one["name"]] += one["seconds"]
            else:
                seconds[one["name"]] += one["seconds"]
        return cls(tuple(_test(node, took) for node, took in seconds.items()), fixtures)

    def sums(self, key: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for test in self.tests:
            found[getattr(test, key)] += test.seconds  # type: ignore[assignment]
        return found


def _test(node: str, seconds: float) -> Test:
    path, _, name = node.partition("::")
    return Test(path.removeprefix("tests/"), name, seconds)


def harness(test: Test) -> str:
    """Returns what a test looks at the product with; see tests/README.md."""
    if test.folder != "spark":
        return test.folder
    path = HERE / test.file
    in_process = path.exists() and "spark: SparkSession" in path.read_text()
    return "spark, in this process" if in_process else "spark, killed"


def summary(run: Recorded, kept: dict[str, dict[str, float]], tier: str) -> str:
    """Returns the tables of a run: by folder, harness and file, and the ten dearest of each kind."""
    by_harness: Counter[str] = Counter()
    for test in run.tests:
        by_harness[harness(test)] += test.seconds  # type: ignore[assignment]
    total = sum(test.seconds for test in run.tests)
    lines = [f"{len(run.tests):,} tests, {total:,.0f} s of workers"]
    lines += _table("folder", run.sums("folder").most_common())
    lines += _table("harness", by_harness.most_common())
    lines += _table("file", run.sums("file").most_common(DEAREST))
    lines += _table("fixture", run.fixtures.most_common(DEAREST))
    dearest = sorted(run.tests, key=lambda test: -test.seconds)[:DEAREST]
    lines += _table("test", [(f"{test.file}::{test.name}", test.seconds) for test in dearest])
    before = {file: row[tier] for file, row in kept.items() if row.get(tier)}
    if before:
        now = run.sums("file")
        changes = {file: now[file] - before.get(file, 0.0) for file in {*now, *before}}
        lines.append(
            f"\nagainst {KEPT.name}: {sum(before.values()):,.0f} s before, {total:,.0f} now; what changed most"
        )
        dearest_changes = sorted(changes.items(), key=lambda one: -abs(one[1]))[:DEAREST]
        lines += [f"{seconds:+9.1f}  {file}" for file, seconds in dearest_changes]
    return "\n".join(lines)


def _table(head: str, rows: Iterable[tuple[str, float]]) -> list[str]:
    return [f"\n{'seconds':>9}  {head}", *(f"{seconds:9.1f}  {name}" for name, seconds in rows)]


def mutants(run: Recorded) -> list[dict[str, str]]:
    """Returns a row for each mutant of which a test says that it is caught: what is broken, by which test, seconds."""
    rows = []
    for what, start in MUTANTS:
        for test in run.tests:
            if f"{test.file}::{test.name}".startswith(start):
                function, _, mutant = test.name.removesuffix("]").partition("[")
                if mutant:
                    by = f"{test.file}::{function}"
                    rows.append({"broken": what, "mutant": mutant, "caught by": by, "seconds": f"{test.seconds:.1f}"})
    return rows


def keep_mutants(run: Recorded, path: Path = KEPT_MUTANTS) -> None:
    """Writes the mutants of a run, beside what they took before there were tiers."""
    before = {}
    if path.exists():
        with path.open(newline="") as lines:
            before = {(row["broken"], row["mutant"]): row["before"] for row in csv.DictReader(lines)}
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, ["broken", "mutant", "caught by", "before", "seconds"], lineterminator="\n")
        writer.writeheader()
        for row in mutants(run):
            writer.writerow({**row, "before": before.get((row["broken"], row["mutant"]), "")})


def read_kept(path: Path = KEPT) -> dict[str, dict[str, float]]:
    """Returns the committed seconds of each file by tier; nothing if there are none."""
    if not path.exists():
        return {}
    with path.open(newline="") as lines:
        return {
            row["file"]: {tier: float(row[tier]) for tier in TIERS if row.get(tier)} for row in csv.DictReader(lines)
        }


def keep(run: Recorded, tier: str, path: Path = KEPT) -> None:
    """Writes a run's seconds by file beside those of the other tiers."""
    kept, now = read_kept(path), run.sums("file")
    rows = {file: {**kept.get(file, {}), tier: now[file]} for file in {*kept, *now} if (HERE / file).exists()}
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, ["file", *TIERS], lineterminator="\n")
        writer.writeheader()
        for file in sorted(rows):
            writer.writerow({"file": file, **{name: f"{seconds:.1f}" for name, seconds in rows[file].items()}})


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py timings", description="Sums what the tests of a run took.")
    parser.add_argument("run", nargs="?", default="first", help="first, all, long, or a file")
    parser.add_argument("--mutants", action="store_true", help="which test catches which mutant")
    parser.add_argument("--keep", action="store_true", help=f"write {KEPT.name}, or {KEPT_MUTANTS.name}")
    given = parser.parse_args(arguments)
    path = RUNS / f"{given.run}.jsonl" if given.run in TIERS else Path(given.run)
    if not path.exists():
        print(f"There is no {path}. Run the tests first: python3 dev.py test.")  # noqa: T201
        return 2
    run, tier = Recorded.read(path), path.stem if path.stem in TIERS else "first"
    if given.mutants:
        print("\n".join("  ".join(row.values()) for row in mutants(run)))  # noqa: T201
    else:
        print(summary(run, read_kept(), tier))  # noqa: T201
    if given.keep:
        keep_mutants(run) if given.mutants else keep(run, tier)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
