"""``sparkonce broker``: a real Kafka on this machine, for trying things out.

Typer reads the annotations when the command runs, so their types must be imported at runtime.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli.output import Command, FormatOption, OutputFormat, counted, marked, print_table, show
from sparkonce.errors import ConfigurationError

if TYPE_CHECKING:
    from sparkonce_lab.rig.kafka.detached import Recorded

app = typer.Typer(
    help="Run a real Kafka on this machine, to try things out.", no_args_is_help=True, add_completion=False
)

_DIR_HELP = "The folder for settings, logs and data. Defaults to one in sparkonce's cache."
Folder = Annotated[Path | None, typer.Option("--dir", metavar="DIR", help=_DIR_HELP)]


@app.command(cls=Command, short_help="Start brokers in the background.")
def up(
    folder: Folder = None,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="The first node's port, or 0 for any.")
    ] = 0,
    nodes: Annotated[int, typer.Option(metavar="COUNT", min=1, max=9, help="The number of brokers.")] = 1,
    version: Annotated[str, typer.Option(metavar="VERSION", help="Kafka's version.")] = "4.3.0",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A broker property. Can be repeated.")
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME[:PARTITIONS]", help="A topic to create. Can be repeated."),
    ] = None,
    heap: Annotated[str, typer.Option(metavar="SIZE", help="The maximum heap of each broker.")] = "1g",
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Start brokers in the background, and wait until they serve clients.

    The first time, Kafka is downloaded (about 45 MB). Running brokers are left unchanged.
    """
    from rich.console import Console

    from sparkonce_lab.rig.kafka import detached

    overrides = dict(_setting(text) for text in settings or ())
    wanted = [_topic(text) for text in topics or ()]
    with Console(stderr=True).status(f"Starting Kafka {version} (the first time, about 45 MB are downloaded)"):
        found, started = detached.up(
            folder or detached.default_folder(), nodes=nodes, version=version, port=port, overrides=overrides, heap=heap
        )
        for name, partitions in wanted:
            _create_topic(found.bootstrap, name, partitions)

    def _table(console: Any, _wide: bool) -> None:
        if not started:
            unused = ", with its former settings" if overrides else ""
            console.print(f"It is already running{unused}.")
        _show(console, found)
        option = f" --dir {shlex.quote(str(folder))}" if folder else ""
        new = "" if Path("job.py").exists() else "sparkonce new first-job && cd first-job && "
        console.print(
            f"Next: a topic      sparkonce broker up{option} --topic orders:2\n"
            f"      a first job  {new}BROKER={found.bootstrap} python job.py\n"
            f"      its end      sparkonce broker down{option}"
        )

    show({"started": started, **_plain(found)}, form, _table)


@app.command(cls=Command, short_help="Stop the brokers.")
def down(
    folder: Folder = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete data, logs and settings too.")] = False,
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Stop the brokers that `up` started in this folder. Their data is kept unless you pass --delete."""
    from sparkonce_lab.rig.kafka import detached

    used = folder or detached.default_folder()
    before = detached.status(used)
    ended = [node.pid for node in before.nodes if node.running] if before else []
    detached.down(used, delete=delete)

    def _table(console: Any, _wide: bool) -> None:
        console.print(f"Stopped {counted(len(ended), 'broker')}." if ended else f"Nothing is running in {used}.")
        if delete:
            console.print(f"Deleted the data in {used}.")

    show({"ended": ended, "deleted": delete, "folder": str(used)}, form, _table)


@app.command(cls=Command, short_help="Show what is running.")
def status(folder: Folder = None, form: FormatOption = OutputFormat.TABLE) -> None:
    """Show what is running in this folder. Exits with 1 unless every broker is running."""
    from sparkonce_lab.rig.kafka import detached

    used = folder or detached.default_folder()
    found = detached.status(used)
    plain = {"folder": str(used), "state": "stopped", "nodes": []} if found is None else _plain(found)

    def _table(console: Any, _wide: bool) -> None:
        if found is None:
            console.print(f"No broker was ever started in {used}.")
        else:
            _show(console, found)

    show(plain, form, _table)
    if plain["state"] != "running":
        raise typer.Exit(1)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigurationError(f"--set {text!r} is not KEY=VALUE.", next_step="for example --set num.partitions=3")
    return name, value


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    if not name or not (partitions or "1").isdecimal() or int(partitions or "1") < 1:
        raise ConfigurationError(f"--topic {text!r} is not NAME or NAME:PARTITIONS.", next_step="--topic orders:4")
    return name, int(partitions or "1")


def _create_topic(bootstrap: str, name: str, partitions: int) -> None:
    from confluent_kafka import KafkaException

    from sparkonce_lab.kafka import create_topic

    try:
        create_topic(bootstrap, name, partitions)
    except (KafkaException, TimeoutError) as error:
        raise ConfigurationError(
            f"The topic {name!r} cannot be created: {error}.", next_step="correct its name; the brokers are running"
        ) from error


def _plain(found: "Recorded") -> dict[str, Any]:
    nodes = [
        {"node_id": node.node_id, "pid": node.pid, "address": node.address, "running": node.running}
        for node in found.nodes
    ]
    head = {"state": found.state, "bootstrap": found.bootstrap, "version": found.version, "folder": found.folder}
    return {**head, "nodes": nodes}


def _show(console: Any, found: "Recorded") -> None:
    console.print(f"Kafka {found.version} is {found.state}: bootstrap.servers = {found.bootstrap}")
    rows = [
        (str(node.node_id), node.address, str(node.pid), marked("running" if node.running else "not running"))
        for node in found.nodes
    ]
    print_table(console, ("node", "address", "pid", "state"), rows)
    console.print(f"Data and logs: {found.folder}")
