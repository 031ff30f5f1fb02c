"""How the commands show our own errors."""

import typer

from sparkonce.errors import SparkonceError


def tell(error: SparkonceError) -> None:
    """A message and a next step on standard error, in place of a traceback."""
    typer.secho(error.message.rstrip(), fg="red", err=True)
    if error.next_step:
        typer.secho(f"Next: {error.next_step}", err=True)
