"""Lists the open transactions of sparkonce on a server, for operators. Read-only.

Prepared branches belong to the server, and everything else to a database, so this searches all databases that the user
may see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkonce.sinks._shared.orphans import Orphan, shown
from sparkonce.sinks._shared.preflight import Attempts
from sparkonce.sinks.sql.dialect import SqlTransaction
from sparkonce.sinks.sql.mysql import finishing
from sparkonce.sinks.sql.mysql.connection import SERVER_ERRORS, Connection, connect, numbered_message
from sparkonce.sinks.sql.mysql.settings import Xid, address, lock_name, parse_settings, quote, stage_table
from sparkonce.sinks.sql.settings import TWO_PHASE

ANSWER_WITHIN_S = 30.0
_ROWS = ("the locks of its rows",)

_DATABASES = (
    "SELECT DISTINCT TABLE_SCHEMA FROM information_schema.TABLES "
    "WHERE TABLE_NAME = 'sparkonce_commits' OR TABLE_NAME LIKE 'sparkonce\\_stage\\_%'"
)
_HAS_MARKERS = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s"
_SIZE = (
    "SELECT DATA_LENGTH + INDEX_LENGTH, IS_USED_LOCK(%s) FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MySQLOrphan(Orphan):
    """An open transaction, session or staging table.

    The kinds are: ``session`` for an XA branch that is being written; ``prepared`` for one that is waiting to be
    finished; ``hidden`` for one that MariaDB retains but does not list, see `sparkonce.sinks.sql.mysql.finishing`;
    ``staged`` for a staging table; and ``merged`` for a staging table whose rows are already in the target. A branch's
    batch, slot and age are known only if the user may see its marker.

    Attributes:
        database: The database of its marker; empty if it cannot be seen.
    """

    database: str = shown("database")


def list_open(settings: str | Mapping[str, Any]) -> list[MySQLOrphan]:
    """Lists all open objects of sparkonce that this user may see, in all databases, oldest first.

    `settings` are PyMySQL's settings as for the sink, or a line for `parse_settings`. ``database`` is optional.
    """
    parsed = parse_settings(settings) if isinstance(settings, str) else settings
    with Attempts(SERVER_ERRORS, numbered_message).of(
        f"Listing what is open on the server at {address(parsed)}",
        "check host, port, user, password, that the server runs, and the user's rights.",
    ):
        connection = connect(
            {"database": "information_schema", **parsed},
            program="sparkonce transactions",
            timeout_s=ANSWER_WITHIN_S,
            lock_wait_s=1,
        )
        with contextlib.closing(connection):
            return sorted(_find(connection), key=lambda orphan: -orphan.age_s)


def _find(connection: Connection) -> Iterator[MySQLOrphan]:
    # Check the states in the order a transaction passes through them, so that one that moves on meanwhile is seen at
    # least once.
    now_ms = int(connection.row("SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED)")[0])
    branches: dict[Xid, tuple[str, SqlTransaction]] = {}
    for (database,) in connection.rows(_DATABASES):
        connection.select_db(database)
        stages, merged, open_ = finishing.list_staging_tables(connection), set(), []
        if connection.rows(_HAS_MARKERS, (finishing.COMMITS,)):
            merged = finishing.marked(connection, [one.name for one in stages])
            queries = finishing.queries(connection)
            open_ = [one for whose in queries for one in finishing.unsettled(connection, *whose)]
        for stage in stages:
            table = stage_table(stage.name.copy)
            size, holder = connection.row(_SIZE, (lock_name(stage.name.copy), table)) or (0, None)
            holds = f"{int(size or 0) // 1024} KiB for {stage.target.table}"
            holds += "" if holder is None else f", connection {holder}"
            more = {"age_s": (now_ms - stage.begun_ms) / 1000, "holds": (holds,), "database": database}
            kind, name = "merged" if stage.name in merged else "staged", f"{quote(database)}.{quote(table)}"
            yield MySQLOrphan.of(stage.name, kind=kind, name=name, **more)
        # Skip the markers of staged rows: a merge writes them, and its tables are listed anyway.
        branches |= {Xid.of(one.name): (database, one) for one in open_ if one.kind == TWO_PHASE}
    for xid in finishing.recovered(connection):
        if xid not in branches:
            yield MySQLOrphan.of(xid, kind="prepared", name=str(xid), age_s=-1, holds=_ROWS, database="")
    for xid, (database, marker) in branches.items():
        connection.select_db(database)
        (holder,) = connection.row("SELECT IS_USED_LOCK(%s)", (lock_name(xid.copy),))
        kind, held = "", _ROWS
        if holder is not None:
            kind, held = "session", (f"connection {holder}",)
        elif xid in finishing.recovered(connection):
            kind = "prepared"
        elif not finishing.marked(connection, [marker.name]) and finishing.is_seen(connection, marker.name):
            kind = "hidden"
        if kind:
            more = {"age_s": (now_ms - marker.begun_ms) / 1000, "holds": held, "database": database}
            yield MySQLOrphan.of(marker.name, kind=kind, name=str(xid), **more)
