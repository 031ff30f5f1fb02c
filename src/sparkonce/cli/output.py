"""``--format``: shows a result as a table, or as JSON or YAML for programs."""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sparkonce.operate.checkpoint import Check

_WIDEST = 1000
"""The width of tables with columns. A terminal wraps their lines, so that names stay whole and can be copied."""


_RESULTS = {True: "ok", False: "refused", None: "not checked"}


class OutputFormat(str, Enum):
    """The forms of a result."""

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
        """Returns the form that was asked for, also by the older ``--json``."""
        return cls.JSON if as_json else form


FormatOption = Annotated[
    OutputFormat, typer.Option("--format", help="A table, one with more columns, or JSON or YAML for programs.")
]
AsJson = Annotated[bool, typer.Option("--json", hidden=True, help="The same as --format json.")]


def show(value: Any, form: OutputFormat, table: "Callable[[Console, bool], None]") -> None:
    """Writes a result to standard output.

    Args:
        value: Plain values for programs: mappings, lists, texts, numbers.
        form: The form that was asked for.
        table: Prints the tables; its second argument is True if they are to be wide.
    """
    if form is OutputFormat.JSON:
        typer.echo(json.dumps(value))
    elif form is OutputFormat.YAML:
        import yaml

        typer.echo(yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, allow_unicode=True), nl=False)
    else:
        table(console(), form is OutputFormat.WIDE)


def show_checks(checks: "Sequence[Check]", form: OutputFormat) -> bool:
    """Shows checks with what to do about those that failed, and returns True if none did."""
    from dataclasses import asdict

    def _table(to: "Console", _wide: bool) -> None:
        table = columns("check", "result", "found")
        for one in checks:
            table.add_row(one.name, _RESULTS[one.ok], one.says)
        to.print(table)
        for one in checks:
            if one.next_step:
                to.print(f"Next, {one.name}: {one.next_step}")

    show([asdict(one) for one in checks], form, _table)
    return all(one.ok is not False for one in checks)


def console(*, stderr: bool = False) -> "Console":
    """Returns a console that cuts nothing off."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True, markup=False, width=_WIDEST)


def shown_time(ms: int | None) -> str:
    """Returns a time in UTC; a dash for none."""
    if ms is None:
        return "-"
    return datetime.fromtimestamp(ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def shown_age(seconds: float) -> str:
    """Returns an age in its two largest units, such as ``1h 5m``; a dash for one that is not known: it is negative."""
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
    """Returns a table without lines, which other programs can cut into columns."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head.upper())
    return table


def pairs(rows: Iterable[tuple[str, str]]) -> "Table":
    """Returns a table of names and values."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(name, value)
    return table
