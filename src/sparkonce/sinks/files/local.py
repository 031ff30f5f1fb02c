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
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from sparkonce.durable import sync_folder
from sparkonce.errors import PreflightError, PrepareError, UnknownOutcomeError
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.sinks.files.outcomes import FOLDER_GONE, FOREIGN, MISSING, of_error
from sparkonce.sinks.files.store import HIDDEN, Fields, FileStore, Held, HeldFile, Standing, check_lengths, name_in
from sparkonce.sinks.files.streams import ChecksumStream, preparing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkonce.protocol.ownership import TransactionName

_HELD = ".held"
_GONE = ".gone"
_CHUNK_BYTES = 8 << 20
_THREADS = 8

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
        missing = [folder for folder in (self._root, *self._root.parents) if not folder.exists()]
        try:
            self._held.mkdir(parents=True, exist_ok=True)
            # What a slot has prepared is durable only if the names of all folders above it are.
            for folder in (self._held.parent, self._root, *(one.parent for one in missing)):
                sync_folder(folder)
            probe = self._held / f"probe-{secrets.token_hex(6)}"
            second = self._root / HIDDEN / probe.name
            beside = self._root / f".{probe.name}"
            probe.touch()
            try:
                self._try_link(probe, beside, second)
            finally:
                for path in (probe, second, beside):
                    path.unlink(missing_ok=True)
            return {"folder": self._identity()}
        except OSError as error:
            raise PreflightError(
                f"path={self.location!r} cannot be written to: {error.strerror} ({error.filename}).",
                next_step="Give this user the permission to write there, or name another folder.",
                setting="path",
            ) from error

    def _try_link(self, probe: Path, *seconds: Path) -> None:
        for second in seconds:
            try:
                os.link(probe, second)
            except OSError as error:  # noqa: PERF203 - two rounds, at a start
                raise PreflightError(
                    f"path={self.location!r} is on a file system that gives a file no second name: link() from "
                    f"{probe} to {second} says {error.strerror}.",
                    next_step="Use a file system with hard links, whose folder has no mount points inside, or S3 or "
                    "HDFS by their own addresses.",
                    setting="path",
                ) from error

    def _identity(self) -> str:
        """What tells this folder from another at the same path. Made once, by whoever comes first."""
        path = self._root / HIDDEN / "id"
        if not path.exists():
            temporary = path.with_name(f"id-{secrets.token_hex(6)}")
            _write_durably(temporary, uuid.uuid4().hex.encode())
            with suppress(FileExistsError):
                os.link(temporary, path)
            temporary.unlink()
            sync_folder(path.parent)
        return path.read_text()

    def hold(self, name: TransactionName, path: str) -> HeldFile:  # noqa: ARG002 - the path holds it
        """See `FileStore.hold`."""
        held = self._held / f"{path.rpartition('/')[2]}{_HELD}"
        with preparing(held):
            check_lengths(path, os.pathconf(self._held, "PC_NAME_MAX"))
            self._check_device(path)
            file = os.open(held, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        return LocalHeldFile(held, file, path)

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

    def look(self, files: Sequence[Fields]) -> Sequence[Standing]:
        """See `FileStore.look`."""
        with _asking(self._held):
            return [self._look(one) for one in files]

    def _look(self, fields: Fields) -> Standing:
        if (self._held / str(fields["held"])).exists():
            return Standing.HELD
        final = self._root / str(fields["path"])
        if not os.path.lexists(final):
            if not self._held.is_dir():
                raise UnknownOutcomeError(f"{self._held} is not there: is it mounted?")
            return Standing.GONE
        return Standing.PUBLISHED if _matches(final, fields) else Standing.UNKNOWN

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
            with suppress(OSError):
                (self._held / str(fields["held"])).unlink()
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
                if not self._held.is_dir():
                    # Not one file is missing but all: the disk is not mounted, or the whole folder is gone.
                    return Finished(outcome=Outcome.UNKNOWN, reason=f"{self._held} is not there: is it mounted?")
                return Finished(outcome=Outcome.LOST, reason=f"{final}: {MISSING}")
            if _matches(final, fields):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.UNKNOWN, reason=f"{final}: {FOREIGN}")
        return Finished(outcome=Outcome.COMMITTED)

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.discard`. The held name is first made useless for a commit, then looked at, then deleted."""
        return [_caught(self._discard, one, self._held / str(one["held"])) for one in files]

    def _discard(self, fields: Fields, held: Path) -> Finished:
        gone = held.with_suffix(_GONE)
        with suppress(FileNotFoundError):
            held.rename(gone)
        try:
            published = gone.stat().st_nlink > 1
            gone.unlink()
        except FileNotFoundError:
            published = "path" in fields and _matches(self._root / str(fields["path"]), fields)
        return Finished(outcome=Outcome.ALREADY_COMMITTED if published else Outcome.ABORTED)

    def list_held(self) -> Iterable[Held]:
        """See `FileStore.list_held`."""
        with _asking(self._held):
            names = os.listdir(self._held) if self._held.is_dir() else []  # noqa: PTH208 - no Path for each of many
        for text in names:
            base, dot, kind = text.rpartition(".")
            name = name_in(base)
            if name is not None and dot + kind in (_HELD, _GONE):
                yield Held(name=name, fields={"held": base + _HELD})

    def put(self, path: str, content: bytes) -> None:
        """See `FileStore.put`."""
        final = self._root / path
        temporary = self._root / HIDDEN / f"put-{secrets.token_hex(6)}"
        with _asking(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            sync_folder(final.parent.parent)  # always: who made it may have been killed before it was durable
            try:
                _write_durably(temporary, content)
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


class LocalHeldFile(HeldFile):
    """A file under ``.sparkonce/held``, whose checksum is counted while it is written.

    CRC-32, because it was the fastest that Python brings: 6.6 GB/s, sha1 and sha256 2.0, blake2b 1.3, md5 0.8. It is
    to find damage and mistakes, not fraud; the name, which no two files share, says whose file it is.
    """

    def __init__(self, held: Path, file: int, path: str) -> None:
        self._path = path
        self._held = held
        self._stream = ChecksumStream(os.fdopen(file, "wb", buffering=1 << 20), held)

    @property
    def stream(self) -> BinaryIO:
        """See `HeldFile.stream`."""
        return cast("BinaryIO", self._stream)

    def size(self) -> int:
        """See `HeldFile.size`."""
        return self._stream.size

    def seal(self) -> Fields:
        """See `HeldFile.seal`. A sweep may have taken the file from a copy that slept: that is an error, too."""
        with preparing(self._held):
            file = self._stream.file
            file.flush()
            os.fsync(file.fileno())
            mine = os.fstat(file.fileno())
            file.close()
            standing = self._held.stat()
            if (standing.st_ino, standing.st_size) != (mine.st_ino, self._stream.size):
                raise PrepareError(f"{self._held} is not the file that was written.", path=str(self._held))
            sync_folder(self._held.parent)
        return {
            "path": self._path,
            "held": self._held.name,
            "size": self._stream.size,
            "checksum": self._stream.checksum,
        }

    def discard(self) -> None:
        """See `HeldFile.discard`."""
        with suppress(OSError):
            self._stream.file.close()
        with suppress(OSError):
            self._held.unlink()


_DONE = Finished(outcome=Outcome.COMMITTED)
_PUBLISHED = frozenset({Outcome.COMMITTED, Outcome.ALREADY_COMMITTED})


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


def _in_parallel(call: Callable[[One], Other], items: Sequence[One]) -> Sequence[Other]:
    """Waits for the disk once for many, where there are many."""
    if len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(max_workers=min(_THREADS, len(items))) as pool:
        return list(pool.map(call, items))


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _same_file(held: Path, final: Path) -> bool:
    with suppress(OSError):
        return held.samefile(final)
    return False


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
