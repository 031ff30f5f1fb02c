"""A write-ahead sink's life without Spark: prepare slots, commit, be killed in a commit, look at the files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from integration.write_ahead_child import KILLED
from sparkonce import WriteAheadSink
from sparkonce.protocol.codec import encode_handle
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, SinkWriter, WriterContext
from sparkonce.sinks.write_ahead.folder import RowsState
from sparkonce.write_ahead import Applies

QUERY = "7f6e5d4c0000"
LIMIT_S = 60.0


def numbers(batch: int, slots: Sequence[int]) -> list[int]:
    return [1000 * batch + 10 * slot + place for slot in slots for place in range(3)]


def open_writer(sink: WriteAheadSink, batch: int = 0, slot: int = 0, position: int = 3) -> SinkWriter:
    owner = Owner(query=QUERY, token=Token(position, "0" * 8), facts=sink.preflight(QUERY, None))
    writer = sink.writer(WriterContext(owner=owner, batch=batch, slot=slot, copy="1.1.0"))
    writer.begin()
    writer.write(pa.record_batch({"number": numbers(batch, [slot])}))
    return writer


def prepare(sink: WriteAheadSink, batch: int = 0, slot: int = 0) -> Handle:
    writer = open_writer(sink, batch, slot)
    fields = transaction_fields(writer.prepare())
    writer.close()
    return Handle(sink=sink.name, slot=slot, rows=3, transaction=fields)


def commit(sink: WriteAheadSink, *handles: Handle) -> list[Outcome]:
    return [finished.outcome for finished in sink.committer().commit(handles)]


def root_of(sink: WriteAheadSink) -> Path:
    return Path(sink.folder().location)


def ledger_of(sink: WriteAheadSink) -> Path:
    return Path(sink.folder().ledger.files.location)


def path_of(sink: WriteAheadSink, handle: Handle, state: RowsState) -> Path:
    return root_of(sink) / state.value / str(handle["name"])


def files(sink: WriteAheadSink) -> dict[str, int]:
    """How many files there are in each state."""
    return {state.value: len(list((root_of(sink) / state.value).iterdir())) for state in RowsState}


def owner() -> Owner:
    return Owner(query=QUERY, token=Token(3, "0" * 8))


def order(root: Path, grade: Applies, handles: Sequence[Handle], point: str, **settings: Any) -> dict[str, Any]:
    """What `write_ahead_child` is to do."""
    return {
        "root": str(root),
        "grade": grade.value,
        "settings": settings,
        "handles": [encode_handle(handle) for handle in handles],
        "point": point,
    }


def kill_in_commit(root: Path, grade: Applies, handles: Sequence[Handle], point: str, **settings: Any) -> None:
    told = json.dumps(order(root, grade, handles, point, **settings))
    command = [sys.executable, "-m", "integration.write_ahead_child", told]
    folders = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": folders}, check=False, timeout=LIMIT_S, capture_output=True
    )
    assert done.returncode == KILLED, done.stderr.decode()
