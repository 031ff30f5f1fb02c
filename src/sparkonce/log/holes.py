"""Finds a record that is missing among others: without it the log would seem to end earlier."""

from __future__ import annotations

from sparkonce.errors import CorruptRecordError
from sparkonce.log.base import FOLDER, MOST_READS, record_name
from sparkonce.storage.files import CheckpointFiles


def check_whole(files: CheckpointFiles) -> None:
    """Refuses a log that lacks a record before its last one, as a copy does that was made in part.

    Records are put one after the other, and deleted only below the floor.

    Args:
        files: The checkpoint's.

    Raises:
        CorruptRecordError: if a record is missing.
        OSError: if the store cannot be read.
    """
    for _ in range(MOST_READS):
        floor = max(_positions(files, "floors"), default=0)
        there = _positions(files, "records")
        # A listing may show a record that was put meanwhile, and not the one before it.
        missing = (
            one
            for one in range(floor, max(there, default=floor))
            if one not in there and not files.exists(f"{FOLDER}/records/{record_name(one)}")
        )
        if (first := next(missing, None)) is None:
            return
        if floor == max(_positions(files, "floors"), default=0):  # else a driver has deleted them meanwhile
            raise CorruptRecordError(
                f"The decision log of {files.location!r} has record {max(there)}, and not record {first}.",
                next_step="Restore the checkpoint and the log together, from one whole copy.",
            )


def _positions(files: CheckpointFiles, part: str) -> set[int]:
    names = files.names(f"{FOLDER}/{part}")
    return {int(name) for name in names if len(name) == len(record_name(0)) and name.isdigit()}
