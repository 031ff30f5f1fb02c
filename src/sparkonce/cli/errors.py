"""Shows our own errors on the command line."""

import typer

from sparkonce.errors import SparkonceError


def tell(error: SparkonceError) -> None:
    """Writes message and next step to standard error, in place of a traceback."""
    message, *step = error.lines()
    typer.secho(message, fg="red", err=True)
    for line in step:
        typer.secho(line, err=True)
