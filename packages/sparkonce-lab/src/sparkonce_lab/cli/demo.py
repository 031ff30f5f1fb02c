"""``sparkonce demo``: the proof on this machine."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli.checkpoint import Conf, read_conf
from sparkonce.cli.output import Command, FormatOption, OutputFormat, show
from sparkonce.errors import ConfigurationError

if TYPE_CHECKING:
    from sparkonce_lab.demo.result import Result, Variant

app = typer.Typer(add_completion=False)


@app.command(cls=Command, short_help="Kill a real query in its commits and count its rows.")
def demo(
    rows_per_second: Annotated[
        int, typer.Option(metavar="COUNT", min=50, max=20_000, help="The number of orders per second.")
    ] = 1000,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="The same seed produces the same orders.")] = 1,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep broker, checkpoints and logs in a new folder.")
    ] = None,
    compare: Annotated[bool, typer.Option(help="Kill Spark's own Kafka sink as well.")] = True,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A folder or URL that Spark accepts (s3a://…, hdfs://…, a path). A new folder for the checkpoints is "
            "created in it.",
        ),
    ] = None,
    conf: Conf = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Kill a real query on a real broker in the middle of its commits, and count the rows.

    Takes two minutes. Exits with 0 only if sparkonce lost and duplicated nothing and every kill hit its point. With
    JSON or YAML, progress goes to standard error.
    """
    settings = read_conf(conf)
    if settings and checkpoint is None:
        raise ConfigurationError(
            f"--conf {' and '.join(settings)}: the checkpoints are in a temporary folder.",
            next_step="Give their location with --checkpoint, or leave --conf out.",
        )
    from rich.console import Console as RichConsole

    from sparkonce_lab.demo.console import Console
    from sparkonce_lab.demo.scenario import run

    rich = RichConsole(stderr=form.is_for_programs)
    console = Console(rich)
    try:
        result = run(
            console,
            rows_per_second=rows_per_second,
            seed=seed,
            keep=keep,
            compare=compare,
            checkpoint=checkpoint,
            conf=settings,
        )
    finally:
        console.close()
    show(_plain(result), form, lambda _console, _wide: _show(rich, result, keep))
    if not result.ok:
        raise typer.Exit(1)


def _show(console: Any, result: "Result", keep: Path | None) -> None:
    from sparkonce_lab.demo.console import table

    console.print()
    console.print(table([variant for variant in (result.with_sparkonce, result.without) if variant is not None]))
    console.print(
        "[dim]Aborted rows are hidden from read_committed readers. Kafka's default, read_uncommitted, shows them.[/]",
        soft_wrap=True,
    )
    if result.ok:
        verdict = "[bold green]exactly once[/]: killed at every point, nothing missing, nothing doubled"
    elif not result.with_sparkonce.proved:
        verdict = "[bold red]proves nothing[/]: a kill did not hit its point, or the run was not finished"
    else:
        verdict = "[bold red]NOT exactly once[/]"
    console.print(f"\nsparkonce: {verdict}, in {result.seconds:.0f} s.", highlight=False, soft_wrap=True)
    if keep is not None:
        console.print(f"Kept: {keep}", markup=False, highlight=False, soft_wrap=True)


def _plain(result: "Result") -> dict[str, Any]:
    def shown(variant: "Variant") -> dict[str, Any]:
        return {**dataclasses.asdict(variant), "proved": variant.proved, "exactly_once": variant.exactly_once}

    return {
        "ok": result.ok,
        "seconds": round(result.seconds, 1),
        "with_sparkonce": shown(result.with_sparkonce),
        "without": None if result.without is None else shown(result.without),
    }
