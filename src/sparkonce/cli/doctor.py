"""``sparkonce doctor``: everything that a start checks, with a next step for each failure. Needs no Spark session."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce.cli.checkpoint import Conf, Moved, opened
from sparkonce.cli.output import FormatOption, OutputFormat, show_checks
from sparkonce.cli.transactions import ConfigFile
from sparkonce.errors import SparkonceError

if TYPE_CHECKING:
    from sparkonce.operate.checkpoint import Check

_REFUSED = 1


def doctor(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpoint, if there is one to check.")
    ] = "",
    config: ConfigFile = "",
    moved: Moved = False,
    new: Annotated[
        bool, typer.Option("--new", help="Check sinks as a first start does, which creates their marker tables.")
    ] = False,
    conf: Conf = None,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Check this machine, a checkpoint, the systems in a file and its sinks, as a start would.

    Exits with 1 if a check fails.

    For example: sparkonce doctor /data/checkpoints/totals --config systems.yaml
    """
    from sparkonce.operate.doctor import check_servers
    from sparkonce.operate.systems import read_file

    file = read_file(config)
    if checkpoint:
        with opened(checkpoint, conf) as files:
            checks = [*_machine(), *check_servers(file, files, moved=moved, is_new=new)]
    else:
        checks = [*_machine(), *check_servers(file, None, is_new=new)]
    if not show_checks(checks, form):
        raise typer.Exit(_REFUSED)


def _machine() -> "Iterator[Check]":
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from sparkonce.operate.checkpoint import Check
    from sparkonce.operate.java import find_java

    yield Check(name="Python", ok=True, says=platform.python_version())
    for package in ("pyspark", "pyarrow", "confluent-kafka", "kafka-python"):
        try:
            yield Check(name=package, ok=True, says=version(package))
        except PackageNotFoundError:  # noqa: PERF203 - may still be in Spark's own folder
            yield Check(name=package, ok=True, says="It is not installed as a package.")
    try:
        yield Check(name="Java", ok=True, says=find_java())
    except SparkonceError as error:
        yield Check.failed("Java", error)
