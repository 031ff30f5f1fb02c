"""The folder as a `FileStore`; see the package for how a file is published."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.errors import PrepareError
from sparkonce.sinks.files.local import preflight
from sparkonce.sinks.files.local.finish import Finisher
from sparkonce.sinks.files.local.outcomes import asking
from sparkonce.sinks.files.local.writing import LocalStagedFile
from sparkonce.sinks.files.names import HIDDEN, check_lengths, name_in
from sparkonce.sinks.files.store import Fields, FileState, FileStore, Staged, StagedFile
from sparkonce.sinks.files.streams import preparing
from sparkonce.storage.local import sync_folder

if TYPE_CHECKING:
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
        return {"folder": preflight.check(self._root, self._held)}

    def folds_names(self) -> bool:
        """See `FileStore.folds_names`."""
        with asking(self._root):
            return preflight.folds_names(self._root)

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

    def look(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """See `FileStore.look`."""
        return self._finisher().look(files)

    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.publish`."""
        return self._finisher().publish(files)

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.discard`."""
        return self._finisher().discard(files)

    def _finisher(self) -> Finisher:
        return Finisher(self._root, self._held)

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
                preflight.write_durably(temporary, content)
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
