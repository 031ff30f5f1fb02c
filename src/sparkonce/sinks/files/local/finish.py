"""Publishes and discards staged files, from any process, by their two names."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import COMMITTED, Finished, Outcome
from sparkonce.sinks.files.local.outcomes import CACHED, asking, of_error
from sparkonce.sinks.files.names import HIDDEN
from sparkonce.sinks.files.outcomes import DAMAGED, FOLDER_GONE, FOREIGN, MISSING
from sparkonce.sinks.files.store import Fields, FileState
from sparkonce.storage.local import sync_folder

if TYPE_CHECKING:
    from pathlib import Path

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


class Finisher:
    """Publishes, looks for and discards files of one folder.

    Args:
        root: The sink's folder.
        held: The folder of staged files within it.
    """

    def __init__(self, root: Path, held: Path) -> None:
        self._root = root
        self._held = held

    def look(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """See `FileStore.look`."""
        with asking(self._held):
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
    """Returns whether two names are one file's."""
    # The number of its names would not tell: a backup may have given it another one.
    with suppress(FileNotFoundError, NotADirectoryError):
        return held.samefile(final)
    return False


def _is_listed(root: Path, path: str) -> bool:
    """Returns whether a name is in its folder, past a mount's cache of names.

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
    """Returns whether a staged file has its size and the last bytes of its format."""
    end = _ENDS.get(held.with_suffix("").suffix, b"")
    with held.open("rb", buffering=0) as file:  # at an open NFS asks its server
        size = os.fstat(file.fileno()).st_size
        # Its checksum would read everything once more.
        return size == fields["size"] and os.pread(file.fileno(), len(end), size - len(end)) == end


def _matches(path: Path, fields: Fields) -> bool:
    """Returns whether a file has its size and its checksum."""
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
