"""Shows a command's help, its result as a table, JSON or YAML (``--format``), and errors without a traceback."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from sparkonce.errors import SparkonceError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from sparkonce.operate.checkpoint import Check


_WIDEST = 1000
"""The width of output that does not go to a terminal: no line is wrapped, so that programs can read it."""

_PLAIN = "\x1b[0m"

_PADDING = re.compile(r"(?:\x1b\[[0-9;]*m| )+$")

_LAST_COLUMN = 24
"""The least width of a table's last column, whose cells are wrapped between words."""

_RESULTS = {True: "ok", False: "refused", None: "not checked"}

_GOOD, _BAD, _IN_DOUBT = "green", "bold red", "yellow"

_STYLES = {
    **dict.fromkeys(("ok", "done", "begins", "resumes", "commits", "writes again", "commit", "running"), _GOOD),
    **dict.fromkeys(("refused", "is refused", "not running", "stopped"), _BAD),
    **dict.fromkeys(("not checked", "may be refused", "not known", "foreign", "under way"), _IN_DOUBT),
    **dict.fromkeys(("decided, and may not be finished", "planned, and not decided"), _IN_DOUBT),
    "decided, and not in Spark's part of the checkpoint": _IN_DOUBT,
}
"""The colors of words for a state or a result."""

_WRONG_VALUE = {
    "int_parsing": "is not a whole number",
    "float_parsing": "is not a number",
    "greater_than_equal": "is too small: the smallest value is {ge:g}",
    "less_than_equal": "is too large: the largest value is {le:g}",
}
"""The messages for wrong values, by the type of pydantic's error. Typer would show pydantic's own message."""


class Command(TyperCommand):
    """A command whose help and errors name arguments by their ``metavar``, without braces."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the parts of the usage line."""
        return [one.strip("{}") for one in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the arguments and options, without the names of Python's types."""
        records = [(one.param_type_name, one.get_help_record(ctx)) for one in self.get_params(ctx)]
        for kind in ("argument", "option"):
            if rows := [(one[0].partition(" <")[0], one[1]) for name, one in records if one and name == kind]:
                with formatter.section(f"{kind.title()}s"):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments, and says in plain words what is wrong with a value."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if (cause := getattr(error.__cause__, "errors", None)) is None:
                raise
            found = cause()[0]
            words = _WRONG_VALUE.get(found["type"], "").format(**found.get("ctx", {}))
            what = f"{found['input']!r} {words}." if words else found["msg"].removeprefix("Value error, ")
            param: Any = error.param
            name = max(param.opts, key=len) if param.param_type_name == "option" else param.metavar
            raise typer.BadParameter(what, ctx, param_hint=name) from error


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


FormatOption = Annotated[
    OutputFormat,
    typer.Option("--format", metavar="FORMAT", help="table, wide (a table with more columns), json or yaml."),
]


def show(value: Any, form: OutputFormat, table: "Callable[[Console, bool], None]") -> None:
    """Writes a result to standard output: plain values for programs, or tables.

    ``table`` prints the tables. Its second argument is True for wide tables.
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
        echo(printed.get())


def echo(printed: str, *, err: bool = False) -> None:
    """Writes a console's output, without the spaces that pad its last column."""
    lines = (_PADDING.sub(lambda end: _PLAIN * (_PLAIN in end[0]), line) for line in printed.splitlines())
    typer.echo("\n".join(lines), err=err)


def show_checks(checks: "Sequence[Check]", form: OutputFormat) -> bool:
    """Shows checks, with a next step for each one that failed. Returns True if none failed."""
    from dataclasses import asdict

    def _table(to: "Console", _wide: bool) -> None:
        print_table(
            to, ("check", "result", "found"), [(one.name, marked(_RESULTS[one.ok]), one.says) for one in checks]
        )
        for one in checks:
            if one.next_step:
                to.print(f"Next, {one.name}: {one.next_step}")

    show([asdict(one) for one in checks], form, _table)
    return all(one.ok is not False for one in checks)


def console(*, stderr: bool = False) -> "Console":
    """Returns a console that is as wide as the terminal. Without a terminal, it does not wrap lines."""
    from rich.console import Console

    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = shutil.get_terminal_size().columns if is_terminal else _WIDEST
    return Console(stderr=stderr, highlight=False, soft_wrap=not is_terminal, markup=False, width=width)


def counted(count: int, what: str) -> str:
    """Returns a number of things, such as ``1 record`` or ``1,200 records``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def marked(words: str, before: str = "", after: str = "") -> "Text":
    """Returns words in the color of their meaning (good, bad or in doubt), between uncolored texts."""
    from rich.text import Text

    return Text.assemble(before, (words, _STYLES.get(words, "")), after)


def shown_time(ms: int | None) -> str:
    """Formats a time in UTC; None is shown as a dash."""
    if ms is None:
        return "-"
    return datetime.fromtimestamp(ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def shown_age(seconds: float) -> str:
    """Formats an age in its two largest units, such as ``1h 5m``. A negative age is unknown, and shown as a dash."""
    if seconds < 0:
        return "-"
    found: list[str] = []
    left = int(seconds)
    for name, unit in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= unit or (unit == 1 and not found):
            found.append(f"{left // unit}{name}")
        left %= unit
    return " ".join(found[:2])


def print_table(
    to: "Console", heads: Sequence[str], rows: "Sequence[Sequence[str | Text]]", *, numbers: Sequence[str] = ()
) -> None:
    """Prints a table without borders, which other programs can split into columns. Columns of ``numbers`` align right.

    If the last column's cells do not fit on the terminal, they are wrapped between words. If the other columns leave no
    room for that, each row is shown as a block of names and values.
    """
    from rich.cells import cell_len
    from rich.table import Table

    widths = [
        max(cell_len(line) for cell in (head, *cells) for line in str(cell).splitlines() or [""])
        for head, *cells in zip(heads, *rows, strict=True)
    ]
    left = to.width - sum(widths[:-1]) - 2 * (len(heads) - 1)
    longest = max((cell_len(word) for row in rows for word in str(row[-1]).split()), default=0)
    if left < min(widths[-1], max(longest, _LAST_COLUMN)):
        for number, row in enumerate(rows):
            if number:
                to.print()
            print_pairs(to, list(zip(heads, row, strict=True)))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head in heads:
        is_last = head == heads[-1]
        justify: Any = "right" if head in numbers else "left"
        table.add_column(head.upper(), no_wrap=not is_last, overflow="fold", justify=justify)
    for row in rows:
        table.add_row(*row)
    to.print(table)


def print_pairs(to: "Console", rows: "Iterable[tuple[str, str | Text]]") -> None:
    """Prints names and values."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    to.print(table)


def tell(error: SparkonceError) -> None:
    """Writes the message and the next step to standard error, instead of a traceback."""
    to, (message, *step) = console(stderr=True), error.lines()
    with to.capture() as printed:
        to.print(message, style="red")
        for line in step:
            to.print(line)
    echo(printed.get(), err=True)
