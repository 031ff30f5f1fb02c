"""PostgreSQL: a table in a schema."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.proxy import after
from sparkonce_lab.rig.servers.postgres import MISSING, PostgresServer, find_postgres
from sparkonce_lab.systems.base import ServerSystem, VerifiedSystem, without_credentials

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg import sql

    from sparkonce.protocol.handles import Handle
    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce_lab.rig.proxy import Request

    Connection = psycopg.Connection[tuple[Any, ...]]

MEGABYTES = 3072

_SETTINGS = {"max_prepared_transactions": "100", "max_wal_size": "256MB", "min_wal_size": "32MB"}
_COLUMNS = ("kind text", *(f"{name} bigint" for name in ("key", "number", "amount", "rows", "batch")))
_CONNECTS_WITHIN_S = 3
_ANSWERS_WITHIN_S = 5.0
_READ_WITHIN_S = 600.0
_NAME = "sparkonce-witness"
_PREPARED = "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE pg_catalog.starts_with(gid, %s) ORDER BY gid"
_STAGES = """
SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' AND c.relname ~ '^sparkonce_[0-9a-f]{12}_' ORDER BY c.relname
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


class PostgresSystem(ServerSystem, VerifiedSystem):
    """A server that is started here, on a disk that can be filled if mounting is allowed, or the user's server.

    The user's server is reached through a proxy by TCP, and the role must be allowed to create a schema: the table and
    the sink's own tables are in a new schema, which is dropped at the end. Faults of one request require unencrypted
    connections (``sslmode=disable``).

    Args:
        conninfo: The user's libpq connection string; None to start a server.
        commit: ``staged`` or ``two_phase``; see `sparkonce.PostgresSink`.
        settings: Settings for a server that is started here.

    Attributes:
        schema: The schema that `place` has created. Its name is also the prefix of the sink's transactions.
        table: The table in the schema.
    """

    name = "postgres"
    REQUESTS: ClassVar[Mapping[str, Mapping[str, Request]]] = {
        "two_phase": {"prepare": b"PREPARE TRANSACTION", "commit": b"COMMIT PREPARED", "abort": b"ROLLBACK PREPARED"},
        "staged": {
            "prepare": after(b"SET LOCAL statement_timeout", b"COMMIT\x00"),
            "commit": b"SET state = 'committed'",
            "abort": b"DELETE FROM",
        },
    }

    def __init__(
        self,
        conninfo: str | None = None,
        commit: str = "two_phase",
        megabytes: int = MEGABYTES,
        *,
        server: PostgresServer | None = None,
        settings: Mapping[str, str] | None = None,
        alone: bool = False,
        answers_within_s: float = _ANSWERS_WITHIN_S,
    ) -> None:
        if commit not in self.REQUESTS:
            raise ConfigurationError(
                f"commit={commit!r} is not one of {', '.join(self.REQUESTS)}.", next_step="Choose one of them."
            )
        self.commit = commit
        self._users = conninfo
        self._borrowed = server
        self._megabytes = megabytes
        self._settings = {**_SETTINGS, **(settings or {})}
        self._alone = alone
        self._answers_within_s = answers_within_s
        self._connection: Connection | None = None
        self._one_asks = threading.Lock()
        self._direct = self._through = ""
        self.schema = self.table = ""

    @classmethod
    def missing(cls) -> str:
        return "" if find_postgres() else MISSING

    def start(self, folder: Path) -> None:  # noqa: ARG002 - PostgreSQL cannot use a folder that only root can reach
        import psycopg

        if self._borrowed is not None:
            self.borrow(self._borrowed)
            self._direct = self._through = self._borrowed.conninfo()
            return
        if self._users is None:
            server = PostgresServer(self._settings)
            self.start_own(server, self._megabytes)
            self._direct = server.conninfo()
        else:
            self._direct = self._users
            try:
                psycopg.conninfo.conninfo_to_dict(self._users)
            # The error's message contains the connection string, part of which may be a password.
            except psycopg.ProgrammingError:
                raise ConfigurationError(
                    "--system postgres=…: libpq cannot parse the server's address.",
                    next_step="Name it as 'host=… dbname=… user=…', with quotes around values that have spaces.",
                ) from None
        try:
            upstream, encrypted = self._locate()
        except psycopg.Error as error:
            raise self._refused(error) from None
        proxy = self.start_proxy(upstream, {} if encrypted else self.REQUESTS[self.commit])
        self._through = psycopg.conninfo.make_conninfo(
            self._direct, hostaddr=HOST, port=proxy.port, connect_timeout=_CONNECTS_WITHIN_S
        )

    def _locate(self) -> tuple[tuple[str, int], bool]:
        """Returns the server's address, and True if connections to it are encrypted."""
        with self.connect() as connection:
            info = connection.info
            host = info.hostaddr or info.host
            if not host or host.startswith(("/", "@")):
                raise ConfigurationError(
                    "PostgreSQL is reached through a Unix socket, and connection faults need TCP.",
                    next_step="Give host=localhost.",
                )
            return (host, info.port), bool(connection.pgconn.ssl_in_use)

    def _refused(self, error: Exception) -> PreflightError:
        named = f"--system postgres={without_credentials(self._users)}" if self._users else "PostgreSQL"
        return PreflightError(
            f"{named} cannot store the rows: {str(error).strip()}",
            next_step="Check the address and the credentials, and GRANT CREATE ON DATABASE to the role.",
        )

    def stop(self) -> None:
        own = self._own
        super().stop()
        if isinstance(own, PostgresServer):
            own.delete()

    # --- the table ----------------------------------------------------------------------------------------------------

    def place(self, *columns: str) -> None:
        """Creates a table without a unique key, so that a row that is written twice occurs twice."""
        import psycopg

        self.schema, self.table = f"sparkonce_verify_{secrets.token_hex(5)}", "rows"
        try:
            self.ask(f"CREATE SCHEMA {self.schema}")
            self._made = True
            self.ask(f"CREATE TABLE {self.schema}.{self.table} ({', '.join(columns or _COLUMNS)})")
            if not columns:
                self.ask(f"CREATE INDEX ON {self.schema}.{self.table} (batch)")  # The index makes `newest` fast.
        except psycopg.Error as error:
            raise self._refused(error) from None

    def drop_place(self) -> None:
        import psycopg
        from psycopg import sql

        try:
            self.ask(f"SET lock_timeout = '{_ANSWERS_WITHIN_S:g}s'")
            for gid in self.prepared():
                self.ask(sql.SQL("ROLLBACK PREPARED {}").format(gid))
            self.ask(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")
        except psycopg.Error as error:
            raise PreflightError(
                f"The schema {self.schema} cannot be dropped: {str(error).strip()}", next_step="Drop it manually."
            ) from None

    def arguments(self, **options: Any) -> dict[str, Any]:
        """Includes the user's password, if there is one."""
        own = {"conninfo": self._through, "table": self.table, "schema": self.schema, "commit": self.commit}
        return {**own, "prefix": self.schema, **options}

    def sink_settings(self) -> Mapping[str, Any]:
        return self.arguments(name=self.name, slot_timeout_s=120.0, commit_timeout_s=60.0, lock_timeout_s=5.0)

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> TwoPhaseCommitSink:
        from sparkonce.sinks.sql.postgres.sink import PostgresSink

        return PostgresSink(**arguments)

    def expire(self, handle: Handle) -> bool:
        """Discards a transaction, following the instructions for operators in docs/postgres.md."""
        from psycopg import sql

        name = str(handle["name"])
        if self.commit == "two_phase":
            self.ask(sql.SQL("ROLLBACK PREPARED {}").format(name))
        else:
            words = name.split(".")
            self.ask(f"DROP TABLE {self.schema}.sparkonce_{words[-5]}_{words[-1]}")
            self.ask(f"DELETE FROM {self.schema}.sparkonce_commits WHERE name = %s", name)  # noqa: S608 - ours
        return True

    # --- what a reader sees -------------------------------------------------------------------------------------------

    def visible(self, *columns: str) -> list[Any]:
        rows = self.ask(f"SELECT {', '.join(columns or ['number'])} FROM {self.schema}.{self.table}")  # noqa: S608 - ours
        return rows if columns else [number for (number,) in rows]

    def read(self) -> pa.Table:
        from sparkonce.sinks.sql.postgres.connection import within
        from sparkonce_lab.systems.observed import COLUMNS, of_csv

        ask = f"COPY (SELECT {', '.join(COLUMNS)} FROM {self.schema}.{self.table}) TO STDOUT (FORMAT csv)"  # noqa: S608 - ours
        with self.connect() as connection, within(connection, _READ_WITHIN_S), connection.cursor().copy(ask) as rows:
            return of_csv(bytes(piece) for piece in rows)

    def newest(self) -> int:
        (newest,) = self.column(f"SELECT coalesce(max(batch), -1) FROM {self.schema}.{self.table}")  # noqa: S608 - ours
        return int(newest)

    # --- what is open -------------------------------------------------------------------------------------------------

    def left_open(self) -> Sequence[str]:
        """Returns prepared transactions, staged rows, and sessions in a transaction."""
        open_ = self.column(_OPEN, _NAME) if self._alone else self.column(_OPEN_IN, _NAME, self.schema)
        return [*self.staged(), *(f"session {session}" for session in open_)]

    def staged(self) -> list[str]:
        """Lists what outlives its session: prepared transactions, staging tables, and their markers."""
        return [
            *(f"prepared {gid}" for gid in self.prepared()),
            *(f"table {table}" for table in self.stages()),
            *(f"marker {name}" for name, state in self.markers() if state != "committed"),
        ]

    def prepared(self) -> list[str]:
        return self.column(_PREPARED, "" if self._alone else f"{self.schema}.")

    def stages(self) -> list[str]:
        return self.column(_STAGES, self.schema)

    def markers(self) -> list[tuple[str, str]]:
        """Lists the markers with their states; none before the sink has created their table."""
        if self.column("SELECT to_regclass(%s)::text", f"{self.schema}.sparkonce_commits") == [None]:
            return []
        return self.ask(f"SELECT name::text, state::text FROM {self.schema}.sparkonce_commits")  # noqa: S608 - ours

    def state(self) -> object:
        """Includes the markers, of which each transaction has one."""
        return sorted(self.visible()), sorted(self.staged()), sorted(self.markers())

    # --- connections --------------------------------------------------------------------------------------------------

    def column(self, question: str, *values: Any) -> list[Any]:
        return [row[0] for row in self.ask(question, *values)]

    def ask(self, statement: str | sql.Composable, *values: Any) -> list[Any]:
        """Runs a statement on a connection, which is reused as long as it works.

        If a paused server never responds, the connection is cut.
        """
        from sparkonce.sinks.sql.postgres.connection import within

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
        import psycopg

        limits = {"connect_timeout": _CONNECTS_WITHIN_S, "application_name": _NAME}
        # Do not cache plans, because tables change while this connection is open.
        return psycopg.connect(self._direct, autocommit=True, prepare_threshold=None, **limits)  # type: ignore[arg-type]

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # The connection is abandoned, regardless of its state.
                connection.close()
