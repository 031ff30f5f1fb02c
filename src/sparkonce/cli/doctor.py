"""``sparkonce doctor``: everything that a start checks, with a next step for each failure. Needs no Spark session."""

from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce.cli.checkpoint import Conf, Moved, opened
from sparkonce.cli.output import FormatOption, OutputFormat, show_checks
from sparkonce.cli.transactions import ConfigFile

if TYPE_CHECKING:
    pass

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
    """Check a checkpoint, the systems in a file and its sinks, as a start would. Also works for a backup.

    Exits with 1 if a check fails.

    For example: sparkonce doctor /data/checkpoints/totals --config systems.yaml
    """
    from sparkonce.operate.doctor import check_servers
    from sparkonce.operate.systems import no_system, read_file

    file = read_file(config)
    if not checkpoint and not file.systems:
        raise no_system()
    if checkpoint:
        with opened(checkpoint, conf) as files:
            checks = list(check_servers(file, files, moved=moved, is_new=new))
    else:
        checks = list(check_servers(file, None, is_new=new))
    if not show_checks(checks, form):
        raise typer.Exit(_REFUSED)
