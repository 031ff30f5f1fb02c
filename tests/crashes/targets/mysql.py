"""MariaDB, by XA transactions and by staging tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from crashes.cells import DISK_FULL
from crashes.target import ServerOnSmallDisk, keyed_rows, new_name, plain_rows
from sparkonce.rig.disk import SmallDisk
from sparkonce.rig.proxy import Request
from sparkonce.rig.servers.mariadb import MISSING, MariaDBServer
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.mysql.sink import MySQLSink
from sparkonce.testing.matchers import after

_MEGABYTES = 96
_LONG = "x" * 60_000


def long_rows(start: int, count: int) -> pa.RecordBatch:
    """So long that nearly every batch needs more room on the disk."""
    return plain_rows(start, count).append_column("filler", pa.array([_LONG] * count))


class MySQLTarget(ServerOnSmallDisk):
    server_kind = "mariadb"
    preload = (
        "sparkonce.sinks.mysql.writer",
        "sparkonce.sinks.mysql.committer",
        "sparkonce.sinks.mysql.preflight",
    )
    shows_within_s = 0.5
    megabytes = _MEGABYTES
    waits = {"sparkonce.sinks.mysql.staged:_WAIT_S": 2, "sparkonce.sinks.mysql.staged:_IDLE_S": 1}  # noqa: RUF012
    server: MariaDBServer

    def __init__(
        self, name: str, commit: str, requests: dict[str, Request], ends_sessions: Collection[str], **settings: Any
    ) -> None:
        self.name = name
        self.requests = requests
        self.ends_sessions = ends_sessions
        self._settings = {"commit": commit, **settings}
        self._witness: Any = None

    def missing(self) -> str:
        return "" if MariaDBServer.is_installed() else MISSING

    def make_server(self, folder: Path) -> MariaDBServer:
        self.disk = SmallDisk(folder, self.megabytes)
        return MariaDBServer(folder)

    def leave(self) -> None:
        self._close_witness()
        super().leave()

    def new_place(self) -> None:
        self.database = new_name()
        self._ask(f"CREATE DATABASE {self.database}")
        self._ask(f"CREATE TABLE {self.database}.target (number BIGINT) ENGINE=InnoDB")

    def make_sink(self) -> TwoPhaseCommitSink:
        more = {"port": self.proxy.port, "database": self.database, "connect_timeout": 2}
        return MySQLSink({**self.server.settings, **more}, table="target", **self._settings)

    def visible(self) -> Sequence[int]:
        return [number for (number,) in self._ask(f"SELECT number FROM {self.database}.target")]  # noqa: S608 - ours

    def lingering(self) -> Sequence[str]:
        open_ = "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> %s"
        sessions = self._ask(open_, self._witness.thread_id())
        return [*self._kept(), *(f"connection {number}" for (number,) in sessions)]

    def state(self) -> object:
        """With the markers, of which there is one for each transaction."""
        markers = self._ask(f"SELECT batch, slot, copy, kind FROM {self.database}.sparkonce_commits")  # noqa: S608 - ours
        return sorted(self.visible()), sorted(self._kept()), sorted(markers)

    def _kept(self) -> list[str]:
        """What is open and outlives its session."""
        found = [str(row[3]) for row in self._ask("XA RECOVER")]
        return found + [name for (name,) in self._ask(f"SHOW TABLES FROM {self.database} LIKE 'sparkonce\\_stage\\_%'")]

    def _ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            if self._witness is None:
                self._witness = pymysql.connect(**self.server.settings, autocommit=True, read_timeout=20)  # type: ignore[arg-type]
            with self._witness.cursor() as cursor:
                cursor.execute(question, values or None)
                return list(cursor.fetchall())
        except Exception:
            self._close_witness()
            raise

    def _close_witness(self) -> None:
        found, self._witness = self._witness, None
        if found is not None and found.open:
            found.close()


class MySQLLongTarget(MySQLTarget):
    """With rows for which a full disk has no room."""

    faults = (DISK_FULL,)
    marks = (pytest.mark.slow,)
    server_kind = "mariadb-long"
    megabytes = 256
    rows = staticmethod(long_rows)

    def new_place(self) -> None:
        super().new_place()
        self._ask(f"ALTER TABLE {self.database}.target ADD filler LONGTEXT")


class MySQLUpsertTarget(MySQLTarget):
    """Every batch writes the same keys. Triggers note what is written, in the transaction that writes it."""

    choice = "few"
    rows = staticmethod(keyed_rows)

    def new_place(self) -> None:
        self.database = name = new_name()
        self._ask(f"CREATE DATABASE {name}")
        self._ask(f"CREATE TABLE {name}.target (`key` BIGINT PRIMARY KEY, number BIGINT) ENGINE=InnoDB")
        self._ask(f"CREATE TABLE {name}.history (`key` BIGINT, number BIGINT) ENGINE=InnoDB")
        for event in ("INSERT", "UPDATE"):
            then = f"INSERT INTO {name}.history VALUES (NEW.`key`, NEW.number)"  # noqa: S608 - ours
            self._ask(f"CREATE TRIGGER {name}.noted_{event} AFTER {event} ON {name}.target FOR EACH ROW {then}")

    def visible(self) -> Sequence[int]:
        """All that was written, and a number that no batch has for each key that has not got its newest."""
        found = self._ask(
            f"SELECT number FROM {self.database}.history UNION ALL "  # noqa: S608 - ours
            "SELECT -1 - h.`key` FROM (SELECT `key`, MAX(number) AS newest "
            f"FROM {self.database}.history GROUP BY `key`) AS h LEFT JOIN {self.database}.target AS t USING (`key`) "
            "WHERE NOT (t.number <=> h.newest)"
        )
        return [number for (number,) in found]


DRIVER = b"sparkonce driver"
STAGED: dict[str, Request] = {
    "prepare": after(b"CREATE TABLE `sparkonce_stage_", b"\x03COMMIT", always=True),
    "commit": after(DRIVER, b"\x03COMMIT", always=True),
    "abort": after(DRIVER, b"DROP TABLE", always=True),
}
MYSQL = (
    MySQLTarget(
        "mariadb-two-phase",
        "two_phase",
        {"prepare": b"XA PREPARE", "commit": b"XA COMMIT", "abort": b"XA ROLLBACK"},
        {"prepare"},
    ),
    MySQLTarget("mariadb-staged", "staged", STAGED, STAGED),
    MySQLLongTarget("mariadb-long-two-phase", "two_phase", {}, ()),
    MySQLLongTarget("mariadb-long-staged", "staged", {}, ()),
    MySQLUpsertTarget("mariadb-upsert", "staged", STAGED, STAGED, mode="upsert", key_columns=["key"]),
)
