"""The answer as a table for terminals of 80 columns and more."""

from __future__ import annotations

import io
import shutil

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from sparkonce.analysis.model import Explanation, Part
from sparkonce.guarantees import Guarantee

_COLOURS = {Guarantee.EXACTLY_ONCE: "green", Guarantee.AT_LEAST_ONCE: "yellow", Guarantee.AT_MOST_ONCE: "red"}
_WIDEST = 120


def render(explanation: Explanation) -> RenderableType:
    """A row for each part, and what follows from them."""
    shown = Table(show_lines=True, expand=True)
    shown.add_column("part", overflow="fold", ratio=2)
    shown.add_column("level", no_wrap=True)
    shown.add_column("why, and what to change", overflow="fold", ratio=5)
    for part in explanation.parts:
        head = f"[bold]{part.role.value}[/]\n{escape(part.name)}"
        shown.add_row(head, _level(part.level), "\n".join(_lines(part)))
    return Group(shown, *_summary(explanation))


def as_text(explanation: Explanation) -> str:
    """The table without colours, as wide as the terminal and no wider than 120 columns."""
    text = io.StringIO()
    Console(file=text, width=min(shutil.get_terminal_size().columns, _WIDEST), highlight=False).print(explanation)
    return text.getvalue().rstrip("\n")


def _level(level: Guarantee) -> str:
    return f"[{_COLOURS[level]}]{level.value}[/]"


def _lines(part: Part) -> list[str]:
    marks = ((part.reasons, "", ""), (part.changes, "change: ", "bold"), (part.conditions, "if: ", "bold"))
    lines = [
        f"[{style}]{word}[/]{escape(says)}" if style else f"{word}{escape(says)}"
        for found, word, style in marks
        for says in found
    ]
    return lines + [f"[dim]note: {escape(says)}[/]" for says in part.notes]


def _summary(explanation: Explanation) -> list[str]:
    """The level of the whole, and the weakest link."""
    if not explanation.weakest:
        conditional = any(part.conditions for part in explanation.parts)
        rest = ", as long as what stands after [bold]if:[/] holds" if conditional else ""
        return [f"{_level(explanation.level)} end to end{rest}."]
    links = "; ".join(f"{part.role.value} ({escape(part.name)})" for part in explanation.weakest)
    lines = [f"{_level(explanation.level)} end to end. Weakest link: [bold]{links}[/]."]
    changes = dict.fromkeys(change for part in explanation.weakest for change in part.changes)
    return [*lines, *(f"To raise it: {escape(change)}." for change in changes)]
