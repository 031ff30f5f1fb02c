"""``sparkonce transactions``: lists open transactions on servers with the log's verdict, and ends them without Spark.

``list`` and ``blocking`` change nothing. ``resolve`` and ``sweep`` end a query's open transactions. Typer reads the
annotations when a command runs, so their types must be imported at runtime.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli.checkpoint import Conf, opened
from sparkonce.cli.output import (
    Command,
    FormatOption,
    OutputFormat,
    console,
    counted,
    marked,
    print_pairs,
    print_table,
    show,
    shown_age,
    shown_time,
    tell,
)
from sparkonce.errors import ConfigurationError, LogError, SparkonceError
from sparkonce.operate.systems import FILE_VARIABLE, KINDS, NamedSystem, OperatorFile, SystemKind, no_system, read_file

if TYPE_CHECKING:
    from sparkonce.operate.resolve import Resolved
    from sparkonce.operate.transactions import Listing, OpenTransaction
    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce.sinks.kafka.orphans import HeldPartition
    from sparkonce.storage.files import CheckpointFiles


app = typer.Typer(help="See open transactions on servers, and end sparkonce's own.", no_args_is_help=True)

SILENT = 2
"""The exit code if a system did not respond."""

_NOT_ALL = 1

_RESOLVE = {"commit": "commit", "abort": "abort", "under way": "abort", "not known": "nothing"}
"""The action of `resolve` for each verdict of the log."""

_PARTITION = ("partition", "begins at", "readable to", "end", "behind", "blocks")
"""The columns of a table of partitions."""

_ALL = dict.fromkeys(_RESOLVE, "abort")
"""The action of `sweep`, which has no log."""

ConfigFile = Annotated[
    str,
    typer.Option(
        "--config", metavar="FILE", help="A file with the systems' settings. Defaults to the file in SPARKONCE_CONFIG."
    ),
]

SystemOption = Annotated[
    SystemKind | None, typer.Option("--system", metavar="KIND", help=f"Only systems of this kind: {KINDS}.")
]

Settings = Annotated[
    str,
    typer.Option(
        metavar="SETTINGS",
        help="The settings of --system in one line, instead of a file: name=value pairs separated by spaces; for "
        "postgres a conninfo, for redis the URL.",
    ),
]

Checkpoint = Annotated[
    str,
    typer.Option(metavar="CHECKPOINT", help="The query's checkpoint, whose log has the verdict on its transactions."),
]

Moved = Annotated[
    bool,
    typer.Option(
        "--moved", help="The checkpoint was moved, as with checkpoint_moved=True. You always have to confirm this."
    ),
]

AcceptLost = Annotated[
    list[str] | None,
    typer.Option("--accept-lost", metavar="SINK=BATCH", help="Like accept_lost_batches. Can be repeated."),
]

OnConflict = Annotated[
    str,
    typer.Option(
        "--on-conflict",
        metavar="nothing|update",
        help="What to do if a decided batch appends rows to a PostgreSQL or MariaDB table whose keys already exist "
        "there: keep the table's rows (nothing), or replace them (update).",
    ),
]

_QueryName = tuple[str, str]

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

Patience = Annotated[
    float,
    typer.Option("--patience-s", metavar="SECONDS", min=0, help="How long to wait for a system that does not respond."),
]


@app.command("list", cls=Command, short_help="List sparkonce's open transactions.")
def list_all(
    config: ConfigFile = "",
    system: SystemOption = None,
    settings: Settings = "",
    checkpoint: Checkpoint = "",
    query: Annotated[
        str,
        typer.Option(metavar="ID", help="Only transactions of this query: its id, or at least the first 12 digits."),
    ] = "",
    older_than_s: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Only transactions older than this.")
    ] = 0.0,
    conf: Conf = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """List sparkonce's open transactions on all systems, oldest first within each. Changes nothing.

    With --checkpoint, it shows the log's verdict on each: to be committed, to be aborted, or in progress. Exits with 2
    if a system did not respond.

    For example: sparkonce transactions list --config systems.yaml --checkpoint /data/checkpoints/totals
    """
    wanted_query = query_in(query) if query else ""
    systems = _systems(config, system, settings)
    found, name = _listing(systems, checkpoint, conf)
    if wanted_query:
        found = found.of_query(wanted_query)
    wanted = [one for one in found.found if one.found.age_s < 0 or one.found.age_s >= older_than_s]

    def _table(to: Any, wide: bool) -> None:
        if not wanted:
            if len(found.silent) < len(systems):
                to.print(f"Nothing of sparkonce is open {'on the systems that answered' if found.silent else 'here'}.")
            return
        heads = ("system", "kind", "query", "batch", "slot", "age", "verdict", "name", "holds")
        rows = [_row(one, name, wide) for one in wanted]
        print_table(to, (*heads, *(("run", "more") if wide else ())), rows, numbers=("batch", "slot"))

    plain = [{**one.plain(), "query_name": _name_of(one, name)} for one in wanted]
    show(plain, form, _table)
    exit_if_silent(found)


@app.command(cls=Command, short_help="List what blocks the readers of a topic.")
def blocking(
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC", help="A Kafka topic. Can be repeated. Defaults to the topics of the query in --checkpoint."
        ),
    ] = None,
    config: ConfigFile = "",
    system: SystemOption = None,
    settings: Settings = "",
    checkpoint: Checkpoint = "",
    conf: Conf = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """List every open transaction in a Kafka topic, whoever owns it, and show which ones block its readers.

    Readers with isolation.level=read_committed stop at the oldest one in each partition, even if another application
    left it open. Changes nothing. Exits with 2 if some information is missing.

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
        rows = [
            [*(_of_any(one) if number == 0 else [""] * 7), *_part(part)]
            for one in found.found
            for number, part in enumerate(one.partitions)
        ]
        heads = ("system", "name", "sparkonce's", "producer, epoch", "since", "age", "coordinator", *_PARTITION)
        print_table(to, heads, rows)
        for one in found.found:
            to.print(f"Next, {one.found.name}: {one.next_step}")

    show([_blocking_plain(one) for one in found.found], form, _table)
    exit_if_silent(found)


@app.command(cls=Command, short_help="Commit what is decided and abort the rest.")
def resolve(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpoint: a folder or a URL that Spark accepts.")
    ],
    config: ConfigFile = "",
    moved: Moved = False,
    accept_lost: AcceptLost = None,
    on_conflict: OnConflict = "",
    yes: Yes = False,
    patience_s: Patience = 60.0,
    conf: Conf = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Commit what a query has decided and abort the rest, as its next start would, from its log and without Spark.

    It first puts a claim into the log, as a run does, so a driver that is still running stops with SupersededError. It
    only touches transactions of runs that claimed earlier, and fails under the same conditions as a start. Exits with 1
    if something is left.

    For example: sparkonce transactions resolve /data/checkpoints/totals --config systems.yaml
    """
    from sparkonce.operate.resolve import resolve as resolve_query

    file = _file(config)
    with opened(checkpoint, conf) as files:
        sinks = _sinks(files, file)
        accepted = _accepted(accept_lost, sinks)
        before = _confirm(files, file, moved=moved, yes=yes)
        done = resolve_query(
            files, sinks, moved=moved, accept_lost=accepted, on_conflict=on_conflict, patience_s=patience_s
        )
        left = _listed_after(files, file)
    show_done(done, before, left, form)


@app.command(cls=Command, short_help="Abort what a query with a lost checkpoint left open.")
def sweep(
    query: Annotated[str, typer.Option(metavar="ID", help="The query's id, or at least the first 12 digits.")],
    accept_loss: Annotated[
        str, typer.Option("--accept-loss", metavar="REASON", help="The reason why decided rows may be lost.")
    ] = "",
    execute: Annotated[
        bool, typer.Option("--execute", help="Abort them. Without this option they are only listed.")
    ] = False,
    config: ConfigFile = "",
    yes: Yes = False,
    patience_s: Patience = 60.0,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Abort what a query whose checkpoint is gone has left open. Only lists it, unless you pass --execute.

    Nobody can know what was decided, so you must pass --accept-loss. With a checkpoint, use `transactions resolve`.
    Exits with 1 if something is left.

    For example: sparkonce transactions sweep --query 60a1de000000 --config systems.yaml
    """
    from sparkonce.operate.resolve import abort_all
    from sparkonce.operate.systems import sink_of
    from sparkonce.operate.transactions import list_open

    file, short = _file(config), query_in(query)
    systems, file = list(file.systems.values()), file.of_query(short)
    system_of = {name: str(arguments.get("system", name)) for name, arguments in file.sinks.items()}
    found = list_open(systems).of_query(short).on(system_of.values())
    if not execute:
        show([one.plain() for one in found.found], form, lambda to, _: _show_plan(to, found.found, _ALL))
        exit_if_silent(found)
        return
    exit_if_silent(found)
    if not accept_loss.strip():
        raise ConfigurationError(
            "Without the checkpoint nobody knows what was decided: rows may be lost.",
            next_step="Look for the checkpoint, or a copy. If both are gone, give --accept-loss with the reason.",
        )
    sinks = {name: sink_of(file, name, {}) for name in file.sinks}
    if not sinks:
        raise ConfigurationError(
            "The file names no sinks of the query.", next_step="Write them under `sinks:`, with their arguments."
        )
    if not yes:
        _ask(
            found,
            _ALL,
            "Rows of batches that were decided and not committed yet are permanently lost, and a driver that still "
            "runs this query fails. Continue?",
        )
    ended = {}
    for name, sink in sinks.items():
        open_there = [one.found for one in found.on([system_of[name]]).found]
        ended[name] = dict(abort_all(short, sink, open_there, patience_s=patience_s))
        typer.echo(f"{name}: {ended[name] or 'nothing was open'}", err=True)
    left = list_open(systems).of_query(short)
    value = {"query": short, "reason": accept_loss, "ended": ended, "open": [one.plain() for one in left.found]}
    rows = [(name, ", ".join(f"{count:,} {how}" for how, count in one.items()) or "-") for name, one in ended.items()]

    def _table(to: Any, _wide: bool) -> None:
        print_pairs(to, [("query", short), ("reason", accept_loss), *rows])
        _show_open(to, left.found, _ALL)

    show(value, form, _table)
    exit_if_silent(left)
    if left.found:
        raise typer.Exit(_NOT_ALL)


def query_in(text: str) -> str:
    """Returns the short id of a query, given its id or at least the first 12 digits."""
    from sparkonce.protocol.ownership import short_query

    digits = text.replace("-", "").lower()
    if not 12 <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
        raise ConfigurationError(
            f"--query {text!r} is not the id of a query.",
            next_step="Give its first 12 digits, or more: sparkonce checkpoint show names it.",
        )
    return short_query(digits)


def exit_if_silent(found: "Listing") -> None:
    """Reports the systems that did not respond on standard error, and exits if there are any."""
    for name, error in found.silent.items():
        typer.echo(f"{name}:", err=True)
        tell(error)
    if found.silent:
        raise typer.Exit(SILENT)


def _systems(config: str, kind: SystemKind | None, settings: str) -> list[NamedSystem]:
    if settings and (kind is None or config):
        raise ConfigurationError(
            "--settings are those of one system.", next_step="Give --system with them, and no --config."
        )
    if kind is not None and (settings or (not config and FILE_VARIABLE not in os.environ)):
        # Without settings, the client's defaults apply: PGHOST and the like, or Redis on this machine.
        return [NamedSystem(name=kind.value, kind=kind, settings=settings)]
    found = [one for one in read_file(config).systems.values() if kind in (None, one.kind)]
    if not found:
        raise no_system()
    return found


def _file(config: str) -> OperatorFile:
    found = read_file(config)
    if not found.systems:
        raise no_system()
    return found


def _sinks(files: "CheckpointFiles", file: OperatorFile) -> "dict[str, TwoPhaseCommitSink]":
    from sparkonce.operate.checkpoint import read_log_of
    from sparkonce.operate.systems import sinks_of

    return sinks_of(file, read_log_of(files)[1])


def _accepted(texts: Sequence[str] | None, sinks: "Mapping[str, TwoPhaseCommitSink]") -> dict[str, int]:
    found = {}
    for text in texts or ():
        name, equals, batch = text.partition("=")
        if not equals or not batch.isdecimal() or name not in sinks:
            raise ConfigurationError(
                f"--accept-lost {text!r} is not SINK=BATCH.",
                next_step=f"Give them as StaleServerError reports them; the sinks are {sorted(sinks)}.",
            )
        found[name] = int(batch)
    return found


def _listing(systems: Sequence[NamedSystem], checkpoint: str, conf: list[str] | None) -> "tuple[Listing, _QueryName]":
    """Returns the open transactions and, with a checkpoint, the short id and name of its query."""
    from sparkonce.operate.checkpoint import query_name
    from sparkonce.operate.transactions import list_open
    from sparkonce.protocol.ownership import short_query
    from sparkonce.storage.spark_checkpoint import SparkCheckpoint

    if not checkpoint:
        return list_open(systems), ("", "")
    with opened(checkpoint, conf) as files:
        found = list_open(systems, files)
        return found, (short_query(SparkCheckpoint(files).query_id() or ""), query_name(files))


def _name_of(one: "OpenTransaction", name: "_QueryName") -> str:
    short, known = name
    return known if one.found.query == short else ""


def _listing_of_query(files: "CheckpointFiles", file: OperatorFile) -> "Listing":
    """Lists the open transactions of the checkpoint's query."""
    from sparkonce.operate.transactions import list_open
    from sparkonce.storage.spark_checkpoint import SparkCheckpoint

    found = list_open(list(file.systems.values()), files)
    return found.of_query(SparkCheckpoint(files).query_id() or "")


def _listed_after(files: "CheckpointFiles", file: OperatorFile) -> "Listing":
    """Lists open transactions after a command has changed some.

    A failure is reported like a system that does not respond, so that the command still shows what it has done.
    """
    from sparkonce.operate.transactions import Listing

    try:
        return _listing_of_query(files, file)
    except SparkonceError as error:
        return Listing(silent={"the second listing": error})
    except OSError as error:
        return Listing(silent={"the second listing": LogError(f"The checkpoint cannot be read: {error}.")})


def _confirm(files: "CheckpointFiles", file: OperatorFile, *, moved: bool, yes: bool) -> "Listing":
    """Shows the open transactions, asks for confirmation before the claim, and returns the transactions.

    Always asks if the checkpoint was moved, since it may be a copy, which shares the original's transactions.
    """
    from sparkonce.operate.resolve import newest_run

    run, found = newest_run(files), _listing_of_query(files, file)
    if moved:
        question = (
            f"If this is a copy and the query still runs on {run.location}, this aborts its transactions. Was the "
            "checkpoint moved, and does nothing use the old one?"
        )
    elif not yes:
        question = "A driver that still runs on this checkpoint is superseded and stops. Continue?"
    else:
        _show_plan(console(stderr=True), found.found, _RESOLVE)
        return found
    _ask(found, _RESOLVE, question)
    return found


def _ask(found: "Listing", todo: Mapping[str, str], question: str) -> None:
    _show_plan(console(stderr=True), found.found, todo)
    for name, error in found.silent.items():
        typer.echo(f"{name} did not answer: {error.lines()[0]}", err=True)
    typer.confirm(question, abort=True, err=True)


def _show_plan(to: Any, found: "Sequence[OpenTransaction]", todo: Mapping[str, str]) -> None:
    if not found:
        to.print("This query has nothing open here.")
        return
    rows = [
        (one.system, one.found.kind, shown_age(one.found.age_s), todo[one.verdict.value], one.found.name, one.why)
        for one in found
    ]
    print_table(to, ("system", "kind", "age", "to do", "name", "why"), rows)


def _show_open(to: Any, left: "Sequence[OpenTransaction]", todo: Mapping[str, str]) -> None:
    if left:
        to.print("Still open:")
        _show_plan(to, left, todo)


def show_done(done: "Resolved", before: "Listing", left: "Listing", form: OutputFormat) -> None:
    """Shows the result of `resolve`, and the next step. Exits with 1 if something is left.

    ``before`` and ``left`` list the open transactions before and after.
    """
    from sparkonce.operate.transactions import LogVerdict

    still = {(one.system, one.found.name) for one in left.found}
    ended = [one for one in before.found if (one.system, one.found.name) not in still]
    aborted = [one for one in ended if one.verdict in (LogVerdict.ABORT, LogVerdict.UNDER_WAY)]
    lines = [f"Claimed the log as run {done.run}: a driver that still runs on this checkpoint stops."]
    if done.batch is not None:
        lines.append(f"Committed batch {done.batch}: {counted(done.committed, 'transaction')}.")
    if done.lost:
        lines.append(f"Lost {counted(done.lost, 'transaction')} of it.")
    if done.swept:
        swept = ", ".join(done.swept)
        lines.append(
            f"Aborted what older runs had left open in {swept}: {counted(len(aborted), 'transaction')}."
            if aborted
            else f"Nothing that older runs opened is left in {swept}."
        )
    if done.left:
        lines.append(f"Did not check {', '.join(done.left)}: the file does not describe them.")

    def _table(to: Any, _wide: bool) -> None:
        for line in lines:
            to.print(line)
        _show_open(to, left.found, _RESOLVE)
        if done.lost:
            to.print("Next: Start the query, which writes the lost rows again.")
        elif done.left:
            to.print("Next: Start the query, which ends what is open in those sinks, or describe them in the file.")
        elif not left.found and not left.silent:
            to.print("Next: Start the query when it can run. It checks the servers again, and continues after this.")

    show({**asdict(done), "aborted": len(aborted), "open": [one.plain() for one in left.found]}, form, _table)
    exit_if_silent(left)
    if left.found or not done.is_all:
        raise typer.Exit(_NOT_ALL)


def _more(found: Any) -> list[tuple[str, str]]:
    """Returns the fields that a system adds, with their headings."""
    return [
        (one.metadata["head"], "-" if value in (-1, "") else str(value))
        for one in fields(found)
        if "head" in one.metadata
        for value in [getattr(found, one.name)]
    ]


def _row(one: "OpenTransaction", name: _QueryName, wide: bool) -> list[Any]:
    found = one.found
    batch_and_slot = ("-", "-") if found.batch < 0 else (str(found.batch), str(found.slot))
    more = [found.run, ", ".join(f"{head}: {value}" for head, value in _more(found))] if wide else []
    holds = "\n".join(found.holds)
    return [
        *(one.system, found.kind, _name_of(one, name) or found.query, *batch_and_slot, shown_age(found.age_s)),
        *(marked(one.verdict.value), found.name, holds),
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
