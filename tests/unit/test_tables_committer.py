from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sparkonce.errors import SchemaError, UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks.tables.committer import TableApplication, TableCommitter
from sparkonce.sinks.tables.delta import DeltaSink
from sparkonce.sinks.tables.fitting import Rules
from sparkonce.sinks.tables.merging import MergePlan
from sparkonce.sinks.tables.table import Label, Table
from sparkonce.sinks.write_ahead.application import ApplyToken, Unit
from sparkonce.sinks.write_ahead.folder import DiskFolder, RowsState
from sparkonce.sinks.write_ahead.ledger import Entry, Ledger
from sparkonce.storage.local import LocalFiles

OURS, THEIRS = "a" * 12, "b" * 12


def label(query: str, prefix: str = "delta") -> Label:
    name = TransactionName(prefix=prefix, query=query, token=Token(3, "0" * 8), batch=0, slot=0, copy="c" * 12)
    return Label.of([Entry(name=name, size_bytes=1, checksum="x", identity="i", begun_ms=1)])


class History(Table):
    def __init__(self, *labels: Label) -> None:
        self.versions = list(labels)
        self.reads = 0
        self.since_ms = 0

    def labels(self, newest: int | None = None) -> list[Label]:
        self.reads += 1
        return self.versions

    def identity(self) -> str:
        return "the table"

    def refusal(self, rows: DataFrame, plan: MergePlan | None) -> str:
        raise NotImplementedError

    def schema(self) -> StructType:
        raise NotImplementedError

    def rules(self, given: Collection[str]) -> Rules:
        raise NotImplementedError

    def append(self, rows: DataFrame, unit: Unit, label: Label) -> None:
        raise NotImplementedError

    def merge(self, rows: DataFrame, plan: MergePlan, unit: Unit, label: Label) -> None:
        raise NotImplementedError

    def frame(self) -> DataFrame:
        raise NotImplementedError

    def sql_name(self) -> str:
        raise NotImplementedError

    def remembers_since_ms(self, unit: Unit) -> int:
        return self.since_ms


@pytest.fixture
def history() -> History:
    return History(label(OURS), label(THEIRS), label("c" * 12, prefix="other"))


@pytest.fixture
def committer(history, tmp_path) -> TableCommitter:
    return TableCommitter(DiskFolder(tmp_path, Ledger(LocalFiles(tmp_path))), "delta", "delta", history)


def test_traces_are_those_of_one_query_under_one_prefix(committer, history):
    assert committer.list_traces("d" * 12, {}) == []
    assert [trace.committed for trace in committer.list_traces(OURS, {})] == [label(OURS).first]
    history.versions = [label(THEIRS), label(OURS, prefix="other")]
    assert committer.list_traces(OURS, {}) == []


def test_a_note_that_rows_were_written_is_believed_if_the_table_has_them(history, tmp_path, monkeypatch):
    """A power failure may keep the note but lose the table's newest version, and nobody would write its rows again."""
    has_them = Finished(outcome=Outcome.ALREADY_COMMITTED)
    monkeypatch.setattr("sparkonce.sinks.tables.committer._active", nullcontext)
    monkeypatch.setattr(History, "spark", None, raising=False)
    folder = DiskFolder(tmp_path / "rows", Ledger(LocalFiles(tmp_path / "ledger")))
    folder.make()
    name = TransactionName(prefix="delta", query=OURS, token=Token(4, "1" * 8), batch=1, slot=0, copy="c" * 12)
    entry = Entry(name=name, size_bytes=1, checksum="x", identity="i", begun_ms=1000)
    rows = TableApplication(folder, "delta", history, "the table", None)
    assert rows.noted([entry]) is None

    folder.note_done([entry])
    lost = rows.noted([entry])
    assert (lost.outcome, "lost the version" in lost.reason) == (Outcome.LOST, True)

    waiting = folder.path(RowsState.STARTED, name)
    waiting.write_bytes(b"x")
    assert rows.noted([entry]) is None, "they are still there, and are written again"
    waiting.unlink()

    history.since_ms = 1001
    assert rows.noted([entry]) == has_them, "a table that has forgotten cannot contradict"

    history.since_ms = 0
    history.versions.append(Label.of([entry]))
    assert rows.noted([entry]) == has_them

    other = TableApplication(folder, "delta", history, "another table", None).noted([entry])
    assert (other.outcome, "deleted or replaced" in other.reason) == (Outcome.UNKNOWN, True)


def test_a_table_that_cannot_be_asked_before_the_decision_is_away(committer, monkeypatch):
    """The batch is then undone and retried, as after any outage. Rows that can never fit are reported immediately."""
    error: Exception = RuntimeError("the metastore does not answer")

    def asked(*_: object) -> None:
        raise error

    entry = Entry(name=label(OURS).first, size_bytes=1, checksum="x", identity="i", begun_ms=1)
    monkeypatch.setattr(Entry, "of_handle", lambda _: entry)
    monkeypatch.setattr(DiskFolder, "open", asked)
    monkeypatch.setattr("sparkonce.sinks.tables.committer._active", nullcontext)
    monkeypatch.setattr(History, "spark", None, raising=False)
    monkeypatch.setattr(committer, "_merge", object())
    handles = [Handle(sink="delta", slot=0, rows=1)]
    with pytest.raises(UnknownOutcomeError, match="metastore does not answer"):
        committer.check_prepared(handles)
    monkeypatch.setattr("sparkonce.sinks.tables.committer.is_final", lambda one: one is error)
    assert "metastore" in committer.check_prepared(handles)
    error = FileNotFoundError(2, "gone")
    with pytest.raises(UnknownOutcomeError, match="gone"):
        committer.check_prepared(handles)


@pytest.mark.parametrize(
    ("location", "synced"), [("file:{}/a%20table", True), ("{}/a table", True), ("s3a:{}/a%20table", False)]
)
def test_the_version_of_a_table_on_a_local_disk_is_durable_before_it_is_noted(
    location, synced, history, tmp_path, monkeypatch
):
    """Neither Delta nor Iceberg calls fsync on what it writes."""
    durable: list[Path] = []
    monkeypatch.setattr("sparkonce.sinks.tables.committer._active", nullcontext)
    monkeypatch.setattr("sparkonce.sinks.tables.table.sync_file_system", durable.append)
    monkeypatch.setattr(History, "spark", None, raising=False)
    monkeypatch.setattr(history, "location", lambda: location.format(tmp_path))
    (tmp_path / "a table").mkdir()
    name = TransactionName(prefix="delta", query=OURS, token=Token(4, "1" * 8), batch=1, slot=0, copy="c" * 12)
    unit = Unit((Entry(name=name, size_bytes=1, checksum="x", identity="i", begun_ms=1000),), repeated=True)
    history.versions.append(Label.of(unit.entries))
    rows = TableApplication(DiskFolder(tmp_path, Ledger(LocalFiles(tmp_path))), "delta", history, "the table", None)
    token = ApplyToken(query=OURS, batch=1, slots=(0,), rows=1, id=str(name))
    assert rows.is_applied(unit, token)
    assert durable == ([tmp_path / "a table"] if synced else [])


@pytest.mark.parametrize("depth", [0, 1])
def test_a_variant_is_refused_at_any_depth_before_its_batch_is_decided(tmp_path, depth):
    """Spark's Parquet reader rejects what PySpark sends for such a value, so the batch could never be committed."""
    parts = [pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})]
    kind = pa.struct(parts) if depth == 0 else pa.list_(pa.struct(parts))
    with pytest.raises(SchemaError, match=r"Column 'v' has a variant.* Next: Write it as a string"):
        DeltaSink(str(tmp_path)).columns(pa.schema([pa.field("v", kind)]))
