"""Where a checkpoint can be: each store is a URL, Spark's settings and jars for it, and a way to read a file there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

OTHER_USER = "daemon"
"""Who starts a driver on another machine."""

_SHARED = 0o2775
"""A folder that its group writes to, as do all that are made there."""


GROUP_WRITES = {"spark.hadoop.fs.permissions.umask-mode": "002"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A place for checkpoints.

    Attributes:
        kind: ``file``, ``s3`` or ``hdfs``.
        url: The folder in which a test's checkpoints are.
        read: Reads the file of a URL; None if there is none.
        spark: Spark's settings.
        jars: What Spark lacks for it.
    """

    kind: str
    url: str
    read: Callable[[str], bytes | None]
    spark: Mapping[str, str] = field(default_factory=dict)
    jars: tuple[str, ...] = ()


@contextmanager
def open_folder(owner: str | None = None) -> Iterator[Path]:
    """A temporary folder that other users get to, below no folder of ours alone: the group of `OTHER_USER` writes."""
    with tempfile.TemporaryDirectory(prefix="sparkonce-shared-", ignore_cleanup_errors=True) as folder:
        shutil.chown(folder, owner, OTHER_USER)
        Path(folder).chmod(_SHARED)
        yield Path(folder)


@contextmanager
def file_store(_: Path) -> Iterator[Store]:
    """A folder on a disk that all machines share."""

    def read(url: str) -> bytes | None:
        path = Path(url.removeprefix("file://"))
        return path.read_bytes() if path.exists() else None

    with open_folder() as folder:
        yield Store(kind="file", url=f"file://{folder}", read=read, spark=GROUP_WRITES)


STORES: Mapping[str, Callable[[Path], AbstractContextManager[Store]]] = {"file": file_store}
