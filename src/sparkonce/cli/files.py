"""``sparkonce files``: maintains the folder of a files sink."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli.output import Command, FormatOption, OutputFormat, print_table, show

if TYPE_CHECKING:
    from sparkonce.files import Compacted

app = typer.Typer(help="Maintain the files that a FilesSink has written.", no_args_is_help=True)


@app.callback()
def _main() -> None:
    """Maintain the files that a FilesSink has written."""


@app.command(cls=Command, short_help="Rewrite small files as larger ones.")
def compact(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="The path of the FilesSink: a folder, hdfs://… or s3://….")
    ],
    target_size: Annotated[
        int, typer.Option(metavar="MIB", min=1, help="The approximate size of a new file, in MiB.")
    ] = 128,
    keep_batches: Annotated[
        int, typer.Option(metavar="COUNT", min=2, help="How many of the newest batches to leave alone.")
    ] = 10,
    delete_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long to keep replaced files, in seconds, for readers that have listed them.",
        ),
    ] = 3600.0,
    missing_ok: Annotated[bool, typer.Option("--missing-ok", help="Continue if files are missing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
    settings: Annotated[
        str, typer.Option(metavar="SETTINGS", help="The sink's store_options in one line, as name=value.")
    ] = "",
    form: FormatOption = OutputFormat.TABLE,
) -> None:
    """Rewrite the small files of old batches as larger ones, for readers that use whole_batches.

    You can run it while the query or another compaction is running. If it is killed, run it again. The first run after
    --delete-after deletes the replaced files. Until then, readers that list the folder themselves see their rows twice.
    """
    from dataclasses import asdict

    from sparkonce.files import compact as compact_files
    from sparkonce.sinks.files.orphans import options_in

    done = compact_files(
        path,
        target_bytes=target_size << 20,
        keep_batches=keep_batches,
        delete_after_s=delete_after,
        missing_ok=missing_ok,
        dry_run=dry_run,
        store_options=options_in(settings),
    )
    show([asdict(one) for one in done], form, lambda console, _: _show(console, done))


def _show(console: Any, done: "list[Compacted]") -> None:
    if not done:
        console.print("There are no whole batches here.")
        return
    rows = [
        (
            *(one.sink, one.query, f"{one.batches:,}", f"{one.rows:,}"),
            f"{one.files_before:,} to {one.files_after:,}",
            f"{one.bytes_before / (1 << 20):.1f} to {one.bytes_after / (1 << 20):.1f}",
            *(f"{one.deleted:,}", f"{one.left:,}", "yes" if one.done else "no"),
        )
        for one in done
    ]
    print_table(console, ("sink", "query", "batches", "rows", "files", "MiB", "deleted", "to delete", "done"), rows)
