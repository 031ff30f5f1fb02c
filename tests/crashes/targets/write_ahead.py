"""The write-ahead sink, before a database that keeps the token in the transaction that writes the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance.write_ahead_targets import SqliteTarget
from crashes.target import Target, new_name
from plain_store import PlainStore
from sparkonce import WriteAheadSink
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.write_ahead import Applies


class WriteAheadTarget(Target):
    preload = (
        "sparkonce.sinks.write_ahead.writer",
        "sparkonce.sinks.write_ahead.committer",
        "conformance.write_ahead_targets",
    )
    shows_within_s = gone_within_s = 0.0

    def __init__(self, name: str, per: str, *, on_store: bool = False) -> None:
        self.name = name
        self._per = per
        self._on_store = on_store
        self.choice = "light" if on_store else "wide"

    def start(self, folder: Path) -> None:
        self._folder = folder

    def new_place(self) -> None:
        self.place = self._folder / new_name()
        self._target = SqliteTarget(self.place / "target")
        self._target.visible()

    def make_sink(self) -> TwoPhaseCommitSink:
        sink = WriteAheadSink(
            self._target,
            applies=Applies.TRANSACTIONAL,
            is_applied=self._target.is_applied,
            per=self._per,  # type: ignore[arg-type]
            folder=self.place / "waiting",
        )
        if self._on_store:
            sink.use_rows(PlainStore(self.place / "waiting"))
        return sink

    def visible(self) -> Sequence[int]:
        return self._target.visible()

    def lingering(self) -> Sequence[str]:
        folders = [folder for name in ("open", "prepared", "rows") for folder in (self.place / "waiting").rglob(name)]
        return [
            str(path) for folder in folders for path in folder.rglob("*") if path.is_file() and not _has_begun(path)
        ]


def _has_begun(rows: Path) -> bool:
    fate = rows.parent.parent / "fate" / rows.name
    try:
        return fate.read_text() == "started"
    except FileNotFoundError:
        return False


WRITE_AHEAD = (
    WriteAheadTarget("write-ahead", "slot"),
    WriteAheadTarget("write-ahead-by-batch", "batch"),
    WriteAheadTarget("write-ahead-on-a-store", "slot", on_store=True),
)
