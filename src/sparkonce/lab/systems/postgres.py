"""A table in PostgreSQL."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.lab.systems.injections import Injectable, of_connections, of_disk, of_server
from sparkonce.lab.systems.places import without_credentials
from sparkonce.rig.disk import SmallDisk, affordable
from sparkonce.rig.proxy import FaultProxy, Request
from sparkonce.rig.servers.postgres import PostgresServer
from sparkonce.rig.servers.process import HOST
from sparkonce.testing.matchers import after

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce.sinks.postgres.connection import Connection

MEGABYTES = 3072

_TABLE = "rows"
_SETTINGS = {"max_prepared_transactions": "100", "max_wal_size": "256MB", "min_wal_size": "32MB"}
_REQUESTS: Mapping[str, Mapping[str, Request]] = {
    "two_phase": {"prepare": b"PREPARE TRANSACTION", "commit": b"COMMIT PREPARED", "abort": b"ROLLBACK PREPARED"},
    "staged": {
        "prepare": after(b"SET LOCAL statement_timeout", b"COMMIT\x00"),
        "commit": b"SET state = 'committed'",
        "abort": b"DELETE FROM",
    },
}
_OURS = "sparkonce-verify"
_CONNECTS_WITHIN_S = 3
_ANSWERS_WITHIN_S = 5.0
_READ_WITHIN_S = 600.0


class PostgresSystem(Injectable):
    """A server of our own, on a disk that can be filled where mounting is allowed; or the user's, through a proxy.

    The user's must be reached by TCP, and its role must be allowed to make a schema: the table and the sink's own
    tables get one that nobody has, and that is dropped in the end. The table has no unique key: a row that is written
    twice is there twice. Faults of one request need connections that are not encrypted (``sslmode=disable``).

    Args:
        conninfo: The user's, as libpq has it; None for a server of our own.
        commit: ``staged`` or ``two_phase``, see `sparkonce.PostgresSink`.
        megabytes: The size of our own disk, which is in memory and takes as much of it as is written.

    Raises:
        ConfigurationError: if ``commit`` is something else.
    """

    name = "postgres"

    def __init__(self, conninfo: str | None = None, commit: str = "two_phase", megabytes: int = MEGABYTES) -> None:
        if commit not in _REQUESTS:
            raise ConfigurationError(
                f"commit={commit!r} is not one of {', '.join(_REQUESTS)}", next_step="choose one of them."
            )
        self._users = conninfo
        self._commit = commit
        self._megabytes = megabytes
        self._server: PostgresServer | None = None
        self._disk: SmallDisk | None = None
        self._direct = self._through = ""
        self._watching: Connection | None = None
        self._one_asks = threading.Lock()
        self._made = False
        self.injections = {}
        self.schema = f"sparkonce_verify_{secrets.token_hex(5)}"

    def start(self, folder: Path) -> None:  # noqa: ARG002 - PostgreSQL cannot use one that only root can reach
        """See `System.start`."""
        import psycopg

        if self._users is None:
            self._start_own()
        else:
            self._direct = self._users
            try:
                psycopg.conninfo.conninfo_to_dict(self._users)
            except psycopg.ProgrammingError:  # its message repeats what it does not understand: perhaps a password
                raise ConfigurationError(
                    "--system postgres=…: libpq cannot read where the server is",
                    next_step="name it as 'host=… dbname=… user=…', with quotes around values that have spaces.",
                ) from None
        try:
            upstream, encrypted = self._look()
            with self._connect() as connection:
                connection.execute(f"CREATE SCHEMA {self.schema}")
                self._made = True
                columns = "kind text, key bigint, number bigint, amount bigint, rows bigint, batch bigint"
                connection.execute(f"CREATE TABLE {self.schema}.{_TABLE} ({columns})")
                connection.execute(f"CREATE INDEX ON {self.schema}.{_TABLE} (batch)")  # for `newest`
        except psycopg.Error as error:
            raise PreflightError(
                f"{self._named} has no place for the rows: {str(error).strip()}",
                next_step="check the address and the credentials, and GRANT CREATE ON DATABASE to the role.",
            ) from None
        requests = {} if encrypted else _REQUESTS[self._commit]
        self.proxy = FaultProxy(upstream, requests)
        self.proxy.start()
        self.requests = tuple(requests)
        self._through = psycopg.conninfo.make_conninfo(
            self._direct, hostaddr=HOST, port=self.proxy.port, connect_timeout=_CONNECTS_WITHIN_S
        )
        self.injections = {**of_connections(self.proxy), **self.injections}

    def _start_own(self) -> None:
        self._server = server = PostgresServer(_SETTINGS)
        self._disk = SmallDisk(server.folder, affordable(self._megabytes))
        server.start()
        self._direct = server.conninfo()
        self.injections = {**of_server(server), **of_disk(self._disk, server)}

    @property
    def _named(self) -> str:
        return f"--system postgres={without_credentials(self._users)}" if self._users else "PostgreSQL"

    def _look(self) -> tuple[tuple[str, int], bool]:
        """Where the server is, and whether connections to it are encrypted."""
        with self._connect() as connection:
            info = connection.info
            host = info.hostaddr or info.host
            if not host or host.startswith(("/", "@")):
                raise ConfigurationError(
                    "PostgreSQL is reached by a socket of this machine, and faults of connections need TCP",
                    next_step="give host=localhost.",
                )
            return (host, info.port), bool(connection.pgconn.ssl_in_use)

    def stop(self) -> None:
        """See `System.stop`."""
        self._forget()
        if self.proxy is not None:
            self.proxy.close()
            self.proxy = None
        if self._server is not None:
            self._server.stop()
            if self._disk is not None:
                self._disk.close()
            self._server.delete()
            self._server = None
        elif self._made and not self.keep_place:
            self._drop()

    def _drop(self) -> None:
        import psycopg
        from psycopg import sql

        try:
            with self._connect() as connection:
                connection.execute(f"SET lock_timeout = '{_ANSWERS_WITHIN_S:g}s'")
                for (gid,) in connection.execute(_GIDS, (f"{self.schema}.",)).fetchall():
                    connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(gid))
                connection.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")
                self._made = False
        except psycopg.Error as error:
            raise PreflightError(
                f"the schema {self.schema} cannot be dropped: {str(error).strip()}", next_step="drop it by hand."
            ) from None

    def sink_settings(self) -> Mapping[str, Any]:
        """See `System.sink_settings`. With the user's password, if there is one in ``conninfo``."""
        return {"conninfo": self._through, "schema": self.schema, "commit": self._commit}

    @staticmethod
    def build(settings: Mapping[str, Any]) -> TwoPhaseCommitSink:
        """See `System.build`."""
        from sparkonce.sinks.postgres.sink import PostgresSink

        return PostgresSink(
            settings["conninfo"],
            table=_TABLE,
            schema=settings["schema"],
            commit=settings["commit"],
            prefix=settings["schema"],
            name=PostgresSystem.name,
            slot_timeout_s=120.0,
            commit_timeout_s=60.0,
            lock_timeout_s=5.0,
        )

    def read(self) -> pa.Table:
        """See `System.read`."""
        from sparkonce.lab.systems.observed import COLUMNS, of_csv
        from sparkonce.sinks.postgres.connection import within

        ask = f"COPY (SELECT {', '.join(COLUMNS)} FROM {self.schema}.{_TABLE}) TO STDOUT (FORMAT csv)"  # noqa: S608 - ours
        with self._connect() as connection, within(connection, _READ_WITHIN_S), connection.cursor().copy(ask) as rows:
            return of_csv(bytes(piece) for piece in rows)

    def newest(self) -> int:
        """See `System.newest`."""
        (newest,) = self._ask(f"SELECT coalesce(max(batch), -1) FROM {self.schema}.{_TABLE}")  # noqa: S608 - ours
        return int(newest)

    def left_open(self) -> Sequence[str]:
        """See `System.left_open`: prepared transactions, staged rows, and sessions in a transaction."""
        found = [f"prepared {gid}" for gid in self._ask(_GIDS, f"{self.schema}.")]
        found += [f"table {table}" for table in self._ask(_STAGING, self.schema, _TABLE)]
        found += [f"session {session}" for session in self._ask(_SESSIONS, _OURS, self.schema)]
        if self._ask("SELECT to_regclass(%s)::text", f"{self.schema}.sparkonce_commits") != [None]:
            open_ = f"SELECT name FROM {self.schema}.sparkonce_commits WHERE state <> 'committed'"  # noqa: S608 - ours
            found += [f"marker {name}" for name in self._ask(open_)]
        return found

    def _ask(self, question: str, *values: Any) -> list[Any]:
        """The first column of an answer, on a connection that is kept while it works."""
        from sparkonce.sinks.postgres.connection import within

        with self._one_asks:
            try:
                if self._watching is None:
                    self._watching = self._connect()
                with within(self._watching, _ANSWERS_WITHIN_S):
                    return [row[0] for row in self._watching.execute(question, values or None).fetchall()]
            except BaseException:
                self._forget()
                raise

    def _forget(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            with suppress(Exception):  # it is given up, whatever state it is in
                watching.close()

    def _connect(self) -> Connection:
        import psycopg

        return psycopg.connect(
            self._direct, autocommit=True, connect_timeout=_CONNECTS_WITHIN_S, application_name=_OURS
        )


_GIDS = "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE pg_catalog.starts_with(gid, %s) ORDER BY gid"
_STAGING = """
SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' AND c.relname NOT IN (%s, 'sparkonce_commits')
"""
_SESSIONS = """
SELECT DISTINCT a.pid || ' ' || a.application_name FROM pg_catalog.pg_stat_activity a
JOIN pg_catalog.pg_locks l ON l.pid = a.pid JOIN pg_catalog.pg_class c ON c.oid = l.relation
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE a.backend_type = 'client backend' AND a.application_name <> %s AND n.nspname = %s
"""
