"""The command ``sparkonce``.

Commands import heavy modules themselves, so that help is quick.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sparkonce.cli import broker, checkpoint, demo, doctor, explain, files, new, resolve, run, transactions, ui, verify
from sparkonce.cli.errors import tell
from sparkonce.errors import SparkonceError
from sparkonce.version import __version__


class _Commands(TyperGroup):
    """Shows our own errors as a message and a next step instead of a traceback, and exits with 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SparkonceError as error:
            tell(error)
            raise typer.Exit(1) from error


app = typer.Typer(
    name="sparkonce",
    help="End-to-end exactly-once for Spark Structured Streaming.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.add_typer(broker.app, name="broker")
app.add_typer(broker.app, name="kafka", hidden=True)  # its first name
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(transactions.app, name="transactions")
transactions.app.command()(resolve.resolve)
transactions.app.command()(resolve.sweep)
app.add_typer(files.app, name="files")
app.command()(new.new)
app.command()(demo.demo)
app.command()(doctor.doctor)
app.command()(explain.explain)
app.command("orphans", hidden=True)(transactions.list_all)  # its first name
app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(run.run)
app.command()(ui.ui)
app.command()(verify.verify)


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
