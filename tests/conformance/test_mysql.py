from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from mariadb_witness import Witness, shared_server
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import TransactionName
from sparkonce.rig.servers.mariadb import MariaDBServer
from sparkonce.sink import Facts
from sparkonce.sinks.mysql.names import Xid, stage_table
from sparkonce.sinks.mysql.sink import MySQLSink
from sparkonce.testing.conformance import SinkConformance


class MySQLSuite(SinkConformance):
    commit = "two_phase"
    settings: ClassVar[Mapping[str, Any]] = {}
    visible_within_s = 0.0
    witness: Witness

    def settle(self, server: MariaDBServer) -> None:
        """Gives the check a database of its own."""
        self.witness = Witness(server, f"conformance_{secrets.token_hex(4)}")
        self.witness.run("CREATE TABLE target (number BIGINT, word VARCHAR(20)) ENGINE=InnoDB")

    def make(self, **more: Any) -> MySQLSink:
        return MySQLSink(self.witness.settings, table="target", **{"commit": self.commit, **self.settings, **more})

    def make_sink(self) -> MySQLSink:
        return self.make()

    def make_second_sink(self) -> MySQLSink:
        return self.make(name="beside")

    def make_direct_sink(self) -> MySQLSink:
        return self.make(guarantee=Guarantee.AT_LEAST_ONCE)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        numbers = list(range(start, start + count))
        return pa.record_batch({"number": numbers, "word": [f"word {number}" for number in numbers]})

    def make_refused(self, number: int) -> pa.RecordBatch:
        return pa.record_batch({"number": [number], "word": ["longer than twenty characters"]})

    def visible(self) -> Sequence[int]:
        return [number for (number,) in self.witness.rows("SELECT number FROM target")]

    def other_facts(self, facts: Facts) -> Facts:
        return {**facts, "prefix": f"{facts['prefix']}-eu"}

    def restart_server(self) -> bool:
        self.witness.server.restart()
        return True

    def expire(self, handle: Handle) -> bool:
        # Nothing expires by itself: an operator took it away.
        name = TransactionName.parse(str(handle["transaction"]))
        assert name is not None
        if handle["commit"] == "staged":
            self.witness.run(f"DROP TABLE {stage_table(name.copy)}")
        else:
            xid = Xid.of(name)
            self.witness.run(f"XA ROLLBACK {xid}")
        return True


class TestMySQLTwoPhase(MySQLSuite):
    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self.settle(shared_server())


class TestMySQLStaged(MySQLSuite):
    commit = "staged"

    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self.settle(shared_server())


class UpsertSuite(MySQLSuite):
    settings: ClassVar[Mapping[str, Any]] = {"mode": "upsert", "key_columns": ["number"]}

    def settle(self, server: MariaDBServer) -> None:
        super().settle(server)
        self.witness.run("DROP TABLE target")
        self.witness.run("CREATE TABLE target (number BIGINT PRIMARY KEY, word VARCHAR(20)) ENGINE=InnoDB")


@pytest.mark.drawn(5, "upserts of MariaDB")
class TestMySQLUpsertStaged(UpsertSuite):
    commit = "staged"

    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self.settle(shared_server())


@pytest.mark.slow
class TestMySQLUpsertTwoPhase(UpsertSuite):
    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self.settle(shared_server())

    # Two copies of a slot have the same keys: the second waits for the first one's locks, see docs/mysql.md.
    test_copies_of_a_slot_do_not_disturb_each_other = None
    test_a_later_copy_may_win = None
