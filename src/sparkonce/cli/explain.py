"""``sparkonce explain``: explains what the query of a checkpoint guarantees end to end.

Typer reads the annotations when the command runs, so their types must be imported at runtime.
"""

import shutil
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce.cli.checkpoint import Conf, opened
from sparkonce.cli.output import FormatOption, OutputFormat, echo, show
from sparkonce.guarantees import Guarantee, weakest

if TYPE_CHECKING:
    from sparkonce.analysis.explanation import Explanation

_WIDEST = 120
_WEAKER = 1


class Required(str, Enum):
    """The levels that can be required."""

    exactly_once = "exactly-once"
    at_least_once = "at-least-once"


def explain(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A query's checkpoint: a folder or a URL.")],
    sink: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT", help="The Spark format of the sink, if the checkpoint does not show it: kafka, delta, …"
        ),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(
            metavar="READER",
            help="read_committed, read_uncommitted, spark, files, or a consumer's settings as KEY=VALUE,….",
        ),
    ] = None,
    downtime: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The longest downtime of the query, for example 2h.")
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The brokers to query about the retention and writers of topics."),
    ] = None,
    conf: Conf = None,
    require: Annotated[
        Required | None,
        typer.Option(
            metavar="LEVEL", help="Exit with 1 if the level is weaker than this: exactly-once or at-least-once."
        ),
    ] = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Explain what a query guarantees end to end: source, engine, sink and reader, and the weakest part.

    A checkpoint shows neither the query's options nor its plan. `sparkonce.explain` in the query's program sees both.
    """
    from sparkonce.analysis.checkpoint import explain_checkpoint
    from sparkonce.analysis.facts import parse_duration

    servers = {"bootstrap.servers": bootstrap} if bootstrap else None
    away = parse_duration(downtime, "--downtime") if downtime else None
    with opened(checkpoint, conf) as files:
        found = explain_checkpoint(files, sink=sink, reader=_reader(reader), downtime=away, ask=servers)
    show(found.to_dict(), form, lambda _console, _wide: _print(found))
    if require is not None and weakest([found.level, Guarantee(require.value)]) is not Guarantee(require.value):
        raise typer.Exit(_WEAKER)


def _reader(text: str | None) -> str | dict[str, str] | None:
    if text is None or "=" not in text:
        return text
    pairs = [each.partition("=") for each in text.split(",")]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _print(found: "Explanation") -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, width=min(shutil.get_terminal_size().columns, _WIDEST))
    with console.capture() as printed:
        console.print(f"[bold]{escape(found.query)}[/]\n")
        console.print(found)
    echo(printed.get())
