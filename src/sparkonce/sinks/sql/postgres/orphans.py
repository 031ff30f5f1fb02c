"""Lists the open transactions of sparkonce in a database, for operators. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks._shared.orphans import Orphan, shown
from sparkonce.sinks._shared.preflight import Attempts
from sparkonce.sinks.sql.postgres.connection import Connection, connect, within
from sparkonce.sinks.sql.postgres.outcomes import server_message
from sparkonce.sinks.sql.postgres.settings import COMMITS_TABLE, BackendName, Conninfo, staging_table
from sparkonce.sinks.sql.postgres.statements import STAGED_STATE, commits

ANSWER_WITHIN_S = 30.0

# A prepared transaction has no session, so its locks have no pid. Identify them by the lock on its transaction id.
_PREPARED = """
WITH held AS (
    SELECT t.transactionid, l.relation, l.database, l.mode
    FROM pg_catalog.pg_locks t JOIN pg_catalog.pg_locks l USING (virtualtransaction)
    WHERE t.locktype = 'transactionid' AND t.granted AND t.mode = 'ExclusiveLock' AND t.pid IS NULL
      AND l.relation IS NOT NULL AND l.pid IS NULL)
SELECT p.gid, p.owner::text, EXTRACT(EPOCH FROM pg_catalog.clock_timestamp() - p.prepared)::float8,
       ARRAY(SELECT h.relation::regclass::text || ' ' || h.mode FROM held h
             WHERE h.transactionid = p.transaction ORDER BY 1),
       (SELECT count(*)::int FROM pg_catalog.pg_locks w
        WHERE NOT w.granted AND (w.transactionid = p.transaction OR EXISTS (
            SELECT FROM held h
            WHERE h.transactionid = p.transaction AND h.relation = w.relation AND h.database = w.database)))
FROM pg_catalog.pg_prepared_xacts p WHERE p.database = pg_catalog.current_database()
"""
_COMMITS = """
SELECT n.nspname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = %s AND c.relkind = 'r' AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
"""
_SIZE = """
SELECT pg_catalog.pg_get_userbyid(relowner)::text, pg_catalog.pg_size_pretty(pg_catalog.pg_total_relation_size(oid))
FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(%s)
"""
_SESSIONS = """
SELECT application_name, usename::text, EXTRACT(EPOCH FROM pg_catalog.clock_timestamp() - xact_start)::float8, pid
FROM pg_catalog.pg_stat_activity WHERE datname = pg_catalog.current_database()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOrphan(Orphan):
    """An open transaction or session.

    The kinds are: ``prepared``, which holds locks, shown as ``relation mode``; ``staged``, which holds its table, shown
    with its size; and ``session``, which is a server process. Sessions show neither batch nor slot, and their age is
    their transaction's age.

    Attributes:
        owner: The role that may finish it.
        blocks: The number of sessions that wait for it.
    """

    owner: str = shown("role")
    blocks: int = shown("waiting for it", default=0)


def list_open(settings: str | Mapping[str, Any]) -> list[PostgresOrphan]:
    """Lists all open objects of sparkonce in one database, oldest first. `settings` are the sink's ``conninfo``.

    Every role sees the locks of other roles. Staged rows are shown to roles that may read the tables of markers.
    """
    to = Conninfo.of(settings)
    attempts = Attempts((psycopg.Error,), server_message)
    next_step = "Check the address, that the server runs, the credentials and the role's rights."
    with (
        attempts.of(f"Listing what is open in PostgreSQL at {to}", next_step),
        closing(connect(to)) as connection,
        within(connection, ANSWER_WITHIN_S),
    ):
        return sorted(_find(connection), key=lambda orphan: -orphan.age_s)


def _find(connection: Connection) -> Iterator[PostgresOrphan]:
    for gid, owner, age_s, locks, blocks in connection.execute(_PREPARED).fetchall():
        if (prepared := TransactionName.parse(gid)) is not None:
            more = {"age_s": float(age_s), "owner": owner, "holds": tuple(locks), "blocks": blocks}
            yield PostgresOrphan.of(prepared, kind="prepared", name=gid, **more)
    for (schema,) in connection.execute(_COMMITS, (COMMITS_TABLE,)).fetchall():
        query = sql.SQL(
            "SELECT name, EXTRACT(EPOCH FROM pg_catalog.clock_timestamp() - begun)::float8 FROM {} WHERE state = {}"
        ).format(commits(schema), STAGED_STATE)
        for text, age_s in connection.execute(query).fetchall():
            if (staged := TransactionName.parse(text)) is not None:
                table = sql.Identifier(schema, staging_table(staged)).as_string(connection)
                owner, size = connection.execute(_SIZE, (table,)).fetchone() or ("", "is gone")
                holds = (f"{table} {size}",)
                yield PostgresOrphan.of(staged, kind="staged", name=text, age_s=float(age_s), owner=owner, holds=holds)
    for text, owner, age_s, pid in connection.execute(_SESSIONS).fetchall():
        if (session := BackendName.parse(text)) is not None:
            more = {"age_s": float(age_s or 0), "owner": owner, "holds": (f"pid {pid}",)}
            yield PostgresOrphan.of(session, kind="session", name=text, **more)
