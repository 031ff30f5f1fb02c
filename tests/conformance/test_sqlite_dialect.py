"""The interface between the SQL sinks and their databases: a third one passes the suite without any product code.

Not tried here: commit="two_phase", which SQLite does not have; a server restart, since there is no server; rows with
keys that are written directly, since that is up to the dialect.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from conformance.sqlite_dialect import SqliteTable
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.sink import Facts
from sparkonce.testing.conformance import SinkConformance


class TestSqliteStaged(SinkConformance):
    finds_missing = True
    visible_within_s = 0.0
    key: ClassVar[str] = ""

    @pytest.fixture(autouse=True)
    def _database(self, tmp_path) -> None:
        self.path = str(tmp_path / "target.db")
        self.ask(f"CREATE TABLE orders (number INTEGER {self.key}, word TEXT NOT NULL)")

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as database, database:
            return database.execute(statement).fetchall()

    def make(self, **more: Any) -> SqliteTable:
        return SqliteTable(self.path, "orders", key_columns=("number",) if self.key else (), **more)

    def make_sink(self) -> SqliteTable:
        return self.make()

    def make_second_sink(self) -> SqliteTable:
        return self.make(name="beside")

    def make_direct_sink(self) -> SqliteTable:
        return self.make(guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"word": ["w"] * count, "number": list(range(start, start + count))})

    def make_refused(self, number: int) -> pa.RecordBatch:
        return pa.record_batch({"word": pa.array([None], pa.string()), "number": [number]})

    def visible(self) -> Sequence[int]:
        return [number for (number,) in self.ask("SELECT number FROM orders WHERE word = 'w'")]

    def other_facts(self, facts: Facts) -> Facts:
        return {**facts, "prefix": f"{facts['prefix']}-eu"}

    def expire(self, handle: Handle) -> bool:
        """SQLite never times out a transaction, but somebody may delete a staging table."""
        name = str(handle["name"])
        _, _, query, _, _, _, copy = name.rsplit(".", 6)
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute(f"DROP TABLE sparkonce_{query}_{copy}")
            database.execute("DELETE FROM sparkonce_commits WHERE name = ?", (name,))
        return True


class TestSqliteUpsert(TestSqliteStaged):
    key = "PRIMARY KEY"
    test_without_transactions_rows_show_at_once = None
