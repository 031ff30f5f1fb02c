"""The driver side of the sinks for tables: a single write in the driver's session for all rows of a batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import pyarrow.parquet as pq

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner
from sparkonce.sinks.tables.errors import error_message, is_final
from sparkonce.sinks.tables.fitting import in_tables_order, is_nested, refused_insert, with_own_types
from sparkonce.sinks.tables.merging import Merge, repeated
from sparkonce.sinks.tables.table import Label, Table
from sparkonce.sinks.write_ahead.application import Application, Applies, ApplyToken, CallSettings, RefusedError, Unit
from sparkonce.sinks.write_ahead.committer import WriteAheadCommitter
from sparkonce.sinks.write_ahead.folder import RowsState, WriteAheadFolder
from sparkonce.sinks.write_ahead.ledger import Entry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


WAIT_S = 120.0
_UNFINISHED = "unfinished"


def never(*_: object) -> None:
    """Replaces the user's function, because the sinks for tables have none."""
    raise NotImplementedError


class TableApplication(Application):
    """Writes files to a table, and then checks which version contains them."""

    def __init__(
        self, folder: WriteAheadFolder, sink: str, table: Table, identity: str | None, merge: Merge | None
    ) -> None:
        super().__init__(folder, sink, _settings())
        self._table = table
        self._identity = identity
        self._merge = merge

    def noted(self, entries: Sequence[Entry]) -> Finished | None:
        """Trusts the note that rows were applied, unless the table lacks the rows. See `Application.noted`.

        A table lacks them if a power failure has removed its newest version from the disk. Rows that are still waiting
        are then written again; other rows are lost.
        """
        found = super().noted(entries)
        if found is None:
            return None
        try:
            if not self.lacks(entries):
                return found
        except RefusedError as error:
            return Finished(outcome=Outcome.UNKNOWN, reason=str(error))
        except _FailedError as error:
            return Finished(outcome=Outcome.RETRY, reason=f"The table's versions cannot be queried: {error}")
        if all(self._folder.find(entry.name) is RowsState.STARTED for entry in entries):
            return None
        reason = "The rows were written, and the table lost the version that had them."
        return Finished(outcome=Outcome.LOST, reason=reason)

    def lacks(self, entries: Sequence[Entry]) -> bool:
        """Returns True if no version has the rows' label, and the table remembers all since they were started."""
        with _refusals(), _active(self._table.spark):
            self._check_identity(f"whether it has {entries[0].name} cannot be seen")
            if self._table.has(Label.of(entries)):
                return False
            since_ms = self._table.remembers_since_ms(Unit(tuple(entries), repeated=True))
        return since_ms <= min(entry.begun_ms for entry in entries)

    def is_applied(self, unit: Unit, token: ApplyToken) -> bool:
        """Returns True if a version of the table carries the rows' label.

        Raises:
            RefusedError: If the table's memory does not reach back far enough, or if the table is gone.
        """
        with _refusals(), _active(self._table.spark):
            self._check_identity(f"whether {token.id} was written to it cannot be seen")
            if Label.of(unit.entries) in self._table.labels():
                self._table.sync()
                return True
            since_ms = self._table.remembers_since_ms(unit)
        begun_ms = min(entry.begun_ms for entry in unit.entries)
        if since_ms > begun_ms:
            raise RefusedError(
                f"Whether {token.id} was written is no longer known: the table remembers its versions since {since_ms} "
                f"ms, and the rows are from {begun_ms} ms."
            )
        return False

    def deliver(self, unit: Unit, token: ApplyToken, opened: Sequence[BinaryIO]) -> None:
        """Writes the rows once, and checks that a version contains them, since a table may skip a write silently.

        Raises:
            RefusedError: If the table rejects the rows, skips them although it lacks them, or is now a different table.
        """
        label = Label.of(unit.entries)
        urls = [self._folder.url(entry.name) for entry in unit.entries]
        with _refusals(), _active(self._table.spark):
            self._check_identity(f"{token.id} is not written to it")
            rows = _read(self._table, urls, opened[0])
            if self._merge is None or self._merge.takes_all:
                rows = in_tables_order(rows, self._table.schema().fields) if is_nested(rows.schema) else rows
            if self._merge is None:
                self._table.append(rows, unit, label)
            else:
                plan = self._merge.plan(self._table.spark, rows.columns, self._table.schema().fields)
                self._table.merge(self._merge.last(rows), plan, unit, label)
            self._check_identity(f"{token.id} was written to it just when the other one went")
            found = self._table.has(label)
            self._table.sync()
        if not found:
            raise RefusedError(
                f"The table accepted the rows of {token.id} without an error, but no version of it has them: it takes "
                "them for rows that it already has."
            )

    def _check_identity(self, so: str) -> None:
        # Check first: writing to a table that is gone would make Spark recreate the table.
        found = self._table.identity()
        if self._identity not in (None, found):
            raise RefusedError(
                f"The table was deleted or replaced while the query ran: it was {self._identity}, and is {found} now; "
                f"{so}."
            )


def _read(table: Table, urls: Sequence[str], file: BinaryIO) -> DataFrame:
    """Returns the rows in these files. ``file`` is one of them, already open."""
    columns = schema_in(file)
    # Look up the table's schema only if there is a struct, because the lookup takes time. Only structs can contain
    # types that the files do not record.
    columns = with_own_types(columns, table.schema().fields) if is_nested(columns) else columns
    return read_rows(table.spark, urls, columns)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Makes a session this thread's active one. Spark uses its settings to load catalogs such as Iceberg's."""
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


@contextmanager
def _refusals() -> Iterator[None]:
    """Converts errors that a retry cannot fix to refusals. A retry may fix others, such as an unreachable catalog."""
    try:
        yield
    except RefusedError:
        raise
    except Exception as error:  # Spark raises errors of many classes.
        if is_final(error):
            raise RefusedError(error_message(error, lines=3)) from error
        raise _FailedError(error_message(error)) from error


class _FailedError(Exception):
    """A write failed. Contains Java's message without the stack trace."""


class TableCommitter(WriteAheadCommitter):
    """Finishes transactions whose rows go to a table. See `TableApplication` for the arguments."""

    def __init__(
        self,
        folder: WriteAheadFolder,
        sink: str,
        prefix: str,
        table: Table,
        identity: str | None = None,
        merge: Merge | None = None,
    ) -> None:
        self._rows = TableApplication(folder, sink, table, identity, merge)
        super().__init__(folder, sink, prefix, _settings(), self._rows)
        self._table = table
        self._merge = merge

    def check_prepared(self, handles: Sequence[Handle]) -> str:
        """Rejects rows that the table would only reject at the commit. See `SinkCommitter.check_prepared`.

        A table would reject several rows with the same key at the commit, and inserted rows that break one of its
        rules.
        """
        names = [entry.name for handle in handles if (entry := Entry.of_handle(handle)) is not None]
        merge, table = self._merge, self._table
        if merge is None or not names:
            return ""
        try:
            with _active(table.spark), ExitStack() as files:
                opened = [files.enter_context(self._folder.open(name, RowsState.PREPARED)) for name in names]
                urls = [self._folder.url(name, RowsState.PREPARED) for name in names]
                rows = partial(_read, table, urls, opened[0])
                reason = "" if merge.order_by else repeated(merge.on, opened, rows)
                if reason or not isinstance(merge.not_matched, Mapping):
                    return reason
                rules = table.rules({column.lower() for column in merge.not_matched})
                return refused_insert(merge, rows(), table.frame(), table.schema().fields, rules, table.sql_name)
        except OSError as error:
            raise self._unreadable(error) from error
        except Exception as error:  # Spark raises errors of many classes.
            if is_final(error):
                return error_message(error)
            raise self._unreadable_table(error) from error

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """Lists unfinished files, and the remains of write attempts in the table."""
        wanted = {(self._prefix, owner.query, owner.token) for owner in owners}
        try:
            unfinished = self._table.unfinished()
        except Exception as error:  # Spark raises errors of many classes.
            raise self._unreadable_table(error) from error
        return [
            *super().list_lingering(owners),
            *(
                Handle(sink=self._sink, slot=name.slot, transaction=transaction_fields({_UNFINISHED: left}))
                for left, name in unfinished.items()
                if (name.prefix, name.query, name.token) in wanted
            ),
        ]

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """Deletes files, and the remains of write attempts in the table."""
        files = iter(super().abort([handle for handle in handles if _unfinished(handle) is None]))
        left = (_unfinished(handle) for handle in handles)
        return [next(files) if one is None else self._discard(one) for one in left]

    def _discard(self, left: str) -> Finished:
        try:
            self._table.discard(left)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            return Finished(
                outcome=Outcome.RETRY, reason=f"{left} could not be removed from the table: {error_message(error)}"
            )
        return Finished(outcome=Outcome.ABORTED)

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:  # noqa: ARG002 - names say whose they are
        """Reads the traces from the table's versions."""
        return [
            Trace(token=entry.name.token, committed=label.first, batch=entry.name.batch)
            for label, entry in self._entries().items()
            if (entry.name.prefix, entry.name.query) == (self._prefix, query)
        ]

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Searches the table for the label of each call that is recorded as done."""
        found = [(handle, entry.name) for handle in handles if (entry := Entry.of_handle(handle)) is not None]
        try:
            calls = dict.fromkeys(tuple(call) for _, name in found if (call := self._call_with(name)))
            lost = [call for call in calls if self._folder.done(call[0].name) and self._rows.lacks(call)]
        except OSError as error:
            raise self._unreadable(error) from error
        except (RefusedError, _FailedError) as error:
            raise self._unreadable_table(error) from error
        gone = {entry.name for call in lost for entry in call}
        return [handle for handle, name in found if name in gone]

    def _entries(self) -> Mapping[Label, Entry]:
        try:
            labels = self._table.labels()
        except Exception as error:  # Spark raises errors of many classes.
            raise self._unreadable_table(error) from error
        return {one: entry for one in labels if (entry := one.entry) is not None}

    def _unreadable_table(self, error: Exception) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"The versions of the table of sink {self._sink!r} cannot be read: {error_message(error)}",
            next_step="Check that the table can be read, then start the query again.",
        )


def _settings() -> CallSettings:
    """Returns the settings of a single write for all rows of a batch, which `TableApplication` itself carries out."""
    return CallSettings(
        apply=never, is_applied=None, applies=Applies.TRANSACTIONAL, per="batch", parallel=1, wait_s=WAIT_S
    )


def _unfinished(handle: Handle) -> str | None:
    left = dict(handle.transaction).get(_UNFINISHED)
    return None if left is None else str(left)


_OF_PATTERNS, _ESCAPED = r"([\\*?\[\]{}])", r"\\\1"


def schema_in(file: BinaryIO) -> StructType:
    """Returns the columns of a file of rows. Spark would have to run a job to infer them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pq.read_schema(file), prefer_timestamp_ntz=True)


def read_rows(spark: SparkSession, urls: Sequence[str], schema: StructType | str) -> DataFrame:
    """Returns the rows in these files."""
    # Never skip files, regardless of the session's settings for missing or damaged files.
    reader = spark.read.option("ignoreMissingFiles", False).option("ignoreCorruptFiles", False)
    # Never shift dates, regardless of the session's settings for files of Spark 2, because staged rows never use the
    # old calendar.
    reader = reader.option("datetimeRebaseMode", "CORRECTED").option("int96RebaseMode", "CORRECTED")
    # Spark interprets paths as patterns.
    return reader.schema(schema).parquet(*(re.sub(_OF_PATTERNS, _ESCAPED, url) for url in urls))
