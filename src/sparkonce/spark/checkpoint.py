"""What Spark's own checkpoint folder says: the query's id and each batch's input offsets.

Format, read off Spark 4.0: ``metadata`` is JSON with ``id``; ``offsets/N`` has a version line ``v1``, a JSON line of
watermark, timestamp and settings, then one JSON line for each source.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sparkonce.errors import CheckpointMismatchError, ConfigurationError


class Location(NamedTuple):
    """Where Spark keeps a query's checkpoint, and whether in a folder that it deletes when the query ends."""

    folder: str
    is_temporary: bool


def query_id(checkpoint: Path) -> str | None:
    """The query's id, or None where no query has started on the checkpoint yet."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointMismatchError(
            f"{checkpoint / 'metadata'} does not hold a query's id: {error!r}",
            next_step="restore the checkpoint from a copy.",
        ) from error


def check_query(checkpoint: Path, running: str, location: Callable[[], Location | None] = lambda: None) -> None:
    """Sees that the running query has this checkpoint.

    Args:
        checkpoint: What `ExactlyOnce` was given.
        running: The query's id.
        location: Says where the query's checkpoint is; None if that is not known.

    Raises:
        ConfigurationError: if its checkpointLocation is another one, or missing.
    """
    found = query_id(checkpoint)
    if found != running:
        where = location()
        if where is not None and where.is_temporary:
            raise ConfigurationError(
                f"The query has no option checkpointLocation, so that it would begin anew at each start, and "
                f"ExactlyOnce has checkpoint={str(checkpoint)!r}.",
                next_step=f'add .option("checkpointLocation", "{checkpoint}") to the query.',
                setting="checkpointLocation",
            )
        if where is not None and where.folder != str(checkpoint):
            raise ConfigurationError(
                f"The query's checkpointLocation is {where.folder!r}, and ExactlyOnce has "
                f"checkpoint={str(checkpoint)!r}.",
                next_step="give both the same folder.",
                setting="checkpointLocation",
            )
        raise ConfigurationError(
            f"checkpoint={str(checkpoint)!r} holds {'no query' if found is None else f'query {found}'}, and the "
            f"running query is {running}",
            next_step="give ExactlyOnce the same folder as the query's option checkpointLocation.",
        )


def input_offsets(checkpoint: Path, batch: int) -> tuple[str, ...] | None:
    """A batch's end offsets, one canonical JSON text a source; None if Spark has no such batch (any more)."""
    try:
        text = (checkpoint / "offsets" / str(batch)).read_text()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CheckpointMismatchError(
            f"{checkpoint / 'offsets' / str(batch)} is no text: {error}",
            next_step="restore the checkpoint from a copy.",
        ) from error
    version, _, rest = text.partition("\n")
    if not version.startswith("v") or not rest:
        raise CheckpointMismatchError(
            f"{checkpoint / 'offsets' / str(batch)} does not begin like an offset log of Spark: {version!r}",
            next_step="restore the checkpoint from a copy.",
        )
    return tuple(_canonical(line) for line in rest.splitlines()[1:])


def newest_batch(checkpoint: Path) -> tuple[int, bool] | None:
    """The last batch that Spark has planned, and whether it has noted that it is done; None if there is none."""
    try:
        newest = max(int(one.name) for one in (checkpoint / "offsets").iterdir() if one.name.isdigit())
    except (FileNotFoundError, ValueError):
        return None
    return newest, (checkpoint / "commits" / str(newest)).exists()


def _canonical(line: str) -> str:
    """The same text for the same offsets; Spark writes ``-`` for a source without any yet."""
    try:
        return json.dumps(json.loads(line), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return line
