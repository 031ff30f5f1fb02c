"""MariaDB or MySQL, asked by a connection of PyMySQL's."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sparkonce.testing.matchers import after
from sparkonce.testing.systems.base import Witness

if TYPE_CHECKING:
    from sparkonce.rig.proxy import Request

CONNECTS_WITHIN_S = 3
ANSWERS_WITHIN_S = 5
_DRIVER = b"sparkonce driver"
_RECOVER = "XA RECOVER"
_STAGES = "SHOW TABLES FROM {} LIKE 'sparkonce\\_stage\\_%'"
_OPEN = "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID()"
_OPEN_IN = """
SELECT t.trx_mysql_thread_id FROM information_schema.innodb_trx t
JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = %s AND p.id <> CONNECTION_ID()
"""


class PreparedBranch(NamedTuple):
    """A prepared XA transaction. ``data`` is its id: the first ``gtrid`` bytes, and the branch."""

    format_id: int
    gtrid: int
    bqual: int
    data: bytes

    @property
    def literal(self) -> str:
        """The transaction's id in a statement."""
        return f"X'{self.data[: self.gtrid].hex()}',X'{self.data[self.gtrid :].hex()}',{self.format_id}"


class MariaDBWitness(Witness):
    """A server, and a database in it.

    Args:
        settings: PyMySQL's, of a user that sees everything in the database.
        database: Its name. `make_place` makes it.
        prefix: Only prepared transactions with this prefix, and sessions in this database, are looked at; empty for
            all of the server's.
        answers_within_s: The longest wait for an answer, in seconds.

    Attributes:
        made: Whether there is a place, made by `make_place`.
    """

    requests: ClassVar[Mapping[str, Mapping[str, Request]]] = {
        "two_phase": {"prepare": b"XA PREPARE", "commit": b"XA COMMIT", "abort": b"XA ROLLBACK"},
        "staged": {
            "prepare": after(b"CREATE TABLE `sparkonce_stage_", b"\x03COMMIT", always=True),
            "commit": after(_DRIVER, b"\x03COMMIT", always=True),
            "abort": after(_DRIVER, b"DROP TABLE", always=True),
        },
    }

    def __init__(
        self,
        settings: Mapping[str, Any],
        database: str = "",
        *,
        prefix: str = "",
        answers_within_s: int = ANSWERS_WITHIN_S,
    ) -> None:
        self.settings = {**settings, "connect_timeout": CONNECTS_WITHIN_S, "read_timeout": answers_within_s}
        self.database = database
        self.made = False
        self._prefix = prefix
        self._connection: Any = None
        self._one_asks = threading.Lock()

    def make_place(self, *columns: str, table: str) -> None:
        """Makes the database, and a table in it.

        Args:
            columns: Definitions of columns and keys.
            table: The table's name.
        """
        self.ask(f"CREATE DATABASE {self._quoted} CHARACTER SET utf8mb4")
        self.made = True
        self.ask(f"CREATE TABLE {self._quoted}.{table} ({', '.join(columns)}) ENGINE=InnoDB")

    @property
    def _quoted(self) -> str:
        return "`" + self.database.replace("`", "``") + "`"

    def drop_place(self) -> None:
        """Rolls back what is prepared, and drops the database."""
        self.ask(f"SET lock_wait_timeout = {ANSWERS_WITHIN_S}")
        for found in self.prepared():
            self.ask(f"XA ROLLBACK {found.literal}")
        self.ask(f"DROP DATABASE IF EXISTS {self._quoted}")
        self.made = False

    def prepared(self) -> list[PreparedBranch]:
        """Lists the prepared transactions. The branch of a transaction's id begins with its prefix."""
        rows = [(*numbers, data if isinstance(data, bytes) else data.encode()) for *numbers, data in self.ask(_RECOVER)]
        start = f"{self._prefix}.".encode() if self._prefix else b""
        return [found for row in rows if (found := PreparedBranch(*row)).data[found.gtrid :].startswith(start)]

    def stages(self) -> list[str]:
        """Lists the sink's staging tables."""
        return [str(table) for (table,) in self.ask(_STAGES.format(self._quoted))]

    def sessions(self) -> list[int]:
        """Lists the sessions that are in a transaction, by number."""
        found = self.ask(_OPEN_IN, self.database) if self._prefix else self.ask(_OPEN)
        return [int(number) for (number,) in found]

    def kept(self) -> list[str]:
        """Names what is open and outlives its session: prepared transactions and staging tables."""
        return [*(f"prepared {found.data!r}" for found in self.prepared()), *(f"table {one}" for one in self.stages())]

    def left_open(self) -> Sequence[str]:
        """See `Witness.left_open`."""
        return [*self.kept(), *(f"session {number}" for number in self.sessions())]

    def ask(self, statement: str, *values: Any) -> list[Any]:
        """Runs a statement, on a connection that is kept while it works."""
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

    def connect(self, **more: Any) -> Any:
        """Opens another connection, with more settings."""
        import pymysql

        return pymysql.connect(**{**self.settings, **more}, autocommit=True)

    @contextmanager
    def connected(self, **more: Any) -> Iterator[Any]:
        """Opens another connection and closes it in the end, whatever its state."""
        connection = self.connect(**more)
        try:
            yield connection
        finally:
            _close(connection)

    def close(self) -> None:
        """See `Witness.close`."""
        connection, self._connection = self._connection, None
        _close(connection)


def _close(connection: Any) -> None:
    if connection is not None:
        with suppress(Exception):  # it is given up, whatever state it is in
            connection.close()
