"""A PyMySQL connection in strict mode and UTC, with a deadline for each reply, and LOAD DATA from memory.

PyMySQL answers LOAD DATA LOCAL by opening any file that the server names. This connection sends the rows no matter
which file the server names, and treats a request for a file at any other time as an error.

`Flavour` lists the differences between MariaDB and MySQL. MariaDB's side is tested against MariaDB 10.11. MySQL's side
follows its manual (8.0 and 8.4) and is untested.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sparkonce.arguments import missing_package
from sparkonce.errors import one_line
from sparkonce.sinks._shared.settings import see_files
from sparkonce.sinks.sql.mysql.settings import TLS_FILES, connection_settings
from sparkonce.sinks.sql.pool import closed_on_error, has_nothing_to_read

try:
    import pymysql
    import pymysql.connections
    from pymysql.constants import CLIENT, COMMAND
except ImportError as error:
    raise missing_package("MySQLSink", "PyMySQL", "mysql") from error

MySQLError = pymysql.err.MySQLError
SERVER_ERRORS = (MySQLError, OSError)
"""The exceptions that PyMySQL raises if there is no answer, or if the answer is an error."""

SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO,"
    "NO_ENGINE_SUBSTITUTION"
)
_SESSION = (
    f"SET SESSION sql_mode='{SQL_MODE}', time_zone='+00:00', sql_notes=1, max_error_count=64, wait_timeout=28800, "
    "net_read_timeout=600, net_write_timeout=600, innodb_lock_wait_timeout={lock_s}, lock_wait_timeout={lock_s}"
)
_PACKET_BYTES = 256 * 1024
FIRST_WARNINGS = "SHOW WARNINGS LIMIT 3"
_VALUE = re.compile(r"(?:\b(entry|value:?) '(?:.*'(?= for )|.*'$)|(no partition for value) .*)")
"""A row's value in an error or a warning. The name of a key or column follows it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The server's answer to a statement that writes rows."""

    rows: int
    warnings: int


class Connection(pymysql.connections.Connection):  # type: ignore[misc]  # PyMySQL has no types
    """A connection, for one thread at a time.

    `server` is its identity, see `sparkonce.sinks.sql.mysql.finishing.identity`; empty until it has been read.
    """

    flavour: Flavour
    server = ""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Returns the rows of a query. A statement with values must not contain names with a percent sign."""
        with self.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        found = self.rows(statement, values)
        return found[0] if found else ()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Loaded:
        with self.cursor() as cursor:
            affected = cursor.execute(statement, values or None)
            return Loaded(int(affected), int(cursor.warning_count))

    def send(self, statement: bytes) -> Loaded:
        self.query(statement)
        return Loaded(int(self._affected_rows), int(self._result.warning_count))

    def load(self, statement: str, pieces: Iterable[memoryview]) -> Loaded:
        """Runs a LOAD DATA LOCAL statement, and sends it data from memory."""
        self._execute_command(COMMAND.COM_QUERY, statement)
        answer = self._read_packet()
        if not answer.is_load_local_packet():
            raise pymysql.err.InternalError(0, "the server did not ask for the rows of LOAD DATA LOCAL")
        for piece in pieces:
            for start in range(0, len(piece), _PACKET_BYTES):
                self.write_packet(piece[start : start + _PACKET_BYTES])
        self.write_packet(b"")
        answer = self._read_packet()
        if not answer.is_ok_packet():
            raise pymysql.err.InternalError(0, "the server did not end LOAD DATA LOCAL with OK")
        done = pymysql.connections.OKPacketWrapper(answer)
        self.server_status = done.server_status
        return Loaded(int(done.affected_rows), int(done.warning_count))

    def first_warnings(self) -> str:
        return "; ".join(
            f"{level} {number}: {without_values(message)}" for level, number, message in self.rows(FIRST_WARNINGS)
        )

    def close(self) -> None:
        """Closes the connection. Raises no error, even if it is already closed."""
        if self.open:
            super().close()

    def is_idle(self) -> bool:
        return bool(self.open) and has_nothing_to_read(self._sock.fileno())

    @contextmanager
    def within(self, limit_s: float) -> Iterator[None]:
        """Limits the wait for each reply, in seconds, while the context is active."""
        before: tuple[Any, Any] = self._read_timeout, self._write_timeout  # type: ignore[has-type]
        self._read_timeout = self._write_timeout = limit_s
        try:
            yield
        finally:
            self._read_timeout, self._write_timeout = before


def connect(
    settings: Mapping[str, Any], *, program: str, timeout_s: float, lock_wait_s: int, connect_timeout_s: int = 10
) -> Connection:
    """Opens a connection and sets it up. Raises one of `SERVER_ERRORS`."""
    arguments = connection_settings(settings)
    see_files(arguments, TLS_FILES)
    arguments.pop("local_infile", None)
    arguments.setdefault("connect_timeout", connect_timeout_s)
    connection = Connection(
        **arguments,
        charset="utf8mb4",
        autocommit=True,
        read_timeout=timeout_s,
        write_timeout=timeout_s,
        # Declare support for sending files, although PyMySQL itself will never open one.
        client_flag=CLIENT.LOCAL_FILES,
        local_infile=False,
        program_name=program,
        init_command=_SESSION.format(lock_s=lock_wait_s),
    )
    with closed_on_error(connection):
        connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.flavour = flavour_of(str(connection.row("SELECT VERSION()")[0]))
    return connection


def number_of(error: BaseException) -> int | None:
    """Returns the server's or the client's error number; None if there is none."""
    number = error.args[0] if error.args and isinstance(error, MySQLError) else None
    return number if isinstance(number, int) else None


def server_message(error: BaseException) -> str:
    """Returns the server's own message in one line, without the values of rows, which are logged at DEBUG."""
    message = error.args[1] if len(error.args) > 1 else str(error) or type(error).__name__
    return without_values(message).rstrip(".")


def numbered_message(error: BaseException) -> str:
    """Returns the server's own message, preceded by its error number if there is one."""
    number = number_of(error)
    return server_message(error) if number is None else f"error {number}, {server_message(error)}"


def without_values(message: object) -> str:
    """Returns the server's message in one line, with an ellipsis for any value that it repeats."""
    line = one_line(message)
    shown = _VALUE.sub(lambda found: f"{found[1] or found[2]} '…'", line)
    if shown != line:
        log.debug("The server said: %s", line)
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """The statements and limits of one of the servers.

    Attributes:
        oldest: The oldest version that is supported; `why_oldest` says what older ones lack.
        recover: Lists prepared transactions, with ids that do not depend on the character set.
        identity: Reads the server's own id, and the comment of the table of markers; None if the server has no id, see
            `sparkonce.sinks.sql.mysql.finishing`.
        recover_right: The privilege that ``XA RECOVER`` needs.
    """

    name: str
    oldest: tuple[int, ...]
    why_oldest: str
    recover: str
    identity: str | None
    recover_right: str


MARIADB = Flavour(
    name="MariaDB",
    oldest=(10, 5),
    why_oldest="before 10.5 a prepared transaction is rolled back when its connection ends (MDEV-742)",
    recover="XA RECOVER",
    identity=None,
    recover_right="none",
)
MYSQL = Flavour(
    name="MySQL",
    oldest=(8, 0, 19),
    why_oldest="before 5.7.7 a prepared transaction is rolled back when its connection ends, and before 8.0.19 upserts "
    "cannot name the new row",
    recover="XA RECOVER CONVERT XID",
    identity="SELECT @@server_uuid, (SELECT TABLE_COMMENT FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'sparkonce_commits')",
    recover_right="XA_RECOVER_ADMIN",
)

_VERSION = re.compile(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)")


def flavour_of(version: str) -> Flavour:
    """Returns the kind of a server."""
    return MARIADB if "mariadb" in version.lower() else MYSQL


def numbers_of(version: str) -> tuple[int, ...]:
    """Returns the version as numbers; empty if there are none."""
    match = _VERSION.match(version)
    return tuple(int(part) for part in match.groups()) if match else ()
