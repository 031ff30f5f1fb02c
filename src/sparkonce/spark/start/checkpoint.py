"""Compares the checkpoint that `ExactlyOnce` was given with the one of the running query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sparkonce.checkpoint import SparkCheckpoint
from sparkonce.errors import ConfigurationError


class Location(NamedTuple):
    """The folder of a query's checkpoint, and whether Spark deletes it when the query ends."""

    folder: str
    is_temporary: bool


def check_query(checkpoint: Path, running: str, location: Callable[[], Location | None] = lambda: None) -> None:
    """Refuses a checkpoint that is not the running query's.

    Args:
        checkpoint: What `ExactlyOnce` was given.
        running: The query's id.
        location: Returns where the query's checkpoint is; None if that is not known.

    Raises:
        ConfigurationError: if its checkpointLocation is another one, or missing.
    """
    found = SparkCheckpoint(checkpoint).query_id()
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
