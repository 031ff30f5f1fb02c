"""The decision log on a local or mounted POSIX disk.

A record is written to a temporary file, fsynced, and given its name by ``link``, which fails if the name is taken and
is atomic; then the folder is fsynced. Layout, under ``<checkpoint>/sparkonce``::

    records/00000000000000000007    one file a record
    floors/00000000000000000000     one file a floor, all but the highest deleted in time
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparkonce.durable import delete_stale_temporaries, make_folder, sync_folder, temporary_file
from sparkonce.errors import ConfigurationError
from sparkonce.log.base import Landed, LogStore, PutUnknownError, Taken

FOLDER = "sparkonce"
_SPARKS = "metadata"
_DIGITS = 20
_NAME = re.compile(f"[0-9]{{{_DIGITS}}}")
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})
"""Errors of ``link(2)`` on a file system without hard links, such as vfat, and many that are made by FUSE."""
_SURELY_NOT_LINKED = _NO_LINKS | {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOENT}
"""Errors of ``link(2)`` after which the name surely does not stand. On NFS others may follow a link that was made."""


def local_checkpoint(given: str | os.PathLike[str]) -> Path:
    """Returns the folder of a checkpoint location, as Spark finds it: ``%20`` is three characters, also in a URL.

    Raises:
        ConfigurationError: if the location is not on a local or mounted disk; or if a query has run in the folder that
            a ``file:`` URL meant to older versions, which read ``%20`` as a space.
    """
    checkpoint = str(given) if isinstance(given, str | os.PathLike) else ""
    if not checkpoint or checkpoint.startswith("~"):
        raise ConfigurationError(
            f"checkpoint={given!r} "
            + ("would be a folder that is called '~': nobody expands it." if checkpoint else "names no folder."),
            next_step="Give an absolute path, such as '/data/checkpoints/totals'.",
            setting="checkpoint",
        )
    try:
        location = urlsplit(checkpoint)
    except ValueError as error:
        raise ConfigurationError(
            f"checkpoint={checkpoint!r} is no URL: {error}.", next_step="Give a path or a file: URL."
        ) from None
    if location.scheme == "file":
        path = checkpoint.partition(":")[2]
        folder = Path(path if not path.startswith("//") else f"/{path[2:].partition('/')[2]}")
        before = Path(unquote(location.path))
        if (before / _SPARKS).exists() and not (folder / _SPARKS).exists():
            raise ConfigurationError(
                f"checkpoint={checkpoint!r} is the folder {str(folder)!r}, as it is for Spark. To older versions it "
                f"was {str(before)!r}, where a query has run.",
                next_step="Give the path of the one that you mean: the second one, to go on with that query.",
            )
        return folder
    if not location.scheme:
        return Path(checkpoint)
    at_databricks = (
        f"On Databricks /dbfs{location.path} is the same folder, by a mount that may have no hard links; the start "
        "tries, and refuses it then. "
    )
    raise ConfigurationError(
        f"checkpoint={checkpoint!r}: the decision log needs a local or mounted disk, and {location.scheme}: is none.",
        next_step=(at_databricks if location.scheme == "dbfs" else "")
        + "Give the path of a disk that is mounted by every host on which the driver may run: a PersistentVolumeClaim "
        "on Kubernetes, EFS or FSx on AWS, Filestore on Google Cloud, Azure Files by NFS, any NFS 4. See "
        "docs/operations.md#which-disks-carry-a-checkpoint.",
        setting="checkpoint",
    )


class LocalLogStore(LogStore):
    """A `LogStore` in a folder.

    Args:
        checkpoint: Spark's checkpoint folder; the log is kept in its subfolder ``sparkonce``.

    Raises:
        OSError: if the folder cannot be made.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._folder = checkpoint / FOLDER
        self._records = self._folder / "records"
        self._floors = self._folder / "floors"
        self._read_floor = -1, b""
        if self._records.is_dir() and self._floors.is_dir():
            return
        for folder in (self._folder, self._records, self._floors):
            make_folder(folder)

    @property
    def location(self) -> str:
        """The folder of the log, with links followed."""
        return str(self._folder.resolve())

    def put(self, position: int, data: bytes) -> Landed | Taken:
        """See `LogStore.put`."""
        return self._put(self._records, position, data)

    def read(self, position: int) -> Sequence[bytes]:
        """See `LogStore.read`."""
        found: list[bytes] = []
        with suppress(FileNotFoundError):
            while True:
                found.append(_path(self._records, position + len(found)).read_bytes())
        # A record is visible before its name is durable. A power cut could take it back: nobody may act on it before.
        if found:
            sync_folder(self._records)
        return found

    def floor(self) -> bytes | None:
        """See `LogStore.floor`."""
        while True:
            newest = max(self._names(self._floors), default=None)
            if newest is None:
                return None
            if newest != self._read_floor[0]:
                with suppress(FileNotFoundError):  # deleted since, because there is a higher one
                    data = _path(self._floors, newest).read_bytes()
                    sync_folder(self._floors)
                    self._read_floor = newest, data
            if newest == self._read_floor[0]:
                return self._read_floor[1]

    def raise_floor(self, position: int, data: bytes) -> None:
        """See `LogStore.raise_floor`."""
        self._put(self._floors, position, data)

    def delete_below(self, position: int) -> None:
        """See `LogStore.delete_below`."""
        highest = max(self._names(self._floors), default=0)
        for folder, limit in ((self._records, position), (self._floors, highest)):
            for name in self._names(folder):
                if name < limit:
                    _path(folder, name).unlink(missing_ok=True)
            delete_stale_temporaries(folder)

    def _put(self, folder: Path, position: int, data: bytes) -> Landed | Taken:
        final = _path(folder, position)
        with temporary_file(folder, data) as temporary:
            try:
                os.link(temporary, final)
            except FileExistsError:
                return _taken(folder, final)
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise OSError(
                        error.errno, f"{error.strerror}: the decision log needs a disk with hard links", str(final)
                    ) from error
                if error.errno in _SURELY_NOT_LINKED:
                    raise
                raise PutUnknownError(f"link to {final}: {error}") from error
        try:
            sync_folder(folder)
        except OSError as error:
            raise PutUnknownError(f"fsync of {folder} after {final.name} was linked: {error}") from error
        return Landed()

    @staticmethod
    def _names(folder: Path) -> list[int]:
        return [int(entry.name) for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]


def _taken(folder: Path, final: Path) -> Taken:
    """Returns the record at a name that is taken.

    Raises:
        PutUnknownError: if it cannot be read.
    """
    # It may be this very put's, for NFS sends a link again whose reply was lost: unread, it leaves the put in doubt.
    try:
        standing = final.read_bytes()
        sync_folder(folder)
    except OSError as error:
        raise PutUnknownError(f"{final} stands already, and could not be read: {error}") from error
    return Taken(standing=standing)


def _path(folder: Path, position: int) -> Path:
    return folder / f"{position:0{_DIGITS}d}"
