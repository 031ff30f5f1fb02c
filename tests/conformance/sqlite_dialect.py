"""SQLite as a third dialect of the SQL sinks, which shows what a new database requires. The database is a file.

A task attempt writes its marker when it begins and its staging table with its first rows, in separate short
transactions, because SQLite allows only one writer at a time. An abort therefore drops the table of a paused writer,
whose next rows fail. There is no second commit mode, because SQLite has no prepared transactions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa

from sparkonce.errors import OutageError, PrepareError, SchemaError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import Facts
from sparkonce.sinks._shared.committing import Claims
from sparkonce.sinks.sql.dialect import (
    KEPT_BATCHES,
    MARKED,
    Dialect,
    HandleFields,
    Location,
    Names,
    SqlTransaction,
    StagedCopy,
    StagesFound,
    absent_verdict,
)
from sparkonce.sinks.sql.settings import APPEND, STAGED, UPSERT, Limits, Target, quoted
from sparkonce.sinks.sql.sink import SqlSink
from sparkonce.sinks.sql.writer import Copy

MARKERS = (
    "CREATE TABLE IF NOT EXISTS sparkonce_commits (name TEXT PRIMARY KEY, prefix TEXT NOT NULL, query TEXT NOT NULL, "
    "batch INTEGER NOT NULL, state TEXT NOT NULL, target TEXT NOT NULL) STRICT"
)
OPEN, WAITING, DONE = "open", "staged", "committed"

Connection = sqlite3.Connection


def connect(path: str, _program: str, limits: Limits) -> Connection:
    return sqlite3.connect(path, timeout=limits.lock_s, isolation_level=None, check_same_thread=False)


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Runs within the open transaction, or in a separate one."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def staging_table(name: TransactionName) -> str:
    return f"sparkonce_{name.query}_{name.copy}"


def columns_of(connection: Connection, table: str) -> dict[str, str]:
    """The definition of each column of a table, by its name."""
    found = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    return {
        name: f"{quoted(name)} {kind}{' NOT NULL' * (not_null or key > 0)}" for _, name, kind, not_null, _, key in found
    }


# --- errors -----------------------------------------------------------------------------------------------------------


def is_away(error: Exception) -> bool:
    """True if the file is locked or the disk is full."""
    return isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error)


def finished(error: Exception) -> Finished:
    return Finished(outcome=Outcome.RETRY if is_away(error) else Outcome.UNKNOWN, reason=f"{error}.")


def prepare_error(error: Any, what: str, staging: str = "", table: str = "") -> PrepareError:
    kind = OutageError if is_away(error) else PrepareError
    return kind(f"{what}: {str(error).replace(staging or table, table)}.", next_step="Correct the rows, or the table.")


# --- the driver -------------------------------------------------------------------------------------------------------


def found_by(connection: Connection, location: Location, where: str, *values: Any) -> list[tuple[SqlTransaction, str]]:
    rows = connection.execute(f"SELECT name, state FROM sparkonce_commits WHERE {where}", values)  # noqa: S608 - ours
    names = ((TransactionName.parse(text), state) for text, state in rows.fetchall())
    return [(SqlTransaction(kind=STAGED, name=name, location=location), state) for name, state in names if name]


def list_open(connection: Connection, _claims: Claims, location: Location) -> list[SqlTransaction]:
    return [one for one, _ in found_by(connection, location, "state <> ?", DONE)]


def committed(connection: Connection, prefix: str, query: str, location: Location) -> list[SqlTransaction]:
    where = "prefix = ? AND query = ? AND state = ?"
    return [one for one, _ in found_by(connection, location, where, prefix, query, DONE)]


def state_of(connection: Connection, name: TransactionName) -> tuple[str, str]:
    row = connection.execute("SELECT state, target FROM sparkonce_commits WHERE name = ?", (str(name),)).fetchone()
    return row or ("", "")


def verdict(connection: Connection, name: TransactionName) -> Finished:
    (newest,) = connection.execute(
        "SELECT max(batch) FROM sparkonce_commits WHERE prefix = ? AND query = ? AND state = ?",
        (name.prefix, name.query, DONE),
    ).fetchone()
    return absent_verdict(name, newest, "Neither its rows nor its marker are there.")


def not_committed(connection: Connection, names: Names, _location: Location) -> list[TransactionName]:
    def is_gone(name: TransactionName) -> bool:
        state, _ = state_of(connection, name)
        return state != DONE and (bool(state) or verdict(connection, name).outcome is Outcome.LOST)

    return [name for name in names if is_gone(name)]


def begin(connection: Connection, *_: object) -> bool:
    connection.execute("BEGIN IMMEDIATE")
    return True


def stages(connection: Connection, _location: Location, names: Names, commit: bool) -> StagesFound:
    waiting: dict[TransactionName, StagedCopy | None] = {}
    answers: dict[TransactionName, Finished] = {}
    for name in names:
        state, text = state_of(connection, name)
        if state == DONE:
            answers[name] = MARKED
        elif not state:
            answers[name] = verdict(connection, name)
        elif commit:
            target, columns = Target.from_text(text)
            waiting[name] = StagedCopy(table=staging_table(name), target=target, columns=columns)
        else:
            waiting[name] = None
    return waiting, answers


def merge(
    connection: Connection,
    _location: Location,
    stage: StagedCopy,
    tables: Mapping[TransactionName, tuple[str, int]],
    _is_trial: bool,
) -> str:
    target, listed = stage.target, ", ".join(map(quoted, stage.columns))
    for table, rows in tables.values():
        (there,) = connection.execute(f"SELECT count(*) FROM {quoted(table)}").fetchone()  # noqa: S608 - quoted
        if there != rows:
            return f"Staging table {table} holds {there} rows, and {rows} were prepared."
        statement = f"INSERT INTO {quoted(target.table)} ({listed}) SELECT {listed} FROM {quoted(table)} "  # noqa: S608
        if target.mode == UPSERT:
            others = [quoted(column) for column in stage.columns if column not in target.keys]
            sets = ", ".join(f"{one} = excluded.{one}" for one in others)
            does = f"UPDATE SET {sets}" if sets and target.on_conflict == "update" else "NOTHING"
            keys = f"({', '.join(map(quoted, target.keys))})" if target.keys else ""
            statement += f"WHERE true ORDER BY rowid ON CONFLICT {keys} DO {does}"
        connection.execute(statement)
    return ""


def settled(_connection: Connection, stage: StagedCopy, on_conflict: str) -> StagedCopy | Finished:
    if on_conflict == "update":
        return Finished(outcome=Outcome.UNKNOWN, reason="Rows can be left out here, and not replaced.")
    return replace(stage, target=replace(stage.target, mode=UPSERT, on_conflict=on_conflict))


def end(connection: Connection, names: Iterable[TransactionName], statement: str, *values: str) -> None:
    for name in names:
        connection.execute(f"DROP TABLE IF EXISTS {quoted(staging_table(name))}")
        connection.execute(f"{statement} WHERE name = ?", (*values, str(name)))
    connection.execute("COMMIT")


def tidy(connection: Connection, known: Sequence[SqlTransaction], batch: int, _is_due: bool) -> None:
    for prefix, query in {(one.name.prefix, one.name.query) for one in known}:
        connection.execute(
            "DELETE FROM sparkonce_commits WHERE prefix = ? AND query = ? AND state = ? AND batch < ?",
            (prefix, query, DONE, batch - KEPT_BATCHES),
        )


# --- the executors ----------------------------------------------------------------------------------------------------


def open_copy(connection: Connection, copy: Copy) -> int:
    name = copy.name
    if copy.commit == STAGED:
        connection.execute(
            "INSERT INTO sparkonce_commits VALUES (?, ?, ?, ?, ?, '')",
            (str(name), name.prefix, name.query, name.batch, OPEN),
        )
    return 0


class TableRows:
    """Writes rows to the staging table, or to the target itself."""

    def __init__(self, connection: Connection, copy: Copy, _begun_ms: int, schema: pa.Schema) -> None:
        self._connection, self._copy = connection, copy
        known = columns_of(connection, copy.target.table)
        self._table = copy.target.table
        if copy.commit == STAGED:
            self._table = staging_table(copy.name)
            with transaction(connection):
                marked = connection.execute(
                    "UPDATE sparkonce_commits SET state = ?, target = ? WHERE name = ?",
                    (WAITING, copy.target.to_text(tuple(schema.names)), str(copy.name)),
                )
                if marked.rowcount != 1:
                    raise PrepareError("The copy was aborted.")
                parts = ", ".join(known[name] for name in schema.names)
                connection.execute(f"CREATE TABLE {quoted(self._table)} ({parts}) STRICT")

    def write(self, rows: pa.RecordBatch, *, alone: bool = False) -> None:
        listed, places = ", ".join(map(quoted, rows.schema.names)), ", ".join("?" * rows.num_columns)
        into = f"INSERT INTO {quoted(self._table)} ({listed}) VALUES ({places})"  # noqa: S608 - quoted
        with transaction(self._connection):
            values = (column.to_pylist() for column in rows.columns)
            self._connection.executemany(into, zip(*values, strict=True))

    def finish(self) -> None:
        self._connection.execute(f"SELECT 1 FROM {quoted(self._table)} LIMIT 1")  # noqa: S608 - quoted

    def reset(self) -> None:
        """Does nothing: no connection is kept."""


SQLITE_DIALECT = Dialect(
    errors=(sqlite3.Error,),
    fields=HandleFields(names={"kind": "commit", "name": "name", "server": "path"}),
    connect=connect,
    is_idle=lambda connection: not connection.in_transaction,
    within=lambda *_: nullcontext(),
    finished=finished,
    prepare_error=prepare_error,
    list_open=list_open,
    end_writers=lambda *_: True,
    finish_prepared=lambda *_: Finished(outcome=Outcome.UNKNOWN, reason="SQLite prepares no transactions."),
    begin=begin,
    stages=stages,
    merge=merge,
    commit=lambda connection, _, merged: end(
        connection, [one.name for one in merged], "UPDATE sparkonce_commits SET state = ?", DONE
    ),
    drop=lambda connection, _, names, __: end(connection, names, "DELETE FROM sparkonce_commits"),
    refusers=lambda *_: True,
    settled=settled,
    refers_to_unit=lambda *_: False,
    named=lambda *_: "",
    not_committed=not_committed,
    committed=committed,
    tidy=tidy,
    has_transactional_ddl=False,
    take=lambda copy: connect(copy.conninfo, "", copy.limits),
    open=open_copy,
    rows=TableRows,
    prepare=lambda *_: None,  # each write is already on disk
    staging_table=staging_table,
    row_refusal=lambda error: str(error) if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError) else "",
)


class SqliteTable(SqlSink):
    """The sink: a database file, and an existing table."""

    limits = Limits()

    def __init__(
        self,
        path: str,
        table: str,
        *,
        name: str = "sqlite",
        key_columns: tuple[str, ...] = (),
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    ) -> None:
        target = Target(table=table, mode=UPSERT if key_columns else APPEND, keys=key_columns)
        super().__init__(name, guarantee, STAGED, "sparkonce", 100, target)
        self.conninfo = path

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        with closing(connect(self.conninfo, "", Limits())) as connection:
            known = columns_of(connection, self.target.table)
        if missing := sorted(set(schema.names) - known.keys()):
            raise SchemaError(f"Table {self.target} has no columns {missing}.", next_step="Rename or drop them.")
        return list(schema.names)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        with closing(connect(self.conninfo, "", Limits())) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(MARKERS)
        return {"prefix": self.prefix, "path": self.conninfo}

    def dialect(self) -> tuple[Dialect, str]:
        return SQLITE_DIALECT, f"SQLite at {self.conninfo}"
