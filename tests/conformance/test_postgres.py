from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from postgres_witness import ask, fresh_database, needs_postgres, server_fixture
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.rig.servers.postgres import PostgresServer
from sparkonce.sink import Facts
from sparkonce.sinks.postgres.sink import PostgresSink
from sparkonce.testing.conformance import SinkConformance

pytestmark = needs_postgres


server = server_fixture()


class PostgresSuite(SinkConformance):
    visible_within_s = 0.0
    settings: ClassVar[Mapping[str, object]]
    server: PostgresServer

    @pytest.fixture(autouse=True)
    def _database(self, server: PostgresServer) -> None:
        self.settle(server)

    def settle(self, server: PostgresServer) -> None:
        """Gives the check an empty table."""
        self.server = server
        key = "PRIMARY KEY" if self.settings.get("mode") == "upsert" else ""
        fresh_database(server, f"CREATE TABLE numbers (number bigint {key}, text text)")

    def make(self, **more: object) -> PostgresSink:
        given = {"table": "numbers", **self.settings, **more}
        return PostgresSink(self.server.conninfo(), **given)  # type: ignore[arg-type]

    def make_sink(self) -> PostgresSink:
        return self.make()

    def make_second_sink(self) -> PostgresSink:
        return self.make(name="beside")

    def make_direct_sink(self) -> PostgresSink:
        return self.make(guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        numbers = list(range(start, start + count))
        return pa.record_batch({"number": numbers, "text": [str(number) for number in numbers]})

    def make_refused(self, number: int) -> pa.RecordBatch:
        return pa.record_batch({"number": [number], "text": ["PostgreSQL has no \0"]})

    def visible(self) -> Sequence[int]:
        return [number for (number,) in ask(self.server, "SELECT number FROM numbers")]

    def other_facts(self, facts: Facts) -> Facts:
        return {**facts, "prefix": f"{facts['prefix']}-eu"}

    def restart_server(self) -> bool:
        self.server.restart()
        return True


class TestTwoPhase(PostgresSuite):
    settings: ClassVar[Mapping[str, object]] = {"commit": "two_phase"}

    def expire(self, handle: Handle) -> bool:
        """An operator gives it up."""
        ask(self.server, sql.SQL("ROLLBACK PREPARED {}").format(str(handle["name"])))
        return True


class TestStaged(PostgresSuite):
    settings: ClassVar[Mapping[str, object]] = {"commit": "staged"}

    def expire(self, handle: Handle) -> bool:
        """An operator gives it up, as docs/postgres.md says."""
        with psycopg.connect(self.server.conninfo()) as connection:
            query, copy = str(handle["name"]).split(".")[-5], str(handle["name"]).split(".")[-1]
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(f"sparkonce_{query}_{copy}")))
            connection.execute("DELETE FROM sparkonce_commits WHERE name = %s", (str(handle["name"]),))
        return True


@pytest.mark.drawn(5, "upserts of PostgreSQL")
class TestUpsert(TestStaged):
    settings: ClassVar[Mapping[str, object]] = {"mode": "upsert", "key_columns": ("number",)}
