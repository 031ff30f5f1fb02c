"""PostgreSQL, asked by a connection of psycopg's."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from sparkonce.testing.matchers import after
from sparkonce.testing.systems.base import Witness

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

    from sparkonce.rig.proxy import Request

    Connection = psycopg.Connection[tuple[Any, ...]]

CONNECTS_WITHIN_S = 3
ANSWERS_WITHIN_S = 5.0
_NAME = "sparkonce-witness"
_PREPARED = "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE pg_catalog.starts_with(gid, %s) ORDER BY gid"
_TABLES = """
SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' AND c.relname <> ALL(%s)
"""
_OPEN = """
SELECT pid || ' ' || application_name FROM pg_catalog.pg_stat_activity
WHERE datname IS NOT NULL AND xact_start IS NOT NULL AND application_name <> %s
"""
_OPEN_IN = """
SELECT DISTINCT a.pid || ' ' || a.application_name FROM pg_catalog.pg_stat_activity a
JOIN pg_catalog.pg_locks l ON l.pid = a.pid JOIN pg_catalog.pg_class c ON c.oid = l.relation
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE a.backend_type = 'client backend' AND a.application_name <> %s AND n.nspname = %s
"""


class PostgresWitness(Witness):
    """A server, and a schema in one of its databases.

    Args:
        conninfo: libpq's, of a role that sees everything in the schema.
        schema: Its name, of letters, digits and ``_``. `make_place` makes it.
        prefix: Only prepared transactions with this prefix, and sessions that use the schema, are looked at; empty for
            all of the server's.
        answers_within_s: The longest wait for an answer, in seconds.

    Attributes:
        made: Whether there is a place, made by `make_place`.
        tables: The schema's tables that are to stay. Any other one is a staging table.
    """

    requests: ClassVar[Mapping[str, Mapping[str, Request]]] = {
        "two_phase": {"prepare": b"PREPARE TRANSACTION", "commit": b"COMMIT PREPARED", "abort": b"ROLLBACK PREPARED"},
        "staged": {
            "prepare": after(b"SET LOCAL statement_timeout", b"COMMIT\x00"),
            "commit": b"SET state = 'committed'",
            "abort": b"DELETE FROM",
        },
    }

    def __init__(
        self,
        conninfo: str,
        schema: str = "public",
        *,
        prefix: str = "",
        answers_within_s: float = ANSWERS_WITHIN_S,
    ) -> None:
        self.conninfo = conninfo
        self.schema = schema
        self.made = False
        self.tables = {"sparkonce_commits"}
        self._prefix = prefix
        self._answers_within_s = answers_within_s
        self._connection: Connection | None = None
        self._one_asks = threading.Lock()

    def make_place(self, *columns: str, table: str) -> None:
        """Makes the schema, and a table in it.

        Args:
            columns: Definitions of columns and keys.
            table: The table's name.
        """
        self.ask(f"CREATE SCHEMA {self.schema}")
        self.made = True
        self.tables.add(table)
        self.ask(f"CREATE TABLE {self.schema}.{table} ({', '.join(columns)})")

    def drop_place(self) -> None:
        """Rolls back what is prepared, and drops the schema."""
        from psycopg import sql

        self.ask(f"SET lock_timeout = '{ANSWERS_WITHIN_S:g}s'")
        for gid in self.prepared():
            self.ask(sql.SQL("ROLLBACK PREPARED {}").format(gid))
        self.ask(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")
        self.made = False

    def prepared(self) -> list[str]:
        """Lists the prepared transactions, by name."""
        return self.column(_PREPARED, f"{self._prefix}." if self._prefix else "")

    def stages(self) -> list[str]:
        """Lists the sink's staging tables."""
        return self.column(_TABLES, self.schema, sorted(self.tables))

    def markers(self) -> list[tuple[str, str]]:
        """Lists the markers with their states, none before the sink has made their table."""
        if self.column("SELECT to_regclass(%s)::text", f"{self.schema}.sparkonce_commits") == [None]:
            return []
        return self.ask(f"SELECT name::text, state::text FROM {self.schema}.sparkonce_commits")  # noqa: S608 - ours

    def sessions(self) -> list[str]:
        """Lists the sessions that are in a transaction, by process and name."""
        return self.column(_OPEN_IN, _NAME, self.schema) if self._prefix else self.column(_OPEN, _NAME)

    def kept(self) -> list[str]:
        """Names what is open and outlives its session: prepared transactions, staging tables, and their markers."""
        return [
            *(f"prepared {gid}" for gid in self.prepared()),
            *(f"table {table}" for table in self.stages()),
            *(f"marker {name}" for name, state in self.markers() if state != "committed"),
        ]

    def left_open(self) -> Sequence[str]:
        """See `Witness.left_open`."""
        return [*self.kept(), *(f"session {session}" for session in self.sessions())]

    def column(self, question: str, *values: Any) -> list[Any]:
        """Returns the first column of an answer."""
        return [row[0] for row in self.ask(question, *values)]

    def ask(self, statement: str | sql.Composable, *values: Any) -> list[Any]:
        """Runs a statement, on a connection that is kept while it works."""
        with self._one_asks:
            try:
                if self._connection is None:
                    self._connection = self.connect()
                with within(self._connection, self._answers_within_s):
                    cursor = self._connection.execute(statement, values or None)  # type: ignore[arg-type]
                    return cursor.fetchall() if cursor.description else []
            except BaseException:
                self.close()
                raise

    def connect(self) -> Connection:
        """Opens another connection."""
        import psycopg

        limits = {"connect_timeout": CONNECTS_WITHIN_S, "application_name": _NAME}
        return psycopg.connect(self.conninfo, autocommit=True, **limits)  # type: ignore[arg-type]

    def close(self) -> None:
        """See `Witness.close`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is given up, whatever state it is in
                connection.close()


@contextmanager
def within(connection: Connection, limit_s: float) -> Iterator[None]:
    """Cuts the connection after so many seconds, since a paused server never answers."""
    timer = threading.Timer(limit_s, _cut, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(connection: Connection) -> None:
    # A descriptor of its own: the connection may be closed, and its number used again, at this very moment.
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)
