"""How the commands show our own errors."""

import typer

from sparkonce.errors import SparkonceError


def tell(error: SparkonceError) -> None:
    """A message and a next step on standard error, in place of a traceback."""
    told, _, step = str(error).rpartition(" Next: ")
    typer.secho(told or step, fg="red", err=True)
    if told:
        typer.secho(f"Next: {step}", err=True)
