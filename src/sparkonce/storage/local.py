"""The files of a folder on a local or mounted POSIX disk.

A put writes a temporary file, calls fsync, and gives the file its name with ``link``, which is atomic and fails if the
name is taken. Then the put calls fsync on the folder. A file is therefore complete and durable before it gets its name.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})
"""Errors of ``link(2)`` on a file system without hard links, such as vfat and many FUSE file systems."""
_SURELY_NOT_LINKED = _NO_LINKS | {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOENT}
"""Errors of ``link(2)`` after which the name definitely does not exist. On NFS, others may follow a successful link."""


class LocalFiles(CheckpointFiles):
    """The files of a folder, which may be missing, on a local or mounted POSIX disk.

    New files have the permissions ``mode``, reduced by the process's umask. By default, others cannot read them.
    """

    is_remote = False

    def __init__(self, folder: Path, mode: int = 0o640) -> None:
        self.folder = folder
        self._mode = mode
        self._ahead: list[Future[None]] = []

    def __getstate__(self) -> dict[str, object]:
        """Leaves out the driver's pending syncs, since a sink may be pickled to executors with this object."""
        return {**self.__dict__, "_ahead": []}

    @property
    def location(self) -> str:
        return str(self.folder)

    @property
    def resolved(self) -> str:
        return str(self.folder.resolve())

    def read(self, path: str) -> bytes | None:
        """Reads a file, which may not be durable yet."""
        try:
            return (self.folder / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> Sequence[str]:
        try:
            with os.scandir(self.folder / folder) as found:
                return [one.name for one in found if not one.name.startswith(".") and one.is_file()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def put(self, path: str, data: bytes) -> Landed | Taken:
        final = self._made(path)
        folder = final.parent
        with temporary_file(folder, data, self._mode) as temporary:
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

    def replace(self, path: str, data: bytes) -> None:
        final = self._made(path)
        with temporary_file(final.parent, data, self._mode) as temporary:
            temporary.rename(final)
        sync_folder(final.parent)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            (self.folder / path).unlink(missing_ok=True)

    def make(self, folder: str) -> None:
        make_folder(self.folder / folder)

    def require(self, folder: str) -> None:
        (self.folder / folder).stat()

    def sync(self, folder: str) -> None:
        sync_folder(self.folder / folder)

    def sync_ahead(self) -> None:
        """Starts a sync, which also writes what other processes wrote to the same file system."""
        # The kernel reports a failed write only once, so keep failed syncs until `sync_spark` raises their errors.
        self._ahead = [one for one in self._ahead if not one.done() or one.exception() is not None]
        pool = ThreadPoolExecutor(1)
        self._ahead.append(pool.submit(sync_file_system, self.folder))
        pool.shutdown(wait=False)

    def sync_spark(self) -> None:
        """Makes one call for the whole file system, which costs less than one for each file."""
        ahead, self._ahead = self._ahead, []
        for one in ahead:
            one.result()
        if not ahead or (self.folder / "state").exists():  # Tasks write state files until they end.
            sync_file_system(self.folder)

    def emptied(self) -> Sequence[str]:
        patterns = ("metadata", "offsets/[0-9]*", "commits/[0-9]*", "sources/*/[0-9]*")
        found = [one for pattern in patterns for one in self.folder.glob(pattern) if one.stat().st_size == 0]
        return [one.relative_to(self.folder).as_posix() for one in found]

    def mending(self, name: str) -> str:
        """Returns the next step: `ExactlyOnce` rewrites empty files at a start, see `sparkonce.driver.start.mend`."""
        return (
            "Restore the checkpoint from a copy. Without one, empty the file and start the query with ExactlyOnce in a "
            "classic session, which writes it from the decision log or says which files can be deleted: "
            f"truncate -s 0 {shlex.quote(str(self.folder / name))}"
        )

    def tidy(self, folder: str) -> None:
        delete_stale_temporaries(self.folder / folder)

    def check(self) -> None:
        """Writes to the folder, and tries hard links."""
        there = self.folder
        try:
            there = next(one for one in (self.folder, *self.folder.parents) if one.exists())
            with TemporaryDirectory(prefix=".sparkonce-", dir=there) as tried:
                one = Path(tried, "one")
                one.touch()
                os.link(one, Path(tried, "two"))
        except OSError as error:
            nearest = f" (its nearest parent that exists: {str(there)!r})" if there != self.folder else ""
            raise ConfigurationError(
                f"checkpoint={self.location!r} cannot be written to, or has no hard links: {error.strerror}{nearest}.",
                next_step="Give a folder that the user of this process may write to, on a local or mounted disk with "
                "hard links: see docs/operations.md#which-disks-carry-a-checkpoint.",
                setting="checkpoint",
            ) from error

    def inside(self, folder: str) -> LocalFiles:
        return LocalFiles(self.folder / folder, self._mode)

    def _made(self, path: str) -> Path:
        final = self.folder / path
        if not final.parent.is_dir():
            make_folder(final.parent)
        return final


def _taken(folder: Path, final: Path) -> Taken:
    """Returns the file under a name that is taken."""
    # The file may be from this put itself, since NFS retries a link whose reply was lost. So if the file cannot be
    # read, the outcome of the put is unknown.
    try:
        standing = final.read_bytes()
        sync_folder(folder)
    except OSError as error:
        raise PutUnknownError(f"{final} already exists, and could not be read: {error}") from error
    return Taken(standing=standing)


_STALE_TEMPORARY_S = 3600


@contextmanager
def temporary_file(folder: Path, data: bytes, mode: int = 0o640) -> Iterator[Path]:
    """Writes the bytes to a durable file with a temporary name, which is removed afterward."""
    path = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        # An error here would wrongly suggest that the file did not get its final name.
        with suppress(OSError):
            path.unlink(missing_ok=True)


def delete_stale_temporaries(folder: Path) -> None:
    """Deletes the temporary files of processes that were killed while writing them."""
    for temporary in folder.glob(".*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - temporary.stat().st_mtime > _STALE_TEMPORARY_S:
                temporary.unlink()


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents durably."""
    folder = folder.absolute()
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    # Sync an existing folder, too, since its creator may have been killed before its name was durable.
    for one in dict.fromkeys((folder, folder.parent, *(each.parent for each in missing))):
        sync_folder(one)


def sync_file_system(folder: Path) -> None:
    """Makes everything durable that was written to the file system of a folder (``syncfs(2)``)."""
    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except AttributeError:  # macOS has no syncfs.
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
