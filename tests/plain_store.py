"""A local folder with only the operations of an object store: files are put if absent, and never renamed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sparkonce.storage.files import CheckpointFiles, Landed, Taken
from sparkonce.storage.local import LocalFiles


class PlainStore(CheckpointFiles):
    def __init__(self, folder: Path) -> None:
        self.kept = LocalFiles(folder)

    @property
    def location(self) -> str:
        return f"plain:{self.kept.location}"

    def read(self, path: str) -> bytes | None:
        return self.kept.read(path)

    def names(self, folder: str) -> Sequence[str]:
        return self.kept.names(folder)

    def put(self, path: str, data: bytes) -> Landed | Taken:
        return self.kept.put(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self.kept.replace(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        self.kept.delete(paths)

    def check(self) -> None:
        self.kept.check()

    def inside(self, folder: str) -> PlainStore:
        return type(self)(self.kept.folder / folder)
