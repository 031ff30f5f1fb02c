"""``sparkonce run``: runs a job's file, stops its queries in order, and shows errors without traces."""

from pathlib import Path
from typing import Annotated

import typer


def run(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A Python file that starts queries.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="The file's own arguments.")] = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show errors with all their traces.")] = False,
) -> None:
    """Runs a job as `python FILE` would, and waits for the queries that it leaves running.

    SIGTERM and Ctrl-C stop its queries in order; a second signal ends it at once. An error of a start or a query is
    shown as a message and a next step. Exits with the file's own code, with 0 when its queries have ended or were
    stopped, and with 1 when one has failed.
    """
    from sparkonce.spark.job.run import run_job

    run_job(file, arguments or [], traceback=traceback)
