"""``sparkonce checkpoint``: a query's state, and what its next start would do. Needs no Spark.

Other commands also use `opened` and the ``--conf`` option for the checkpoint's store. Typer reads the annotations when
a command runs, so their types must be imported at runtime.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli.output import (
    Command,
    FormatOption,
    OutputFormat,
    counted,
    marked,
    print_pairs,
    print_table,
    show,
    shown_age,
    shown_time,
)
from sparkonce.errors import ConfigurationError

if TYPE_CHECKING:
    from sparkonce.operate.checkpoint import CheckpointStatus, LogEntry
    from sparkonce.storage.files import CheckpointFiles


app = typer.Typer(help="See the state of a query, and what its next start would do.", no_args_is_help=True)

Location = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint: a folder or a URL that Spark accepts.")
]

Moved = Annotated[bool, typer.Option("--moved", help="Check a start with checkpoint_moved=True.")]

Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="KEY=VALUE",
        help="A Spark setting for the checkpoint's store, such as spark.hadoop.fs.s3a.endpoint. Can be repeated.",
    ),
]

_HADOOP = "spark.hadoop."

_CONNECTOR = ("spark.jars.packages", "spark.jars.repositories", "spark.jars.ivy", "spark.jars.ivySettings")

_CLASSES = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")

_DEFAULT_STORE = "spark.hadoop.fs.defaultFS"


@app.command("show", cls=Command, short_help="Show the state of a query.")
def show_status(
    location: Location, moved: Moved = False, conf: Conf = None, form: FormatOption = OutputFormat.TABLE
) -> None:
    """Show the state of a query: its newest batch, the run that owns it, and what its next start would do.

    It only reads, so you can run it while the query is running.

    For example: sparkonce checkpoint show /data/checkpoints/totals
    """
    from sparkonce.operate.checkpoint import query_name, read_checkpoint

    with opened(location, conf) as files:
        status, name = read_checkpoint(files, moved=moved), query_name(files)
    show({**asdict(status), "name": name}, form, lambda console, wide: _print_status(console, status, name, wide))


@app.command(cls=Command, short_help="List the transactions of a decided batch.")
def batch(
    location: Location,
    number: Annotated[int, typer.Argument(metavar="BATCH", min=0, help="Spark's batch id.")],
    conf: Conf = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the handles of a decided batch: the rows, fingerprint and transaction of each sink and slot.

    For example: sparkonce checkpoint batch /data/checkpoints/totals 7
    """
    from sparkonce.operate.checkpoint import read_handles

    with opened(location, conf) as files:
        handles = read_handles(files, number)

    def _table(to: Any, wide: bool) -> None:
        heads = ("sink", "slot", "rows", "opened", *(["fingerprint"] if wide else []), "transaction")
        rows = [
            (
                *(one.sink, str(one.slot), f"{one.rows:,}", shown_time(one.opened_ms or None)),
                *([f"{one.fingerprint:016x}"] if wide else []),
                " ".join(f"{name}={value}" for name, value in one.transaction) or "-",
            )
            for one in handles
        ]
        print_table(to, heads, rows, numbers=("slot", "rows"))

    show([{**asdict(one), "transaction": dict(one.transaction)} for one in handles], form, _table)


@app.command(cls=Command, short_help="List the records of the decision log.")
def history(
    location: Location,
    last: Annotated[
        int, typer.Option(metavar="COUNT", min=1, help="Show only this many of the newest records.")
    ] = 1000,
    conf: Conf = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the records of the decision log: runs that began and batches that were decided, with their times.

    The log has the last 100 batches or so. For example: sparkonce checkpoint history /data/checkpoints/totals --last 10
    """
    from sparkonce.operate.checkpoint import read_log_of

    with opened(location, conf) as files:
        _, _, entries = read_log_of(files)
    wanted = list(entries)[-last:]
    show([asdict(one) for one in wanted], form, lambda console, wide: _print_entries(console, wanted, wide))


@contextmanager
def opened(location: str, conf: list[str] | None) -> "Iterator[CheckpointFiles]":
    """Opens a checkpoint, and turns errors of its store into errors with a next step."""
    from sparkonce.storage.opening import open_location

    of_hadoop = [(name, value) for name, value in read_conf(conf).items() if name.startswith(_HADOOP)]
    url = location if ":" in location.partition("/")[0] else str(Path(location).absolute())
    try:
        yield open_location(url, {name.removeprefix(_HADOOP): value for name, value in of_hadoop} or None)
    except OSError as error:
        raise ConfigurationError(
            f"{location!r} cannot be read: {error.strerror or error}.",
            next_step="Give this process the store's credentials: see docs/checkpoints.md#without-spark.",
        ) from error


def read_conf(texts: Sequence[str] | None) -> dict[str, str]:
    """Parses settings given as KEY=VALUE.

    Raises:
        ConfigurationError: If a setting is not for a store. The message omits its value, which may be a secret.
    """
    pairs = [text.partition("=") for text in texts or ()]
    for name, equals, _ in pairs:
        if not equals:
            raise ConfigurationError(
                f"--conf {name.partition(' ')[0]!r} is not KEY=VALUE.",
                next_step="For example --conf spark.hadoop.fs.s3a.endpoint=https://store:9000.",
            )
        if name == _DEFAULT_STORE or not (name.startswith(_HADOOP) or name in (*_CONNECTOR, *_CLASSES)):
            raise ConfigurationError(
                f"--conf {name}: only the way to the checkpoint's store can be set here.",
                next_step=f"Give spark.hadoop.fs.…, {', '.join((*_CONNECTOR, *_CLASSES))}; the checkpoint as a URL.",
            )
    return {name.strip(): value.strip() for name, _, value in pairs}


def _print_status(to: Any, status: "CheckpointStatus", name: str, wide: bool) -> None:
    from sparkonce.operate.checkpoint import OPERATOR, BatchState

    run, newest = status.run, status.newest
    rows: list[tuple[str, Any]] = [
        ("checkpoint", status.location),
        ("query", status.query or "No query has started yet."),
    ]
    if name:
        rows.append(("name", name))
    if run is not None:
        where = f", process {run.process} on {run.host}, sparkonce {run.library}" if run.host else ""
        where += ", by transactions resolve" if run.spark_run.startswith(OPERATOR) else ""
        rows.append(("newest run", f"{run.run}, since {shown_time(run.claimed_ms)}{where}"))
    if status.end:
        first, last = status.floor, status.end - 1
        which = f"{first}" if first == last else f"{first} to {last}"
        rows.append(("log", f"{counted(last - first + 1, 'record')} ({which}) of {counted(status.runs, 'run')}"))
    if newest is not None:
        rows.append(("newest batch", marked(newest.state.value, before=f"{newest.batch}: ")))
    if newest is not None and newest.decided_ms is not None:
        rows.append(("decided", shown_time(newest.decided_ms)))
    if newest is not None and newest.opened_ms is not None:
        age = f", {shown_age(time.time() - newest.opened_ms / 1000)} ago" if newest.state is not BatchState.DONE else ""
        rows.append(("first transaction", f"{shown_time(newest.opened_ms)}{age}"))
    rows.append(("next start", marked(status.next_start.value, after=f": {status.says}")))
    if status.next_step:
        rows.append(("next step", status.next_step))
    if newest is not None:
        rows.extend((f"offsets of source {number}", line) for number, line in enumerate(newest.offsets))
    print_pairs(to, rows)
    sinks = []
    for sink, facts in status.sinks.items():
        known = [f"{key}={value}" for key, value in facts.items() if wide or key == "prefix"]
        counts = [_count(newest.rows, sink), _count(newest.transactions, sink)] if newest is not None else ["-", "-"]
        sinks.append((sink, *counts, "\n".join(known)))
    if sinks:
        to.print()
        print_table(to, ("sink", "rows", "transactions", "facts"), sinks, numbers=("rows", "transactions"))


def _count(counts: Mapping[str, int], sink: str) -> str:
    return f"{counts[sink]:,}" if sink in counts else "-"


def _counts(counts: Mapping[str, int], wide: bool, *, add: bool = True) -> str:
    """Formats counts by sink. In short form, shows their sum or, without ``add``, only the different numbers."""
    if not wide or len(counts) < 2:
        several = [sum(counts.values())] if add and counts else dict.fromkeys(counts.values())
        return " / ".join(f"{count:,}" for count in several) or "-"
    return "\n".join(f"{sink}: {count:,}" for sink, count in counts.items())


def _print_entries(to: Any, entries: "list[LogEntry]", wide: bool) -> None:
    from sparkonce.operate.checkpoint import OPERATOR

    rows = []
    for one in entries:
        more = [f"process {one.process} on {one.host}, sparkonce {one.library}"] if one.kind == "claim" else one.offsets
        rows.append(
            (
                shown_time(one.at_ms),
                str(one.position),
                "claim by hand" if one.spark_run.startswith(OPERATOR) else one.kind,
                "-" if one.batch is None else str(one.batch),
                one.run,
                _counts(one.rows, wide, add=False),
                _counts(one.transactions, wide) + (f", {one.void} void" if one.void else ""),
                *(["\n".join(more)] if wide else []),
            )
        )
    heads = ("time", "record", "kind", "batch", "run", "rows", "transactions", *(["more"] if wide else []))
    print_table(to, heads, rows, numbers=("record", "batch"))
