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
from sparkonce.cli.output import Command, FormatOption, OutputFormat, print_table, show, tell
from sparkonce.errors import SparkonceError

if TYPE_CHECKING:
    pass

_STYLES = {0: "bold green", 1: "bold red", 2: "bold yellow"}
"""The style of the last line, by exit code."""

app = typer.Typer(add_completion=False)


@app.command(cls=Command, short_help="Inject faults into a real query and count its rows.")
def verify(
    system: Annotated[
        list[str] | None,
        typer.Option(
            "--system",
            metavar="NAME[=WHERE]",
            help="A system that the query writes to: kafka (the default), postgres, mysql, redis, files, s3. Can be "
            "repeated to write to several as one unit. WHERE locates your own; without it, a server is started.",
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
    brokers: Annotated[
        int | None, typer.Option(metavar="COUNT", help="How many brokers to start: 1 or 3.", show_default="1")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A folder or URL that Spark accepts (s3a://…, hdfs://…, a path), in which a new folder for the "
            "query's checkpoint is created; or s3 to start a server for it. By default, it is on its own disk.",
        ),
    ] = None,
    conf: Conf = None,
    faults: Annotated[
        int | None, typer.Option(metavar="COUNT", min=0, help="How many faults to inject.", show_default="12")
    ] = None,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", metavar="NAME", help="Only this fault; see --list-faults.")
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="The least time between two faults.", show_default="0"),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT", min=1, help="How many rows to write to the source, at least.", show_default="20000"
        ),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT", min=1, max=100_000, help="How many rows per second to write.", show_default="1000"
        ),
    ] = None,
    refuse_every: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            min=1,
            help="Let Kafka refuse one of this many rows per key. It goes to the dead letters, and is counted.",
            show_default="none",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="The same seed produces the same rows and faults.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder for history, logs and report.")
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="DIR",
            help="Repeat the run in a folder on the same systems. Credentials are not recorded: if there were some, "
            "give every --system again, or --kafka-config.",
        ),
    ] = None,
    judge: Annotated[
        Path | None, typer.Option("--judge", metavar="DIR", help="Only judge a recorded run, and write its report.")
    ] = None,
    list_faults: Annotated[bool, typer.Option("--list-faults", help="List the faults.")] = False,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Kill, disconnect, pause and fill up a real query and its servers, and prove that no row is lost or duplicated.

    Exits with 0 if everything was checked and nothing was found, with 1 if something was found, and with 2 if the
    result is inconclusive: not everything was carried out, checked, or possible. See DIR/report.html for what happened.
    With JSON or YAML, progress goes to standard error.
    """
    from rich.console import Console

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
            _tell(judge, form)
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
            say(f"{str(error).rstrip('.')}. Everything recorded until then is judged")
        _tell(options.folder, form)


@contextmanager
def _could_not_tell(console: Any) -> Iterator[None]:
    """Prevents failures from exiting with 1, which stands for a violation."""
    try:
        yield
    except SparkonceError as error:
        tell(error)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        typer.echo("Stopped. Use --judge to judge what has been recorded.", err=True)
        raise typer.Exit(130) from None
    except typer.Exit:
        raise
    except Exception as error:
        console.print_exception()
        raise typer.Exit(2) from error


def _tell(folder: Path, form: OutputFormat) -> None:
    from sparkonce_lab.checkers import judge
    from sparkonce_lab.history import load
    from sparkonce_lab.report.figures import EXIT_CODES
    from sparkonce_lab.report.page import write

    history = load(folder)
    verdicts = judge(history)
    page, figures = write(folder, history, verdicts)
    said = figures["verdict"]
    code = EXIT_CODES[said["outcome"]]

    def _summary(to: Any, _wide: bool) -> None:
        from rich.text import Text

        rows = []
        for one in verdicts:
            found = (
                Text(f"{one.count:,}", "bold red" if one.count else "green") if one.looked_at else Text("—", "yellow")
            )
            rows.append((one.anomaly.value, one.system or "all", f"{one.looked_at:,}", found))
        print_table(to, ("anomaly", "where", "examined", "found"), rows, numbers=("examined", "found"))
        to.print()
        to.print(Text(f"sparkonce: {said['words']}", _STYLES[code]) + f". {said['sentence']}")
        to.print(f"Report: {page}")

    show(figures, form, _summary)
    raise typer.Exit(code)


def _list_faults(form: OutputFormat) -> None:
    from sparkonce_lab.faults import Fault

    faults = [(one.value, one.words, "a system" if one.of_a_system else "the query") for one in Fault]

    def _table(to: Any, _wide: bool) -> None:
        print_table(to, ("fault", "strikes", "what happens"), [(name, on, what) for name, what, on in faults])

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
