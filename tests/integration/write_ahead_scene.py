"""A write-ahead sink without Spark: prepare slots, commit, die during a commit, and inspect the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import one_run
from conformance.write_ahead_targets import AppendingTarget, KeyedTarget, SqliteTarget, Target
from one_run import QUERY
from sparkonce import WriteAheadSink
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.sink import Owner, SinkWriter
from sparkonce.sinks.write_ahead.folder import DiskFolder, RowsState, WriteAheadFolder
from sparkonce.sinks.write_ahead.ledger import Ledger
from sparkonce.storage.local import LocalFiles
from sparkonce.write_ahead import Applies, ApplyToken

LIMIT_S = 60.0
TARGETS: dict[Applies, type[Target]] = {
    Applies.TRANSACTIONAL: SqliteTarget,
    Applies.IDEMPOTENT: KeyedTarget,
    Applies.NEITHER: AppendingTarget,
}
METHODS: dict[str, tuple[type, str]] = {
    "started": (DiskFolder, "take"),
    "begun": (Ledger, "begin"),
    "noted": (WriteAheadFolder, "note_done"),
    "deleted": (DiskFolder, "delete_rows"),
}
POINTS = ("before", "started", "begun", "called", "applied", "noted", "deleted")
"""Points in a commit, in order.

The first is before anything is done. At the next ones, the rows are protected from aborts, the begin is recorded, the
function is called but has done nothing, and the function has returned. Then the commit is recorded, and the rows are
deleted.
"""


class KilledError(BaseException):
    """Nothing in the code under test may catch it. Processes are really killed in tests/crashes."""


def target_of(root: Path, grade: Applies) -> Target:
    return TARGETS[grade](root / "target")


def sink_of(root: Path, grade: Applies, apply: Callable[..., object] | None = None, **settings: Any) -> WriteAheadSink:
    sink = WriteAheadSink(apply or target_of(root, grade), applies=grade, **settings)
    sink.use_checkpoint(LocalFiles(root / "checkpoint"))
    return sink


def numbers(batch: int, slots: Sequence[int]) -> list[int]:
    return [1000 * batch + 10 * slot + place for slot in slots for place in range(3)]


def open_writer(sink: WriteAheadSink, batch: int = 0, slot: int = 0) -> SinkWriter:
    return one_run.open_writer(sink, pa.record_batch({"number": numbers(batch, [slot])}), batch=batch, slot=slot)


def prepare(sink: WriteAheadSink, batch: int = 0, slot: int = 0) -> Handle:
    return one_run.prepare(sink, pa.record_batch({"number": numbers(batch, [slot])}), batch=batch, slot=slot)


def commit(sink: WriteAheadSink, *handles: Handle) -> list[Outcome]:
    return [finished.outcome for finished in sink.committer().commit(handles)]


def root_of(sink: WriteAheadSink) -> Path:
    return Path(sink.folder().location)


def ledger_of(sink: WriteAheadSink) -> Path:
    return Path(sink.folder().ledger.files.location)


def path_of(sink: WriteAheadSink, handle: Handle, state: RowsState) -> Path:
    return root_of(sink) / state.value / str(handle["name"])


def files(sink: WriteAheadSink) -> dict[str, int]:
    """Returns how many files there are in each state."""
    return {state.value: len(list((root_of(sink) / state.value).iterdir())) for state in RowsState}


def owner() -> Owner:
    return Owner(query=QUERY, token=one_run.RUN)


def kill_in_commit(
    monkeypatch: pytest.MonkeyPatch, root: Path, grade: Applies, handles: Sequence[Handle], point: str, **settings: Any
) -> None:
    """A driver gets as far as this in its commit, and no further."""

    def apply(rows: pa.RecordBatchReader, token: ApplyToken) -> None:
        if point == "called":
            raise KilledError
        target_of(root, grade)(rows, token)
        if point == "applied":
            raise KilledError

    if point == "before":
        return
    with monkeypatch.context() as patch:
        if point in METHODS:
            kind, method = METHODS[point]
            inner = getattr(kind, method)

            def dying(*given: Any, **named: Any) -> None:
                inner(*given, **named)
                raise KilledError

            patch.setattr(kind, method, dying)
        committer = sink_of(root, grade, apply, parallel=1, **settings).committer()
        with pytest.raises(KilledError):
            committer.commit(handles)
