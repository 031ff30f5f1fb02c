"""``sparkonce explain``: explains what a query guarantees end to end, and what its weakest part is.

Typer reads the annotations when the command runs, so their types must be imported at runtime.
"""

import shutil
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli.checkpoint import Conf, hadoop_settings
from sparkonce.cli.output import FormatOption, OutputFormat, echo, show, tell
from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce.guarantees import Guarantee, weakest

if TYPE_CHECKING:
    from sparkonce.analysis.explanation import Explanation

_WIDEST = 120
_WEAKER, _FAILED = 1, 2


class Required(str, Enum):
    """The levels that can be required."""

    exactly_once = "exactly-once"
    at_least_once = "at-least-once"


def explain(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A checkpoint (a folder or a URL), or a Python file that starts queries."
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENT", help="The file's own arguments, after --.")
    ] = None,
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
    deterministic: Annotated[
        list[str] | None,
        typer.Option(metavar="FUNCTION", help="A Python function that is deterministic. Can be repeated; * for all."),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The brokers to query about topics. A query file's source has its own."),
    ] = None,
    ask: Annotated[bool, typer.Option(help="Query the brokers for retention, writers and limits.")] = True,
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

    No query is started. A query file runs up to the point where it would wait for its queries, including everything
    that it does before that (creating folders and topics, registering schemas). Exits with 1 if the level is weaker
    than --require or some queries in the file were not seen, and with 2 if the level cannot be determined.
    """
    from sparkonce.analysis.checkpoint import explain_checkpoint
    from sparkonce.analysis.facts import parse_duration
    from sparkonce.storage.opening import open_location

    unseen = ""
    servers = {"bootstrap.servers": bootstrap} if bootstrap else None
    try:
        away = parse_duration(downtime, "--downtime") if downtime else None
        known = _reader(reader)
        if "://" in target or Path(target).is_dir():
            asked = servers if ask else None
            location = target if "://" in target else str(Path(target).absolute())
            files = open_location(location, hadoop_settings(conf) or None)
            found = [explain_checkpoint(files, sink=sink, reader=known, downtime=away, ask=asked)]
        elif conf:
            raise ConfigurationError(
                f"--conf says how a checkpoint is reached, but {target!r} is not a checkpoint.",
                next_step="Leave it out; a query file's session has its own settings.",
            )
        elif Path(target).is_file():
            found, unseen = _of_file(
                Path(target),
                arguments or [],
                sink=sink,
                reader=known,
                downtime=away,
                deterministic=True if "*" in (deterministic or ()) else (deterministic or False),
                ask=(servers or True) if ask else False,
            )
        else:
            raise ConfigurationError(
                f"{target!r} is neither a folder nor a file.", next_step="Give a checkpoint or a query file."
            )
    except OSError as error:
        tell(_unread(target, error))
        raise typer.Exit(_FAILED) from error
    except SparkonceError as error:
        tell(error)
        raise typer.Exit(_FAILED) from error
    _show(found, unseen, form)
    if require is None:
        return
    level = weakest([*(each.level for each in found), Guarantee(require.value)])
    if unseen:
        typer.echo(f"--require {require.value}: {unseen}", err=True)
    if unseen or level is not Guarantee(require.value):
        raise typer.Exit(_WEAKER)


def _unread(target: str, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{target!r} cannot be read: {error.strerror}.",
        next_step="Give this process the store's credentials: see docs/checkpoints.md#without-spark.",
    )


def _of_file(file: Path, arguments: list[str], **how: Any) -> "tuple[list[Explanation], str]":
    """Returns the explanations of a file's queries, and a clause about queries that were not seen, if any."""
    from sparkonce.spark.explain.dry_run import dry_run
    from sparkonce.spark.explain.explain import explain as explain_query

    found: list[Any] = []
    whole = dry_run(file, arguments, lambda writer, table: found.append(explain_query(writer, table=table, **how)))
    if not found:
        raise ConfigurationError(
            f"{file} starts no streaming query.", next_step="Give a file that does, with its arguments."
        )
    return found, "" if whole else f"{file} was stopped at its first wait; queries after it were not seen"


def _reader(text: str | None) -> str | dict[str, str] | None:
    if text is None or "=" not in text:
        return text
    pairs = [each.partition("=") for each in text.split(",")]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _show(found: "list[Explanation]", unseen: str, form: OutputFormat) -> None:
    level = weakest(each.level for each in found)

    def _table(_console: Any, _wide: bool) -> None:
        from rich.console import Console
        from rich.markup import escape

        console = Console(highlight=False, width=min(shutil.get_terminal_size().columns, _WIDEST))
        with console.capture() as printed:
            for explanation in found:
                console.print(f"[bold]{escape(explanation.query)}[/]\n")
                console.print(explanation)
            if unseen:
                console.print(escape(f"{unseen}."))
        echo(printed.get())

    show({"level": level.value, "unseen": unseen, "queries": [each.to_dict() for each in found]}, form, _table)
