"""Runs the public conformance suite on `SqliteSink`: pytest examples/own_sink"""

import sqlite3
from contextlib import closing

import pyarrow as pa
import pytest

from own_sink.sqlite_sink import SqliteSink
from sparkonce.sink import Guarantee
from sparkonce.testing.conformance import SinkConformance


class TestSqliteSink(SinkConformance):
    visible_within_s = 0.0

    @pytest.fixture(autouse=True)
    def _database(self, tmp_path):
        self.path = str(tmp_path / "target.db")
        with closing(sqlite3.connect(self.path)) as database:
            database.execute("CREATE TABLE orders (number INTEGER, word TEXT)")

    def make_sink(self):
        return SqliteSink(self.path, "orders")

    def make_second_sink(self):
        return SqliteSink(self.path, "orders", name="beside")

    def make_direct_sink(self):
        return SqliteSink(self.path, "orders", guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start, count):
        numbers = list(range(start, start + count))
        return pa.record_batch({"word": ["w"] * count, "number": numbers})

    def visible(self):
        with closing(sqlite3.connect(self.path)) as database:
            rows = database.execute("SELECT number FROM orders WHERE word = 'w'")
            return [number for (number,) in rows]

    def other_facts(self, facts):
        return {"prefix": f"{facts['prefix']}-eu"}

    def expire(self, handle):  # SQLite has no timeouts, but somebody may drop the table
        with closing(sqlite3.connect(self.path)) as database:
            database.execute(f'DROP TABLE "{handle["name"]}"')
        return True

    def restart_server(self):
        return True  # the database is a file, so there is no server to restart
