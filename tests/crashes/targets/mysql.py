"""MariaDB, by XA transactions and by staging tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pymysql

from crashes.matchers import after
from crashes.target import ServerTarget, new_name
from sparkonce.sinks.base import TwoPhaseCommitSink
from sparkonce.sinks.mysql.sink import MySQLSink
from sparkonce.testing.proxy import Request
from sparkonce.testing.servers.mariadb import MISSING, MariaDBServer


class MySQLTarget(ServerTarget):
    preload = (
        "sparkonce.sinks.mysql.writer",
        "sparkonce.sinks.mysql.committer",
        "sparkonce.sinks.mysql.preflight",
    )
    shows_within_s = 0.5
    server: MariaDBServer

    def __init__(self, name: str, commit: str, requests: dict[str, Request]) -> None:
        self.name = name
        self.requests = requests
        self._commit = commit
        self._witness: Any = None

    def missing(self) -> str:
        return "" if MariaDBServer.is_installed() else MISSING

    def make_server(self, folder: Path) -> MariaDBServer:
        return MariaDBServer(folder)

    def stop(self) -> None:
        self._close_witness()
        super().stop()

    def new_place(self) -> None:
        self.database = new_name()
        self._ask(f"CREATE DATABASE {self.database}")
        self._ask(f"CREATE TABLE {self.database}.target (number BIGINT) ENGINE=InnoDB")

    def make_sink(self) -> TwoPhaseCommitSink:
        more = {"port": self.proxy.port, "database": self.database, "connect_timeout": 2}
        return MySQLSink({**self.server.settings, **more}, table="target", commit=self._commit)

    def visible(self) -> Sequence[int]:
        return [number for (number,) in self._ask(f"SELECT number FROM {self.database}.target")]  # noqa: S608 - ours

    def lingering(self) -> Sequence[str]:
        found = [str(row[3]) for row in self._ask("XA RECOVER")]
        found += [name for (name,) in self._ask(f"SHOW TABLES FROM {self.database} LIKE 'sparkonce\\_stage\\_%'")]
        open_ = "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> %s"
        return [*found, *(f"connection {number}" for (number,) in self._ask(open_, self._witness.thread_id()))]

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


DRIVER, WORKER = b"sparkonce driver", b"START TRANSACTION"
MYSQL = (
    MySQLTarget(
        "mariadb-two-phase", "two_phase", {"prepare": b"XA PREPARE", "commit": b"XA COMMIT", "abort": b"XA ROLLBACK"}
    ),
    MySQLTarget(
        "mariadb-staged",
        "staged",
        {
            "prepare": after(b"CREATE TABLE `sparkonce_stage_", b"\x03COMMIT", always=True),
            "commit": after(DRIVER, b"\x03COMMIT", always=True),
            "abort": after(DRIVER, b"DROP TABLE", always=True),
        },
    ),
)
