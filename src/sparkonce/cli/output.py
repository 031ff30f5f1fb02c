"""Shows a command's result as a table, JSON or YAML (``--format``), and our errors without a traceback."""

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.errors import SparkonceError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sparkonce.operate.checkpoint import Check


_WIDEST = 1000
"""The width of tables with columns. The terminal wraps long lines, so names stay whole and can be copied."""

_PLAIN = "\x1b[0m"

_PADDING = re.compile(r"(?:\x1b\[[0-9;]*m| )+$")

_RESULTS = {True: "ok", False: "refused", None: "not checked"}

_COLORS = {True: "green", False: "bold red", None: "yellow"}


class OutputFormat(str, Enum):
    """The formats of a result."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_for_programs(self) -> bool:
        """True for JSON and YAML."""
        return self in (OutputFormat.JSON, OutputFormat.YAML)

    @classmethod
    def of(cls, form: "OutputFormat", as_json: bool) -> "OutputFormat":
        """Returns the requested format, including one requested with the older ``--json``."""
        return cls.JSON if as_json else form


FormatOption = Annotated[
    OutputFormat, typer.Option("--format", help="A table, a wider table, or JSON or YAML for programs.")
]

AsJson = Annotated[bool, typer.Option("--json", hidden=True, help="The same as --format json.")]


def show(value: Any, form: OutputFormat, table: "Callable[[Console, bool], None]") -> None:
    """Writes a result to standard output.

    Args:
        value: Plain values for programs: mappings, lists, strings, numbers.
        form: The requested format.
        table: Prints the tables. Its second argument is True for wide tables.
    """
    if form is OutputFormat.JSON:
        typer.echo(json.dumps(value))
    elif form is OutputFormat.YAML:
        import yaml

        typer.echo(yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, allow_unicode=True), nl=False)
    else:
        to = console()
        with to.capture() as printed:
            table(to, form is OutputFormat.WIDE)
        # A table pads its last column to its longest cell, which a terminal would wrap into blank lines.
        typer.echo(
            "\n".join(
                _PADDING.sub(lambda end: _PLAIN * (_PLAIN in end[0]), line) for line in printed.get().splitlines()
            )
        )


def show_checks(checks: "Sequence[Check]", form: OutputFormat) -> bool:
    """Shows checks, with a next step for each one that failed. Returns True if none did."""
    from dataclasses import asdict

    def _table(to: "Console", _wide: bool) -> None:
        from rich.text import Text

        table = columns("check", "result", "found")
        used = max((len(one.name) for one in checks), default=0) + len("not checked") + 4
        for one in checks:
            table.add_row(one.name, Text(_RESULTS[one.ok], style=_COLORS[one.ok]), fitted(one.says, used))
        to.print(table)
        for one in checks:
            if one.next_step:
                to.print(f"Next, {one.name}: {one.next_step}")

    show([asdict(one) for one in checks], form, _table)
    return all(one.ok is not False for one in checks)


def console(*, stderr: bool = False) -> "Console":
    """Returns a console that never truncates lines."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True, markup=False, width=_WIDEST)


def shown_time(ms: int | None) -> str:
    """Formats a time in UTC; None is shown as a dash."""
    if ms is None:
        return "-"
    return datetime.fromtimestamp(ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def shown_age(seconds: float) -> str:
    """Formats an age in its two largest units, such as ``1h 5m``.

    A negative age means unknown, and is shown as a dash.
    """
    if seconds < 0:
        return "-"
    found: list[str] = []
    left = int(seconds)
    for name, unit in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= unit or (unit == 1 and not found):
            found.append(f"{left // unit}{name}")
        left %= unit
    return " ".join(found[:2])


def columns(*heads: str) -> "Table":
    """Returns a table without borders, which other programs can split into columns."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head.upper())
    return table


def pairs(rows: Iterable[tuple[str, str]]) -> "Table":
    """Returns a table of names and values."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    known = list(rows)
    used = max((len(name) for name, _ in known), default=0) + 2
    for name, value in known:
        table.add_row(name, fitted(value, used))
    return table


def fitted(text: str, used: int) -> str:
    """Wraps a table's last cell so that it fits on the terminal, where the other cells take up this many columns."""
    if not sys.stdout.isatty():
        return text
    width = max(40, shutil.get_terminal_size().columns - used)
    lines = (textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in text.splitlines())
    return "\n".join("\n".join(line) for line in lines)


def tell(error: SparkonceError) -> None:
    """Writes the message and the next step to standard error, instead of a traceback."""
    message, *step = error.lines()
    typer.secho(message, fg="red", err=True)
    for line in step:
        typer.secho(line, err=True)
