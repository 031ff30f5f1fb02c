"""A server for all tests of a process, a database for each, and a second connection that asks it."""

from __future__ import annotations

import atexit
import secrets
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkonce.lab.systems.mysql import MySQLSystem
from sparkonce.rig.servers.mariadb import MISSING, MariaDBServer
from sparkonce.sinks.mysql.flavours import MARIADB, MYSQL
from sparkonce.sinks.mysql.names import quote
from sparkonce.testing.hooks import SinkHooks

WITHIN_S = 20
NOT_BULK = property(lambda _: False, lambda _self, _: None)
"""In place of `Link.takes_bulk`: rows go to MariaDB as they go to MySQL."""
_FATAL = "XAER_RMERR: Fatal error occurred in the transaction branch - check your data for consistency"
MAY_NOT_RECOVER = replace(
    MARIADB,
    recover=f"SIGNAL SQLSTATE 'XAE03' SET MYSQL_ERRNO = 1401, MESSAGE_TEXT = '{_FATAL}'",
    recover_right=MYSQL.recover_right,
)
"""MariaDB asks for no right to ``XA RECOVER``. Here it says what MySQL does to a user without XA_RECOVER_ADMIN."""


def need_mariadb() -> None:
    if not MariaDBServer.is_installed():
        pytest.skip(MISSING)


@lru_cache
def shared_server() -> MariaDBServer:
    """Started once, ended with this process."""
    need_mariadb()
    folder = Path(tempfile.mkdtemp(prefix="sparkonce-mariadb-"))
    server = MariaDBServer(folder / "data")
    server.start()

    def end() -> None:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return server


class Numbers(SinkHooks):
    """Rows of one column, ``number``."""

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"number": list(range(start, start + count))})


class Witness(MySQLSystem):
    """A connection of the test's own for each question, as root, in a database of the test's own."""

    def __init__(self, server: MariaDBServer, database: str = "") -> None:
        super().__init__(server=server, alone=True, answers_within_s=WITHIN_S)
        self.start(Path())
        self.server = server
        self.database = database = database or f"test_{secrets.token_hex(4)}"
        self.settings = self._direct = {**server.settings, "database": database}
        self.run(f"CREATE DATABASE IF NOT EXISTS {quote(database)} CHARACTER SET utf8mb4", database=None)

    def rows(self, statement: str, values: Sequence[Any] = (), *, database: str | None = "") -> list[tuple[Any, ...]]:
        chosen = self.database if database == "" else database
        with self.connected(database=chosen) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone='+00:00'")
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def ask(self, statement: str, *values: Any) -> list[Any]:
        return self.rows(statement, values)

    def run(self, statement: str, values: Sequence[Any] = (), *, database: str | None = "") -> None:
        self.rows(statement, values, database=database)

    def one(self, statement: str, values: Sequence[Any] = ()) -> Any:
        ((value,),) = self.rows(statement, values)
        return value

    def xids(self) -> list[bytes]:
        """All that are prepared on the server, also by other tests."""
        return sorted(found.data for found in self.prepared())

    def wait_until(self, statement: str, wanted: Any, values: Sequence[Any] = ()) -> None:
        """Asks again until the answer is this."""
        give_up_at = time.monotonic() + WITHIN_S
        while (found := self.one(statement, values)) != wanted:
            assert time.monotonic() < give_up_at, f"{statement} gives {found}, not {wanted}"
            time.sleep(0.01)
