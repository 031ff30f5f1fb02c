"""Shared by the tests of MariaDB's sink: rows with one number, and behavior in which MySQL differs from MariaDB."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.sql.mysql.connection import MARIADB, MYSQL
from sparkonce.testing.hooks import SinkHooks
from sparkonce_lab.systems.mysql import MySQLSystem

_FATAL = "XAER_RMERR: Fatal error occurred in the transaction branch - check your data for consistency"
MAY_NOT_RECOVER = replace(
    MARIADB,
    recover=f"SIGNAL SQLSTATE 'XAE03' SET MYSQL_ERRNO = 1401, MESSAGE_TEXT = '{_FATAL}'",
    recover_right=MYSQL.recover_right,
)
"""MariaDB needs no privilege for ``XA RECOVER``. This makes it answer like MySQL to a user without XA_RECOVER_ADMIN."""


class Numbers(SinkHooks):
    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"number": list(range(start, start + count))})


def name_of(handle: Handle) -> TransactionName:
    return TransactionName.parse(str(handle["transaction"]))


def visible(mariadb: MySQLSystem) -> list[int]:
    return sorted(number for (number,) in mariadb.ask("SELECT number FROM target"))
