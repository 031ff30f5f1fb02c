"""Compares the checkpoint that `ExactlyOnce` was given with the one of the running query."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sparkonce.checkpoint.files import CheckpointFiles
from sparkonce.checkpoint.spark import SparkCheckpoint
from sparkonce.errors import ConfigurationError


class CheckpointLocation(NamedTuple):
    """The place of a query's checkpoint.

    Attributes:
        folder: A path on this machine, or a URL.
        is_temporary: True if Spark deletes it when the query ends.
    """

    folder: str
    is_temporary: bool


def check_query(
    files: CheckpointFiles, running: str, location: Callable[[], CheckpointLocation | None] = lambda: None
) -> None:
    """Refuses a checkpoint that is not the running query's.

    Args:
        files: Of the folder that `ExactlyOnce` was given.
        running: The query's id.
        location: Returns the place of the query's checkpoint; None if it is unknown.

    Raises:
        ConfigurationError: if its checkpointLocation is another one, or missing.
    """
    found = SparkCheckpoint(files).query_id()
    checkpoint = files.location
    if found != running:
        where = location()
        if where is not None and where.is_temporary:
            raise ConfigurationError(
                f"The query has no option checkpointLocation, so that each start would begin anew. "
                f"ExactlyOnce has checkpoint={checkpoint!r}.",
                next_step=f'Add .option("checkpointLocation", "{checkpoint}") to the query.',
                setting="checkpointLocation",
            )
        if where is not None and where.folder != checkpoint:
            raise ConfigurationError(
                f"The query's checkpointLocation is {where.folder!r}, and ExactlyOnce has checkpoint={checkpoint!r}.",
                next_step="Give both the same folder.",
                setting="checkpointLocation",
            )
        raise ConfigurationError(
            f"checkpoint={checkpoint!r} holds {'no query' if found is None else f'query {found}'}, and the "
            f"running query is {running}.",
            next_step="Give ExactlyOnce the same folder as the query's option checkpointLocation.",
        )
