"""The executor half: writes one copy's rows in an XA branch, to a staging table, or directly to the target."""

from __future__ import annotations

import abc
import contextlib
import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sparkonce.errors import OutageError, PrepareError
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import Refused, SinkWriter, WriterContext
from sparkonce.sinks._shared.arrow import offered
from sparkonce.sinks._shared.settings import NO_RULES, STAGED, TWO_PHASE, UpsertRules
from sparkonce.sinks.mysql import markers
from sparkonce.sinks.mysql.committer import rollback_prepared
from sparkonce.sinks.mysql.connection import (
    MARIADB,
    SERVER_ERRORS,
    Connection,
    Loaded,
    Session,
    connect,
    flavour_of,
    number_of,
    numbered_message,
    server_message,
)
from sparkonce.sinks.mysql.encoding import bulk_rows, column_list, insert_values, load_text, types_of
from sparkonce.sinks.mysql.markers import StagingTable, Xid, lock_name, plain_literal, quote, stage_table
from sparkonce.sinks.mysql.outcomes import ABOUT_ROWS, DUPLICATE_KEY, LOCKED, is_outage
from sparkonce.sinks.mysql.statements import definition, insert_into, load_into, placeholders, upsert_tail
from sparkonce.sinks.mysql.target import MySQLColumn, bind, checks_of, describe, kind_of

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)

REPLY_LIMIT_S = 300.0
"""The time to wait for one reply, for example to 4 MiB of rows."""

FLUSH_BYTES = 4 * 1024 * 1024
"""The size of a LOAD DATA statement, about."""

ABORT_LIMIT_S = 5.0
"""The time that an abort may take, before it is left to the driver."""

_SAVE, _BACK = "SAVEPOINT sparkonce_rows", "ROLLBACK TO SAVEPOINT sparkonce_rows"
"""A savepoint takes the place of an older one of its name."""

_PACKET_SHARE = 0.75
_PACKET_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """The work of a writer.

    Attributes:
        settings: The connection's settings, see `sparkonce.sinks.mysql.settings`.
        table: The target.
        key_columns: The key columns of an upsert; none to append.
        rules: Which row of a key counts.
        prefix: The prefix of the transaction's name.
        server: The identity of the server that preflight saw; empty below EXACTLY_ONCE.
        lock_wait_s: How long to wait for rows that another transaction has locked.
    """

    settings: Mapping[str, Any] = field(repr=False)
    table: str
    key_columns: tuple[str, ...]
    rules: UpsertRules = NO_RULES
    prefix: str
    server: str
    lock_wait_s: int


class MySQLWriter(SinkWriter):
    """The common part of the three ways of writing.

    Args:
        how: The work.
        context: Which copy this is.
    """

    def __init__(self, how: WriterSettings, context: WriterContext) -> None:
        owner = context.owner
        self._how = how
        self._name = TransactionName(
            prefix=how.prefix or "direct",
            query=owner.query,
            token=owner.token,
            batch=context.batch,
            slot=context.slot,
            copy=secrets.token_hex(6),
        )
        self._connection: Connection | None = None
        self._columns: list[MySQLColumn] = []
        self._bound: list[MySQLColumn] = []
        self._schema: pa.Schema | None = None
        self._local_infile = False
        self._packet_bytes = 0
        self._prepared: tuple[int, bytes] | None = None
        self._pieces: list[memoryview] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._begun_ms = 0

    # --- what differs -----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _open(self, connection: Connection) -> None:
        """Opens the transaction."""

    @abc.abstractmethod
    def _finish(self, connection: Connection) -> Mapping[str, str | int]:
        """Makes the rows durable, and returns the handle's fields."""

    def _undo(self, connection: Connection) -> None:
        """Aborts what outlives the connection."""

    def _into(self) -> tuple[str, bool]:
        """Returns the table that rows are written to, and whether they replace rows of the same key there."""
        return self._how.table, bool(self._how.key_columns)

    def _first_rows(self, connection: Connection) -> None:
        """Does what needs the columns, once they are known."""

    # --- SinkWriter -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Connects, learns the table's columns, and opens the transaction.

        Raises:
            PrepareError: if the server refuses or does not answer.
        """
        if self._connection is not None:
            raise PrepareError("A writer can begin one transaction only.")
        try:
            self._connection = connection = self._connect()
            version, packet, infile, self._begun_ms, _ = connection.row(
                "SELECT VERSION(), @@max_allowed_packet, @@local_infile, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS "
                "UNSIGNED), GET_LOCK(%s, 0)",
                (lock_name(self._name.copy),),
            )
            self._flavour = flavour_of(str(version))
            self._packet_bytes = min(int(int(packet) * _PACKET_SHARE), _PACKET_BYTES)
            self._local_infile = bool(infile) and bool(self._how.settings.get("local_infile", True))
            self._check_server(connection)
            self._columns = describe(connection, self._how.table)
            self._open(connection)
        except SERVER_ERRORS as error:
            raise self._refused("could not begin", error) from None

    def write(self, rows: pa.RecordBatch) -> None:
        """Encodes the rows, and sends them: as text once there is enough of it.

        Raises:
            PrepareError: naming the column, or with the server's words.
        """
        connection = self._open_connection()
        try:
            self._take(connection, rows)
            if self._waiting_bytes >= FLUSH_BYTES:
                self._load(connection)
        except SERVER_ERRORS as error:
            raise self._refused("did not take rows", error) from None

    def offer(self, rows: pa.RecordBatch) -> Refused:
        """Writes rows at once, behind a savepoint, and halves of them where the server refuses them.

        See `SinkWriter.offer`.
        """
        try:
            return offered(rows, self._attempt)
        except SERVER_ERRORS as error:
            raise self._refused("did not take rows", error) from None

    def prepare(self) -> Mapping[str, str | int]:
        """Sends the rest, makes it durable and closes the connection, which releases a prepared branch.

        Raises:
            PrepareError: if any row may not have arrived.
        """
        connection = self._open_connection()
        try:
            self._load(connection)
            fields = self._finish(connection)
        except SERVER_ERRORS as error:
            raise self._refused("could not prepare", error) from None
        connection.end()
        return fields

    def abort(self) -> None:
        """Aborts the transaction. What outlives the connection is rolled back here, or left to a sweep."""
        connection, self._connection = self._connection, None
        self._pieces = []
        if connection is None:
            return
        try:
            with (
                contextlib.closing(self._connect())
                if not connection.open
                else contextlib.nullcontext(connection) as usable
            ):
                self._undo(usable)
        except SERVER_ERRORS as error:
            log.warning("%s is left to the driver: %s", self._name, server_message(error))
        finally:
            connection.end()

    def close(self) -> None:
        """Closes the connection; a prepared transaction stays."""
        if self._connection is not None:
            self._connection.end()
            self._connection = None

    # --- rows -------------------------------------------------------------------------------------------------------

    def _learn(self, connection: Connection, rows: pa.RecordBatch) -> None:
        """Learns the columns from the first rows."""
        if self._schema is None:
            self._bound = bind(self._how.table, self._columns, rows.schema)
            self._schema = rows.schema
            self._first_rows(connection)

    def _take(self, connection: Connection, rows: pa.RecordBatch) -> None:
        """Sends rows, or keeps them as text."""
        self._learn(connection, rows)
        _, replace = self._into()
        if connection.takes_bulk:
            self._execute(connection, rows, replace)
        elif replace or not self._local_infile:
            self._insert(connection, rows, replace)
        else:
            for piece in load_text(rows, self._bound):
                self._pieces.append(piece)
                self._waiting_bytes += len(piece)
            self._waiting_rows += rows.num_rows

    def _attempt(self, rows: pa.RecordBatch) -> str:
        """Writes these rows and returns an empty text, or none of them and returns the reason."""
        connection = self._open_connection()
        self._learn(connection, rows)
        connection.run(_SAVE)
        try:
            self._take(connection, rows)
            self._load(connection)
        except OutageError:
            raise
        except PrepareError as error:
            reason = error.message
        except SERVER_ERRORS as error:
            if number_of(error) not in ABOUT_ROWS:
                raise
            reason = numbered_message(error)
        else:
            return ""
        self._pieces, self._waiting_rows, self._waiting_bytes = [], 0, 0
        connection.run(_BACK)
        return reason

    def _load(self, connection: Connection) -> None:
        pieces, self._pieces = self._pieces, []
        rows, self._waiting_rows, self._waiting_bytes = self._waiting_rows, 0, 0
        if not rows or self._schema is None:
            return
        kinds = [kind_of(field.type) for field in self._schema]
        table, _ = self._into()
        quoted = [quote(column.name) for column in self._bound]
        loaded = connection.load(load_into(table, column_list(self._bound, kinds, quoted)), pieces)
        # LOAD DATA LOCAL turns every error into a warning, also a duplicate key, whose row it leaves out.
        if loaded != Loaded(rows, 0):
            raise self._incomplete(connection, loaded, rows)

    def _execute(self, connection: Connection, rows: pa.RecordBatch, replace: bool) -> None:
        if self._prepared is None:
            head, tail = self._around_values(replace)
            number = connection.prepare(f"{head}{placeholders(len(self._bound))}{tail}")
            self._prepared = number, types_of(self._bound, rows.schema)
        number, types = self._prepared
        pieces = bulk_rows(rows, self._bound, self._packet_bytes)
        self._send(
            connection,
            (connection.execute(number, types, piece) for piece in pieces),
            rows.num_rows,
            counted=not replace,
        )

    def _insert(self, connection: Connection, rows: pa.RecordBatch, replace: bool) -> None:
        head, tail = (text.encode() for text in self._around_values(replace))
        pieces = insert_values(rows, self._bound, self._packet_bytes - len(head) - len(tail))
        sent = (connection.send(b"".join((head, piece, tail))) for piece in pieces)
        self._send(connection, sent, rows.num_rows, counted=not replace)

    def _around_values(self, replace: bool) -> tuple[str, str]:
        table, _ = self._into()
        names = [column.name for column in self._bound]
        tail = upsert_tail(self._flavour, names, self._how.key_columns) if replace else ""
        return insert_into(table, names) + " VALUES ", tail

    def _send(self, connection: Connection, answers: Iterator[Loaded], rows: int, *, counted: bool) -> None:
        """Sends statement by statement, and compares the counts of rows: an upsert's count is not that of its rows."""
        arrived = 0
        for answer in answers:
            arrived += answer.rows
            if answer.warnings:
                raise self._incomplete(connection, answer, rows)
        if counted and arrived != rows:
            raise self._incomplete(connection, Loaded(arrived, 0), rows)

    def _incomplete(self, connection: Connection, loaded: Loaded, rows: int) -> PrepareError:
        return PrepareError(
            f"{self._flavour.name} took {loaded.rows} of {rows} rows for table {self._how.table!r} as they are, with "
            f"{loaded.warnings} warnings: {connection.first_warnings()}.",
            next_step="Correct the rows or the table; none of the rows is visible.",
        )

    # --- connection -------------------------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        name = self._name
        return connect(
            self._how.settings,
            program=f"sparkonce {name.query}.{name.token.position}-{name.token.nonce}.{name.batch}.{name.slot}",
            timeout_s=REPLY_LIMIT_S,
            lock_wait_s=self._how.lock_wait_s,
        )

    def _check_server(self, connection: Connection) -> None:
        if not self._how.server:
            return
        found = markers.identity(connection, self._flavour)
        if found != self._how.server:
            raise PrepareError(
                f"The settings lead to the server {found or 'without an id'!r}, and the query was started on "
                f"{self._how.server!r}.",
                next_step="A load balancer or a failover may have moved the workers: let all reach one primary.",
            )

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise PrepareError("The writer has not begun, or is closed.")
        return self._connection

    def _refused(self, what: str, error: BaseException) -> PrepareError:
        number, outage = number_of(error), False
        next_step = "Correct what it names; none of the rows is visible."
        if number == DUPLICATE_KEY:
            next_step = "Remove the duplicates, or use mode='upsert'; none of the rows is visible."
        elif number in LOCKED:
            next_step = (
                "Rows of the same key are locked by another slot, or by an earlier copy of this one that is prepared: "
                "use commit='staged', or partition the rows by key. What is left over is swept when the query starts."
            )
        elif outage := is_outage(error):
            next_step = "See whether the server is up, can be reached and has room; none of the rows is visible."
        message = numbered_message(error).replace(stage_table(self._name.copy), self._how.table)
        kind = OutageError if outage else PrepareError
        return kind(f"Table {self._how.table!r} {what}: {message}.", next_step=next_step)


class TwoPhaseWriter(MySQLWriter):
    """Writes in a branch of XA, together with its marker, and prepares it."""

    def _open(self, connection: Connection) -> None:
        connection.run(f"XA START {self._xid}")
        markers.insert(connection, self._marker)

    def _finish(self, connection: Connection) -> Mapping[str, str | int]:
        connection.run(f"XA END {self._xid}")
        connection.run(f"XA PREPARE {self._xid}")
        return self._marker.fields()

    def _undo(self, connection: Connection) -> None:
        with contextlib.suppress(*SERVER_ERRORS):
            connection.run(f"XA END {self._xid}")
        session = Session(connection=connection, flavour=self._flavour, server=self._how.server)
        done = rollback_prepared(session, self._name, time.monotonic() + ABORT_LIMIT_S)
        if done.outcome is not Outcome.ABORTED:
            log.warning("%s is left to the driver: %s", self._name, done.reason)

    @property
    def _xid(self) -> Xid:
        return Xid.of(self._name)

    @property
    def _marker(self) -> markers.Marker:
        return markers.Marker(name=self._name, kind=TWO_PHASE, server=self._how.server, begun_ms=int(self._begun_ms))


class StagedWriter(MySQLWriter):
    """Writes to its own staging table, and commits that."""

    def _open(self, connection: Connection) -> None:
        """Does nothing: the first rows, which have the columns, make the table."""

    def _first_rows(self, connection: Connection) -> None:
        if self._how.rules.delete_when:  # a row that deletes has a key, and may have nothing else
            keys = {key.lower() for key in self._how.key_columns}
            self._bound = [one if one.name.lower() in keys else replace(one, nullable=True) for one in self._bound]
        parts = [definition(column) for column in self._bound]
        if self._flavour is MARIADB:
            checks = checks_of(connection, self._how.table, [column.name for column in self._bound])
            parts += [f"CONSTRAINT {quote(name)} CHECK ({condition})" for name, condition in checks.items()]
        columns = ", ".join(parts)
        stage = StagingTable(
            name=self._name,
            begun_ms=int(self._begun_ms),
            table=self._how.table,
            keys=self._how.key_columns,
            rules=self._how.rules,
        )
        connection.run(
            f"CREATE TABLE {quote(stage_table(self._name.copy))} "
            f"(sparkonce_row BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, {columns}) "
            f"ENGINE=InnoDB COMMENT={plain_literal(stage.comment())}"
        )
        connection.run("START TRANSACTION")

    def _into(self) -> tuple[str, bool]:
        return stage_table(self._name.copy), False

    def _finish(self, connection: Connection) -> Mapping[str, str | int]:
        connection.run("COMMIT")
        marker = markers.Marker(name=self._name, kind=STAGED, server=self._how.server, begun_ms=int(self._begun_ms))
        return marker.fields()

    def _undo(self, connection: Connection) -> None:
        connection.run("ROLLBACK")
        connection.run(f"DROP TABLE IF EXISTS {quote(stage_table(self._name.copy))}")


class DirectMySQLWriter(MySQLWriter):
    """Writes into the target, and commits at prepare: below EXACTLY_ONCE."""

    def _open(self, connection: Connection) -> None:
        connection.run("START TRANSACTION")

    def _finish(self, connection: Connection) -> Mapping[str, str | int]:
        connection.run("COMMIT")
        return {}
