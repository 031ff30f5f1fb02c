"""``sparkonce transactions``: what sparkonce has open on servers, and what is to come of it. Needs no Spark.

Typer reads the annotations when the command runs, so their types are imported here for real.
"""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli.checkpoint import opened
from sparkonce.cli.conf import Conf
from sparkonce.cli.errors import tell
from sparkonce.cli.output import AsJson, FormatOption, OutputFormat, columns, pairs, show, shown_age, shown_time
from sparkonce.errors import ConfigurationError
from sparkonce.operate.systems import FILE_VARIABLE, Kind, NamedSystem, no_system, read_file

if TYPE_CHECKING:
    from sparkonce.operate.transactions import Listing, OpenTransaction
    from sparkonce.sinks.kafka.orphans import HeldPartition

app = typer.Typer(
    help="See what is open on servers and blocks readers, and end sparkonce's part by the log.", no_args_is_help=True
)

SILENT = 2
"""The exit code if a system did not answer."""

ConfigFile = Annotated[
    str,
    typer.Option(
        "--config", metavar="FILE", help="A file with the systems' settings; by default that in SPARKONCE_CONFIG."
    ),
]
SystemKind = Annotated[Kind | None, typer.Option("--system", help="Only systems of this kind.")]
Settings = Annotated[
    str,
    typer.Option(
        help="The settings of --system in one line, instead of a file: name=value, with spaces in between; of postgres "
        "a conninfo, of redis the url. Without either, SPARKONCE_<SYSTEM> is read from the environment."
    ),
]
Checkpoint = Annotated[
    str, typer.Option(help="The query's checkpoint, whose log says what is to come of its transactions.")
]


@app.command("list")
def list_all(
    config: ConfigFile = "",
    system: SystemKind = None,
    settings: Settings = "",
    checkpoint: Checkpoint = "",
    query: Annotated[
        str, typer.Option(help="Only those of this query: its id, or the first 12 digits of it or more.")
    ] = "",
    older_than_s: Annotated[float, typer.Option(min=0, help="Only those that are older, in seconds.")] = 0.0,
    conf: Conf = None,
    form: FormatOption = OutputFormat.TABLE,
    as_json: AsJson = False,
) -> None:
    """Lists the open transactions of sparkonce's on all systems, the oldest first of each. Changes nothing.

    With --checkpoint it says what the log has decided: to commit, to abort, under way. Exits with 2 if a system did
    not answer. For example: sparkonce transactions list --config systems.yaml --checkpoint /data/checkpoints/totals
    """
    wanted_query = query_in(query) if query else ""
    systems = _systems(config, system, settings)
    found = _listing(systems, checkpoint, conf)
    if wanted_query:
        found = found.of_query(wanted_query)
    wanted = [one for one in found.found if one.found.age_s < 0 or one.found.age_s >= older_than_s]

    def _table(to: Any, wide: bool) -> None:
        if not wanted:
            if len(found.silent) < len(systems):
                to.print(f"Nothing of sparkonce is open {'on the systems that answered' if found.silent else 'here'}.")
            return
        table = columns(
            *("system", "kind", "query", "batch", "slot", "age", "verdict", "name", "holds"),
            *(("run", "more") if wide else ()),
        )
        for one in wanted:
            table.add_row(*_row(one, wide))
        to.print(table)

    show([one.plain() for one in wanted], OutputFormat.of(form, as_json), _table)
    exit_if_silent(found)


@app.command()
def blocking(
    topic: Annotated[
        list[str] | None,
        typer.Option(help="A topic of Kafka; may be repeated. By default those of the query of --checkpoint."),
    ] = None,
    config: ConfigFile = "",
    system: SystemKind = None,
    settings: Settings = "",
    checkpoint: Checkpoint = "",
    conf: Conf = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Lists every open transaction in a topic of Kafka, whosever it is, and says which ones block its readers.

    Readers with isolation.level=read_committed stop at the oldest one of each partition, also if another application
    left it open. Changes nothing. Exits with 2 if not all is known.

    For example: sparkonce transactions blocking --topic totals --config systems.yaml
    """
    from sparkonce.operate.checkpoint import read_log_of
    from sparkonce.operate.transactions import list_blocking, targets_of

    systems = _systems(config, system, settings)
    with opened(checkpoint, conf) if checkpoint else nullcontext() as files:
        targets = {(one, "") for one in topic or ()}
        if not targets and files is not None:
            targets = targets_of(read_log_of(files)[1])
        if not targets:
            raise ConfigurationError(
                "No topic is named.", next_step="Give --topic, or the --checkpoint of a query with a Kafka sink."
            )
        found = list_blocking(systems, targets, files)

    def _table(to: Any, _wide: bool) -> None:
        if not found.found:
            if len(found.silent) < len(systems):
                to.print(
                    f"No transaction is open in {', '.join(sorted({one for one, _ in targets}))}, of any application."
                )
            return
        table = columns(
            *("system", "name", "sparkonce's", "producer, epoch", "since", "age", "coordinator", "partition"),
            *("begins at", "readable to", "end", "behind", "blocks"),
        )
        for one in found.found:
            for number, part in enumerate(one.partitions):
                table.add_row(*(_of_any(one) if number == 0 else [""] * 7), *_part(part))
        to.print(table)
        for one in found.found:
            to.print(f"Next, {one.found.name}: {one.next_step}")

    show([_blocking_plain(one) for one in found.found], form, _table)
    exit_if_silent(found)


@app.command()
def describe(
    name: Annotated[str, typer.Argument(help="The transaction's name, as `list` or `blocking` shows it.")],
    config: ConfigFile = "",
    system: SystemKind = None,
    settings: Settings = "",
    checkpoint: Checkpoint = "",
    conf: Conf = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Describes an open transaction: its age and timeout, what it blocks, and what to do about it.

    Of Kafka also another application's, and each partition: where it begins, how far read_committed readers get, and
    how many offsets they are behind. For example: sparkonce transactions describe NAME --system kafka --settings
    bootstrap.servers=broker:9092
    """
    from sparkonce.operate.transactions import describe_foreign
    from sparkonce.sinks.kafka.orphans import KafkaOrphan, list_held

    systems = _systems(config, system, settings)
    found = _listing(systems, checkpoint, conf)
    wanted = next((one for one in found.found if one.found.name == name), None)
    if wanted is None:
        of_others = describe_foreign([one for one in systems if one.name not in found.silent], name)
        wanted = next(iter(of_others.found), None)
        found = replace(found, silent={**found.silent, **of_others.silent})
    if wanted is None:
        tell(
            ConfigurationError(
                f"No transaction {name!r} is open on the systems that answered, sparkonce's or another application's.",
                next_step="It may have ended. See who blocks readers now: sparkonce transactions blocking --topic "
                "TOPIC.",
            )
        )
        exit_if_silent(found)
        raise typer.Exit(1)
    held: list[HeldPartition] = []
    if isinstance(wanted.found, KafkaOrphan):
        (place,) = [one for one in systems if one.name == wanted.system]
        held = list_held(place.settings, wanted.found)

    def _table(to: Any, _wide: bool) -> None:
        one = wanted.found
        of_query = [("query", one.query), ("run", one.run)] if one.query else [("query", "not one of sparkonce's")]
        to.print(
            pairs(
                [
                    ("name", one.name),
                    ("system", wanted.system),
                    ("kind", one.kind),
                    *of_query,
                    *([("batch", f"{one.batch}, slot {one.slot}")] if one.batch >= 0 else []),
                    ("age", shown_age(one.age_s)),
                    *_more(one),
                    ("verdict", f"{wanted.verdict.value}: {wanted.why}"),
                    *([] if held else [("holds", "\n".join(one.holds))]),
                ]
            )
        )
        if held:
            table = columns("partition", "begins at", "readable to", "end", "behind", "blocks")
            for part in held:
                table.add_row(*_part(part))
            to.print(table)
        to.print(f"Next: {wanted.next_step}")

    partitions = [asdict(one) for one in held]
    show({**wanted.plain(), "next_step": wanted.next_step, "partitions": partitions}, form, _table)


def query_in(text: str) -> str:
    """Reads a query's id, whole or its first 12 digits or more, and returns the short form.

    Raises:
        ConfigurationError: if it is neither.
    """
    from sparkonce.protocol.ownership import short_query

    digits = text.replace("-", "").lower()
    if not 12 <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
        raise ConfigurationError(
            f"--query {text!r} is not the id of a query.",
            next_step="Give its first 12 digits, or more: sparkonce checkpoint show names it.",
        )
    return short_query(digits)


def exit_if_silent(found: "Listing") -> None:
    """Names the systems that did not answer on standard error, and exits if there are any."""
    for name, error in found.silent.items():
        typer.echo(f"{name}:", err=True)
        tell(error)
    if found.silent:
        raise typer.Exit(SILENT)


def _listing(systems: Sequence[NamedSystem], checkpoint: str, conf: list[str] | None) -> "Listing":
    from sparkonce.operate.transactions import list_open

    if not checkpoint:
        return list_open(systems)
    with opened(checkpoint, conf) as files:
        return list_open(systems, files)


def _systems(config: str, kind: Kind | None, settings: str) -> list[NamedSystem]:
    if settings and (kind is None or config):
        raise ConfigurationError(
            "--settings are those of one system.", next_step="Give --system with them, and no --config."
        )
    if kind is not None and (settings or (not config and FILE_VARIABLE not in os.environ)):
        # Without any, the client's own: PGHOST and the like, and Redis on this machine.
        return [NamedSystem(name=kind.value, kind=kind, settings=settings or os.environ.get(kind.variable, ""))]
    found = [one for one in read_file(config).systems.values() if kind in (None, one.kind)]
    if not found:
        raise no_system()
    return found


def _more(found: Any) -> list[tuple[str, str]]:
    """Returns the fields that a system adds, with their heads."""
    return [
        (one.metadata["head"], "-" if value in (-1, "") else str(value))
        for one in fields(found)
        if "head" in one.metadata
        for value in [getattr(found, one.name)]
    ]


def _row(one: "OpenTransaction", wide: bool) -> list[str]:
    found = one.found
    place = ("-", "-") if found.batch < 0 else (str(found.batch), str(found.slot))
    more = [found.run, ", ".join(f"{head}: {value}" for head, value in _more(found))] if wide else []
    holds = "\n".join(found.holds)
    return [
        *(one.system, found.kind, found.query, *place, shown_age(found.age_s), one.verdict.value, found.name, holds),
        *more,
    ]


def _of_any(one: "OpenTransaction") -> list[str]:
    found: Any = one.found
    return [
        *(one.system, found.name, "yes" if found.query else "no", f"{found.producer_id}, {found.epoch}"),
        *(shown_time(found.since_ms if found.since_ms >= 0 else None), shown_age(found.age_s)),
        str(found.coordinator) if found.coordinator >= 0 else "-",
    ]


def _part(one: "HeldPartition") -> list[str]:
    return [
        f"{one.topic}-{one.partition}",
        "-" if one.begins < 0 else f"{one.begins:,}",
        f"{one.readable:,}",
        f"{one.end:,}",
        f"{one.end - one.readable:,}",
        "yes" if one.blocks else "no",
    ]


def _blocking_plain(one: "OpenTransaction") -> dict[str, Any]:
    return {
        **one.plain(),
        "sparkonce": bool(one.found.query),
        "blocks": one.blocks,
        "next_step": one.next_step,
        "partitions": [asdict(part) for part in one.partitions],
    }
