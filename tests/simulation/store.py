"""The files of a checkpoint in an object store: put if absent, read, listed and deleted, never renamed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from simulation.engine import NoAnswerError, RefusedError
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken

if TYPE_CHECKING:
    from simulation.engine import Simulation

Changed = Callable[[str, bytes | None], None]
"""Called before a file is put (with its bytes) or deleted."""


class ModelFiles(CheckpointFiles):
    """Files that outlive every process.

    Args:
        simulation: The schedule.
        called: The owner of the files, for descriptions.
        changed: See `Changed`.
        kept: The files by full path.
        prefix: The path of this folder.

    Attributes:
        seen: The paths that somebody knows to exist.
    """

    def __init__(
        self,
        simulation: Simulation,
        called: str,
        changed: Changed = lambda *_: None,
        kept: dict[str, bytes] | None = None,
        prefix: str = "",
    ) -> None:
        self._simulation, self._called, self._changed = simulation, called, changed
        self.kept: dict[str, bytes] = {} if kept is None else kept
        self.prefix = prefix
        self.seen: set[str] = set()

    @property
    def location(self) -> str:
        return f"store:/{self.prefix.rstrip('/')}"

    def inside(self, folder: str) -> ModelFiles:
        made = ModelFiles(self._simulation, self._called, self._changed, self.kept, f"{self.prefix}{folder}/")
        made.seen = self.seen
        return made

    def read(self, path: str) -> bytes | None:
        return self._ask("reads", path, lambda: self.kept.get(self.prefix + path))

    def exists(self, path: str) -> bool:
        def is_kept() -> bool:
            found = self.prefix + path in self.kept
            if found:
                self.seen.add(self.prefix + path)
            return found

        return self._ask("looks for", path, is_kept)

    def names(self, folder: str) -> Sequence[str]:
        start = f"{self.prefix}{folder}/"
        return self._ask("lists", folder, lambda: [one[len(start) :] for one in self.kept if one.startswith(start)])

    def put(self, path: str, data: bytes) -> Landed | Taken:
        whole = self.prefix + path

        def put() -> Landed | Taken:
            standing = self.kept.get(whole)
            if standing is not None:
                return Taken(standing=standing)
            self._changed(whole, data)
            self.kept[whole] = data
            return Landed()

        try:
            answer = self._simulation.request((self._called, "puts", path), put)
        except NoAnswerError as error:
            raise PutUnknownError(str(error)) from None
        except RefusedError as error:
            raise OSError(errno.EACCES, str(error)) from None
        # A client or the network may have sent the put twice. The second put then finds the file that the first one
        # created.
        return Taken(standing=data) if self._simulation.chance("put repeated") else answer

    def replace(self, path: str, data: bytes) -> None:
        self._ask("replaces", path, lambda: self.kept.update({self.prefix + path: data}))

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._ask("deletes", path, lambda whole=self.prefix + path: self._delete(whole))

    def _delete(self, whole: str) -> None:
        if whole in self.kept:
            self._changed(whole, None)
            del self.kept[whole]

    def check(self) -> None:
        raise NotImplementedError

    def _ask(self, verb: str, path: str, apply: Callable[[], Any]) -> Any:
        try:
            return self._simulation.request((self._called, verb, path), apply)
        except NoAnswerError as error:
            raise OSError(errno.ETIMEDOUT, str(error)) from None
        except RefusedError as error:
            raise OSError(errno.EACCES, str(error)) from None
