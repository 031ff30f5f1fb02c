"""What the ``orphans`` commands of several sinks have in common.

Typer reads the annotations when the command runs, so their types are imported here for real.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from sparkonce.sinks.orphans import Orphan

Query = Annotated[str, typer.Option(help="Only those of this query: its id, or the first 12 digits of it.")]
OlderThan = Annotated[float, typer.Option(min=0, help="Only those that are older, in seconds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

One = TypeVar("One", bound="Orphan")


def tell(
    listed: Iterable[One],
    *,
    query: str,
    older_than_s: float,
    as_json: bool,
    more: Mapping[str, Callable[[One], str]],
) -> None:
    """Prints those that are asked for.

    Args:
        listed: All.
        query: See `Query`.
        older_than_s: See `OlderThan`. Those whose age is not known are always shown.
        as_json: See `AsJson`.
        more: Further columns, by their heads.
    """
    from dataclasses import asdict

    from sparkonce.protocol.ownership import short_query

    wanted = short_query(query)
    found = [one for one in listed if (one.age_s < 0 or one.age_s >= older_than_s) and wanted in ("", one.query)]
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
    elif not found:
        typer.echo("Nothing of sparkonce is open here.")
    else:
        _show(found, more)


def _show(found: list[One], more: Mapping[str, Callable[[One], str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("kind", "query", "run", "batch", "slot", "age", "holds", *more)
    for one in found:
        place = ("-", "-") if one.batch < 0 else (str(one.batch), str(one.slot))
        age = "-" if one.age_s < 0 else f"{one.age_s:.0f} s"
        table.add_row(
            one.kind, one.query, one.run, *place, age, "\n".join(one.holds), *(show(one) for show in more.values())
        )
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    for one in found:
        console.print(f"{one.kind}: {one.name}", markup=False)
