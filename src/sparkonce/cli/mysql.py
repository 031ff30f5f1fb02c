"""``sparkonce mysql``: what sparkonce has open on a MariaDB or MySQL server.

Typer reads the annotations when the command runs, so their types are imported here for real.
"""

from typing import Annotated

import typer

from sparkonce.cli.orphans import AsJson, OlderThan, Query, tell

app = typer.Typer(help="What sparkonce has open on a MariaDB or MySQL server.", no_args_is_help=True)

_SETTINGS_HELP = (
    "The sink's settings, such as 'host=db user=etl read_default_file=/etc/etl.cnf'. All databases are looked at."
)


@app.callback()
def _group() -> None:
    """What sparkonce has open on a MariaDB or MySQL server."""


@app.command()
def orphans(
    settings: Annotated[str, typer.Option("--settings", envvar="SPARKONCE_MYSQL", help=_SETTINGS_HELP)] = "",
    query: Query = "",
    older_than_s: OlderThan = 0.0,
    as_json: AsJson = False,
) -> None:
    """Lists prepared XA transactions, staging tables and open sessions of sparkonce, with their age.

    Changes nothing. A batch under way has such too; what no run of the query finishes is an orphan. Start the query
    again: it finishes what is decided and takes away the rest. Where it is gone for good, see docs/mysql.md.
    """
    from sparkonce.sinks.mysql.orphans import list_orphans
    from sparkonce.sinks.mysql.settings import parse_settings

    tell(
        list_orphans(parse_settings(settings)),
        query=query,
        older_than_s=older_than_s,
        as_json=as_json,
        more={"database": lambda one: one.database or "-"},
    )
