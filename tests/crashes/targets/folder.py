"""The conformance tests' own small sink: no server, a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance.folder_sink import FolderSink
from crashes.target import Target, new_name
from sparkonce.sink import TwoPhaseCommitSink


class FolderTarget(Target):
    name = "folder"
    shows_within_s = gone_within_s = 0.0

    def start(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)

    def new_place(self) -> None:
        self.root = self._folder / new_name()

    def make_sink(self) -> TwoPhaseCommitSink:
        return FolderSink(self.root)

    def visible(self) -> Sequence[int]:
        return [int(line) for path in (self.root / "committed").glob("*") for line in path.read_text().splitlines()]

    def lingering(self) -> Sequence[str]:
        return [path.name for state in ("open", "prepared") for path in (self.root / state).glob("*")]
