"""``sparkonce orphans``: what sparkonce has open on a server.

Typer reads the annotations when the command runs, so their types are imported here for real.
"""

import json
import os
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sparkonce.sinks._shared.orphans import Orphan


class OrphanSystem(str, Enum):
    """The systems whose open transactions can be listed: a module ``sparkonce.sinks.<system>.orphans`` of each."""

    FILES = "files"
    KAFKA = "kafka"
    MYSQL = "mysql"
    POSTGRES = "postgres"
    REDIS = "redis"


_SETTINGS_HELP = (
    "The sink's settings in one line: name=value, with spaces in between. For postgres libpq's 'host=… dbname=…' or a "
    "postgresql:// URI, by default those of PGHOST and the like; for mysql 'host=db user=etl'; for kafka "
    "'bootstrap.servers=…'; for redis the url; for files 'path=…' and the options of the store. Without it, the "
    "environment variable "
    "SPARKONCE_<SYSTEM> is read."
)


def orphans(
    system: Annotated[OrphanSystem, typer.Option(help="The system to ask.")],
    settings: Annotated[str, typer.Option(help=_SETTINGS_HELP)] = "",
    query: Annotated[str, typer.Option(help="Only those of this query: its id, or the first 12 digits of it.")] = "",
    older_than_s: Annotated[float, typer.Option(min=0, help="Only those that are older, in seconds.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Lists what sparkonce has open on a server: prepared and staged transactions, and sessions that write.

    Changes nothing. A batch under way has such too; what no run of the query finishes is an orphan. Start the query
    again: it finishes what is decided and aborts the rest. Where it is gone for good, see docs/postgres.md,
    docs/mysql.md, docs/kafka.md and docs/redis.md.
    """
    from dataclasses import asdict
    from importlib import import_module

    from sparkonce.protocol.ownership import short_query

    given = settings or os.environ.get(f"SPARKONCE_{system.name}", "")
    wanted = short_query(query)
    found = [
        one
        for one in import_module(f"sparkonce.sinks.{system.value}.orphans").list_open(given)
        if (one.age_s < 0 or one.age_s >= older_than_s) and wanted in ("", one.query)
    ]
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
    elif not found:
        typer.echo("Nothing of sparkonce is open here.")
    else:
        _show(found)


def _show(found: "list[Orphan]") -> None:
    from dataclasses import fields

    from rich.console import Console
    from rich.table import Table

    more: dict[str, Any] = {one.metadata["head"]: one.name for one in fields(found[0]) if "head" in one.metadata}
    table = Table("kind", "query", "run", "batch", "slot", "age", "holds", *more)
    for one in found:
        place = ("-", "-") if one.batch < 0 else (str(one.batch), str(one.slot))
        age = "-" if one.age_s < 0 else f"{one.age_s:.0f} s"
        added = [str(getattr(one, name)) or "-" for name in more.values()]
        table.add_row(one.kind, one.query, one.run, *place, age, "\n".join(one.holds), *added)
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    for one in found:
        console.print(f"{one.kind}: {one.name}", markup=False)
