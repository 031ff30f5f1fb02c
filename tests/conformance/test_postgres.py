from __future__ import annotations

import pyarrow as pa
import pytest

from conformance.system_suite import SystemSuite
from shared_servers import postgres_server
from sparkonce_lab.systems.postgres import PostgresSystem


class PostgresSuite(SystemSuite):
    finds_missing = True
    visible_within_s = 5.0  # the server notices a closed connection only a moment later
    columns = ("number bigint", "text text")
    commit = "staged"

    def new_system(self) -> PostgresSystem:
        return PostgresSystem(commit=self.commit, server=self.server or postgres_server())

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        numbers = list(range(start, start + count))
        return pa.record_batch({"number": numbers, "text": [str(number) for number in numbers]})

    def make_refused(self, number: int) -> pa.RecordBatch:
        return pa.record_batch({"number": [number], "text": ["PostgreSQL has no \0"]})


class TestTwoPhase(PostgresSuite):
    commit = "two_phase"


class TestStaged(PostgresSuite):
    pass


@pytest.mark.slow
class TestUpsert(PostgresSuite):
    columns = ("number bigint PRIMARY KEY", "text text")
    options = {"mode": "upsert", "key_columns": ("number",)}  # noqa: RUF012
