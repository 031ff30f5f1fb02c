"""Draws a flame graph of the CPU that a query into Kafka uses, by process, thread and function.

    python3 dev.py run python benchmarks/flame.py [--bytes 100] [--variant d] [--output docs/images/flame-100.svg]

Runs the query of ``benchmarks/run.py`` until its compilers are idle, then records all processors with ``perf``
(Debian's ``linux-perf``, as root). Java's functions have names because both JVMs keep frame pointers and write a map of
their compiled code. Also prints a table of the shares.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

from rich.console import Console
from rich.table import Table

from bench import Bench, Variant, machine, running
from loads import generated
from processes import daemons, workers

BATCH_ROWS = {100: 2_000_000, 1000: 300_000}
WARM_BATCHES = 25
SECONDS, SAMPLES_A_SECOND = 15, 199
LIMIT_S = 600.0
WIDTH, ROW, LEAST = 1200, 16, 0.002
_HEAD = re.compile(r"^(?P<comm>\S.*?)\s+(?P<pid>\d+)/(?P<tid>\d+)")
_FRAME = re.compile(r"^\s+[0-9a-f]+ (?P<name>.*?)(\+0x[0-9a-f]+)?$")
_COLOURS = ("#e8b45a", "#7fb3d5", "#8fc99a", "#d99ab5", "#c5c5c5")

Stack = tuple[str, ...]
"""The names of the process, the thread, and the functions, the innermost function last."""


def main() -> int:
    given = _parse()
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:+PreserveFramePointer"  # for both the broker and Spark
    with machine() as bench:
        stacks = Counter(_recorded(bench, given))
    given.output.write_text(_svg(stacks, f"{given.variant.value}, rows of {given.bytes} bytes"))
    _tell(stacks)
    return 0


def _recorded(bench: Bench, given: argparse.Namespace) -> list[Stack]:
    rows = generated(bench, given.bytes, BATCH_ROWS[given.bytes])
    recording = bench.folder / "perf.data"
    with running(bench, given.variant, rows) as run:
        run.wait_for_batch(WARM_BATCHES, LIMIT_S)
        kinds = {bench.jvm_pid: "Spark's JVM", bench.broker_pid: "broker", os.getpid(): "driver's Python"}
        kinds |= {one.pid: "Python workers" for one in (*daemons(bench.jvm_pid), *workers(bench.jvm_pid))}
        rate = ["-F", str(SAMPLES_A_SECOND), "-g", "-a", "-o", str(recording)]
        _call("perf", "record", *rate, "--", "sleep", str(SECONDS))
        for pid in (bench.jvm_pid, bench.broker_pid):
            _call("jcmd", str(pid), "Compiler.perfmap")
    told = _call("perf", "script", "-i", str(recording), "-F", "comm,pid,tid,ip,sym")
    return list(_stacks(told.splitlines(), kinds))


def _call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:2])} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _stacks(lines: Iterable[str], kinds: dict[int, str]) -> Iterator[Stack]:
    head, frames = ("", ""), list[str]()
    for line in (*lines, ""):
        if match := _HEAD.match(line):
            thread = re.sub(r"[-#]?\d+$", "", match["comm"])
            head, frames = (kinds.get(int(match["pid"]), "others"), thread), []
        elif match := _FRAME.match(line):
            frames.append(_short(match["name"]))
        elif not line.strip() and head[0]:
            if head[1] != "swapper":
                yield (*head, *(name for name, _ in groupby(reversed(frames))))
            head = ("", "")


def _short(name: str) -> str:
    """Returns the class and name of a Java method, without its package, result and arguments."""
    if "(" not in name or "." not in name or "::" in name:
        return name
    return ".".join(name.partition("(")[0].rpartition(" ")[2].split(".")[-2:])


def _svg(stacks: Counter[Stack], title: str) -> str:
    total = sum(stacks.values())
    boxes: list[tuple[int, float, float, str]] = []

    def place(group: dict[Stack, int], depth: int, left: float) -> None:
        by_name: dict[str, dict[Stack, int]] = {}
        for stack, count in group.items():
            if len(stack) > depth:
                by_name.setdefault(stack[depth], {})[stack] = count
        for name, inner in sorted(by_name.items(), key=lambda one: (-sum(one[1].values()) if depth < 1 else 0, one[0])):
            share = sum(inner.values()) / total
            if share >= LEAST:
                boxes.append((depth, left, share, name))
                place(inner, depth + 1, left)
            left += share

    sys.setrecursionlimit(10_000)
    place(dict(stacks), 0, 0.0)
    height = (max(depth for depth, *_ in boxes) + 1) * ROW
    drawn = [_box(depth, left, share, name, height) for depth, left, share, name in boxes]
    style = "text{font:11px sans-serif;fill:#222}rect{stroke:#fff;stroke-width:.5}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"><title>{escape(title)}'
        f'</title><style>{style}</style><rect width="{WIDTH}" height="{height}" fill="#fff"/>{"".join(drawn)}</svg>\n'
    )


def _box(depth: int, left: float, share: float, name: str, height: int) -> str:
    x, y, width = left * WIDTH, height - (depth + 1) * ROW, share * WIDTH
    colour = _COLOURS[sum(map(ord, name)) % len(_COLOURS)]
    letters = int(width / 6.5)
    text = f'<text x="{x + 2:.1f}" y="{y + 12}">{escape(name[:letters])}</text>' if letters > 3 else ""
    hint = f"<title>{escape(name)}: {share:.1%}</title>"
    return f'<g>{hint}<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" fill="{colour}"/>{text}</g>'


def _tell(stacks: Counter[Stack]) -> None:
    total = sum(stacks.values())
    table = Table("process, thread", "share", "its functions, without what they call")
    threads: dict[Stack, Counter[str]] = {}
    for stack, count in stacks.items():
        threads.setdefault(stack[:2], Counter())[stack[-1]] += count
    for thread, functions in sorted(threads.items(), key=lambda one: -one[1].total()):
        if functions.total() >= total / 100:
            most = ", ".join(f"{name} {count / total:.1%}" for name, count in functions.most_common(4))
            table.add_row(", ".join(thread), f"{functions.total() / total:.1%}", most)
    Console(width=160).print(table)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="benchmarks/flame.py"
    )
    letters = {variant.letter: variant for variant in Variant}
    parser.add_argument("--bytes", type=int, choices=tuple(BATCH_ROWS), default=100, help="the size of a row")
    parser.add_argument("--variant", choices=tuple(letters), default="d", help="a, b, c or d")
    parser.add_argument("--output", type=Path, help="the drawing; docs/images/flame-<bytes>.svg by default")
    given = parser.parse_args()
    given.variant = letters[given.variant]
    given.output = given.output or Path("docs/images") / f"flame-{given.bytes}.svg"
    return given


if __name__ == "__main__":
    sys.exit(main())
