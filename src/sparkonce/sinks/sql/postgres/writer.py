"""Writes the rows of one task attempt to PostgreSQL with COPY."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from sparkonce.errors import PrepareError
from sparkonce.sinks.sql.dialect import DIRECT
from sparkonce.sinks.sql.postgres import statements
from sparkonce.sinks.sql.postgres.catalog import MEND_PARTITION, CatalogTable, read_definition, read_table
from sparkonce.sinks.sql.postgres.connection import Connection, begin, within
from sparkonce.sinks.sql.postgres.encoding import HEADER, TRAILER, encode_rows, is_text_read, read_texts
from sparkonce.sinks.sql.postgres.settings import BackendName, Conninfo, staging_table
from sparkonce.sinks.sql.settings import APPEND, STAGED, TWO_PHASE, UPSERT, Target, quoted

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sinks.sql.writer import Copy

_DIRECT_STAGING = "sparkonce_rows"


def open_copy(connection: Connection, copy: Copy) -> int:
    """Begins the transaction. The server shows it under the session's application_name."""
    name, slot_s = str(BackendName.of(copy.name)), copy.limits.slot_s
    connection.execute(begin(copy.limits, slot_s, name, idle_s=slot_s))
    return 0


class CopyRows:
    """Sends rows to a COPY statement, which starts with the first rows."""

    def __init__(self, connection: Connection, copy: Copy, _begun_ms: int, schema: pa.Schema) -> None:
        self._connection = connection
        self._job = copy
        self._columns = tuple(schema.names)
        self._copying = ExitStack()
        self._copy: Any = None
        self._cursor: Any = None
        self._count = 0
        with within(connection, copy.limits.answer_s + copy.limits.lock_s):
            known = _table(connection, copy)
            table = known.staged(schema, copy.target)
            there = {column.name for column in known.columns}
            self._written = tuple(name for name in schema.names if name in there)
            self._encoders = table.encoders(schema, partial(read_texts, connection))
            types = {column.name: column.type for column in table.columns}
            self._is_text_read = any(is_text_read(field.type, types[field.name]) for field in schema)
            self._definition = table.definition
            connection.execute(self._opening(table))

    def write(self, rows: pa.RecordBatch, *, alone: bool = False) -> None:
        """Sends rows. With `alone`, they get a separate COPY."""
        with within(self._connection, self._job.limits.slot_s):
            if alone or self._is_text_read:
                pieces = list(encode_rows(rows, self._encoders))  # the server cannot parse texts during a COPY
                self._start_copy(freeze=False)
                for piece in pieces:
                    self._copy.write(piece)
                self._end_copy(rows.num_rows)
                return
            if self._copy is None:
                self._start_copy(freeze=self._job.commit == STAGED)
            for piece in encode_rows(rows, self._encoders):
                self._copy.write(piece)
        self._count += rows.num_rows

    def finish(self) -> None:
        """Ends the COPY, and checks that the table is still the one for which the rows were encoded."""
        connection, job = self._connection, self._job
        if self._copy is not None:
            self._end_copy(self._count)
        # COPY holds a lock on the table, so its definition cannot have changed since the first row. If a column's type
        # had changed before that, the server would silently read, for example, the bytes of a bigint as a double.
        definition, fragile = read_definition(connection, job.target)
        if definition != self._definition:
            step = "Start the query again if its columns are to change too; the batch is written again."
            raise PrepareError(f"Table {job.target} was changed while the batch was written.", next_step=step)
        if fragile and job.commit != DIRECT:
            what = f"Rows of table {job.target} may go where they are not safe: {fragile}."
            raise PrepareError(what, next_step=MEND_PARTITION)
        connection.execute(f"SET LOCAL statement_timeout = {round(job.limits.commit_s * 1000)}")
        if job.commit == DIRECT and job.target.mode == UPSERT:
            connection.execute("; ".join(statements.merge_steps(job.target, self._written, [_DIRECT_STAGING])))

    def reset(self) -> None:
        """Abandons the COPY, after an error or once the connection is closed."""
        self._copy = None
        with suppress(psycopg.Error):
            self._copying.close()

    def _start_copy(self, *, freeze: bool) -> None:
        connection, job = self._connection, self._job
        with within(connection, job.limits.answer_s + job.limits.lock_s):
            self._cursor = connection.cursor()
            table = str(job.target)
            if job.commit == STAGED:
                table = quoted(job.facts["commits"], staging_table(job.name))
            elif job.commit == DIRECT and job.target.mode == UPSERT:
                table = f"pg_temp.{_DIRECT_STAGING}"
            statement = f"COPY {table} ({statements.names(self._columns)}) FROM STDIN (FORMAT binary, FREEZE {freeze})"
            self._copy = self._copying.enter_context(self._cursor.copy(statement))
            self._copy.write(HEADER)

    def _opening(self, table: CatalogTable) -> sql.SQL | sql.Composed:
        """Returns the statements that precede the rows, sent in one round trip."""
        job = self._job
        if job.commit == DIRECT:
            if job.target.mode == APPEND:
                return sql.SQL("SELECT 1")
            known = {column.name: column for column in table.columns}
            parts = ", ".join(statements.definition(known[name], may_be_null=True) for name in self._columns)
            return sql.SQL(f"CREATE TEMP TABLE {_DIRECT_STAGING} ({parts}) ON COMMIT DROP")
        schema = job.facts["commits"]
        if job.commit == TWO_PHASE:
            return statements.insert_marker(schema, job.name, statements.COMMITTED_STATE, "")
        text = job.target.to_text(self._written)
        marker = statements.insert_marker(schema, job.name, statements.STAGED_STATE, text)
        return marker + sql.SQL(statements.create_staging(schema, job.name, table, job.target, self._columns))

    def _end_copy(self, rows: int) -> None:
        job = self._job
        self._copy.write(TRAILER)
        try:
            self._copying.close()
        except ValueError as error:
            # psycopg reads only one response. After a terminated session, a pooler sends its own response in addition
            # to the server's.
            what = f"Batch {job.name.batch}, slot {job.name.slot}: the server ended the session of the COPY: {error}."
            raise PrepareError(what, next_step="See the server's log; the batch is written again.") from None
        taken, self._copy = self._cursor.rowcount, None
        # A staging table accepts all rows. The target itself may have triggers that skip rows.
        if job.commit == STAGED and taken != rows:
            raise PrepareError(f"Slot {job.name.slot}: the server accepted {taken} of {rows} rows.")


def prepare(connection: Connection, copy: Copy) -> None:
    """Prepares the transaction, or commits it."""
    if copy.commit == TWO_PHASE:
        connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(str(copy.name)))
        return
    # The server turns the COMMIT of a failed transaction into a ROLLBACK with a warning. This should never happen,
    # because every failure raises an error first.
    done = connection.execute("COMMIT").statusmessage
    if done != "COMMIT":
        raise PrepareError(f"Slot {copy.name.slot}: the server answered {done} to COMMIT.")


_tables: dict[tuple[Conninfo, Target], CatalogTable] = {}
_tables_lock = threading.Lock()


def _table(connection: Connection, copy: Copy) -> CatalogTable:
    """Returns the table from the catalog, which each process reads once, as long as it does not change."""
    key = (copy.conninfo, copy.target)
    definition, _ = read_definition(connection, copy.target)
    with _tables_lock:
        found = _tables.get(key)
    if found is None or found.definition != definition:
        found = read_table(connection, copy.target) if definition else None
        if found is None:
            raise PrepareError(f"Table {copy.target} no longer exists.", next_step="Put it back.")
        with _tables_lock:
            _tables[key] = found
    return found
