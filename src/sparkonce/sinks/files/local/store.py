"""A folder of a local (or mounted) POSIX file system.

A file is held back under ``.sparkonce/held`` in the folder itself, so both names are on one file system, and under a
name without the extension that readers look for. To publish is to give it its second name by ``link``, which fails if
that name is taken, to make the name durable, and to take the first one away. So at every instant a sealed file has
one of its names or both, and a file with neither was deleted by somebody.
"""

from __future__ import annotations

import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sparkonce.durable import sync_folder
from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.sinks.files.local import preflight
from sparkonce.sinks.files.local.writing import LocalStagedFile
from sparkonce.sinks.files.names import HIDDEN, check_lengths, name_in
from sparkonce.sinks.files.outcomes import CACHED, DAMAGED, FOLDER_GONE, FOREIGN, MISSING, of_error
from sparkonce.sinks.files.store import Fields, FileState, FileStore, Staged, StagedFile
from sparkonce.sinks.files.streams import preparing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkonce.protocol.ownership import TransactionName

_HELD = ".held"
_GONE = ".gone"
_CHUNK_BYTES = 8 << 20
_ENDS = {".parquet": b"PAR1", ".arrow": b"ARROW1"}
_THREADS = 8
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

One = TypeVar("One")
Other = TypeVar("Other")


class LocalStore(FileStore):
    """See `FileStore`.

    Args:
        folder: Its absolute path.
    """

    def __init__(self, folder: Path) -> None:
        self.location = str(folder)
        self._root = folder
        self._held = folder / HIDDEN / "held"

    def check(self) -> Mapping[str, str]:
        """See `FileStore.check`. Makes the folder if it is missing, and tries what publishing does."""
        return {"folder": preflight.check(self._root, self._held)}

    def folds_names(self) -> bool:
        """See `FileStore.folds_names`."""
        with _asking(self._root):
            return preflight.folds_names(self._root)

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
        """A name can be given within one file system only, and a partition's folder may be a mount or a link."""
        folder = (self._root / path).parent
        while not folder.exists():
            folder = folder.parent
        if folder.stat().st_dev != self._held.stat().st_dev:
            raise PrepareError(
                f"{folder} is on another file system than {self._held}, and a file cannot be published across.",
                next_step="Make it a plain folder of the sink's own file system.",
                path=str(folder),
            )

    def look(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """See `FileStore.look`."""
        with _asking(self._held):
            return [self._look(one) for one in files]

    def _look(self, fields: Fields) -> FileState:
        final = self._root / str(fields["path"])
        with suppress(FileNotFoundError):
            if _is_whole(self._held / str(fields["held"]), fields):
                return FileState.STAGED
            return self._look_damaged(fields, final)
        if not os.path.lexists(final):
            found = self._without_both(fields, final)
            if found.outcome is not Outcome.LOST:
                raise UnknownOutcomeError(found.reason)
            return FileState.GONE
        return FileState.PUBLISHED if _matches(final, fields) else FileState.UNKNOWN

    def _look_damaged(self, fields: Fields, final: Path) -> FileState:
        found = self._of_damaged(fields, final)
        if found.outcome is Outcome.RETRY:
            raise UnknownOutcomeError(found.reason)
        return _DAMAGED[found.outcome]

    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.publish`. One fsync for each folder; only then the held names are taken away."""
        finals = [self._root / str(one["path"]) for one in files]
        made = {folder: _caught(self._make, folder) for folder in sorted({final.parent for final in finals})}
        answers = [
            _caught(self._link, fields, final) if made[final.parent].outcome in _PUBLISHED else made[final.parent]
            for fields, final in zip(files, finals, strict=True)
        ]
        linked = {final.parent for final, one in zip(finals, answers, strict=True) if one.outcome in _PUBLISHED}
        durable = self._sync(linked)
        for place, (fields, final) in enumerate(zip(files, finals, strict=True)):
            if answers[place].outcome not in _PUBLISHED:
                continue
            if durable[final.parent].outcome not in _PUBLISHED:
                answers[place] = durable[final.parent]
                continue
            # Should it come back after a crash, the next commit or sweep finds both names, and takes it away again.
            freed = _caught(_unlink, self._held / str(fields["held"]))
            if freed.outcome not in _PUBLISHED:
                answers[place] = freed
        return self._forgotten(answers)

    def _forgotten(self, answers: list[Finished]) -> list[Finished]:
        """Makes it durable that the held names are gone, before the batch is called whole.

        From then on readers may delete the second names; were a first one to come back, it would be published again.
        """
        if not any(one.outcome in _PUBLISHED for one in answers):
            return answers
        synced = _caught(_sync, self._held)
        if synced.outcome in _PUBLISHED:
            return answers
        return [synced if one.outcome in _PUBLISHED else one for one in answers]

    def _make(self, folder: Path) -> Finished:
        if self._held.is_dir():  # or else the disk is not mounted, and a folder in its place would be in the way
            folder.mkdir(parents=True, exist_ok=True)
        return _DONE

    def _sync(self, folders: Iterable[Path]) -> Mapping[Path, Finished]:
        """Makes what is in these folders durable, and their own names up to the root: somebody may just have made them.

        Each is synced once, however many need it.
        """
        needed = {folder: self._up_to_root(folder) for folder in folders}
        every = sorted({one for chain in needed.values() for one in chain})
        synced = dict(zip(every, _in_parallel(lambda one: _caught(_sync, one), every), strict=True))
        return {
            folder: next((synced[one] for one in chain if synced[one].outcome not in _PUBLISHED), _DONE)
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
            # The held name is looked for first: another driver takes it away only after it has given the second one.
            if held.exists():
                return Finished(outcome=Outcome.RETRY, reason=f"{final}: {FOLDER_GONE}")
            if not os.path.lexists(final):
                return self._without_both(fields, final)
            if _matches(final, fields):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        return Finished(outcome=Outcome.COMMITTED)

    def _of_damaged(self, fields: Fields, final: Path) -> Finished:
        """What is said of a file that is held back with other bytes than were sealed.

        Its second name, if it has one, leads to the same bytes. Where it surely has none, readers have never seen it.
        """
        if os.path.lexists(final):
            if _matches(final, fields):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        if _is_listed(self._root, str(fields["path"])):
            return Finished(outcome=Outcome.RETRY, reason=f"{final}: {CACHED}")
        return Finished(outcome=Outcome.LOST, reason=f"{final}: {DAMAGED}")

    def _without_both(self, fields: Fields, final: Path) -> Finished:
        """What is said of a file that has neither name. A mount's cache may have said so, so it is listed anew.

        The held name comes first: another driver takes it away only after it has given the second one.
        """
        if not self._held.is_dir():
            # Not one file is missing but all: the disk is not mounted, or the whole folder is gone.
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{self._held} is not there: is it mounted?")
        if any(_is_listed(self._root, path) for path in (f"{HIDDEN}/held/{fields['held']}", str(fields["path"]))):
            return Finished(outcome=Outcome.RETRY, reason=f"{final}: {CACHED}")
        return Finished(outcome=Outcome.LOST, reason=f"{final}: {MISSING}")

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.discard`. The held name is made useless for a commit, and deleted; then comes the look."""
        return [_caught(self._discard, one, self._held / str(one["held"])) for one in files]

    def _discard(self, fields: Fields, held: Path) -> Finished:
        gone = held.with_suffix(_GONE)
        with suppress(FileNotFoundError):
            held.rename(gone)
        mine = None
        with suppress(FileNotFoundError):
            mine = gone.stat()
            gone.unlink()
        # Asked last: a link that had found the file by its held name can be made as long as the file has any name.
        return self._after_discard(fields, str(fields.get("path") or held.stem), mine)

    def _after_discard(self, fields: Fields, path: str, mine: os.stat_result | None) -> Finished:
        """Whether it was published.

        Of a file that was found by its held name alone the folder is not known. Its final name is left alone anyway.
        """
        final = self._root / path
        try:
            standing = final.lstat()
        except (FileNotFoundError, NotADirectoryError):
            # It may have been published, and a mount's cache not know it. Or else its other name is a backup's.
            unsure = "path" in fields if mine is None else mine.st_nlink > 1
            if unsure and _is_listed(self._root, path):
                return Finished(outcome=Outcome.RETRY, reason=f"{final}: {CACHED}")
            return Finished(outcome=Outcome.ABORTED)
        same = mine is not None and os.path.samestat(mine, standing)
        published = same or ("path" in fields and _matches(final, fields))
        return Finished(outcome=Outcome.ALREADY_COMMITTED if published else Outcome.ABORTED)

    def list_staged(self) -> Iterable[Staged]:
        """See `FileStore.list_staged`."""
        with _asking(self._held):
            names = os.listdir(self._held) if self._held.is_dir() else []  # noqa: PTH208 - no Path for each of many
        for text in names:
            base, dot, kind = text.rpartition(".")
            name = name_in(base)
            if name is not None and dot + kind in (_HELD, _GONE):
                yield Staged(name=name, fields={"held": base + _HELD})

    def put(self, path: str, content: bytes) -> None:
        """See `FileStore.put`."""
        final = self._root / path
        temporary = self._root / HIDDEN / f"put-{secrets.token_hex(6)}"
        with _asking(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            sync_folder(final.parent.parent)  # always: who made it may have been killed before it was durable
            try:
                preflight.write_durably(temporary, content)
                temporary.rename(final)
            finally:
                temporary.unlink(missing_ok=True)
            sync_folder(final.parent)

    def get(self, path: str) -> bytes | None:
        """See `FileStore.get`."""
        with _asking(self._root / path):
            try:
                return (self._root / path).read_bytes()
            except FileNotFoundError:
                return None

    def list_names(self, folder: str) -> Sequence[str]:
        """See `FileStore.list_names`."""
        with _asking(self._root / folder):
            try:
                return os.listdir(self._root / folder)  # noqa: PTH208 - no Path for each of many
            except FileNotFoundError:
                return ()

    def delete(self, paths: Sequence[str]) -> None:
        """See `FileStore.delete`."""
        for path in paths:
            with _asking(self._root / path):
                (self._root / path).unlink(missing_ok=True)


_DONE = Finished(outcome=Outcome.COMMITTED)
_PUBLISHED = frozenset({Outcome.COMMITTED, Outcome.ALREADY_COMMITTED})
_DAMAGED = {
    Outcome.ALREADY_COMMITTED: FileState.STAGED,  # `publish` takes its held name away
    Outcome.UNKNOWN: FileState.UNKNOWN,
    Outcome.LOST: FileState.DAMAGED,
}


@contextmanager
def _asking(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnknownOutcomeError(
            f"{path}: {error.strerror or error}.", next_step="See whether its disk can be read and written."
        ) from error


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
    """Waits for the disk once for many, where there are many."""
    if len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(max_workers=min(_THREADS, len(items))) as pool:
        return list(pool.map(call, items))


def _same_file(held: Path, final: Path) -> bool:
    """Whether two names are one file's. The number of its names says nothing: a backup may have given it another."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return held.samefile(final)
    return False


def _is_listed(root: Path, path: str) -> bool:
    """Whether a name stands in its folder, by a look that is not answered from a mount's cache of names.

    Every folder on the way is opened: then NFS asks the server whether it has changed, and forgets what it knew of it.
    The name is looked for in the list, for a cache may also hold that a name is not there (FUSE).
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
    """Whether a file that is held back has the size, and the last bytes of its format, that it must have.

    It is opened for that, at which NFS asks the server. Its checksum would read everything once more.
    """
    end = _ENDS.get(held.with_suffix("").suffix, b"")
    with held.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return size == fields["size"] and os.pread(file.fileno(), len(end), size - len(end)) == end


def _matches(path: Path, fields: Fields) -> bool:
    """Whether a file has the size, and then the checksum, that it must have."""
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
