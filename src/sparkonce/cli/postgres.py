"""``sparkonce postgres``: what sparkonce has open in a PostgreSQL database.

Typer reads the annotations when the command runs, so their types are imported here for real.
"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sparkonce.sinks.postgres.orphans import Orphan

app = typer.Typer(help="What sparkonce has open in a PostgreSQL database.", no_args_is_help=True)

_CONNINFO_HELP = "libpq's 'host=… dbname=…' or a postgresql:// URI; by default what PGHOST and the like say."


@app.callback()
def _group() -> None:
    """What sparkonce has open in a PostgreSQL database."""


@app.command()
def orphans(
    conninfo: Annotated[str, typer.Option("--conninfo", envvar="SPARKONCE_POSTGRES", help=_CONNINFO_HELP)] = "",
    query: Annotated[str, typer.Option(help="Only those of this query: its id, or the first 12 digits of it.")] = "",
    older_than_s: Annotated[float, typer.Option(min=0, help="Only those that are older, in seconds.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Lists prepared transactions, staged copies and open sessions of sparkonce, with their age and locks.

    Changes nothing. A batch under way has such too; what no run of the query finishes is an orphan. Start the query
    again: it finishes what is decided and takes away the rest. Where it is gone for good, see docs/postgres.md.
    """
    from dataclasses import asdict

    from sparkonce.protocol.ownership import short_query
    from sparkonce.sinks.postgres.orphans import list_orphans

    wanted = short_query(query)
    found = [one for one in list_orphans(conninfo) if one.age_s >= older_than_s and wanted in ("", one.query)]
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
    elif not found:
        typer.echo("Nothing of sparkonce is open here.")
    else:
        _show(found)


def _show(found: "list[Orphan]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("kind", "query", "run", "batch", "slot", "age", "role", "holds", "waiting for it")
    for one in found:
        place = ("-", "-") if one.batch < 0 else (str(one.batch), str(one.slot))
        holds = "\n".join(one.holds)
        table.add_row(one.kind, one.query, one.run, *place, f"{one.age_s:.0f} s", one.owner, holds, str(one.blocks))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    for one in found:
        console.print(f"{one.kind}: {one.name}", markup=False)
