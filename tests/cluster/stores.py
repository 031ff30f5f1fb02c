"""A folder for checkpoints on a disk that all machines share and that all users of a group can write to."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OTHER_USER = "daemon"
"""Starts a driver on another machine."""

GROUP_WRITES = {"spark.hadoop.fs.permissions.umask-mode": "002"}


@contextmanager
def open_folder(owner: str | None = None) -> Iterator[Path]:
    """A temporary folder that other users can reach and that the group of `OTHER_USER` can write to."""
    with tempfile.TemporaryDirectory(prefix="sparkonce-shared-", ignore_cleanup_errors=True) as folder:
        shutil.chown(folder, owner, OTHER_USER)
        Path(folder).chmod(0o2775)
        yield Path(folder)
