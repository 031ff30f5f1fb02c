"""A folder on a local disk: file names, and the system calls with which the product's `Finisher` changes them.

A kill may happen between any two calls. Losing data that was not made durable is not modeled: nothing here is ever
undone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simulation.spark import BATCHES_APART_MS
from simulation.systems import System, Writer
from sparkonce.errors import PrepareError
from sparkonce.sinks.files.committer import FilesCommitter
from sparkonce.sinks.files.local import LocalStore
from sparkonce.sinks.files.names import file_path, name_in
from sparkonce.sinks.files.store import Fields, fields_of

if TYPE_CHECKING:
    from simulation.engine import Simulation
    from simulation.oracle import Key
    from sparkonce.protocol.handles import Scalar

ROOT = "/t"
HIDDEN = "/t/.sparkonce"
HELD = f"{HIDDEN}/held"
_FOLDERS = frozenset({"", "/", ROOT, HIDDEN, HELD})


class Inode:
    """A file's content, including what the product reads with stat."""

    __slots__ = ("batch", "parts", "sealed", "slot", "st_nlink")

    def __init__(self, batch: int, slot: int) -> None:
        self.batch, self.slot = batch, slot
        self.parts, self.sealed = 0, False
        self.st_nlink = 1


class Files(System):
    """A folder."""

    facts: Mapping[str, str] = {"prefix": "p", "folder": "f"}

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.copies = _Writer
        self.names: dict[str, Inode] = {}

    def committer(self) -> FilesCommitter:
        return FilesCommitter(self.store(), self.name, manifest=False)

    def store(self) -> LocalStore:
        made = LocalStore.__new__(LocalStore)
        made.location, made._root, made._held = ROOT, FakePath(self, ROOT), FakePath(self, HELD)
        made.small = _SmallFiles(self)
        return made

    def lingering(self) -> list[Key]:
        return [(self.name, name) for name in self.names if name.startswith(HELD)]

    # --- system calls -------------------------------------------------------------------------------------------------

    def link(self, source: str, target: str) -> None:
        inode = self.names.get(source)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, source)
        if target in self.names:
            raise FileExistsError(errno.EEXIST, target)
        self.names[target] = inode
        inode.st_nlink += 1
        name = name_in(target)
        self.simulation.oracle.shown((self.name, str(name)), (inode.batch, inode.slot, self.name, inode.parts))

    def rename(self, source: str, target: str) -> None:
        """Removing a sealed file's held name aborts the file if it has no other name."""
        inode = self.names.pop(source, None)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, source)
        self._taken_from_readers(source, was_there=True)
        self._taken_from_readers(target, was_there=target in self.names)
        self.names[target] = inode
        if inode.sealed and inode.st_nlink == 1:
            self.simulation.oracle.aborted((self.name, str(name_in(source.removesuffix(".held")))))

    def _taken_from_readers(self, path: str, *, was_there: bool) -> None:
        if was_there and not path.startswith(HIDDEN):
            self.simulation.oracle.vanished(path)

    def unlink(self, path: str) -> None:
        inode = self.names.pop(path, None)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, path)
        self._taken_from_readers(path, was_there=True)
        inode.st_nlink -= 1
        if inode.sealed and inode.st_nlink == 0 and path.endswith(".held"):
            self.simulation.oracle.aborted((self.name, str(name_in(path.removesuffix(".held")))))


class FakePath:
    """A path in `Files`, as far as `LocalStore` uses one. Each query is a system call."""

    __slots__ = ("_files", "text")

    def __init__(self, files: Files, text: str) -> None:
        self._files, self.text = files, text

    def __truediv__(self, more: str) -> FakePath:
        return FakePath(self._files, f"{self.text}/{more}")

    def __fspath__(self) -> str:
        return self.text

    __str__ = __repr__ = __fspath__

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakePath) and other.text == self.text

    def __lt__(self, other: FakePath) -> bool:
        return self.text < other.text

    @property
    def parent(self) -> FakePath:
        return FakePath(self._files, self.text.rpartition("/")[0])

    @property
    def name(self) -> str:
        return self.text.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0]

    def with_suffix(self, suffix: str) -> FakePath:
        return FakePath(self._files, self.text.rpartition(".")[0] + suffix)

    def joinpath(self, *parts: str) -> FakePath:
        return FakePath(self._files, "/".join((self.text, *parts)))

    def relative_to(self, root: FakePath) -> Any:
        return SimpleNamespace(parts=tuple(self.text.removeprefix(root.text).split("/")[1:]))

    def is_dir(self) -> bool:
        return self.text in _FOLDERS

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        pass

    def exists(self) -> bool:
        return self._call("looks for", lambda: self.text in self._files.names)

    def stat(self) -> Inode:
        def found_inode() -> Inode:
            if self.text not in self._files.names:
                raise FileNotFoundError(errno.ENOENT, self.text)
            return self._files.names[self.text]

        return self._call("looks at", found_inode)

    lstat = stat

    def samefile(self, other: FakePath) -> bool:
        return self.stat() is other.stat()

    def rename(self, target: FakePath) -> None:
        self._call("renames", lambda: self._files.rename(self.text, target.text))

    def unlink(self, missing_ok: bool = False) -> None:
        def unlink() -> None:
            if self.text in self._files.names or not missing_ok:
                self._files.unlink(self.text)

        self._call("deletes", unlink)

    def _call(self, what: str, apply: Any) -> Any:
        simulation = self._files.simulation
        simulation.stop_here()
        simulation.say(self._files.called, what, self.name)
        return apply()


# --- instead of the product's system calls ----------------------------------------------------------------------------


def _link(source: FakePath, target: FakePath) -> None:
    files = source._files
    files.simulation.stop_here()
    if files.simulation.chance("server restarted"):
        files.simulation.say(files.called, "disk full at", target.name)
        raise OSError(errno.ENOSPC, "disk full")
    if files.simulation.chance("refused"):
        files.simulation.say(files.called, "may not link", target.name)
        raise PermissionError(errno.EACCES, target.text)
    files.simulation.say(files.called, "links", target.name)
    files.link(source.text, target.text)


class _SmallFiles:
    """The folder's id, and what is in the folder of staged files."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, path: str) -> bytes:
        return b"f"

    def names(self, folder: str) -> list[str]:
        self._files.simulation.stop_here()
        inside = f"{ROOT}/{folder}/"
        return [name.removeprefix(inside) for name in self._files.names if name.startswith(inside)]


def matches(path: FakePath, fields: Fields) -> bool:
    files = path._files
    files.simulation.stop_here()
    inode = files.names.get(path.text)
    return inode is not None and f"crc32:{inode.batch}.{inode.slot}" == fields["checksum"]


def is_whole(held: FakePath, fields: Fields) -> bool:
    held.stat()
    return True  # sealed content does not change


def is_listed(root: FakePath, path: str) -> bool:
    return (root / path).exists()


OS = SimpleNamespace(
    link=_link,
    fspath=os.fspath,
    path=SimpleNamespace(
        lexists=lambda path: path.exists(),
        samestat=lambda one, other: one is other,
    ),
)


def sync_folder(folder: FakePath) -> None:
    folder._files.simulation.stop_here()


REPLACED: tuple[tuple[str, str, Any], ...] = (
    ("local", "os", OS),
    ("local", "_is_whole", is_whole),
    ("local", "_matches", matches),
    ("local", "_is_listed", is_listed),
    ("local", "sync_folder", sync_folder),
)
"""The product's system calls, by module."""


class _Writer(Writer):
    """`sparkonce.sinks.files.local`: a new file under its held name. Sealing it checks that it still exists."""

    system: Files

    def __init__(self, system: Files, name: Any) -> None:
        super().__init__(system)
        self._name = name
        self._path = file_path("", name, 0, ".jsonl")
        self._held = f"{HELD}/{self._path}.held"
        self._inode = Inode(name.batch, name.slot)

    def begin(self) -> None:
        self.system.simulation.stop_here()
        self.system.simulation.say(self.system.called, "holds", self._path)
        self.system.names[self._held] = self._inode

    def write(self, parts: int) -> None:
        self.system.simulation.stop_here()
        self._inode.parts += parts

    def prepare(self) -> Mapping[str, Scalar]:
        self.system.simulation.stop_here()
        if self.system.names.get(self._held) is not self._inode:
            raise PrepareError("the file is not the one that was written")
        self._inode.sealed = True
        self.system.simulation.say(self.system.called, "seals", self._path)
        file = {
            "path": self._path,
            "held": f"{self._path}.held",
            "size": 2,
            "checksum": f"crc32:{self._name.batch}.{self._name.slot}",
            "rows": 1,
        }
        fields, _ = fields_of(self._name, [file], self._name.batch * BATCHES_APART_MS, "f")
        return fields

    def abort(self) -> None:
        self.system.simulation.stop_here()
        if self._held in self.system.names:
            self.system.unlink(self._held)
