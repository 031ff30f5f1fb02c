"""A folder of a local or mounted POSIX file system as a store.

A file is staged under ``.sparkonce/held`` in the folder itself, so that both its names are on one file system, without
the extension that readers look for. ``link`` publishes it under its second name, which fails if that name is taken;
then the second name is made durable, and the first is removed. So at every instant a sealed file has one of its names
or both. A file with neither was deleted by somebody else.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
import unicodedata
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from sparkonce.errors import PreflightError, PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import COMMITTED, Finished, Outcome
from sparkonce.sinks._shared.error_table import ErrorTable, Meaning
from sparkonce.sinks.files.names import HIDDEN, ID, STALE_S, TEMPORARY, check_lengths, name_in
from sparkonce.sinks.files.store import (
    DAMAGED,
    FOLDER_GONE,
    FOREIGN,
    MISSING,
    ChecksumStream,
    Fields,
    FileState,
    FileStore,
    Staged,
    StagedFile,
    preparing,
)
from sparkonce.storage.local import sync_folder

if TYPE_CHECKING:
    from pathlib import Path

    from sparkonce.protocol.handles import Finished
    from sparkonce.protocol.ownership import TransactionName


_HELD = ".held"
_LISTED = (_HELD, ".gone")


class LocalStore(FileStore):
    """See `FileStore`.

    Args:
        folder: The absolute path of the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.location = str(folder)
        self._root = folder
        self._held = folder / HIDDEN / "held"

    # --- at a start -------------------------------------------------------------------------------------------------

    def check(self) -> Mapping[str, str]:
        """See `FileStore.check`. Makes the folder if it is missing, and tries what publishing does."""
        return {"folder": check_folder(self._root, self._held)}

    def folds_names(self) -> bool:
        """See `FileStore.folds_names`."""
        with asking(self._root):
            return folds_names(self._root)

    # --- files ------------------------------------------------------------------------------------------------------

    def stage(self, name: TransactionName, path: str) -> StagedFile:  # noqa: ARG002 - the path holds it
        """See `FileStore.stage`."""
        held = self._held / f"{path.rpartition('/')[2]}{_HELD}"
        with preparing(held):
            paths = (str(self._root / path), str(held))
            longest = os.pathconf(self._held, "PC_PATH_MAX") - 1  # it counts the NUL at the end
            check_lengths(paths, os.pathconf(self._held, "PC_NAME_MAX"), longest)
            self._check_device(path)
            file = os.open(held, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        return LocalStagedFile(held, file, path)

    def _check_device(self, path: str) -> None:
        # A second name is within one file system only, and a partition's folder may be a mount or a link.
        folder = (self._root / path).parent
        while not folder.exists():
            folder = folder.parent
        if folder.stat().st_dev != self._held.stat().st_dev:
            raise PrepareError(
                f"{folder} is on another file system than {self._held}, and a file cannot be published across.",
                next_step="Make it a plain folder of the sink's own file system.",
                path=str(folder),
            )

    def states(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """See `FileStore.states`."""
        return self._finisher().states(files)

    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.publish`."""
        return self._finisher().publish(files)

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.discard`."""
        return self._finisher().discard(files)

    def _finisher(self) -> LocalFinisher:
        return LocalFinisher(self._root, self._held)

    def list_staged(self) -> Iterable[Staged]:
        """See `FileStore.list_staged`."""
        with asking(self._held):
            names = os.listdir(self._held) if self._held.is_dir() else []  # noqa: PTH208 - no Path for each of many
        for text in names:
            base, dot, kind = text.rpartition(".")
            name = name_in(base)
            if name is not None and dot + kind in _LISTED:
                yield Staged(name=name, fields={"held": base + _HELD})

    # --- small files ------------------------------------------------------------------------------------------------

    def put(self, path: str, content: bytes) -> None:
        """See `FileStore.put`."""
        self._put(path, content, Path.rename)

    def _create(self, path: str, content: bytes) -> None:
        self._put(path, content, os.link)

    def _put(self, path: str, content: bytes, name: Callable[[Path, Path], object]) -> None:
        final = self._root / path
        temporary = self._root / HIDDEN / f"put-{secrets.token_hex(6)}"
        with asking(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            sync_folder(final.parent.parent)  # always: its maker may have been killed before it was durable
            try:
                write_durably(temporary, content)
                name(temporary, final)
            except FileExistsError:
                pass
            finally:
                temporary.unlink(missing_ok=True)
            sync_folder(final.parent)

    def get(self, path: str) -> bytes | None:
        """See `FileStore.get`."""
        with asking(self._root / path):
            try:
                return (self._root / path).read_bytes()
            except FileNotFoundError:
                return None

    def list_names(self, folder: str) -> Sequence[str]:
        """See `FileStore.list_names`."""
        with asking(self._root / folder):
            try:
                return os.listdir(self._root / folder)  # noqa: PTH208 - no Path for each of many
            except FileNotFoundError:
                return ()

    def delete(self, paths: Sequence[str]) -> None:
        """See `FileStore.delete`."""
        for path in paths:
            with asking(self._root / path):
                (self._root / path).unlink(missing_ok=True)


class LocalStagedFile(StagedFile):
    """A file under ``.sparkonce/held``, whose checksum is computed while it is written.

    The checksum is CRC-32, the fastest that Python brings: 6.6 GB/s, sha1 and sha256 2.0, blake2b 1.3, md5 0.8. It
    finds damage and mistakes, not fraud. The name, which no two files share, tells whose file it is.
    """

    def __init__(self, held: Path, file: int, path: str) -> None:
        self._path = path
        self._held = held
        self._stream = ChecksumStream(os.fdopen(file, "wb", buffering=1 << 20), held)

    @property
    def stream(self) -> BinaryIO:
        """See `StagedFile.stream`."""
        return cast("BinaryIO", self._stream)

    def size(self) -> int:
        """See `StagedFile.size`."""
        return self._stream.size

    def seal(self) -> Fields:
        """See `StagedFile.seal`. Fails, too, if a sweep has deleted the file while its copy slept."""
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
        """See `StagedFile.discard`."""
        with suppress(OSError):
            self._stream.file.close()
        with suppress(OSError):
            self._held.unlink()


One = TypeVar("One")
Other = TypeVar("Other")

_GONE = ".gone"
_CHUNK_BYTES = 8 << 20
_ENDS = {".parquet": b"PAR1", ".arrow": b"ARROW1"}
_THREADS = 8
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DONE = Finished(outcome=Outcome.COMMITTED)
_DAMAGED_STATES = {
    Outcome.ALREADY_COMMITTED: FileState.STAGED,  # `publish` removes its held name
    Outcome.UNKNOWN: FileState.UNKNOWN,
    Outcome.LOST: FileState.DAMAGED,
}


class LocalFinisher:
    """Publishes, looks for and discards files of one folder.

    Args:
        root: The sink's folder.
        held: The folder of staged files within it.
    """

    def __init__(self, root: Path, held: Path) -> None:
        self._root = root
        self._held = held

    def states(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """See `FileStore.states`."""
        with asking(self._held):
            return [self._state(one) for one in files]

    def _state(self, fields: Fields) -> FileState:
        final = self._root / str(fields["path"])
        with suppress(FileNotFoundError):
            if _is_whole(self._held / str(fields["held"]), fields):
                return FileState.STAGED
            return self._damaged_state(fields, final)
        if not os.path.lexists(final):
            found = self._without_both(fields, final)
            if found.outcome is not Outcome.LOST:
                raise UnknownOutcomeError(found.reason)
            return FileState.GONE
        return FileState.PUBLISHED if _matches(final, fields) else FileState.UNKNOWN

    def _damaged_state(self, fields: Fields, final: Path) -> FileState:
        found = self._of_damaged(fields, final)
        if found.outcome is Outcome.RETRY:
            raise UnknownOutcomeError(found.reason)
        return _DAMAGED_STATES[found.outcome]

    # --- publish ----------------------------------------------------------------------------------------------------

    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.publish`. Syncs each folder once; only then removes the held names."""
        finals = [self._root / str(one["path"]) for one in files]
        made = {folder: _caught(self._make, folder) for folder in sorted({final.parent for final in finals})}
        answers = [
            _caught(self._link, fields, final) if made[final.parent].outcome in COMMITTED else made[final.parent]
            for fields, final in zip(files, finals, strict=True)
        ]
        linked = {final.parent for final, one in zip(finals, answers, strict=True) if one.outcome in COMMITTED}
        durable = self._sync(linked)
        for number, (fields, final) in enumerate(zip(files, finals, strict=True)):
            if answers[number].outcome not in COMMITTED:
                continue
            if durable[final.parent].outcome not in COMMITTED:
                answers[number] = durable[final.parent]
                continue
            # If it comes back after a crash, the next commit or sweep finds both names, and removes it again.
            freed = _caught(_unlink, self._held / str(fields["held"]))
            if freed.outcome not in COMMITTED:
                answers[number] = freed
        return self._without_held(answers)

    def _without_held(self, answers: list[Finished]) -> list[Finished]:
        """Makes durable that the held names are gone, before the batch is called whole."""
        # From then on readers may delete the second names: a first name that came back would be published again.
        if not any(one.outcome in COMMITTED for one in answers):
            return answers
        synced = _caught(_sync, self._held)
        if synced.outcome in COMMITTED:
            return answers
        return [synced if one.outcome in COMMITTED else one for one in answers]

    def _make(self, folder: Path) -> Finished:
        if self._held.is_dir():  # or else the disk is not mounted, and a folder in its place would be in the way
            folder.mkdir(parents=True, exist_ok=True)
        return _DONE

    def _sync(self, folders: Iterable[Path]) -> Mapping[Path, Finished]:
        """Makes durable what is in these folders, and their own names up to the root, each once."""
        # All the way up: another driver may have made a folder and been killed before it was durable.
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

    def _link(self, fields: Fields, final: Path) -> Finished:
        held = self._held / str(fields["held"])
        try:
            if not _is_whole(held, fields):
                return self._of_damaged(fields, final)
            os.link(held, final)
        except FileExistsError:
            if _same_file(held, final) or _matches(final, fields):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        except FileNotFoundError:
            # The held name is looked for first: another driver removes it only after it has given the second one.
            if held.exists():
                return Finished(outcome=Outcome.RETRY, reason=f"{final}: {FOLDER_GONE}")
            if not os.path.lexists(final):
                return self._without_both(fields, final)
            if _matches(final, fields):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        return Finished(outcome=Outcome.COMMITTED)

    def _of_damaged(self, fields: Fields, final: Path) -> Finished:
        """Returns the answer for a staged file with other bytes than were sealed."""
        # Its second name, if it has one, leads to the same bytes. Without one, readers have never seen the file.
        if os.path.lexists(final):
            if _matches(final, fields):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        if _is_listed(self._root, str(fields["path"])):
            return Finished(outcome=Outcome.RETRY, reason=f"{final}: {CACHED}")
        return Finished(outcome=Outcome.LOST, reason=f"{final}: {DAMAGED}")

    def _without_both(self, fields: Fields, final: Path) -> Finished:
        """Returns the answer for a file with neither name."""
        if not self._held.is_dir():
            # Not one file is missing but all: the disk is not mounted, or the whole folder is gone.
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{self._held} is not there: is it mounted?")
        # Listed anew, for a mount's cache may be old; the held name first, for another driver removes it last.
        if any(_is_listed(self._root, path) for path in (f"{HIDDEN}/held/{fields['held']}", str(fields["path"]))):
            return Finished(outcome=Outcome.RETRY, reason=f"{final}: {CACHED}")
        return Finished(outcome=Outcome.LOST, reason=f"{final}: {MISSING}")

    # --- discard ----------------------------------------------------------------------------------------------------

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.discard`."""
        return [_caught(self._discard, one, self._held / str(one["held"])) for one in files]

    def _discard(self, fields: Fields, held: Path) -> Finished:
        """Renames the held file so that no commit can use it, deletes it, then checks whether it was published."""
        gone = held.with_suffix(_GONE)
        with suppress(FileNotFoundError):
            held.rename(gone)
        mine = None
        with suppress(FileNotFoundError):
            mine = gone.stat()
            gone.unlink()
        # Asked last: a driver that has found the held name can still link the file as long as it has any name.
        return self._after_discard(fields, str(fields.get("path") or held.stem), mine)

    def _after_discard(self, fields: Fields, path: str, mine: os.stat_result | None) -> Finished:
        """Answers ALREADY_COMMITTED if the file was published. Never touches its final name."""
        # A file that was listed by its held name alone lacks its folder: there only the inode can tell.
        final = self._root / path
        try:
            there = final.lstat()
        except (FileNotFoundError, NotADirectoryError):
            # It may have been published, and a mount's cache not know it. Or else its other name is a backup's.
            unsure = "path" in fields if mine is None else mine.st_nlink > 1
            if unsure and _is_listed(self._root, path):
                return Finished(outcome=Outcome.RETRY, reason=f"{final}: {CACHED}")
            return Finished(outcome=Outcome.ABORTED)
        same = mine is not None and os.path.samestat(mine, there)
        published = same or ("path" in fields and _matches(final, fields))
        return Finished(outcome=Outcome.ALREADY_COMMITTED if published else Outcome.ABORTED)


def _caught(call: Callable[..., Finished], *arguments: Any) -> Finished:
    try:
        return call(*arguments)
    except OSError as error:
        return of_error(error, str(arguments[-1]))


def _sync(folder: Path) -> Finished:
    sync_folder(folder)
    return _DONE


def _unlink(path: Path) -> Finished:
    path.unlink(missing_ok=True)
    return _DONE


def _in_parallel(call: Callable[[One], Other], items: Sequence[One]) -> Sequence[Other]:
    """Calls for all items in parallel, which waits for the disk once."""
    if len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(max_workers=min(_THREADS, len(items))) as pool:
        return list(pool.map(call, items))


def _same_file(held: Path, final: Path) -> bool:
    """Returns True if two names are one file's."""
    # The number of its names would not tell: a backup may have given it another one.
    with suppress(FileNotFoundError, NotADirectoryError):
        return held.samefile(final)
    return False


def _is_listed(root: Path, path: str) -> bool:
    """Returns True if a name is in its folder, past a mount's cache of names.

    Opens every folder on the way: then NFS asks its server whether it has changed, and forgets what it knew of it.
    Looks for the name in the listing: FUSE may also cache that a name is absent.
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
    with held.open("rb", buffering=0) as file:  # at an open NFS asks its server
        size = os.fstat(file.fileno()).st_size
        # Its checksum would read everything once more.
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
_PATIENCE = Meaning(_RETRY, "The file system asks for patience.")

_TABLE = ErrorTable(
    {
        errno.ENOSPC: Meaning(_RETRY, "The disk is full, and a new name needs room in its folder, too: free some."),
        errno.EDQUOT: Meaning(_RETRY, "The user's quota is used up: raise it, or free some space."),
        errno.EINTR: Meaning(_RETRY, "The call was interrupted."),
        errno.EAGAIN: _PATIENCE,
        errno.EBUSY: _PATIENCE,
        errno.EMFILE: Meaning(_RETRY, "This process has too many files open: raise its limit (ulimit -n)."),
        errno.ENFILE: Meaning(_RETRY, "The machine has too many files open."),
        errno.ESTALE: Meaning(_RETRY, "The file server has changed its mind about the folder."),
        errno.ETIMEDOUT: Meaning(_RETRY, "The file server does not answer."),
        errno.EIO: Meaning(_UNKNOWN, "The disk failed: look into the kernel's log."),
        errno.EACCES: Meaning(_UNKNOWN, "Permission denied: let this user write to the folder. Nothing is lost."),
        errno.EPERM: Meaning(_UNKNOWN, "Not permitted: let this user write to the folder. Nothing is lost."),
        errno.EROFS: Meaning(_UNKNOWN, "The file system is read-only: mount it for writing. Nothing is lost."),
        errno.EXDEV: Meaning(
            _UNKNOWN, "The folder is on another file system than the staged files: make it a plain folder again."
        ),
        errno.ENOTDIR: Meaning(_UNKNOWN, "A file is where a folder has to be: move it away."),
        errno.ENAMETOOLONG: Meaning(_UNKNOWN, "The path is too long for the file system."),
    }
)

CACHED = "It was not found, but its folder lists it: the mount's cache was old."


def of_error(error: OSError, path: str) -> Finished:
    """Returns the outcome of one file upon an error of the file system."""
    code = error.errno or 0
    return _TABLE.finished(code, "", shown=f"{path}: {errno.errorcode.get(code, type(error).__name__)}")


@contextmanager
def asking(path: object) -> Iterator[None]:
    """Turns the file system's errors into an `UnknownOutcomeError` that names the path."""
    try:
        yield
    except OSError as error:
        raise UnknownOutcomeError(
            f"{path}: {error.strerror or error}.", next_step="See whether its disk can be read and written."
        ) from error


def check_folder(root: Path, held: Path) -> str:
    """Makes the folder if it is missing, tries what publishing does, and returns the folder's id.

    Raises:
        PreflightError: naming the setting and its value.
    """
    above = next(folder for folder in (root, *root.parents) if folder.exists())
    if not above.is_dir():
        raise PreflightError(
            f"path={str(root)!r} needs a folder, and {above} is a file.",
            next_step="Name another folder, or move that file away.",
            setting="path",
        )
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        held.mkdir(parents=True, exist_ok=True)
        # What a slot has prepared is durable only if the names of all folders above it are.
        for folder in (held.parent, root, *(one.parent for one in missing)):
            sync_folder(folder)
        _delete_stale(held, held.parent)
        probe = held / f"probe-{secrets.token_hex(6)}"
        second = held.parent / probe.name
        beside = root / f".{probe.name}"
        probe.touch(exist_ok=False)
        try:
            _try_link(root, probe, beside, second)
        finally:
            for path in (probe, second, beside):
                path.unlink(missing_ok=True)
        return _identity(root / ID)
    except OSError as error:
        raise PreflightError(
            f"path={str(root)!r} cannot be written to: {error.strerror} ({error.filename}).",
            next_step="Give this user the permission to write there, or name another folder.",
            setting="path",
        ) from error


def _delete_stale(*folders: Path) -> None:
    with suppress(OSError):  # it may be another user's, and a start can do without
        for path in (path for folder in folders for path in folder.iterdir() if TEMPORARY.fullmatch(path.name)):
            if time.time() - path.stat().st_mtime > STALE_S:
                path.unlink()


def _try_link(root: Path, probe: Path, *seconds: Path) -> None:
    for second in seconds:
        try:
            os.link(probe, second)
        except OSError as error:  # noqa: PERF203 - two rounds, at a start
            raise PreflightError(
                f"path={str(root)!r} is on a file system that gives a file no second name: link() from "
                f"{probe} to {second} fails with {error.strerror!r}.",
                next_step="Use a file system with hard links, whose folder has no mount points inside, or S3 or "
                "HDFS by their own addresses.",
                setting="path",
            ) from error


def _identity(path: Path) -> str:
    """Returns the id that tells this folder from another at the same path. The first start makes it."""
    if not path.exists():
        temporary = path.with_name(f"id-{secrets.token_hex(6)}")
        write_durably(temporary, uuid.uuid4().hex.encode())
        with suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    sync_folder(path.parent)  # always: its maker may have been killed before it was durable
    return path.read_text().strip()  # an editor may have put it back


def folds_names(root: Path) -> bool:
    """Returns True if two names that differ in case, or in how an accent is written, are one here."""
    probe = root / f".probe-{secrets.token_hex(6)}-\N{LATIN SMALL LETTER E WITH ACUTE}"
    probe.touch(exist_ok=False)
    try:
        others = (probe.name.upper(), unicodedata.normalize("NFD", probe.name))
        return any(os.path.lexists(root / other) for other in others)
    finally:
        probe.unlink(missing_ok=True)


def write_durably(path: Path, content: bytes) -> None:
    """Writes a new file whose content is on the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
