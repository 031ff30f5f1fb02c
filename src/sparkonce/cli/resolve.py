"""``sparkonce transactions resolve`` and ``sweep``: ends what a query has left open, without Spark.

Typer reads the annotations when the command runs, so their types are imported here for real.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli.checkpoint import opened
from sparkonce.cli.conf import Conf
from sparkonce.cli.output import FormatOption, OutputFormat, columns, console, pairs, show, shown_age
from sparkonce.cli.transactions import ConfigFile, exit_if_silent, query_in
from sparkonce.errors import ConfigurationError, LogError, SparkonceError
from sparkonce.operate.systems import OperatorFile, no_system, read_file

if TYPE_CHECKING:
    from sparkonce.operate.resolve import Resolved
    from sparkonce.operate.transactions import Listing, OpenTransaction
    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce.storage.files import CheckpointFiles

Moved = Annotated[
    bool,
    typer.Option(
        "--moved", help="The checkpoint was moved, as checkpoint_moved=True says. This is always asked about."
    ),
]
AcceptLost = Annotated[
    list[str] | None,
    typer.Option("--accept-lost", metavar="SINK=BATCH", help="As accept_lost_batches says; may be repeated."),
]
OnConflict = Annotated[
    str,
    typer.Option(
        "--on-conflict",
        metavar="nothing|update",
        help="For rows of a decided batch that were to be appended to a table of PostgreSQL or MariaDB, and whose keys "
        "are there: keep the table's rows, or replace them.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Patience = Annotated[float, typer.Option("--patience-s", min=0, help="How long a silent system is waited for.")]
_NOT_ALL = 1

_RESOLVE = {"commit": "commit", "abort": "abort", "under way": "abort", "not known": "nothing"}
"""The action of `resolve` on each verdict of the log."""
_SWEEP = {**_RESOLVE, "commit": "resolve"}
"""The action of `sweep`, which refuses if something is to be resolved."""
_ALL = dict.fromkeys(_RESOLVE, "abort")
"""The action of a sweep without a log."""


def resolve(
    checkpoint: Annotated[str, typer.Argument(help="The query's checkpoint: a folder, or a URL as Spark takes it.")],
    config: ConfigFile = "",
    moved: Moved = False,
    accept_lost: AcceptLost = None,
    on_conflict: OnConflict = "",
    yes: Yes = False,
    patience_s: Patience = 60.0,
    conf: Conf = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Commits what a query has decided, and aborts the rest, as its next start would: by its log, and without Spark.

    Puts a claim into the log first, as a run does: a driver that still runs stops with SupersededError. Only
    transactions of runs that had claimed before are touched. All that a start refuses is refused here. Exits with 1 if
    something is left. For example: sparkonce transactions resolve /data/checkpoints/totals --config systems.yaml
    """
    from sparkonce.operate.resolve import resolve as resolve_query

    file = _file(config)
    with opened(checkpoint, conf) as files:
        sinks = _sinks(files, file)
        accepted = _accepted(accept_lost, sinks)
        _confirm(files, file, moved=moved, yes=yes)
        done = resolve_query(
            files, sinks, moved=moved, accept_lost=accepted, on_conflict=on_conflict, patience_s=patience_s
        )
        left = _listed_after(files, file)
    _tell(done, left, form)


def sweep(
    checkpoint: Annotated[str, typer.Argument(help="The query's checkpoint, if it is still there.")] = "",
    query: Annotated[str, typer.Option(help="Without a checkpoint: the query's id, or the first 12 digits.")] = "",
    accept_loss: Annotated[
        str,
        typer.Option(
            "--accept-loss", metavar="REASON", help="Without a checkpoint: why rows that were decided may be lost."
        ),
    ] = "",
    execute: Annotated[bool, typer.Option("--execute", help="Abort them. Without it they are only listed.")] = False,
    config: ConfigFile = "",
    moved: Moved = False,
    yes: Yes = False,
    patience_s: Patience = 60.0,
    conf: Conf = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Aborts what older runs of a query have left open. Lists it only, unless told to --execute.

    With the checkpoint a claim is put first, and a decided batch is never touched: `transactions resolve` commits it.
    If the checkpoint is gone, nobody can know what was decided: that needs --query and --accept-loss. Exits with 1 if
    something is left. For example: sparkonce transactions sweep /data/checkpoints/totals --config systems.yaml
    """
    if bool(checkpoint) == bool(query):
        raise ConfigurationError(
            "Give either the query's checkpoint, or --query of one whose checkpoint is gone.",
            next_step="See what is open: sparkonce transactions list.",
        )
    file = _file(config)
    if query:
        _sweep_without_log(query, accept_loss, file, execute=execute, yes=yes, patience_s=patience_s, form=form)
        return
    from sparkonce.operate.resolve import resolve as resolve_query

    with opened(checkpoint, conf) as files:
        if execute:
            sinks = _sinks(files, file)
            _confirm(files, file, moved=moved, yes=yes)
            done = resolve_query(files, sinks, moved=moved, decided=False, patience_s=patience_s)
            left = _listed_after(files, file)
        else:
            found = _listing(files, file)
    if execute:
        _tell(done, left, form)
    else:
        _show_listing(found, _SWEEP, form)


def _sweep_without_log(
    query: str, reason: str, file: OperatorFile, *, execute: bool, yes: bool, patience_s: float, form: OutputFormat
) -> None:
    from sparkonce.operate.abandon import abort_all
    from sparkonce.operate.sinks import sink_of
    from sparkonce.operate.transactions import list_open

    short, systems = query_in(query), list(file.systems.values())
    places = {name: str(arguments.get("system", name)) for name, arguments in file.sinks.items()}
    found = list_open(systems).of_query(short).on(places.values())
    if not execute:
        _show_listing(found, _ALL, form)
        return
    exit_if_silent(found)
    if not reason.strip():
        raise ConfigurationError(
            "Without the checkpoint nobody knows what was decided: rows may be lost.",
            next_step="Look for the checkpoint, or a copy. If it is gone for good, give --accept-loss with the reason.",
        )
    sinks = {name: sink_of(file, name, {}) for name in file.sinks}
    if not sinks:
        raise ConfigurationError(
            "The file names no sinks of the query.", next_step="Write them under `sinks:`, with their arguments."
        )
    _ask(
        found,
        _ALL,
        "Rows of batches that were decided and not committed yet are lost for good, and a driver that still runs this "
        "query fails. Go on?",
        yes=yes,
    )
    ended = {}
    for name, sink in sinks.items():
        open_there = [one.found for one in found.on([places[name]]).found]
        ended[name] = dict(abort_all(short, sink, open_there, patience_s=patience_s))
        typer.echo(f"{name}: {ended[name] or 'nothing was open'}", err=True)
    left = list_open(systems).of_query(short)
    value = {"query": short, "reason": reason, "ended": ended, "open": [one.plain() for one in left.found]}
    rows = [(name, ", ".join(f"{count:,} {how}" for how, count in one.items()) or "-") for name, one in ended.items()]

    def _table(to: Any, _wide: bool) -> None:
        to.print(pairs([("query", short), ("reason", reason), *rows]))
        _show_left(to, left.found, _ALL)

    show(value, form, _table)
    exit_if_silent(left)
    if left.found:
        raise typer.Exit(_NOT_ALL)


def _file(config: str) -> OperatorFile:
    found = read_file(config)
    if not found.systems:
        raise no_system()
    return found


def _sinks(files: "CheckpointFiles", file: OperatorFile) -> "dict[str, TwoPhaseCommitSink]":
    from sparkonce.operate.checkpoint import read_log_of
    from sparkonce.operate.sinks import sinks_of

    return sinks_of(file, read_log_of(files)[1])


def _accepted(given: Sequence[str] | None, sinks: "Mapping[str, TwoPhaseCommitSink]") -> dict[str, int]:
    found = {}
    for text in given or ():
        name, equals, batch = text.partition("=")
        if not equals or not batch.isdecimal() or name not in sinks:
            raise ConfigurationError(
                f"--accept-lost {text!r} is not SINK=BATCH.",
                next_step=f"Give them as StaleServerError names them; the sinks are {sorted(sinks)}.",
            )
        found[name] = int(batch)
    return found


def _listing(files: "CheckpointFiles", file: OperatorFile) -> "Listing":
    """Lists what the checkpoint's query has open."""
    from sparkonce.operate.transactions import list_open
    from sparkonce.storage.spark import SparkCheckpoint

    found = list_open(list(file.systems.values()), files)
    return found.of_query(SparkCheckpoint(files).query_id() or "")


def _listed_after(files: "CheckpointFiles", file: OperatorFile) -> "Listing":
    """Lists once more; what was done is shown also if that fails."""
    from sparkonce.operate.transactions import Listing

    try:
        return _listing(files, file)
    except SparkonceError as error:
        return Listing(silent={"the second listing": error})
    except OSError as error:
        return Listing(silent={"the second listing": LogError(f"The checkpoint cannot be read: {error}.")})


def _confirm(files: "CheckpointFiles", file: OperatorFile, *, moved: bool, yes: bool) -> None:
    """Asks before the claim. Of a checkpoint that was moved it asks always: a copy has the original's transactions."""
    from sparkonce.operate.resolve import newest_run

    run = newest_run(files)
    if moved:
        question = (
            f"If this is a copy, and the query runs on {run.location}, its transactions are aborted under it. Was the "
            "checkpoint moved, and does nothing run there any more?"
        )
    elif not yes:
        question = "A driver that still runs on this checkpoint is superseded, and stops. Go on?"
    else:
        _show_plan(console(stderr=True), _listing(files, file).found, _RESOLVE)
        return
    _ask(_listing(files, file), _RESOLVE, question, yes=False)


def _ask(found: "Listing", todo: Mapping[str, str], question: str, *, yes: bool) -> None:
    if yes:
        return
    _show_plan(console(stderr=True), found.found, todo)
    for name, error in found.silent.items():
        typer.echo(f"{name} did not answer: {error.lines()[0]}", err=True)
    typer.confirm(question, abort=True, err=True)


def _show_listing(found: "Listing", todo: Mapping[str, str], form: OutputFormat) -> None:
    show([one.plain() for one in found.found], form, lambda to, _: _show_plan(to, found.found, todo))
    exit_if_silent(found)


def _show_plan(to: Any, found: "Sequence[OpenTransaction]", todo: Mapping[str, str]) -> None:
    if not found:
        to.print("Nothing of this query is open here.")
        return
    table = columns("system", "kind", "age", "to do", "name", "why")
    for one in found:
        table.add_row(
            *(one.system, one.found.kind, shown_age(one.found.age_s), todo[one.verdict.value]),
            *(one.found.name, one.why),
        )
    to.print(table)


def _show_left(to: Any, left: "Sequence[OpenTransaction]", todo: Mapping[str, str]) -> None:
    if left:
        to.print("Still open:")
        _show_plan(to, left, todo)


def _tell(done: "Resolved", left: "Listing", form: OutputFormat) -> None:
    rows = [("claim", done.run)]
    if done.batch is not None:
        rows.append(("decided", f"batch {done.batch}: {done.committed:,} transactions are committed"))
    if done.lost:
        rows.append(("lost", f"{done.lost:,} transactions: start the query, which writes their rows again"))
    rows.append(("swept", ", ".join(done.swept) or "-"))
    if done.left:
        rows.append(("not looked at", f"{', '.join(done.left)}: the file does not say how to make them"))

    def _table(to: Any, _wide: bool) -> None:
        to.print(pairs(rows))
        _show_left(to, left.found, _RESOLVE)
        if not left.found and not left.silent and done.is_all:
            to.print("Next: start the query when it can run. It asks the servers once more, and goes on after this.")

    show({**asdict(done), "open": [one.plain() for one in left.found]}, form, _table)
    exit_if_silent(left)
    if left.found or not done.is_all:
        raise typer.Exit(_NOT_ALL)
