from __future__ import annotations

import pyarrow as pa
import pytest

from conformance.system_suite import SystemSuite
from shared_servers import mariadb_server
from sparkonce_lab.systems.mysql import MySQLSystem


class MySQLSuite(SystemSuite):
    finds_missing = True
    columns = ("number BIGINT", "word VARCHAR(20)")
    commit = "staged"

    def new_system(self) -> MySQLSystem:
        return MySQLSystem(commit=self.commit, server=self.server or mariadb_server())

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        numbers = list(range(start, start + count))
        return pa.record_batch({"number": numbers, "word": [f"word {number}" for number in numbers]})

    def make_refused(self, number: int) -> pa.RecordBatch:
        return pa.record_batch({"number": [number], "word": ["longer than twenty characters"]})


class TestMySQLTwoPhase(MySQLSuite):
    commit = "two_phase"


class TestMySQLStaged(MySQLSuite):
    pass


@pytest.mark.slow
class TestMySQLUpsertStaged(MySQLSuite):
    columns = ("number BIGINT PRIMARY KEY", "word VARCHAR(20)")
    options = {"mode": "upsert", "key_columns": ["number"]}  # noqa: RUF012
