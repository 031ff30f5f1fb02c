"""Draws results of benchmarks/run.py: rows per second of each load and variant, as a multiple of Spark's own sink.

    python3 dev.py run python benchmarks/chart.py benchmarks/results/<commit>.json … [--output docs/images/rows.svg]

A bar is the median over the rounds, and the thin line is their range.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

from bench import Variant
from report import paired

_WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 800, 260, 60, 16, 14
_COLOURS = {"a": "#9aa5b1", "b": "#c98a3b", "c": "#7fb3d5", "d": "#1f6fb2", "e": "#b0568c", "f": "#8a6d3b"}
_STYLE = (
    "text{font:13px sans-serif;fill:#222}.l{font-weight:bold}line{stroke:#222}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}line{stroke:#ddd}}"
)


def main() -> int:
    given = _parse()
    runs = [run for file in given.results for run in json.loads(file.read_text()).get("throughput", ())]
    given.output.write_text(drawing(runs))
    print(f"written to {given.output}", file=sys.stderr)
    return 0


def drawing(runs: Sequence[dict[str, Any]]) -> str:
    """Returns an SVG of the loads that were also measured with Spark's own sink."""
    bars: list[tuple[str, Variant | None, tuple[float, ...]]] = []
    for load in dict.fromkeys(run["load"] for run in runs):
        own = [run for run in runs if run["load"] == load]
        found = {
            variant: ratios
            for variant in Variant
            if variant is not Variant.NOOP
            and (ratios := paired(own, "rows_per_s", variant.letter, "b", lambda left, right: left / right))
        }
        if found:
            bars += [(load, None, ()), *((load, variant, ratios) for variant, ratios in found.items())]
    scale = (_WIDTH - _LEFT - _RIGHT) / max(max(ratios, default=0.0) for *_, ratios in bars)
    drawn, y = [], 0
    for load, variant, ratios in bars:
        y += _BAR + _GAP // 4 if variant else _BAR + _GAP
        drawn.append(_bar(variant, ratios, y, scale) if variant else f'<text class="l" y="{y}">{escape(load)}</text>')
    title = "Rows per second, as a multiple of Spark's own Kafka sink"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + _GAP}" role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{''.join(drawn)}</svg>\n"
    )


def _bar(variant: Variant, ratios: tuple[float, ...], y: int, scale: float) -> str:
    low, middle, high = (_LEFT + function(ratios) * scale for function in (min, median, max))
    top, at = y - _BAR + 3, y - _BAR // 2 + 3
    return (
        f'<text x="12" y="{y}">{escape(variant.value)}</text>'
        f'<rect x="{_LEFT}" y="{top}" width="{middle - _LEFT:.1f}" height="{_BAR}" fill="{_COLOURS[variant.letter]}"/>'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{at}" y2="{at}"/>'
        f'<text x="{high + 6:.1f}" y="{y}">{median(ratios):.2f}</text>'
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="benchmarks/chart.py"
    )
    parser.add_argument("results", nargs="+", type=Path, help="result files of benchmarks/run.py")
    parser.add_argument("--output", type=Path, default=Path("docs/images/rows.svg"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
