"""``sparkonce verify``: the proof on the user's servers, or on servers that it starts."""

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli.checkpoint import Conf, read_conf
from sparkonce.cli.output import AsJson, FormatOption, OutputFormat, columns, show, tell
from sparkonce.errors import SparkonceError

if TYPE_CHECKING:
    from sparkonce_lab.verdicts import Verdict

_STYLES = {0: "bold green", 1: "bold red", 2: "bold yellow"}
"""The style of the last line, by exit code."""

app = typer.Typer(add_completion=False)


@app.command()
def verify(
    system: Annotated[
        list[str] | None,
        typer.Option(
            "--system",
            metavar="NAME[=WHERE]",
            help="What the query writes to, as one unit: kafka, postgres, mysql, redis, files, s3. Without WHERE a "
            "server is started for it; WHERE is the place of your own. May be given several times; by default kafka.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--bootstrap", metavar="HOST:PORT", help="Your own Kafka, for the source and the system kafka."),
    ] = None,
    kafka_config: Annotated[
        Path | None,
        typer.Option("--kafka-config", metavar="FILE", help="librdkafka's settings for your own Kafka, as JSON."),
    ] = None,
    brokers: Annotated[int | None, typer.Option(help="How many brokers to start: 1 or 3.", show_default="1")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A folder of yours, as Spark names it (s3a://…, hdfs://…, a path), in which a new one is made for the "
            "query's checkpoint; or s3 for a server that is started for it. By default it is on a disk of its own.",
        ),
    ] = None,
    conf: Conf = None,
    faults: Annotated[int | None, typer.Option(min=0, help="How many faults to inject.", show_default="12")] = None,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", metavar="NAME", help="Only this fault; see --list-faults.")
    ] = None,
    every: Annotated[
        float | None, typer.Option(min=0, help="Seconds from one fault to the next, at least.", show_default="0")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="How many rows to write to the source, at least.", show_default="20000"),
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="How many rows a second.", show_default="1000")
    ] = None,
    refuse_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of so many rows of a key let Kafka refuse one. It goes to a sink of dead letters, and is counted.",
            show_default="none",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the same rows and the same schedule again.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder for history, logs and report.")
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="DIR",
            help="Do again what the history in a folder says, on the same systems. Credentials are not in it: where "
            "there were some, name every --system again, or --kafka-config.",
        ),
    ] = None,
    judge: Annotated[
        Path | None, typer.Option("--judge", metavar="DIR", help="Only judge the history in a folder, and report.")
    ] = None,
    list_faults: Annotated[bool, typer.Option("--list-faults", help="Name the faults.")] = False,
    form: FormatOption = OutputFormat.TABLE,
    as_json: AsJson = False,
) -> None:
    """Kill, disconnect, pause and fill up a real query and its servers, and prove that no row is lost or duplicated.

    Exits with 0 if everything was checked and nothing was found, with 1 if something was found, and with 2 if the
    result is inconclusive: not everything was carried out, checked, or possible. See DIR/report.html for what happened.
    With JSON or YAML, progress goes to standard error.
    """
    from rich.console import Console

    form = OutputFormat.of(form, as_json)
    if list_faults:
        _list_faults(form)
        return
    console = Console(stderr=form.is_for_programs)
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:7.1f} s[/]  ", end="")
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    if judge is not None:
        with _could_not_tell(console):
            _tell(judge, console, form)
        return
    from sparkonce_lab.ask import Asked, options_of
    from sparkonce_lab.history import EVENTS, EventKind, load
    from sparkonce_lab.run import run

    def ask() -> Asked:
        return Asked(
            systems=tuple(system or ()),
            bootstrap=source,
            kafka_settings=_settings(kafka_config),
            brokers=brokers,
            checkpoint=checkpoint,
            conf=read_conf(conf),
            faults=faults,
            wanted=tuple(fault or ()),
            every_s=every,
            refuse_every=refuse_every,
            rows=rows,
            rate=rate,
            seed=seed,
            a_seed=secrets.randbelow(1_000_000),
            folder=folder or Path(time.strftime("sparkonce-verify-%Y%m%d-%H%M%S")),
            replay=replay,
        )

    with _could_not_tell(console):
        options = options_of(ask())
        say(f"seed {options.seed}; everything is kept in {options.folder}")
        try:
            run(options, say)
        except Exception as error:
            if not (options.folder / EVENTS).exists() or load(options.folder).first(EventKind.BEGAN) is None:
                raise
            if not isinstance(error, SparkonceError):
                console.print_exception()
            say(f"{str(error).rstrip('.')}. What was recorded until then is judged")
        _tell(options.folder, console, form)


@contextmanager
def _could_not_tell(console: Any) -> Iterator[None]:
    """Makes sure that failures do not exit with 1, which stands for a violation."""
    try:
        yield
    except SparkonceError as error:
        tell(error)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        typer.echo("Ended. What was recorded until now can be judged with --judge.", err=True)
        raise typer.Exit(130) from None
    except typer.Exit:
        raise
    except Exception as error:
        console.print_exception()
        raise typer.Exit(2) from error


def _tell(folder: Path, console: Any, form: OutputFormat) -> None:
    from sparkonce_lab.checkers import judge
    from sparkonce_lab.history import load
    from sparkonce_lab.report.figures import EXIT_CODES
    from sparkonce_lab.report.page import write

    history = load(folder)
    verdicts = judge(history)
    page, figures = write(folder, history, verdicts)
    said = figures["verdict"]
    code = EXIT_CODES[said["outcome"]]

    def _summary(_console: Any, _wide: bool) -> None:
        console.print(_table(verdicts))
        console.print(f"sparkonce: {said['words']}", style=_STYLES[code], highlight=False, end="")
        console.print(f". {said['sentence']}\nReport: {page}", markup=False, highlight=False, soft_wrap=True)

    show(figures, form, _summary)
    raise typer.Exit(code)


def _table(verdicts: "tuple[Verdict, ...]") -> Any:
    from rich.table import Table

    shown = Table(title="What was found", title_justify="left")
    for name in ("", "where", "looked at", "found"):
        shown.add_column(name, justify="left" if name in ("", "where") else "right")
    for one in verdicts:
        found = f"[bold red]{one.count:,}[/]" if one.count else "[green]0[/]" if one.looked_at else "—"
        shown.add_row(one.anomaly.value, one.system or "all", f"{one.looked_at:,}", found)
    return shown


def _list_faults(form: OutputFormat) -> None:
    from sparkonce_lab.faults import Fault

    faults = [(one.value, one.words, "a system" if one.of_a_system else "the query") for one in Fault]

    def _table(console: Any, _wide: bool) -> None:
        shown = columns("fault", "what happens", "strikes")
        for one in faults:
            shown.add_row(*one)
        console.print(shown)

    show([dict(zip(("fault", "does", "strikes"), one, strict=True)) for one in faults], form, _table)


def _settings(path: Path | None) -> dict[str, Any]:
    from sparkonce.errors import ConfigurationError

    if path is None:
        return {}
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--kafka-config {path} cannot be read as JSON: {error}", next_step="correct the file."
        ) from error
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"--kafka-config {path} must hold an object with librdkafka's settings", next_step="correct the file."
        )
    return found
