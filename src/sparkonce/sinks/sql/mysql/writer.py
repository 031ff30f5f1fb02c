"""Writes the rows of one task attempt to MariaDB or MySQL: in an XA branch, a staging table, or the target itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkonce.errors import PrepareError
from sparkonce.sinks.sql.dialect import DIRECT, Location, SqlTransaction
from sparkonce.sinks.sql.mysql.catalog import bind, checks_of, describe, kind_of
from sparkonce.sinks.sql.mysql.connection import FIRST_WARNINGS, MARIADB, Connection, Loaded, MySQLError, connect
from sparkonce.sinks.sql.mysql.encoding import column_list, insert_values, load_text
from sparkonce.sinks.sql.mysql.finishing import identity, insert
from sparkonce.sinks.sql.mysql.outcomes import ABOUT_ROWS
from sparkonce.sinks.sql.mysql.settings import StagingTable, Xid, lock_name, plain_literal, quote, stage_table
from sparkonce.sinks.sql.mysql.statements import insert_into, merge_steps, stage_columns
from sparkonce.sinks.sql.pool import closed_on_error
from sparkonce.sinks.sql.settings import STAGED, TWO_PHASE, UPSERT

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sinks.sql.writer import Copy

FLUSH_BYTES = 4 * 1024 * 1024
"""The approximate size of a LOAD DATA statement."""

_PACKET_SHARE = 0.75
_PACKET_BYTES = 1024 * 1024


def take(copy: Copy) -> Connection:
    """Connects to the server of the query. No connection is reused: its end releases a prepared branch."""
    name = copy.name
    connection = connect(
        copy.conninfo,
        program=f"sparkonce {name.query}.{name.token.position}-{name.token.nonce}.{name.batch}.{name.slot}",
        timeout_s=copy.limits.slot_s,
        lock_wait_s=int(copy.limits.lock_s),
    )
    with closed_on_error(connection):
        wanted = copy.facts.get("server", "")
        if copy.commit != DIRECT and (server := identity(connection)) != wanted:
            shown = server or "without an id"
            what = f"The settings lead to the server {shown!r}, and the query was started on {wanted!r}."
            step = "A load balancer or a failover may have moved the workers: let all reach one primary."
            raise PrepareError(what, next_step=step)
    return connection


def open_copy(connection: Connection, copy: Copy) -> int:
    """Begins the transaction, under a lock that identifies the connection."""
    begun, _ = connection.row(
        "SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED), GET_LOCK(%s, 0)", (lock_name(copy.name.copy),)
    )
    if copy.commit == TWO_PHASE:
        connection.execute(f"XA START {Xid.of(copy.name)}")
        location = Location(server=copy.facts["server"])
        insert(connection, SqlTransaction(kind=TWO_PHASE, name=copy.name, location=location, begun_ms=int(begun)))
    return int(begun)


class TableRows:
    """Sends rows to a table, in the fastest way that the server supports."""

    def __init__(self, connection: Connection, copy: Copy, begun_ms: int, schema: pa.Schema) -> None:
        self._connection, self._flavour = connection, connection.flavour
        self._copy = copy
        self._schema = schema
        self._table = copy.target.table
        self.reset()
        packet, takes_files = connection.row("SELECT @@max_allowed_packet, @@local_infile")
        self._packet_bytes = min(int(int(packet) * _PACKET_SHARE), _PACKET_BYTES)
        self._takes_files = bool(takes_files) and bool(copy.conninfo.get("local_infile", True))
        known = describe(connection, self._table)
        self._bound = bind(copy.target, known, schema)
        names = {column.name for column in known}
        self._merged: list[str] = []
        if copy.commit == DIRECT and copy.target.mode == UPSERT:
            self._merged = [column.name for column in self._bound if column.name in names]
        if copy.commit == STAGED or self._merged:
            self._make_stage(begun_ms, names)
        if copy.commit != TWO_PHASE:
            connection.execute("START TRANSACTION")

    def write(self, rows: pa.RecordBatch, *, alone: bool = False) -> None:
        """Encodes rows, and sends the text once it is long enough."""
        if not self._takes_files:
            self._insert(rows)
        else:
            for piece in load_text(rows, self._bound):
                self._pieces.append(piece)
                self._bytes += len(piece)
            self._rows += rows.num_rows
            if alone or self._bytes >= FLUSH_BYTES:
                self._load()

    def finish(self) -> None:
        self._load()
        for step in merge_steps([self._table], self._copy.target, self._merged) if self._merged else ():
            merged = self._connection.execute(step)
            if merged.warnings:
                raise self._incomplete(merged, merged.rows)

    def _load(self) -> None:
        pieces, rows = self._pieces, self._rows
        self.reset()
        if not rows:
            return
        kinds = [kind_of(field.type) for field in self._schema]
        quoted = [quote(column.name) for column in self._bound]
        statement = (
            f"LOAD DATA LOCAL INFILE 'sparkonce' INTO TABLE {quote(self._table)} CHARACTER SET utf8mb4 "
            "FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' "
        )
        loaded = self._connection.load(statement + column_list(self._bound, kinds, quoted), pieces)
        # LOAD DATA LOCAL turns every error into a warning: for example, it skips a row with a duplicate key.
        if loaded != Loaded(rows, 0):
            raise self._incomplete(loaded, rows)

    def reset(self) -> None:
        self._pieces: list[memoryview] = []
        self._rows = self._bytes = 0

    def _make_stage(self, begun_ms: int, known: set[str]) -> None:
        """Creates the staging table, to which rows are then written. One that this connection merges is temporary.

        The table has those checks of the target that use only written columns.
        """
        target, copy = self._copy.target, self._copy.name
        if target.rules.delete_when:  # a row that deletes has a key, and possibly nothing else
            keys = {key.lower() for key in target.keys}
            self._bound = [one if one.name.lower() in keys else replace(one, nullable=True) for one in self._bound]
        parts = stage_columns(self._bound, known)
        if self._flavour is MARIADB:
            checks = checks_of(self._connection, target.table, [column.name for column in self._bound])
            parts += [f"CONSTRAINT {quote(name)} CHECK ({condition})" for name, condition in checks.items()]
        stage = StagingTable(name=copy, begun_ms=begun_ms, target=target)
        self._table = stage_table(copy.copy)
        self._connection.execute(
            f"CREATE {'TEMPORARY ' if self._merged else ''}TABLE {quote(self._table)} ({', '.join(parts)}) "
            f"ENGINE=InnoDB COMMENT={plain_literal(stage.comment())}"
        )

    def _insert(self, rows: pa.RecordBatch) -> None:
        """Sends one statement at a time, and compares row counts."""
        names = [column.name for column in self._bound]
        head = (insert_into(self._table, names) + " VALUES ").encode()
        arrived = 0
        for piece in insert_values(rows, self._bound, self._packet_bytes - len(head)):
            answer = self._connection.send(b"".join((head, piece)))
            arrived += answer.rows
            if answer.warnings:
                raise self._incomplete(answer, rows.num_rows)
        if arrived != rows.num_rows:
            raise self._incomplete(Loaded(arrived, 0), rows.num_rows)

    def _incomplete(self, loaded: Loaded, rows: int) -> Exception:
        """Returns the error that the server would have raised; another one if there was no warning about a row."""
        for _, number, message in self._connection.rows(FIRST_WARNINGS):
            if number in ABOUT_ROWS:
                refused: Exception = MySQLError(number, message)
                return refused
        return PrepareError(
            f"{self._flavour.name} took {loaded.rows} of {rows} rows for table {self._copy.target} unchanged, with "
            f"{loaded.warnings} warnings: {self._connection.first_warnings()}.",
            next_step="Correct the rows or the table; none of the rows is visible.",
        )


def prepare(connection: Connection, copy: Copy) -> None:
    """Prepares the branch, or commits the transaction."""
    if copy.commit == TWO_PHASE:
        connection.execute(f"XA END {Xid.of(copy.name)}")
        connection.execute(f"XA PREPARE {Xid.of(copy.name)}")
    else:
        connection.execute("COMMIT")
