"""Compares the checkpoint that `ExactlyOnce` was given with the running query's, and reads a batch's offsets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sparkonce.driver.outage import Outage, is_store_outage
from sparkonce.errors import ConfigurationError, LogError
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.spark import SparkCheckpoint


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


def input_offsets(kept: SparkCheckpoint, batch: int, patience_s: float) -> tuple[str, ...] | None:
    """Returns a batch's offsets, as `SparkCheckpoint.input_offsets` does. Waits for a store that is away.

    Raises:
        CheckpointMismatchError: if the file is not one of Spark's.
        LogError: if it cannot be read.
    """
    doing = f"the offsets of batch {batch} in {kept.files.location} cannot be read"
    try:
        return Outage(patience_s).retry(partial(kept.input_offsets, batch), doing, again=is_store_outage)
    except OSError as error:
        raise LogError(
            f"{doing}: {error}.",
            next_step="Make the checkpoint readable and start the query again; no row is lost.",
        ) from error
