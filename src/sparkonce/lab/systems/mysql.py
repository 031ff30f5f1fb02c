"""A table in MariaDB or MySQL."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.lab.systems.injections import ServerSystem
from sparkonce.rig.servers.mariadb import MISSING, NEXT, MariaDBServer
from sparkonce.rig.servers.process import HOST
from sparkonce.sinks.mysql.settings import parse_settings
from sparkonce.testing.systems.mariadb import CONNECTS_WITHIN_S, MariaDBWitness

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import TwoPhaseCommitSink

MEGABYTES = 3072

_TABLE = "verified"
_COLUMNS = (
    "kind VARCHAR(100)",
    *(f"`{name}` BIGINT" for name in ("key", "number", "amount", "rows", "batch")),
)
_READ_WITHIN_S = 600
_CHUNK = 50_000


class MySQLSystem(ServerSystem):
    """A MariaDB server of our own, on a disk that can be filled where mounting is allowed; or the user's, by a proxy.

    The user must be allowed to make a database: the table and the sink's own tables get one that nobody has, and that
    is dropped in the end. The table has no unique key: a row that is written twice is there twice. Faults of one
    request need connections that are not encrypted (``ssl_disabled=true``).

    Args:
        settings: The user's server, as ``name=value …`` in PyMySQL's names; None for a server of our own.
        commit: ``staged`` or ``two_phase``, see `sparkonce.MySQLSink`.
        megabytes: The size of our own disk, which is in memory and takes as much of it as is written.

    Raises:
        ConfigurationError: if ``commit`` is something else, or the settings cannot be read.
    """

    name = "mysql"
    witness: MariaDBWitness

    def __init__(self, settings: str | None = None, commit: str = "two_phase", megabytes: int = MEGABYTES) -> None:
        if commit not in MariaDBWitness.requests:
            raise ConfigurationError(
                f"commit={commit!r} is not one of {', '.join(MariaDBWitness.requests)}.",
                next_step="Choose one of them.",
            )
        self._users = None if settings is None else parse_settings(settings)
        self._commit = commit
        self._megabytes = megabytes
        self._direct: dict[str, Any] = {}
        self.injections = {}
        self.database = f"sparkonce_verify_{secrets.token_hex(5)}"

    def start(self, folder: Path) -> None:
        """See `System.start`."""
        import pymysql

        if self._users is None:
            if not MariaDBServer.is_installed():
                raise PreflightError(MISSING, next_step=NEXT)
            server = MariaDBServer(folder)
            self.start_own(server, self._megabytes)
            self._direct = dict(server.settings)
        else:
            self._direct = {**self._users, "host": self._users.get("host", "localhost")}
            self._direct.pop("database", None)
        self.witness = MariaDBWitness(self._direct, self.database, prefix=self.database)
        try:
            ((_, cipher),) = self.witness.ask("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            # The index is for `newest`.
            self.witness.make_place(*_COLUMNS, "KEY (batch)", table=_TABLE)
            self._made = True
        except pymysql.Error as error:
            raise PreflightError(
                f"{self._named} has no place for the rows: {error}",
                next_step="Check the address and the credentials, and GRANT ALL ON `sparkonce\\_verify\\_%`.*.",
            ) from None
        requests = {} if cipher else MariaDBWitness.requests[self._commit]
        self.start_proxy((self._direct["host"], self._direct.get("port", 3306)), requests)

    @property
    def _named(self) -> str:
        if self._users is None:
            return "MariaDB"
        return f"--system mysql=host={self._direct['host']} port={self._direct.get('port', 3306)}"

    def drop_place(self) -> None:
        """See `ServerSystem.drop_place`."""
        import pymysql

        try:
            self.witness.drop_place()
        except pymysql.Error as error:
            raise PreflightError(
                f"The database {self.database} cannot be dropped: {error}", next_step="Drop it by hand."
            ) from None

    def sink_settings(self) -> Mapping[str, Any]:
        """See `System.sink_settings`. With the user's password, if there is one."""
        port = self.proxy.port if self.proxy is not None else 0
        more = {"host": HOST, "port": port, "database": self.database, "connect_timeout": CONNECTS_WITHIN_S}
        return {"settings": {**self._direct, **more}, "commit": self._commit}

    @staticmethod
    def build(settings: Mapping[str, Any]) -> TwoPhaseCommitSink:
        """See `System.build`."""
        from sparkonce.sinks.mysql.sink import MySQLSink

        return MySQLSink(
            settings["settings"],
            table=_TABLE,
            commit=settings["commit"],
            prefix=settings["settings"]["database"],
            name=MySQLSystem.name,
            commit_timeout_s=60.0,
            lock_timeout_s=5.0,
        )

    def read(self) -> pa.Table:
        """See `System.read`."""
        import pyarrow as pa
        from pymysql.cursors import SSCursor

        from sparkonce.lab.systems.observed import COLUMNS, of_texts

        columns = ", ".join(f"`{name}`" for name in COLUMNS)
        # One text is read several times as fast as six columns. A null makes it one that is not a row's.
        ask = f"SELECT CAST(CONCAT_WS(',', {columns}) AS BINARY) FROM {self.database}.{_TABLE}"  # noqa: S608 - ours
        found = [of_texts([])]
        with self.witness.connected(read_timeout=_READ_WITHIN_S) as connection, connection.cursor(SSCursor) as cursor:
            cursor.execute(ask)
            while rows := cursor.fetchmany(_CHUNK):
                found.append(of_texts([text for (text,) in rows]))
        return pa.concat_tables(found)

    def newest(self) -> int:
        """See `System.newest`."""
        ((newest,),) = self.witness.ask(f"SELECT COALESCE(MAX(batch), -1) FROM {self.database}.{_TABLE}")  # noqa: S608 - ours
        return int(newest)

    def left_open(self) -> Sequence[str]:
        """See `System.left_open`: XA transactions, staging tables, and sessions in a transaction."""
        return self.witness.left_open()
