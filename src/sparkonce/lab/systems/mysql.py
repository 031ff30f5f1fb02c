"""A table in MariaDB or MySQL."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.lab.systems.injections import Injectable, of_connections, of_disk, of_server
from sparkonce.rig.disk import SmallDisk, affordable
from sparkonce.rig.proxy import FaultProxy, Request
from sparkonce.rig.servers.mariadb import MISSING, NEXT, MariaDBServer
from sparkonce.rig.servers.process import HOST
from sparkonce.sinks.mysql.settings import parse_settings
from sparkonce.testing.matchers import after

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import TwoPhaseCommitSink

MEGABYTES = 3072

_TABLE = "verified"
_DRIVER = b"sparkonce driver"
_REQUESTS: Mapping[str, Mapping[str, Request]] = {
    "two_phase": {"prepare": b"XA PREPARE", "commit": b"XA COMMIT", "abort": b"XA ROLLBACK"},
    "staged": {
        "prepare": after(b"CREATE TABLE `sparkonce_stage_", b"\x03COMMIT", always=True),
        "commit": after(_DRIVER, b"\x03COMMIT", always=True),
        "abort": after(_DRIVER, b"DROP TABLE", always=True),
    },
}
_CONNECTS_WITHIN_S = 3
_ANSWERS_WITHIN_S = 5
_READ_WITHIN_S = 600
_CHUNK = 50_000


class MySQLSystem(Injectable):
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

    def __init__(self, settings: str | None = None, commit: str = "two_phase", megabytes: int = MEGABYTES) -> None:
        if commit not in _REQUESTS:
            raise ConfigurationError(
                f"commit={commit!r} is not one of {', '.join(_REQUESTS)}", next_step="choose one of them."
            )
        self._users = None if settings is None else parse_settings(settings)
        self._commit = commit
        self._megabytes = megabytes
        self._server: MariaDBServer | None = None
        self._disk: SmallDisk | None = None
        self._direct: dict[str, Any] = {}
        self._watching: Any = None
        self._one_asks = threading.Lock()
        self._made = False
        self.injections = {}
        self.database = f"sparkonce_verify_{secrets.token_hex(5)}"

    def start(self, folder: Path) -> None:
        """See `System.start`."""
        import pymysql

        if self._users is None:
            self._start_own(folder)
        else:
            self._direct = {**self._users, "host": self._users.get("host", "localhost")}
            self._direct.pop("database", None)
        try:
            with self._connected() as connection, connection.cursor() as cursor:
                cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
                encrypted = bool(cursor.fetchone()[1])
                cursor.execute(f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4")
                self._made = True
                columns = "kind VARCHAR(100), `key` BIGINT, number BIGINT, amount BIGINT, `rows` BIGINT, batch BIGINT"
                # The index is for `newest`.
                cursor.execute(f"CREATE TABLE {self.database}.{_TABLE} ({columns}, KEY (batch)) ENGINE=InnoDB")
        except pymysql.Error as error:
            raise PreflightError(
                f"{self._named} has no place for the rows: {error}",
                next_step="check the address and the credentials, and GRANT ALL ON `sparkonce\\_verify\\_%`.*.",
            ) from None
        requests = {} if encrypted else _REQUESTS[self._commit]
        self.proxy = FaultProxy((self._direct["host"], self._direct.get("port", 3306)), requests)
        self.proxy.start()
        self.requests = tuple(requests)
        self.injections = {**of_connections(self.proxy), **self.injections}

    def _start_own(self, folder: Path) -> None:
        if not MariaDBServer.is_installed():
            raise PreflightError(MISSING, next_step=NEXT)
        self._disk = SmallDisk(folder, affordable(self._megabytes))
        self._server = server = MariaDBServer(folder)
        server.start()
        self._direct = dict(server.settings)
        self.injections = {**of_server(server), **of_disk(self._disk, server)}

    @property
    def _named(self) -> str:
        if self._users is None:
            return "MariaDB"
        return f"--system mysql=host={self._direct['host']} port={self._direct.get('port', 3306)}"

    def stop(self) -> None:
        """See `System.stop`."""
        self._forget()
        if self.proxy is not None:
            self.proxy.close()
            self.proxy = None
        if self._server is not None:
            self._server.stop()
            self._server = None
        elif self._made and not self.keep_place:
            self._drop()
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def _drop(self) -> None:
        import pymysql

        try:
            with self._connected() as connection, connection.cursor() as cursor:
                cursor.execute(f"SET lock_wait_timeout = {_ANSWERS_WITHIN_S}")
                for format_id, gtrid, _, data in self._recovered(cursor):
                    cursor.execute(f"XA ROLLBACK X'{data[:gtrid].hex()}',X'{data[gtrid:].hex()}',{format_id}")
                cursor.execute(f"DROP DATABASE IF EXISTS {self.database}")
        except pymysql.Error as error:
            raise PreflightError(
                f"the database {self.database} cannot be dropped: {error}", next_step="drop it by hand."
            ) from None
        self._made = False

    def sink_settings(self) -> Mapping[str, Any]:
        """See `System.sink_settings`. With the user's password, if there is one."""
        port = self.proxy.port if self.proxy is not None else 0
        more = {"host": HOST, "port": port, "database": self.database, "connect_timeout": _CONNECTS_WITHIN_S}
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
        with self._connected(read_timeout=_READ_WITHIN_S) as connection, connection.cursor(SSCursor) as cursor:
            cursor.execute(ask)
            while rows := cursor.fetchmany(_CHUNK):
                found.append(of_texts([text for (text,) in rows]))
        return pa.concat_tables(found)

    def newest(self) -> int:
        """See `System.newest`."""
        ((newest,),) = self._ask(f"SELECT COALESCE(MAX(batch), -1) FROM {self.database}.{_TABLE}")  # noqa: S608 - ours
        return int(newest)

    def left_open(self) -> Sequence[str]:
        """See `System.left_open`: XA transactions, staging tables, and sessions in a transaction."""
        with self._connected() as connection, connection.cursor() as cursor:
            found = [f"prepared {data!r}" for _, _, _, data in self._recovered(cursor)]
        stages = self._ask(f"SHOW TABLES FROM {self.database} LIKE 'sparkonce\\_stage\\_%'")
        found += [f"table {table}" for (table,) in stages]
        return found + [f"session {number}" for (number,) in self._ask(_SESSIONS, self.database)]

    def _recovered(self, cursor: Any) -> list[tuple[int, int, int, bytes]]:
        """The prepared transactions of this query: the second part of their xids begins with its database."""
        cursor.execute("XA RECOVER")
        rows = [(*numbers, data if isinstance(data, bytes) else data.encode()) for *numbers, data in cursor.fetchall()]
        return [row for row in rows if row[3][row[1] :].startswith(b"%s." % self.database.encode())]

    def _ask(self, question: str, *values: Any) -> list[Any]:
        """An answer, on a connection that is kept while it works."""
        with self._one_asks:
            try:
                if self._watching is None:
                    self._watching = self._connect()
                with self._watching.cursor() as cursor:
                    cursor.execute(question, values or None)
                    return list(cursor.fetchall())
            except BaseException:
                self._forget()
                raise

    def _forget(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            with suppress(Exception):  # it is given up, whatever state it is in
                watching.close()

    @contextmanager
    def _connected(self, read_timeout: int = _ANSWERS_WITHIN_S) -> Iterator[Any]:
        connection = self._connect(read_timeout)
        try:
            yield connection
        finally:
            with suppress(Exception):  # as above
                connection.close()

    def _connect(self, read_timeout: int = _ANSWERS_WITHIN_S) -> Any:
        import pymysql

        limits = {"connect_timeout": _CONNECTS_WITHIN_S, "read_timeout": read_timeout}
        return pymysql.connect(**{**self._direct, **limits}, autocommit=True)


_SESSIONS = """
SELECT t.trx_mysql_thread_id FROM information_schema.innodb_trx t
JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = %s AND p.id <> CONNECTION_ID()
"""
