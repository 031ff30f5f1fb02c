"""``sparkonce postgres``: what sparkonce has open in a PostgreSQL database.

Typer reads the annotations when the command runs, so their types are imported here for real.
"""

from typing import Annotated

import typer

from sparkonce.cli.orphans import AsJson, OlderThan, Query, tell

app = typer.Typer(help="What sparkonce has open in a PostgreSQL database.", no_args_is_help=True)

_CONNINFO_HELP = "libpq's 'host=… dbname=…' or a postgresql:// URI; by default what PGHOST and the like say."


@app.callback()
def _group() -> None:
    """What sparkonce has open in a PostgreSQL database."""


@app.command()
def orphans(
    conninfo: Annotated[str, typer.Option("--conninfo", envvar="SPARKONCE_POSTGRES", help=_CONNINFO_HELP)] = "",
    query: Query = "",
    older_than_s: OlderThan = 0.0,
    as_json: AsJson = False,
) -> None:
    """Lists prepared transactions, staged copies and open sessions of sparkonce, with their age and locks.

    Changes nothing. A batch under way has such too; what no run of the query finishes is an orphan. Start the query
    again: it finishes what is decided and takes away the rest. Where it is gone for good, see docs/postgres.md.
    """
    from sparkonce.sinks.postgres.orphans import list_orphans

    tell(
        list_orphans(conninfo),
        query=query,
        older_than_s=older_than_s,
        as_json=as_json,
        more={"role": lambda one: one.owner, "waiting for it": lambda one: str(one.blocks)},
    )
