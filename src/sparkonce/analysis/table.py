"""Renders the explanation as a table for terminals with 80 columns or more."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from sparkonce.analysis.findings import Part
from sparkonce.guarantees import Guarantee

_COLOURS = {Guarantee.EXACTLY_ONCE: "green", Guarantee.AT_LEAST_ONCE: "yellow", Guarantee.AT_MOST_ONCE: "red"}
_WIDEST = 120


def render(parts: Sequence[Part], level: Guarantee, weakest: Sequence[Part]) -> RenderableType:
    """Returns a row for each part, and below them the level of the whole query with its weakest parts."""
    shown = Table(box=None, padding=(0, 2, 1, 0), pad_edge=False, expand=True, header_style="bold")
    shown.add_column("PART", overflow="fold", ratio=2)
    shown.add_column("LEVEL", no_wrap=True)
    shown.add_column("WHY, AND WHAT TO CHANGE", overflow="fold", ratio=5)
    for part in parts:
        head = f"[bold]{part.role.value}[/]\n{escape(part.name)}"
        shown.add_row(head, _level(part.level), _findings(part))
    return Group(shown, *_summary(parts, level, weakest))


def as_text(shown: RenderableType) -> str:
    """Returns the table as text without colors, as wide as the terminal but at most 120 columns."""
    text = io.StringIO()
    _console(text, min(shutil.get_terminal_size().columns, _WIDEST)).print(shown)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").splitlines())


def as_html(shown: RenderableType) -> str:
    """Returns the table as HTML with colors, for a notebook."""
    console = _console(io.StringIO(), _WIDEST)
    console.print(shown)
    return console.export_html(inline_styles=True, code_format='<pre style="line-height:normal">{code}</pre>')


def _console(file: io.StringIO, width: int) -> Console:
    # In a notebook, a rich console would display its output instead of writing it.
    return Console(file=file, width=width, highlight=False, force_jupyter=False, record=True)


def _level(level: Guarantee) -> str:
    return f"[{_COLOURS[level]}]{level.value}[/]"


def _findings(part: Part) -> Table:
    """Renders the findings, each after a word for its kind."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    marks = (
        ("why", part.reasons, ""),
        ("fix", part.changes, "bold"),
        ("if", part.conditions, ""),
        ("note", part.notes, "dim"),
    )
    for word, found, style in marks:
        for says in found:
            grid.add_row(word, escape(says), style=style)
    return grid


def _summary(parts: Sequence[Part], level: Guarantee, weakest: Sequence[Part]) -> list[str]:
    """Returns the level of the whole query, the weakest parts, and the changes that lead to exactly-once."""
    if not weakest:
        conditional = any(part.conditions for part in parts)
        return [f"{_level(level)} end to end{', if every [bold]if[/] holds' if conditional else ''}."]
    links = "; ".join(f"{part.role.value} ({escape(part.name)})" for part in weakest)
    lines = [f"{_level(level)} end to end. Weakest link: [bold]{links}[/]."]
    first = dict.fromkeys(change for part in weakest for change in part.changes)
    others = dict.fromkeys(change for part in parts for change in part.changes if change not in first)
    lines += [f"To raise it: {escape(change)}." for change in first]
    return lines + [f"Then: {escape(change)}." for change in others]
