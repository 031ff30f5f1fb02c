"""Shows the demo while it is running, and its table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from sparkonce_lab.demo.result import Variant

Shown = Callable[[Variant], str]


class Console:
    """Prints lines with timestamps, above a status line if the output is a terminal."""

    def __init__(self, console: RichConsole) -> None:
        self._console = console
        self._began = time.monotonic()
        self._status: Status | None = None
        if console.is_terminal:
            self._status = console.status("")
            self._status.start()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def title(self, text: str) -> None:
        self._console.print()
        self._console.rule(f"[bold]{escape(text)}", align="left", style="dim")

    def say(self, what: str, text: str, style: str = "") -> None:
        """Prints a line with the time, a word for the subject, and the text."""
        head = f"[dim]{self.seconds:6.1f} s[/]  [{style or 'bold'}]{escape(what):<9}[/]"
        body = f"[{style}]{escape(text)}[/]" if style else escape(text)
        self._print(f"{head} {body}")

    def detail(self, text: str) -> None:
        self._print(f"[dim]{'':19} {escape(text)}[/]")

    def status(self, text: str) -> None:
        """Replaces the status line. Shown on terminals only."""
        if self._status is not None:
            self._status.update(escape(text))

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _print(self, markup: str) -> None:
        # Print whole lines to files and pipes. In a terminal, cut each line to one row, so that it remains readable.
        one_row = self._console.is_terminal
        self._console.print(
            markup, highlight=False, soft_wrap=not one_row, no_wrap=one_row, overflow="ellipsis" if one_row else None
        )


def table(variants: Sequence[Variant]) -> Table:
    """Returns a table of the numbers, with a column for each variant."""
    shown = Table(title="What a read_committed reader of the output saw", title_justify="left", show_edge=True)
    shown.add_column("")
    for variant in variants:
        shown.add_column(variant.title, justify="right")
    for name, cell in _ROWS:
        shown.add_row(name, *[cell(variant) for variant in variants])
    return shown


def _must_be_zero(number: int) -> str:
    return f"[bold red]{number:,}[/]" if number else "[green]0[/]"


def _euros(cents: int) -> str:
    return f"{cents / 100:,.2f}"


_ROWS: Sequence[tuple[str, Shown]] = (
    ("times killed", lambda variant: str(len(variant.kills))),
    ("orders in the source", lambda variant: f"{variant.count.orders:,}"),
    ("rows expected", lambda variant: f"{variant.count.expected:,}"),
    ("rows seen", lambda variant: f"{variant.count.seen:,}"),
    ("[bold]missing[/]", lambda variant: _must_be_zero(variant.count.missing)),
    ("[bold]doubled[/]", lambda variant: _must_be_zero(variant.count.doubled)),
    ("[bold]wrong[/]", lambda variant: _must_be_zero(variant.count.wrong)),
    ("amount expected", lambda variant: _euros(variant.count.amount_expected)),
    ("amount seen", lambda variant: _euros(variant.count.amount_seen)),
    ("batches seen early", lambda variant: _must_be_zero(variant.seen_uncommitted)),
    ("transactions left open", lambda variant: _must_be_zero(variant.left_open)),
    ("[dim]aborted rows in the topic[/]", lambda variant: f"{variant.aborted_rows:,}"),
)
