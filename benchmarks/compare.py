"""Compares two commits, which take turns on the same machine.

    python3 dev.py run python benchmarks/compare.py HEAD~1 [HEAD] [--load "made, 100 B"] [--rounds 5]

Each commit runs in a separate process, with a separate broker and Spark, and with its own benchmarks. In each round,
both run once, one after the other. Prints the ratios within the rounds, also of the CPU. Without a second commit, the
first one is compared with the files in this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
_END_WITHIN_S = 60.0


def main() -> int:
    given = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raise SystemExit, so that the context managers clean up
    console = Console(width=None if sys.stdout.isatty() else 120)
    with ExitStack() as stack:
        clones = [stack.enter_context(_clone(commit)) for commit in given.commits]
        sides = [stack.enter_context(_measuring(clone)) for clone in clones]
        found: list[list[dict[str, Any]]] = [[], []]
        for number in range(-1, given.rounds):  # the first round warms the compilers
            for side in (0, 1) if number % 2 else (1, 0):
                run = _ask(sides[side], {"load": given.load, "variant": given.variant})
                if number >= 0:
                    found[side].append(run)
                console.print(f"round {number + 1}  {given.commits[side]:12} {run['rows_per_s']:,.0f} rows/s")
    console.print(_table(given, found))
    return 0


@contextmanager
def _clone(commit: str) -> Iterator[Path]:
    """Yields a folder with the project as of a commit; this folder for an empty commit."""
    if not commit:
        yield HERE.parent
        return
    with tempfile.TemporaryDirectory(prefix="sparkonce-compare-") as folder:
        place = Path(folder) / "clone"
        subprocess.run(["git", "-C", str(HERE), "worktree", "add", "--detach", "--quiet", place, commit], check=True)
        try:
            yield place
        finally:
            subprocess.run(["git", "-C", str(HERE), "worktree", "remove", "--force", place], check=True)


@contextmanager
def _measuring(clone: Path) -> Iterator[subprocess.Popen[str]]:
    sources = [clone / "src", *clone.glob("packages/*/src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))}
    command = [sys.executable, str(clone / "benchmarks" / "compare.py"), "--answer"]
    child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        if child.stdin is not None:
            child.stdin.close()
        child.wait(_END_WITHIN_S)


def _ask(child: subprocess.Popen[str], what: dict[str, str]) -> dict[str, Any]:
    if child.stdin is None or child.stdout is None:
        raise RuntimeError("The measuring process has no pipes.")
    child.stdin.write(json.dumps(what) + "\n")
    child.stdin.flush()
    for line in child.stdout:
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    raise RuntimeError("The measuring process has ended.")


def _answer() -> int:
    """Runs one commit, and takes a measurement for each line that it is sent."""
    import sparkonce
    import throughput
    from bench import Variant, machine
    from run import LOADS

    print(f"measuring {sparkonce.__file__}", file=sys.stderr)
    with machine() as bench:
        for line in sys.stdin:
            asked = json.loads(line)
            load = next(one for one in LOADS if one.name == asked["load"])
            variant = next(one for one in Variant if one.letter == asked["variant"])
            print(json.dumps(throughput.measure(bench, variant, load)), flush=True)
    return 0


def _table(given: argparse.Namespace, found: list[list[dict[str, Any]]]) -> Table:
    table = Table(title=f"({given.variant}) {given.load}: {given.commits[1] or 'as it is'} to {given.commits[0]}")
    for name in ("", "median of the ratios", "lowest", "highest"):
        table.add_column(name)
    for measure in ("rows_per_s", "cpu_us_per_row", "add_batch_ms"):
        ratios = [new[measure] / old[measure] for old, new in zip(*found, strict=True)]
        table.add_row(measure, *(f"{value:.3f}" for value in (median(ratios), min(ratios), max(ratios))))
    return table


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="benchmarks/compare.py"
    )
    parser.add_argument("commits", nargs="+", help="one or two commits")
    parser.add_argument("--load", default="made, 100 B", help="a load of benchmarks/run.py")
    parser.add_argument("--variant", default="d", help="the variant's letter in benchmarks/run.py")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if len(given.commits) > 2:
        parser.error("Give one or two commits.")
    given.commits = (*given.commits, "")[:2]
    return given


if __name__ == "__main__":
    sys.exit(_answer() if sys.argv[1:] == ["--answer"] else main())
