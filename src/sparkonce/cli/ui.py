"""``sparkonce ui``: a live page about queries, their batches and open transactions. Needs no Spark.

Typer reads the annotations when the command runs, so their types must be imported at runtime.
"""

from contextlib import ExitStack
from typing import Annotated

import typer

from sparkonce.cli.checkpoint import Conf, Moved, opened
from sparkonce.cli.transactions import ConfigFile
from sparkonce.errors import ConfigurationError

_FIRST_CHECK_S = 5.0


def ui(
    checkpoint: Annotated[
        list[str],
        typer.Option(
            metavar="CHECKPOINT", help="A query's checkpoint: a folder or a URL that Spark accepts. Can be repeated."
        ),
    ],
    config: ConfigFile = "",
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on. There is no login.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="The port, or 0 for any free port.")
    ] = 8765,
    moved: Moved = False,
    conf: Conf = None,
) -> None:
    """Serve a live page: queries, their batches by phase, open transactions, and alarms with the next step.

    It only reads, so you can run it while the queries are running. Press Ctrl-C to end it.

    For example: sparkonce ui --checkpoint /data/checkpoints/totals --config systems.yaml
    """
    from sparkonce.operate.systems import read_file
    from sparkonce.ui.server import PageServer, is_loopback
    from sparkonce.ui.watcher import PageWatcher

    file = read_file(config)
    with ExitStack() as stack:
        found = {one: stack.enter_context(opened(one, conf)) for one in checkpoint}
        watcher = PageWatcher(found, file, moved=moved)
    watcher.refuse_what_is_no_checkpoint(_FIRST_CHECK_S)
    try:
        server = PageServer(watcher, host, port)
    except OSError as error:
        raise ConfigurationError(
            f"--host {host} --port {port} cannot be used: {error.strerror or error}.",
            next_step="Give another --port, or --port 0 for a free one.",
        ) from error
    if not is_loopback(host):
        typer.secho(
            f"Anyone who can reach {host} can read this page: it has no login and no TLS.", fg="yellow", err=True
        )
    typer.echo(f"The page is at {server.url} Ctrl-C ends it.")
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("Ended.")
