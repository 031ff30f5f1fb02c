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
from sparkonce.sinks.sql.mysql import finishing
from sparkonce.sinks.sql.mysql.connection import SERVER_ERRORS, Connection, connect, numbered_message
from sparkonce.sinks.sql.mysql.names import Xid, lock_name, quote, stage_table
from sparkonce.sinks.sql.mysql.settings import address, parse_settings
from sparkonce.sinks.sql.settings import TWO_PHASE
from sparkonce.sinks.sql.transactions import SqlTransaction

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

    Args:
        settings: PyMySQL's settings as for the sink, as a mapping or as parsed by `parse_settings`. ``database`` is
            optional.

    Raises:
        ConfigurationError: If a setting does not exist.
        PreflightError: If the server does not answer.
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
    # Check the states in the order a transaction passes through them, so that a moving one is seen at least once.
    now_ms = int(connection.row("SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED)")[0])
    branches: dict[Xid, tuple[str, SqlTransaction]] = {}
    for (name,) in connection.rows(_DATABASES):
        database = str(name)
        connection.select_db(database)
        yield from _stages(connection, database, now_ms)
        branches |= {Xid.of(marker.name): (database, marker) for marker in _not_committed(connection)}
    for xid in finishing.recovered(connection):
        if xid not in branches:
            yield MySQLOrphan.of(xid, kind="prepared", name=str(xid), age_s=-1, holds=_ROWS, database="")
    for xid, (database, marker) in branches.items():
        connection.select_db(database)
        (holder,) = connection.row("SELECT IS_USED_LOCK(%s)", (lock_name(xid.copy),))
        holds, kind = _ROWS, ""
        if holder is not None:
            kind, holds = "session", (f"connection {holder}",)
        elif xid in finishing.recovered(connection):
            kind = "prepared"
        elif not finishing.marked(connection, [marker.name]) and finishing.is_seen(connection, marker.name):
            kind = "hidden"
        if kind:
            more = {"age_s": (now_ms - marker.begun_ms) / 1000, "holds": holds, "database": database}
            yield MySQLOrphan.of(marker.name, kind=kind, name=str(xid), **more)


def _not_committed(connection: Connection) -> list[SqlTransaction]:
    if not connection.rows(_HAS_MARKERS, (finishing.COMMITS,)):
        return []
    found = [one for whose in finishing.queries(connection) for one in finishing.unsettled(connection, *whose, "")]
    # Skip the markers of staged rows: a merge writes them, and its tables are listed anyway.
    return [marker for marker in found if marker.kind == TWO_PHASE]


def _stages(connection: Connection, database: str, now_ms: int) -> Iterator[MySQLOrphan]:
    stages = finishing.list_staging_tables(connection)
    done = (
        finishing.marked(connection, [one.name for one in stages])
        if connection.rows(_HAS_MARKERS, (finishing.COMMITS,))
        else ()
    )
    for stage in stages:
        table = stage_table(stage.name.copy)
        size, holder = connection.row(_SIZE, (lock_name(stage.name.copy), table)) or (0, None)
        holds = f"{int(size or 0) // 1024} KiB for {stage.target.table}"
        if holder is not None:
            holds += f", connection {holder}"
        kind = "merged" if stage.name in done else "staged"
        more = {"age_s": (now_ms - stage.begun_ms) / 1000, "holds": (holds,), "database": database}
        yield MySQLOrphan.of(stage.name, kind=kind, name=f"{quote(database)}.{quote(table)}", **more)
