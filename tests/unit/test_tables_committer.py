from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sparkonce.checkpoint.local import LocalFiles
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks.write_ahead.application import Unit
from sparkonce.sinks.write_ahead.disk import DiskFolder
from sparkonce.sinks.write_ahead.entry import Entry
from sparkonce.sinks.write_ahead.ledger import Ledger
from sparkonce.spark.tables.committer import Label, Table, TableCommitter
from sparkonce.spark.tables.merging import MergePlan
from sparkonce.spark.tables.rules import Rules

OURS, THEIRS = "a" * 12, "b" * 12


def label(query: str, prefix: str = "delta") -> Label:
    name = TransactionName(prefix=prefix, query=query, token=Token(3, "0" * 8), batch=0, slot=0, copy="c" * 12)
    return Label.of([Entry(name=name, size_bytes=1, checksum="x", identity="i", begun_ms=1)])


class History(Table):
    """A table of which only the versions are asked for."""

    def __init__(self, *labels: Label) -> None:
        self.versions = list(labels)
        self.reads = 0

    def labels(self, newest: int | None = None) -> list[Label]:
        self.reads += 1
        return self.versions

    def identity(self) -> str:
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
        raise NotImplementedError


@pytest.fixture
def history() -> History:
    return History(label(OURS), label(THEIRS), label("c" * 12, prefix="other"))


@pytest.fixture
def committer(history: History, tmp_path: Path) -> TableCommitter:
    return TableCommitter(DiskFolder(tmp_path, Ledger(LocalFiles(tmp_path))), "delta", "delta", history)


def test_the_start_of_a_new_query_reads_the_history_once(committer: TableCommitter, history: History) -> None:
    assert committer.list_traces("d" * 12, {}) == []
    assert committer.other_queries("d" * 12, {}) == [OURS, THEIRS]
    assert history.reads == 1


def test_a_question_of_its_own_reads_the_history_as_it_is_now(committer: TableCommitter, history: History) -> None:
    assert [trace.committed for trace in committer.list_traces(OURS, {})] == [label(OURS).first]
    assert committer.other_queries(OURS, {}) == [THEIRS]
    history.versions.append(label("e" * 12))
    assert committer.other_queries(OURS, {}) == [THEIRS, "e" * 12]
    assert history.reads == 2
