"""MariaDB, by XA transactions and by staging tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from crashes.cells import DISK_FULL
from crashes.target import ServerOnSmallDisk, keyed_rows, new_name, plain_rows
from sparkonce.rig.disk import SmallDisk
from sparkonce.rig.proxy import Request
from sparkonce.rig.servers.mariadb import MISSING, MariaDBServer
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.mysql.sink import MySQLSink
from sparkonce.testing.systems.mariadb import MariaDBWitness

_MEGABYTES = 96
_LONG = "x" * 60_000


def long_rows(start: int, count: int) -> pa.RecordBatch:
    """So long that nearly every batch needs more room on the disk."""
    return plain_rows(start, count).append_column("filler", pa.array([_LONG] * count))


class MySQLTarget(ServerOnSmallDisk):
    server_kind = "mariadb"
    preload = (
        "sparkonce.sinks.mysql.ways",
        "sparkonce.sinks.mysql.committer",
        "sparkonce.sinks.mysql.preflight",
    )
    shows_within_s = 0.5
    megabytes = _MEGABYTES
    columns: Sequence[str] = ("number BIGINT",)
    witness: MariaDBWitness
    waits = {"sparkonce.sinks.mysql.staged:_WAIT_S": 2, "sparkonce.sinks.mysql.staged:_IDLE_S": 1}  # noqa: RUF012
    server: MariaDBServer

    def __init__(
        self, name: str, commit: str, requests: Mapping[str, Request], ends_sessions: Collection[str], **settings: Any
    ) -> None:
        self.name = name
        self.requests = requests
        self.ends_sessions = ends_sessions
        self._settings = {"commit": commit, **settings}

    def missing(self) -> str:
        return "" if MariaDBServer.is_installed() else MISSING

    def make_server(self, folder: Path) -> MariaDBServer:
        self.disk = SmallDisk(folder, self.megabytes)
        return MariaDBServer(folder)

    def _start_proxy(self) -> None:
        super()._start_proxy()
        self.witness = MariaDBWitness(self.server.settings, answers_within_s=20)

    def leave(self) -> None:
        self.witness.close()
        super().leave()

    def new_place(self) -> None:
        self.witness.database = self.database = new_name()
        self.witness.make_place(*self.columns, table="target")

    def make_sink(self) -> TwoPhaseCommitSink:
        more = {"port": self.proxy.port, "database": self.database, "connect_timeout": 2}
        return MySQLSink({**self.server.settings, **more}, table="target", **self._settings)

    def visible(self) -> Sequence[int]:
        return [number for (number,) in self.witness.ask(f"SELECT number FROM {self.database}.target")]  # noqa: S608 - ours

    def lingering(self) -> Sequence[str]:
        return self.witness.left_open()

    def state(self) -> object:
        """With the markers, of which there is one for each transaction."""
        markers = self.witness.ask(f"SELECT batch, slot, copy, kind FROM {self.database}.sparkonce_commits")  # noqa: S608 - ours
        return sorted(self.visible()), sorted(self.witness.kept()), sorted(markers)


class MySQLLongTarget(MySQLTarget):
    """With rows for which a full disk has no room."""

    faults = (DISK_FULL,)
    marks = (pytest.mark.slow,)
    server_kind = "mariadb-long"
    megabytes = 256
    rows = staticmethod(long_rows)
    columns = ("number BIGINT", "filler LONGTEXT")


class MySQLUpsertTarget(MySQLTarget):
    """Every batch writes the same keys. Triggers note what is written, in the transaction that writes it."""

    choice = "few"
    rows = staticmethod(keyed_rows)
    columns = ("`key` BIGINT PRIMARY KEY", "number BIGINT")

    def new_place(self) -> None:
        super().new_place()
        name = self.database
        self.witness.ask(f"CREATE TABLE {name}.history (`key` BIGINT, number BIGINT) ENGINE=InnoDB")
        for event in ("INSERT", "UPDATE"):
            then = f"INSERT INTO {name}.history VALUES (NEW.`key`, NEW.number)"  # noqa: S608 - ours
            self.witness.ask(f"CREATE TRIGGER {name}.noted_{event} AFTER {event} ON {name}.target FOR EACH ROW {then}")

    def visible(self) -> Sequence[int]:
        """All that was written, and a number that no batch has for each key that has not got its newest."""
        found = self.witness.ask(
            f"SELECT number FROM {self.database}.history UNION ALL "  # noqa: S608 - ours
            "SELECT -1 - h.`key` FROM (SELECT `key`, MAX(number) AS newest "
            f"FROM {self.database}.history GROUP BY `key`) AS h LEFT JOIN {self.database}.target AS t USING (`key`) "
            "WHERE NOT (t.number <=> h.newest)"
        )
        return [number for (number,) in found]


TWO_PHASE, STAGED = (MariaDBWitness.requests[commit] for commit in ("two_phase", "staged"))
MYSQL = (
    MySQLTarget("mariadb-two-phase", "two_phase", TWO_PHASE, {"prepare"}),
    MySQLTarget("mariadb-staged", "staged", STAGED, STAGED),
    MySQLLongTarget("mariadb-long-two-phase", "two_phase", {}, ()),
    MySQLLongTarget("mariadb-long-staged", "staged", {}, ()),
    MySQLUpsertTarget("mariadb-upsert", "staged", STAGED, STAGED, mode="upsert", key_columns=["key"]),
)
