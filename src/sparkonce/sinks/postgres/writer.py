"""The executor half: writes one copy's rows by COPY, and makes them durable without showing them."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from sparkonce.errors import PrepareError
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import Refused, SinkWriter, WriterContext
from sparkonce.sinks._shared.arrow import offered
from sparkonce.sinks._shared.settings import STAGED, TWO_PHASE, UPSERT
from sparkonce.sinks.postgres import statements
from sparkonce.sinks.postgres.catalog import MEND_PARTITION, CatalogTable, read_signature, read_table
from sparkonce.sinks.postgres.connection import Connection, begin, pool_of_process, within
from sparkonce.sinks.postgres.encoding import HEADER, TRAILER, Encode, encode_rows, read_texts
from sparkonce.sinks.postgres.names import BackendName, Location, PostgresTransaction, staging_table
from sparkonce.sinks.postgres.outcomes import is_about_row, prepare_error, server_message
from sparkonce.sinks.postgres.settings import Conninfo, Limits, Target

if TYPE_CHECKING:
    import pyarrow as pa

DIRECT = "direct"
"""The kind of a transaction that does not outlive the writer: its rows become visible at prepare."""

_DIRECT_STAGING = "sparkonce_rows"

_SAVE = "SAVEPOINT sparkonce_rows"
_BACK = "ROLLBACK TO SAVEPOINT sparkonce_rows"
_GO_ON = "RELEASE SAVEPOINT sparkonce_rows; SAVEPOINT sparkonce_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work of one copy.

    Attributes:
        to: The server's address.
        target: The table and its rules.
        commit: ``staged``, ``two_phase`` or `DIRECT`.
        limits: How long each kind of request may take.
    """

    to: Conninfo
    target: Target
    commit: str
    limits: Limits


class PostgresWriter(SinkWriter):
    """Writes one copy's rows in one transaction.

    Args:
        job: The table, and how to write.
        context: Which copy this is.
    """

    def __init__(self, job: Job, context: WriterContext) -> None:
        self._job = job
        self._facts = context.owner.facts
        self._batch, self._slot = context.batch, context.slot
        self._name = TransactionName(
            prefix=self._facts.get("prefix", "direct"),
            query=context.owner.query,
            token=context.owner.token,
            batch=context.batch,
            slot=context.slot,
            copy=secrets.token_hex(6),
        )
        self._connection: Connection | None = None
        self._copying = ExitStack()
        self._copy: Any = None
        self._cursor: Any = None
        self._columns: tuple[str, ...] = ()
        self._encoders: list[Encode] = []
        self._is_text_read = False
        self._signature = ""
        self._rows = 0
        self._prepared = False

    def begin(self) -> None:
        """Begins the transaction, which the server shows from now on by its application_name."""
        with self._explained():
            self._connection = pool_of_process(self._job.to).take()
            with within(self._connection, self._job.limits.answer_s):
                name = str(BackendName.of(self._name))
                slot_s = self._job.limits.slot_s
                self._connection.execute(begin(self._job.limits, slot_s, name, idle_s=slot_s))

    def write(self, rows: pa.RecordBatch) -> None:
        """Sends rows to the COPY, which the first ones open. See `SinkWriter.write`."""
        with self._explained():
            if not self._encoders:
                self._open_table(rows)
            with within(self._open(), self._job.limits.slot_s):
                if self._is_text_read:  # which a session does not do in the middle of a COPY
                    self._copy_whole(list(encode_rows(rows, self._encoders)), rows.num_rows)
                    return
                if self._copy is None:
                    self._start_copy(freeze=self._job.commit == STAGED)
                for piece in encode_rows(rows, self._encoders):
                    self._copy.write(piece)
        self._rows += rows.num_rows

    def offer(self, rows: pa.RecordBatch) -> Refused:
        """Writes rows in a COPY of their own, behind a savepoint, and halves of them where the server refuses them.

        See `SinkWriter.offer`.
        """
        with self._explained():
            if not self._encoders:
                self._open_table(rows)
                self._open().execute(_SAVE)
            return offered(rows, self._attempt)

    def prepare(self) -> Mapping[str, str | int]:
        """Ends the COPY, and prepares or commits. See `SinkWriter.prepare`."""
        connection, limits = self._open(), self._job.limits
        with self._explained(), within(connection, limits.commit_s + limits.answer_s):
            if self._copy is not None or not self._encoders:
                self._end_copy(self._rows)
            self._check_table(connection)
            connection.execute(sql.SQL("SET LOCAL statement_timeout = {}").format(round(limits.commit_s * 1000)))
            if self._job.commit == TWO_PHASE:
                self._prepared = True
                connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(str(self._name)))
            else:
                if self._job.commit == DIRECT and self._job.target.mode == UPSERT:
                    staged = [sql.Identifier(_DIRECT_STAGING)]
                    connection.execute(statements.merge(self._job.target, self._columns, staged))
                self._prepared = True
                # Answered with a warning and ROLLBACK if the transaction had failed; every failure has raised before.
                done = connection.execute("COMMIT").statusmessage
                if done != "COMMIT":
                    raise PrepareError(f"Slot {self._slot}: the server answered {done} to COMMIT.")
        self._release()
        if self._job.commit == DIRECT:
            return {}
        return self._transaction().fields()

    def abort(self) -> None:
        """Ends the transaction; a sweep finds what cannot be undone now. See `SinkWriter.abort`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # Closed before its COPY, which would else be ended first. The server notices on its own.
            connection.close()
            with suppress(psycopg.Error):
                self._copying.close()
        if self._prepared and self._job.commit != DIRECT:
            self._prepared = False
            self._undo()

    def close(self) -> None:
        """Gives the connection back. See `SinkWriter.close`."""
        self._release()

    def _open_table(self, rows: pa.RecordBatch) -> None:
        connection, job = self._open(), self._job
        with within(connection, job.limits.answer_s + job.limits.lock_s):
            table = _table(connection, job)
            self._columns = tuple(rows.schema.names)
            self._encoders = table.encoders(rows.schema, partial(read_texts, connection))
            self._is_text_read = table.is_text_read(rows.schema)
            self._signature = table.signature
            connection.execute(self._opening(table))

    def _start_copy(self, *, freeze: bool) -> None:
        connection, job = self._open(), self._job
        with within(connection, job.limits.answer_s + job.limits.lock_s):
            self._cursor = connection.cursor()
            schema, name = self._into()
            statement = (
                sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(sql.Identifier(name))
                if not schema
                else statements.copy_into(schema, name, self._columns, freeze=freeze)
            )
            self._copy = self._copying.enter_context(self._cursor.copy(statement))
            self._copy.write(HEADER)

    def _attempt(self, rows: pa.RecordBatch) -> str:
        """Writes these rows and returns an empty text, or none of them and returns the reason."""
        connection = self._open()
        with within(connection, self._job.limits.slot_s):
            try:
                self._copy_whole(list(encode_rows(rows, self._encoders)), rows.num_rows)
                connection.execute(_GO_ON)
            except PrepareError as error:
                reason = error.message
            except psycopg.Error as error:
                if not is_about_row(error):
                    raise
                self._copy = None
                with suppress(psycopg.Error):
                    self._copying.close()
                reason = server_message(error)
            else:
                return ""
            connection.execute(_BACK)
        return reason

    def _copy_whole(self, pieces: Iterable[memoryview], rows: int) -> None:
        """Writes rows in a COPY of their own."""
        self._start_copy(freeze=False)
        for piece in pieces:
            self._copy.write(piece)
        self._end_copy(rows)

    def _opening(self, table: CatalogTable) -> sql.Composed:
        """Returns the statements before the rows, in one round trip."""
        job = self._job
        if job.commit == DIRECT:
            if job.target.mode == "append":
                return sql.Composed([sql.SQL("SELECT 1")])
            return sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                sql.Identifier(_DIRECT_STAGING),
                sql.SQL(", ").join(map(sql.Identifier, self._columns)),
                sql.Identifier(job.target.schema, job.target.table),
            )
        schema = self._facts["commits"]
        state = statements.COMMITTED_STATE if job.commit == TWO_PHASE else statements.STAGED_STATE
        text = "" if job.commit == TWO_PHASE else job.target.to_text(self._columns)
        marker = statements.insert_marker(schema, self._name, state, text)
        if job.commit == TWO_PHASE:
            return marker
        return marker + statements.create_staging(schema, self._name, table, job.target, self._columns)

    def _into(self) -> tuple[str, str]:
        job = self._job
        if job.commit == STAGED:
            return self._facts["commits"], staging_table(self._name)
        if job.commit == DIRECT and job.target.mode == UPSERT:
            return "", _DIRECT_STAGING
        return job.target.schema, job.target.table

    def _end_copy(self, rows: int) -> None:
        if self._copy is None:
            raise PrepareError(f"Slot {self._slot} prepares without rows.")
        self._copy.write(TRAILER)
        try:
            self._copying.close()
        except ValueError as error:
            # psycopg takes one answer. A pooler adds its own to the server's when the session was ended.
            raise PrepareError(
                f"Batch {self._batch}, slot {self._slot}: the server ended the session of the COPY: {error}.",
                next_step="See the server's log; the batch is written again.",
            ) from None
        taken, self._copy = self._cursor.rowcount, None
        # A table may have triggers that leave rows out; a staging table has none.
        if self._job.commit == STAGED and taken != rows:
            raise PrepareError(f"Slot {self._slot}: the server took {taken} of {rows} rows.")

    def _check_table(self, connection: Connection) -> None:
        """Sees that the table is what the rows were encoded for."""
        # COPY holds a lock on the table: as it is now, so it was for all rows. In binary the server silently takes the
        # bytes of a bigint for a double, where a column has changed its type.
        signature, fragile = read_signature(connection, self._job.target)
        if signature != self._signature:
            raise PrepareError(
                f"Table {self._job.target} was changed while the batch was written.",
                next_step="Start the query again if its columns are to change too; the batch is written again.",
            )
        if fragile and self._job.commit != DIRECT:
            raise PrepareError(
                f"Rows of table {self._job.target} may go where they are not safe: {fragile}.", next_step=MEND_PARTITION
            )

    def _undo(self) -> None:
        """Aborts the transaction, which may be prepared: no handle leaves the worker."""
        from sparkonce.sinks.postgres.committer import PostgresCommitter

        committer = PostgresCommitter(self._job.to, "", limits=self._job.limits)
        try:
            committer.abort([self._transaction().handle("")])
        finally:
            committer.close()

    def _transaction(self) -> PostgresTransaction:
        return PostgresTransaction(kind=self._job.commit, name=self._name, location=Location.of(self._facts))

    def _open(self) -> Connection:
        if self._connection is None:
            raise PrepareError(f"Slot {self._slot} has no open transaction.")
        return self._connection

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            pool_of_process(self._job.to).give_back(connection)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            what = f"Batch {self._batch}, slot {self._slot}, table {self._job.target}"
            raise prepare_error(error, what, staging_table(self._name), self._job.target.table) from None


_tables: dict[tuple[Conninfo, Target], CatalogTable] = {}
_tables_lock = threading.Lock()


def _table(connection: Connection, job: Job) -> CatalogTable:
    """Returns the table as the catalog has it, which each process reads once as long as it does not change."""
    key = (job.to, job.target)
    signature, _ = read_signature(connection, job.target)
    with _tables_lock:
        found = _tables.get(key)
    if found is None or found.signature != signature:
        found = read_table(connection, job.target) if signature else None
        if found is None:
            raise PrepareError(f"Table {job.target} is not there any more.", next_step="Put it back.")
        with _tables_lock:
            _tables[key] = found
    return found
