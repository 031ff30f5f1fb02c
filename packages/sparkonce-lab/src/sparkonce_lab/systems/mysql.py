"""MariaDB or MySQL: a table in a database."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.sinks.sql.mysql.settings import Xid, parse_settings, quote, stage_table
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.proxy import after
from sparkonce_lab.rig.servers.mariadb import MISSING, NEXT, MariaDBServer
from sparkonce_lab.systems.base import ServerSystem, VerifiedSystem

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.protocol.handles import Handle
    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce_lab.rig.proxy import Request

MEGABYTES = 3072

_COLUMNS = (
    "kind VARCHAR(100)",
    *(f"`{name}` BIGINT" for name in ("key", "number", "amount", "rows", "batch")),
    "KEY (batch)",  # The index makes `newest` fast.
)
_CONNECTS_WITHIN_S = 3
_ANSWERS_WITHIN_S = 5
_READ_WITHIN_S = 600
_CHUNK = 50_000
_DRIVER = b"sparkonce driver"
_RECOVER = "XA RECOVER"
_UNKNOWN_XID = 1397
_POLL_S = 0.02
_STAGES = "SHOW TABLES FROM {} LIKE 'sparkonce\\_stage\\_%'"
_OPEN = "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID()"
_OPEN_IN = """
SELECT t.trx_mysql_thread_id FROM information_schema.innodb_trx t
JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = %s AND p.id <> CONNECTION_ID()
"""


class PreparedBranch(NamedTuple):
    """A prepared XA transaction. ``data`` is its id: ``gtrid`` bytes, followed by the branch."""

    format_id: int
    gtrid: int
    bqual: int
    data: bytes

    @property
    def literal(self) -> str:
        return f"X'{self.data[: self.gtrid].hex()}',X'{self.data[self.gtrid :].hex()}',{self.format_id}"


class MySQLSystem(ServerSystem, VerifiedSystem):
    """A MariaDB server that is started here, on a disk that can be filled if mounting is allowed, or the user's server.

    The user's server is reached through a proxy, and must allow the user to create a database: the table and the sink's
    own tables are in a new database, which is dropped at the end. Faults of one request require unencrypted connections
    (``ssl_disabled=true``).

    Args:
        settings: The user's server, as ``name=value …`` with PyMySQL's names; None to start a server.
        commit: ``staged`` or ``two_phase``; see `sparkonce.MySQLSink`.

    Attributes:
        database: The database that `place` has created. Its name is also the prefix of the sink's transactions.
        table: The table in the database.
    """

    name = "mysql"
    REQUESTS: ClassVar[Mapping[str, Mapping[str, Request]]] = {
        "two_phase": {"prepare": b"XA PREPARE", "commit": b"XA COMMIT", "abort": b"XA ROLLBACK"},
        "staged": {
            "prepare": after(b"CREATE TABLE `sparkonce_stage_", b"\x03COMMIT", always=True),
            "commit": after(_DRIVER, b"\x03COMMIT", always=True),
            "abort": after(_DRIVER, b"DROP TABLE", always=True),
        },
    }

    def __init__(
        self,
        settings: str | None = None,
        commit: str = "two_phase",
        megabytes: int = MEGABYTES,
        *,
        server: MariaDBServer | None = None,
        alone: bool = False,
        answers_within_s: int = _ANSWERS_WITHIN_S,
    ) -> None:
        if commit not in self.REQUESTS:
            raise ConfigurationError(
                f"commit={commit!r} is not one of {', '.join(self.REQUESTS)}.", next_step="Choose one of them."
            )
        self.commit = commit
        self._users = None if settings is None else parse_settings(settings)
        self._borrowed = server
        self._megabytes = megabytes
        self._alone = alone
        self._limits = {"connect_timeout": _CONNECTS_WITHIN_S, "read_timeout": answers_within_s}
        self._direct: dict[str, Any] = {}
        self._connection: Any = None
        self._one_asks = threading.Lock()
        self.database = self.table = ""

    @classmethod
    def missing(cls) -> str:
        return "" if MariaDBServer.is_installed() else MISSING

    def start(self, folder: Path) -> None:
        import pymysql

        if self._borrowed is not None:
            self.borrow(self._borrowed)
            self._direct = dict(self._borrowed.settings)
            return
        if self._users is None:
            if self.missing():
                raise PreflightError(MISSING, next_step=NEXT)
            server = MariaDBServer(folder)
            self.start_own(server, self._megabytes)
            self._direct = dict(server.settings)
        else:
            self._direct = {**self._users, "host": self._users.get("host", "localhost")}
            self._direct.pop("database", None)
        try:
            ((_, cipher),) = self.ask("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        except pymysql.Error as error:
            raise self._refused(error) from None
        self.start_proxy((self._direct["host"], self._port), {} if cipher else self.REQUESTS[self.commit])

    @property
    def settings(self) -> dict[str, Any]:
        return {**self._direct, "database": self.database}

    @property
    def _port(self) -> int:
        return int(self._direct.get("port", 3306))

    def _refused(self, error: Exception) -> PreflightError:
        named = "MariaDB" if self._users is None else f"--system mysql=host={self._direct['host']} port={self._port}"
        return PreflightError(
            f"{named} cannot store the rows: {error}",
            next_step="Check the address and the credentials, and GRANT ALL ON `sparkonce\\_verify\\_%`.*.",
        )

    # --- the table ----------------------------------------------------------------------------------------------------

    def place(self, *columns: str) -> None:
        """Creates a table without a unique key, so that a row that is written twice occurs twice."""
        import pymysql

        self.table = "verified"
        try:
            self.new_database()
            self.ask(f"CREATE TABLE {self.database}.{self.table} ({', '.join(columns or _COLUMNS)}) ENGINE=InnoDB")
        except pymysql.Error as error:
            raise self._refused(error) from None

    def new_database(self, name: str = "") -> None:
        """Creates an empty database, by default with a unique name. Later statements use it."""
        name = name or f"sparkonce_verify_{secrets.token_hex(5)}"
        self.ask(f"CREATE DATABASE {quote(name)} CHARACTER SET utf8mb4")
        self.database, self._made = name, True
        self.close()  # The next connection then uses the database.

    def drop_place(self) -> None:
        import pymysql

        try:
            self.ask(f"SET lock_wait_timeout = {_ANSWERS_WITHIN_S}")
            for found in self.prepared():
                self.end_branch("ROLLBACK", found.literal)
            self.ask(f"DROP DATABASE IF EXISTS {self.database}")
        except pymysql.Error as error:
            raise PreflightError(
                f"The database {self.database} cannot be dropped: {error}", next_step="Drop it manually."
            ) from None

    def arguments(self, **options: Any) -> dict[str, Any]:
        """Includes the user's password, if there is one."""
        to = {**self.settings, "connect_timeout": _CONNECTS_WITHIN_S}
        if self.proxy is not None:
            to |= {"host": HOST, "port": self.proxy.port}
        return {"settings": to, "table": self.table, "commit": self.commit, "prefix": self.database, **options}

    def sink_settings(self) -> Mapping[str, Any]:
        return self.arguments(name=self.name, commit_timeout_s=60.0, lock_timeout_s=5.0)

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> TwoPhaseCommitSink:
        from sparkonce.sinks.sql.mysql.sink import MySQLSink

        return MySQLSink(**arguments)

    def expire(self, handle: Handle) -> bool:
        """Removes a transaction as an operator might, because MySQL has no timeout for it."""
        from sparkonce.protocol.ownership import TransactionName

        name = TransactionName.parse(str(handle["transaction"]))
        if name is None:
            return False
        if handle["commit"] == "staged":
            self.ask(f"DROP TABLE {self.database}.{stage_table(name.copy)}")
        else:
            self.end_branch("ROLLBACK", Xid.of(name))
        return True

    # --- what a reader sees -------------------------------------------------------------------------------------------

    def visible(self, *columns: str) -> list[Any]:
        rows = self.ask(f"SELECT {', '.join(columns or ['number'])} FROM {self.database}.{self.table}")  # noqa: S608 - ours
        return rows if columns else [number for (number,) in rows]

    def read(self) -> pa.Table:
        import pyarrow as pa
        from pymysql.cursors import SSCursor

        from sparkonce_lab.systems.observed import COLUMNS, of_texts

        columns = ", ".join(f"`{name}`" for name in COLUMNS)
        # Reading a single string is several times as fast as reading six columns. A null in any column makes the string
        # unreadable.
        ask = f"SELECT CAST(CONCAT_WS(',', {columns}) AS BINARY) FROM {self.database}.{self.table}"  # noqa: S608 - ours
        found = [of_texts([])]
        with self.connected(read_timeout=_READ_WITHIN_S) as connection, connection.cursor(SSCursor) as cursor:
            cursor.execute(ask)
            while rows := cursor.fetchmany(_CHUNK):
                found.append(of_texts([text for (text,) in rows]))
        return pa.concat_tables(found)

    def newest(self) -> int:
        ((newest,),) = self.ask(f"SELECT COALESCE(MAX(batch), -1) FROM {self.database}.{self.table}")  # noqa: S608 - ours
        return int(newest)

    # --- what is open -------------------------------------------------------------------------------------------------

    def left_open(self) -> Sequence[str]:
        """Returns XA transactions, staging tables, and sessions in a transaction."""
        found = self.ask(_OPEN) if self._alone else self.ask(_OPEN_IN, self.database)
        return [*self.staged(), *(f"session {number}" for (number,) in found)]

    def staged(self) -> list[str]:
        """Lists what outlives its session: prepared transactions and staging tables."""
        return [*(f"prepared {found.data!r}" for found in self.prepared()), *(f"table {one}" for one in self.stages())]

    def prepared(self) -> list[PreparedBranch]:
        """Lists the prepared transactions. The branch in a transaction's id begins with the prefix."""
        rows = [(*numbers, data if isinstance(data, bytes) else data.encode()) for *numbers, data in self.ask(_RECOVER)]
        start = b"" if self._alone else f"{self.database}.".encode()
        return sorted(found for row in rows if (found := PreparedBranch(*row)).data[found.gtrid :].startswith(start))

    def stages(self) -> list[str]:
        return [str(table) for (table,) in self.ask(_STAGES.format(quote(self.database)))]

    def state(self) -> object:
        """Includes the markers, of which each transaction has one."""
        markers = self.ask(f"SELECT batch, slot, copy, kind FROM {self.database}.sparkonce_commits")  # noqa: S608 - ours
        return sorted(self.visible()), sorted(self.staged()), sorted(markers)

    # --- connections --------------------------------------------------------------------------------------------------

    def ask(self, statement: str, *values: Any) -> list[Any]:
        """Runs a statement on a connection, which is reused as long as it works."""
        with self._one_asks:
            try:
                if self._connection is None:
                    self._connection = self.connect()
                with self._connection.cursor() as cursor:
                    cursor.execute(statement, values or None)
                    return list(cursor.fetchall())
            except BaseException:
                self.close()
                raise

    def end_branch(self, how: str, xid: object) -> None:
        """Commits or rolls back a branch. The server accepts that after the connection that prepared it has ended."""
        import pymysql

        give_up_at = time.monotonic() + _ANSWERS_WITHIN_S
        while True:
            try:
                self.ask(f"XA {how} {xid}")
                return
            except pymysql.OperationalError as error:
                if error.args[0] != _UNKNOWN_XID or time.monotonic() > give_up_at:
                    raise
            time.sleep(_POLL_S)

    def connect(self, **more: Any) -> Any:
        import pymysql

        settings = self.settings if self.database else self._direct
        return pymysql.connect(**{**settings, **self._limits, **more}, autocommit=True)

    @contextmanager
    def connected(self, **more: Any) -> Iterator[Any]:
        """Opens another connection, and closes it at the end, regardless of its state."""
        connection = self.connect(**more)
        try:
            yield connection
        finally:
            _close(connection)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        _close(connection)


def _close(connection: Any) -> None:
    if connection is not None:
        with suppress(Exception):  # The connection is abandoned, regardless of its state.
            connection.close()
