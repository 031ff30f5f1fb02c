"""A driver that dies: ``python -m integration.write_ahead_child ORDER`` commits handles, and ends at a point of it.

ORDER is JSON: ``root``, ``grade``, ``settings``, ``handles``, ``point``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from conformance.write_ahead_targets import AppendingTarget, KeyedTarget, SqliteTarget, Target
from sparkonce import WriteAheadSink
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.protocol.codec import decode_handle
from sparkonce.sinks.write_ahead.disk import DiskFolder
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.sinks.write_ahead.ledger import Ledger
from sparkonce.write_ahead import Applies, ApplyToken

KILLED = 9
TARGETS: dict[Applies, type[Target]] = {
    Applies.TRANSACTIONAL: SqliteTarget,
    Applies.IDEMPOTENT: KeyedTarget,
    Applies.NEITHER: AppendingTarget,
}
POINTS = ("before", "started", "begun", "called", "applied", "noted", "deleted")
"""Before anything; taken from aborts; noted that it begins; in the function, before it does anything; after it has;
and so on."""
METHODS: dict[str, tuple[type, str]] = {
    "started": (DiskFolder, "take"),
    "begun": (Ledger, "begin"),
    "noted": (WriteAheadFolder, "note_done"),
    "deleted": (DiskFolder, "delete_rows"),
}


def target_of(root: Path, grade: Applies) -> Target:
    return TARGETS[grade](root / "target")


def sink_of(root: Path, grade: Applies, apply: Callable[..., object] | None = None, **settings: Any) -> WriteAheadSink:
    """The sink as each process makes it."""
    sink = WriteAheadSink(apply or target_of(root, grade), applies=grade, **settings)
    sink.use_checkpoint(LocalFiles(root / "checkpoint"))
    return sink


def die() -> None:
    os._exit(KILLED)


def die_after(kind: type, method: str) -> None:
    inner = getattr(kind, method)

    def dying(*arguments: Any, **named: Any) -> Any:
        inner(*arguments, **named)
        die()

    setattr(kind, method, dying)


def main(order: dict[str, Any]) -> None:
    root, grade, point = Path(order["root"]), Applies(order["grade"]), order["point"]
    target = target_of(root, grade)

    def apply(rows: pa.RecordBatchReader, token: ApplyToken) -> None:
        if point == "called":
            die()
        target(rows, token)
        if point == "applied":
            die()

    if point == "before":
        die()
    if point in METHODS:
        die_after(*METHODS[point])
    sink = sink_of(root, grade, apply, **order["settings"])
    sink.committer().commit([decode_handle(text) for text in order["handles"]])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
