"""A table in PostgreSQL."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.lab.systems.injections import ServerSystem
from sparkonce.lab.systems.places import without_credentials
from sparkonce.rig.servers.postgres import PostgresServer
from sparkonce.rig.servers.process import HOST
from sparkonce.testing.systems.postgres import CONNECTS_WITHIN_S, PostgresWitness, within

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import TwoPhaseCommitSink

MEGABYTES = 3072

_TABLE = "rows"
_SETTINGS = {"max_prepared_transactions": "100", "max_wal_size": "256MB", "min_wal_size": "32MB"}
_COLUMNS = ("kind text", *(f"{name} bigint" for name in ("key", "number", "amount", "rows", "batch")))
_READ_WITHIN_S = 600.0


class PostgresSystem(ServerSystem):
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
    witness: PostgresWitness

    def __init__(self, conninfo: str | None = None, commit: str = "two_phase", megabytes: int = MEGABYTES) -> None:
        if commit not in PostgresWitness.requests:
            raise ConfigurationError(
                f"commit={commit!r} is not one of {', '.join(PostgresWitness.requests)}.",
                next_step="Choose one of them.",
            )
        self._users = conninfo
        self._commit = commit
        self._megabytes = megabytes
        self._direct = self._through = ""
        self.injections = {}
        self.schema = f"sparkonce_verify_{secrets.token_hex(5)}"

    def start(self, folder: Path) -> None:  # noqa: ARG002 - PostgreSQL cannot use one that only root can reach
        """See `System.start`."""
        import psycopg

        if self._users is None:
            server = PostgresServer(_SETTINGS)
            self.start_own(server, self._megabytes)
            self._direct = server.conninfo()
        else:
            self._direct = self._users
            try:
                psycopg.conninfo.conninfo_to_dict(self._users)
            except psycopg.ProgrammingError:  # its message repeats what it does not understand: perhaps a password
                raise ConfigurationError(
                    "--system postgres=…: libpq cannot read where the server is.",
                    next_step="Name it as 'host=… dbname=… user=…', with quotes around values that have spaces.",
                ) from None
        self.witness = PostgresWitness(self._direct, self.schema, prefix=self.schema)
        try:
            upstream, encrypted = self._look()
            self.witness.make_place(*_COLUMNS, table=_TABLE)
            self._made = True
            self.witness.ask(f"CREATE INDEX ON {self.schema}.{_TABLE} (batch)")  # for `newest`
        except psycopg.Error as error:
            raise PreflightError(
                f"{self._named} has no place for the rows: {str(error).strip()}",
                next_step="Check the address and the credentials, and GRANT CREATE ON DATABASE to the role.",
            ) from None
        requests = {} if encrypted else PostgresWitness.requests[self._commit]
        proxy = self.start_proxy(upstream, requests)
        self._through = psycopg.conninfo.make_conninfo(
            self._direct, hostaddr=HOST, port=proxy.port, connect_timeout=CONNECTS_WITHIN_S
        )

    @property
    def _named(self) -> str:
        return f"--system postgres={without_credentials(self._users)}" if self._users else "PostgreSQL"

    def _look(self) -> tuple[tuple[str, int], bool]:
        """Returns the server's address, and whether connections to it are encrypted."""
        with self.witness.connect() as connection:
            info = connection.info
            host = info.hostaddr or info.host
            if not host or host.startswith(("/", "@")):
                raise ConfigurationError(
                    "PostgreSQL is reached by a socket of this machine, and faults of connections need TCP.",
                    next_step="Give host=localhost.",
                )
            return (host, info.port), bool(connection.pgconn.ssl_in_use)

    def stop(self) -> None:
        """See `System.stop`."""
        server = self._server
        super().stop()
        if isinstance(server, PostgresServer):
            server.delete()

    def drop_place(self) -> None:
        """See `ServerSystem.drop_place`."""
        import psycopg

        try:
            self.witness.drop_place()
        except psycopg.Error as error:
            raise PreflightError(
                f"The schema {self.schema} cannot be dropped: {str(error).strip()}", next_step="Drop it by hand."
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

        ask = f"COPY (SELECT {', '.join(COLUMNS)} FROM {self.schema}.{_TABLE}) TO STDOUT (FORMAT csv)"  # noqa: S608 - ours
        with (
            self.witness.connect() as connection,
            within(connection, _READ_WITHIN_S),
            connection.cursor().copy(ask) as rows,
        ):
            return of_csv(bytes(piece) for piece in rows)

    def newest(self) -> int:
        """See `System.newest`."""
        (newest,) = self.witness.column(f"SELECT coalesce(max(batch), -1) FROM {self.schema}.{_TABLE}")  # noqa: S608 - ours
        return int(newest)

    def left_open(self) -> Sequence[str]:
        """See `System.left_open`: prepared transactions, staged rows, and sessions in a transaction."""
        return self.witness.left_open()
