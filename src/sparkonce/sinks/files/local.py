"""A folder of a local or mounted POSIX file system as a store.

The store publishes a file by a hard link with its final name, makes that name durable, and removes the held name. The
held files are in the folder itself, so both names are on the same file system.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from sparkonce.errors import PreflightError, PrepareError
from sparkonce.protocol.handles import COMMITTED, Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks._shared.error_table import ErrorTable, Meaning
from sparkonce.sinks.files.names import check_lengths
from sparkonce.sinks.files.renaming import CACHED, HELD, HELD_FOLDER, Answer, RenamingStore
from sparkonce.sinks.files.store import ChecksumStream, Fields, StagedFile, preparing
from sparkonce.storage.files import PutUnknownError
from sparkonce.storage.local import LocalFiles, make_folder, sync_folder

_GONE = ".gone"
_CHUNK_BYTES = 8 << 20
_ENDS = {".parquet": b"PAR1", ".arrow": b"ARROW1"}
_THREADS = 8
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DONE = Finished(outcome=Outcome.COMMITTED)


class LocalStore(RenamingStore):
    """The folder of a local or mounted POSIX file system with this absolute path as a store, see `FileStore`."""

    held_kinds = (HELD, _GONE)
    absent = "is it mounted?"

    def __init__(self, folder: Path) -> None:
        self.location = str(folder)
        # The umask applies to these small files just as it does to the rows, so the same users can read both.
        self.small = LocalFiles(folder, mode=0o666)
        self._root = folder
        self._held = folder / HELD_FOLDER

    # --- at a start -------------------------------------------------------------------------------------------------

    def check(self) -> Mapping[str, str]:
        """See `FileStore.check`. Creates the folder if it is missing, and tries everything that publishing does."""
        above = next(folder for folder in (self._root, *self._root.parents) if folder.exists())
        if not above.is_dir():
            raise PreflightError(
                f"path={self.location!r} needs a folder, and {above} is a file.",
                next_step="Name another folder, or move that file away.",
                setting="path",
            )
        try:
            # A prepared slot is only durable if the names of all parent folders are durable, too.
            for folder in (self._root, self._held):
                make_folder(folder)
            self._tidy()
            name = f".{secrets.token_hex(6)}.tmp"
            probe, *others = (folder / name for folder in (self._held, self._root, self._held.parent))
            probe.touch(exist_ok=False)
            try:
                self._try_link(probe, *others)
            finally:
                for path in (probe, *others):
                    path.unlink(missing_ok=True)
            return {"folder": self._identity()}
        except (OSError, PutUnknownError) as error:
            raise PreflightError(
                f"path={self.location!r} cannot be written to: {getattr(error, 'strerror', None) or error} "
                f"({getattr(error, 'filename', None) or self.location}).",
                next_step="Give this user the permission to write there, or name another folder.",
                setting="path",
            ) from error

    def _try_link(self, probe: Path, *seconds: Path) -> None:
        for second in seconds:
            try:
                os.link(probe, second)
            except OSError as error:  # noqa: PERF203 - only two rounds, at each start
                raise PreflightError(
                    f"path={self.location!r} is on a file system without hard links: link() from {probe} to {second} "
                    f"fails with {error.strerror!r}.",
                    next_step="Use a file system with hard links, whose folder has no mount points inside, or S3 or "
                    "HDFS by their own addresses.",
                    setting="path",
                ) from error

    def folds_names(self) -> bool:
        """See `FileStore.folds_names`. Tries a name in upper case, and one with a different encoding of an accent."""
        with self.asking(""):
            probe = self._root / f".probe-{secrets.token_hex(6)}-\N{LATIN SMALL LETTER E WITH ACUTE}"
            probe.touch(exist_ok=False)
            try:
                others = (probe.name.upper(), unicodedata.normalize("NFD", probe.name))
                return any(os.path.lexists(self._root / other) for other in others)
            finally:
                probe.unlink(missing_ok=True)

    # --- files ------------------------------------------------------------------------------------------------------

    def stage(self, name: TransactionName, path: str) -> StagedFile:  # noqa: ARG002 - the path holds it
        held = self._held / f"{path.rpartition('/')[2]}{HELD}"
        with preparing(held):
            paths = (str(self._root / path), str(held))
            longest = os.pathconf(self._held, "PC_PATH_MAX") - 1  # The limit includes the NUL at the end.
            check_lengths(paths, os.pathconf(self._held, "PC_NAME_MAX"), longest)
            self._check_device(path)
            file = os.open(held, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        return LocalStagedFile(held, file, path)

    def _check_device(self, path: str) -> None:
        # Hard links only work within one file system, and a partition's folder may be a mount point or a symbolic link.
        folder = (self._root / path).parent
        while not folder.exists():
            folder = folder.parent
        if folder.stat().st_dev != self._held.stat().st_dev:
            raise PrepareError(
                f"{folder} is on another file system than {self._held}, and a file cannot be published across file "
                "systems.",
                next_step="Make it a plain folder of the sink's own file system.",
                path=str(folder),
            )

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _call_each(self, call: Callable[[Any], Answer], items: Sequence[Any]) -> list[Answer | BaseException]:
        found: list[Answer | BaseException] = []
        for item in items:
            try:
                found.append(call(item))
            except OSError as error:  # noqa: PERF203 - each call may fail
                found.append(error)
        return found

    def _of_error(self, error: BaseException, name: str) -> Finished:
        return of_error(cast("OSError", error), f"{self.location}/{name}")

    def _path(self, path: str) -> Path:
        found: Path = self._root / path
        return found

    def _is_there(self, path: Path) -> bool:
        return os.path.lexists(path)

    def _is_whole(self, held: Path, fields: Fields) -> bool:
        return _is_whole(held, fields)

    def _matches(self, path: Path, fields: Fields) -> bool:
        return _matches(path, fields)

    def _is_own(self, held: Path, final: Path, fields: Fields) -> bool:
        # The number of hard links proves nothing, since a backup may have added one.
        with suppress(FileNotFoundError, NotADirectoryError):
            if held.samefile(final):
                return True
        return _matches(final, fields)

    def _is_listed(self, path: str) -> bool:
        return _is_listed(self._root, path)

    def _has_held_folder(self) -> bool:
        return bool(self._held.is_dir())

    def _make(self, folder: str) -> Finished:
        if self._has_held_folder():  # If the disk is not mounted, a new folder would block the mount point.
            self._path(folder).mkdir(parents=True, exist_ok=True)
        return _DONE

    def _give_name(self, held: Path, final: Path, fields: Fields) -> None:  # noqa: ARG002
        os.link(held, final)

    def _settle(self, files: Sequence[Fields], answers: list[Finished]) -> list[Finished]:
        """Syncs each folder once. Then removes the held names, and makes their removal durable."""
        finals = [self._path(str(one["path"])) for one in files]
        linked = {final.parent for final, one in zip(finals, answers, strict=True) if one.outcome in COMMITTED}
        durable = self._sync_up(linked)
        for number, (fields, final) in enumerate(zip(files, finals, strict=True)):
            if answers[number].outcome not in COMMITTED:
                continue
            if durable[final.parent].outcome not in COMMITTED:
                answers[number] = durable[final.parent]
                continue
            # If the held name reappears after a crash, the next commit or sweep finds both names, and removes the held
            # one again.
            freed = _caught(_unlink, self._held_path(fields))
            if freed.outcome not in COMMITTED:
                answers[number] = freed
        # After this, readers may delete the published files. If a held name reappeared then, its file would be
        # published again.
        if not any(one.outcome in COMMITTED for one in answers):
            return answers
        synced = _caught(_sync, self._held)
        if synced.outcome in COMMITTED:
            return answers
        return [synced if one.outcome in COMMITTED else one for one in answers]

    def _sync_up(self, folders: Iterable[Path]) -> Mapping[Path, Finished]:
        """Syncs these folders and all their parents up to the root, each once, so that their entries are durable."""
        # Sync up to the root: another driver may have created a folder and been killed before the folder was durable.
        needed = {folder: self._up_to_root(folder) for folder in folders}
        every = sorted({one for chain in needed.values() for one in chain})
        synced = dict(zip(every, _in_parallel(lambda one: _caught(_sync, one), every), strict=True))
        return {
            folder: next((synced[one] for one in chain if synced[one].outcome not in COMMITTED), _DONE)
            for folder, chain in needed.items()
        }

    def _up_to_root(self, folder: Path) -> list[Path]:
        parts = folder.relative_to(self._root).parts
        return [self._root.joinpath(*parts[:count]) for count in range(len(parts) + 1)]

    def _discard(self, fields: Fields) -> Finished:
        """Renames the held file so that no commit can use it, deletes it, then checks whether it was published."""
        held = self._held_path(fields)
        gone = held.with_suffix(_GONE)
        with suppress(FileNotFoundError):
            held.rename(gone)
        mine = None
        with suppress(FileNotFoundError):
            mine = gone.stat()
            gone.unlink()
        # Check the published name last: a driver that has found the held name can link the file as long as the file
        # still has a name. If the handle was created from a listing, which shows only held names, its final path is
        # unknown, and the inode must decide.
        path = str(fields.get("path") or held.stem)
        final = self._path(path)
        try:
            there = final.lstat()
        except (FileNotFoundError, NotADirectoryError):
            # If the file has more than one link, either a backup has created a link, or the file was published and this
            # mount's cache does not show the new name yet.
            unsure = "path" in fields if mine is None else mine.st_nlink > 1
            if unsure and self._is_listed(path):
                return Finished(outcome=Outcome.RETRY, reason=f"{final}: {CACHED}")
            return Finished(outcome=Outcome.ABORTED)
        same = mine is not None and os.path.samestat(mine, there)
        published = same or ("path" in fields and _matches(final, fields))
        return Finished(outcome=Outcome.ALREADY_COMMITTED if published else Outcome.ABORTED)


class LocalStagedFile(StagedFile):
    """A file under ``.sparkonce/held`` whose checksum is computed as it is written.

    The checksum is CRC-32, the fastest in Python's standard library: 6.6 GB/s, compared with 2.0 for sha1 and sha256,
    1.3 for blake2b, and 0.8 for md5. The checksum detects damage and mistakes, not tampering. The unique name shows
    which transaction the file belongs to.
    """

    def __init__(self, held: Path, file: int, path: str) -> None:
        self._path = path
        self._held = held
        self._stream = ChecksumStream(os.fdopen(file, "wb", buffering=1 << 20), held)

    @property
    def stream(self) -> BinaryIO:
        return cast("BinaryIO", self._stream)

    def size(self) -> int:
        return self._stream.size

    def seal(self) -> Fields:
        """Also fails if a sweep deleted the file while its task attempt was paused."""
        with preparing(self._held):
            file = self._stream.file
            file.flush()
            os.fsync(file.fileno())
            mine = os.fstat(file.fileno())
            file.close()
            there = self._held.stat()
            if (there.st_ino, there.st_size) != (mine.st_ino, self._stream.size):
                raise PrepareError(f"{self._held} is not the file that was written.", path=str(self._held))
            sync_folder(self._held.parent)
        return {
            "path": self._path,
            "held": self._held.name,
            "size": self._stream.size,
            "checksum": self._stream.checksum,
        }

    def discard(self) -> None:
        with suppress(OSError):
            self._stream.file.close()
        with suppress(OSError):
            self._held.unlink()


One = TypeVar("One")
Other = TypeVar("Other")


def _caught(call: Callable[[Any], Finished], path: Any) -> Finished:
    try:
        return call(path)
    except OSError as error:
        return of_error(error, str(path))


def _sync(folder: Path) -> Finished:
    sync_folder(folder)
    return _DONE


def _unlink(path: Path) -> Finished:
    path.unlink(missing_ok=True)
    return _DONE


def _in_parallel(call: Callable[[One], Other], items: Sequence[One]) -> Sequence[Other]:
    """Makes all calls in parallel, so that their waits for the disk overlap."""
    if len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(max_workers=min(_THREADS, len(items))) as pool:
        return list(pool.map(call, items))


def _is_listed(root: Path, path: str) -> bool:
    """Returns True if a name is in its folder, bypassing a mount's cache of names.

    Opens every parent folder, which makes NFS ask the server whether the folder has changed and drop what it cached.
    Then looks for the name in the listing, because FUSE may also cache that a name is absent.
    """
    *folders, name = path.split("/")
    opened = os.open(root, _FOLDER)
    try:
        for folder in folders:
            try:
                inner = os.open(folder, _FOLDER, dir_fd=opened)
            except FileNotFoundError:
                return _has(opened, folder)
            os.close(opened)
            opened = inner
        return _has(opened, name)
    finally:
        os.close(opened)


def _has(folder: int, name: str) -> bool:
    with os.scandir(folder) as entries:
        return any(one.name == name for one in entries)


def _is_whole(held: Path, fields: Fields) -> bool:
    """Returns True if a staged file has its size and the last bytes of its format."""
    end = _ENDS.get(held.with_suffix("").suffix, b"")
    with held.open("rb", buffering=0) as file:  # Opening a file makes NFS query its server.
        size = os.fstat(file.fileno()).st_size
        # Computing the file's checksum would read the whole file again.
        return size == fields["size"] and os.pread(file.fileno(), len(end), size - len(end)) == end


def _matches(path: Path, fields: Fields) -> bool:
    """Returns True if a file has its size and its checksum."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode) or found.st_size != fields["size"]:
        return False
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return f"crc32:{crc:08x}" == fields["checksum"]


_RETRY, _UNKNOWN = Outcome.RETRY, Outcome.UNKNOWN
_PATIENCE = Meaning(_RETRY, "The file system asks to try again later.")

_TABLE = ErrorTable(
    {
        errno.ENOSPC: Meaning(_RETRY, "The disk is full, and a new name needs room in its folder, too: free some."),
        errno.EDQUOT: Meaning(_RETRY, "The user's quota is used up: raise it, or free some space."),
        errno.EINTR: Meaning(_RETRY, "The call was interrupted."),
        errno.EAGAIN: _PATIENCE,
        errno.EBUSY: _PATIENCE,
        errno.EMFILE: Meaning(_RETRY, "This process has too many files open: raise its limit (ulimit -n)."),
        errno.ENFILE: Meaning(_RETRY, "The machine has too many files open."),
        errno.ESTALE: Meaning(_RETRY, "The file server reports a stale handle for the folder."),
        errno.ETIMEDOUT: Meaning(_RETRY, "The file server does not answer."),
        errno.EIO: Meaning(_UNKNOWN, "The disk failed: check the kernel's log."),
        errno.EACCES: Meaning(_UNKNOWN, "Permission denied: let this user write to the folder. Nothing is lost."),
        errno.EPERM: Meaning(_UNKNOWN, "Not permitted: let this user write to the folder. Nothing is lost."),
        errno.EROFS: Meaning(_UNKNOWN, "The file system is read-only: mount it for writing. Nothing is lost."),
        errno.EXDEV: Meaning(
            _UNKNOWN, "The folder is on another file system than the staged files: make it a plain folder again."
        ),
        errno.ENOTDIR: Meaning(_UNKNOWN, "There is a file where a folder has to be: move it away."),
        errno.ENAMETOOLONG: Meaning(_UNKNOWN, "The path is too long for the file system."),
    }
)


def of_error(error: OSError, path: str) -> Finished:
    """Returns the outcome for one file after an error of the file system."""
    code = error.errno or 0
    return _TABLE.finished(code, "", shown=f"{path}: {errno.errorcode.get(code, type(error).__name__)}")
