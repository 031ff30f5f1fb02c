"""The command ``sparkonce``.

Commands import heavy modules inside their functions to keep help fast. A package can add a command with an entry
point in the group ``sparkonce.commands``: its name is the command's name, and its value is a `typer.Typer`.
"""

from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from sparkonce.cli import checkpoint, doctor, explain, files, new, transactions, ui
from sparkonce.cli.output import Command, tell
from sparkonce.errors import ConfigurationError, SparkonceError
from sparkonce.version import __version__

_LAB = ("broker", "demo", "verify")
"""The commands of sparkonce-lab, which may not be installed."""


class _Commands(TyperGroup):
    """Includes other packages' commands, and shows sparkonce's errors without a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        added = {*_LAB, *entry_points(group="sparkonce.commands").names}
        return [*super().list_commands(ctx), *sorted(added)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if command := super().get_command(ctx, cmd_name):
            return command
        for found in entry_points(group="sparkonce.commands", name=cmd_name):
            added = found.load()
            added.rich_markup_mode = None  # This makes the command's help look like the other commands' help.
            command = get_command(added)
            command.name = cmd_name
            return command
        return _missing(cmd_name) if cmd_name in _LAB else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)  # On its own, Typer suggests only commands that are registered with it.
        if args[0] not in known and (close := get_close_matches(args[0], known)) and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {', '.join(map(repr, close))}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SparkonceError as error:
            tell(error)
            raise typer.Exit(1) from error


def _missing(name: str) -> TyperCommand:
    install = "pip install ./packages/sparkonce-lab, in the clone of sparkonce"

    def refuse(**_: Any) -> None:
        raise ConfigurationError(f"The command {name!r} is in a package that is not installed.", next_step=install)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    return TyperCommand(name, callback=refuse, help=f"Not installed: {install}", context_settings=anything)


app = typer.Typer(
    name="sparkonce",
    help="End-to-end exactly-once for Spark Structured Streaming.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(transactions.app, name="transactions")
app.add_typer(files.app, name="files")
app.command(cls=Command, short_help="Create a first project.")(new.new)
app.command(cls=Command, short_help="Run the checks of a start.")(doctor.doctor)
app.command(cls=Command, short_help="Explain what a query guarantees end to end.")(explain.explain)


@app.command(
    cls=Command,
    short_help="Run a job and wait for its queries.",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
)
def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A Python file that starts queries.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGUMENT", help="The file's own arguments.")] = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show errors with full tracebacks.")] = False,
) -> None:
    """Run a job as `python FILE` would, and wait for the queries that it leaves running.

    SIGTERM and Ctrl-C stop its queries gracefully; a second signal ends the process immediately. An error of a start or
    a query is shown as a message and a next step. Exits with the file's own exit code, with 0 when its queries have
    ended or were stopped, and with 1 when one has failed.
    """
    from sparkonce.spark.job.run import run_job

    run_job(file, arguments or [], traceback=traceback)


app.command(cls=Command, short_help="Serve a live page about queries.")(ui.ui)


@app.command("version", hidden=True)
def _version() -> None:
    typer.echo(f"sparkonce {__version__}")


@app.command("help", hidden=True)
def _help(ctx: typer.Context) -> None:
    typer.echo(ctx.parent.get_help() if ctx.parent is not None else "")


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sparkonce {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """End-to-end exactly-once for Spark Structured Streaming."""
