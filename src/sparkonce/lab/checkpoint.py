"""The disk of checkpoint and decision log, and what is kept of them when it is gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkonce.lab.watch import LOG_FOLDER
from sparkonce.rig.disk import SmallDisk

QUERY = "query"
"""The checkpoint's name on its disk."""
_MEGABYTES = 512
_KEPT = (LOG_FOLDER, "offsets", "commits", "metadata")


@contextmanager
def checkpoint_disk(folder: Path, say: Callable[[str], None]) -> Iterator[SmallDisk]:
    """Makes a disk for checkpoint and log, in a new folder.

    What they tell of batches stays in the folder when the disk is gone: decisions, offsets, commits; not the state.

    Args:
        folder: Is made.
        say: Takes what could not be kept.
    """
    disk = SmallDisk(folder, _MEGABYTES)
    try:
        yield disk
    finally:
        kept = folder.with_name(f"{folder.name}-kept")
        try:
            if disk.is_small:
                keep_logs(folder / QUERY, kept)
        except OSError as error:
            say(f"not all of the checkpoint is kept: {error}")
        finally:
            disk.close()
        if kept.is_dir():
            kept.rename(folder / QUERY)


def keep_logs(checkpoint: Path, to: Path) -> None:
    """Copies what a checkpoint tells of its batches into a new folder.

    Raises:
        OSError: if something could not be copied. All that could be is.
    """
    to.mkdir()
    found = [checkpoint / name for name in _KEPT if (checkpoint / name).exists()]
    failed = [why for path in found if (why := _copy(path, to / path.name))]
    if failed:
        raise OSError("; ".join(failed))


def _copy(path: Path, to: Path) -> str:
    """Copies a file or folder. Returns why it could not, or an empty string."""
    try:
        if path.is_dir():
            shutil.copytree(path, to)
        else:
            shutil.copy2(path, to)
    except OSError as error:
        return f"{path.name}: {error}"
    return ""
