"""Writes small files on a POSIX disk that are complete and durable before they get their name."""

from __future__ import annotations

import ctypes
import errno
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STALE_TEMPORARY_S = 3600

_PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN}
)


def is_outage(error: OSError) -> bool:
    """Tells if the error may pass: the disk is full, or its server does not answer."""
    return error.errno in _PASSING


@contextmanager
def temporary_file(folder: Path, data: bytes) -> Iterator[Path]:
    """Writes the bytes to a durable file with a temporary name, which is removed afterwards.

    Raises:
        OSError: if it could not be written; it then has no other name either.
    """
    path = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        # It has its other name by now, or will have none. An error here would wrongly say that it has none.
        with suppress(OSError):
            path.unlink(missing_ok=True)


def delete_stale_temporaries(folder: Path) -> None:
    """Deletes the temporary files of processes that were killed while they wrote them."""
    for temporary in folder.glob(".*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - temporary.stat().st_mtime > _STALE_TEMPORARY_S:
                temporary.unlink()


def make_folder(folder: Path) -> None:
    """Makes a folder and its missing parents, with durable names.

    Raises:
        OSError: if it cannot be made.
    """
    folder = folder.absolute()
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    # Its own name in any case: its maker may have been killed before the name was durable.
    for one in dict.fromkeys((folder, folder.parent, *(each.parent for each in missing))):
        sync_folder(one)


def sync_file_system(folder: Path) -> None:
    """Makes everything durable that was written to the file system of a folder (``syncfs(2)``).

    Raises:
        OSError: if something may not be durable.
    """
    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except AttributeError:  # macOS
        os.sync()
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if syncfs(descriptor):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
