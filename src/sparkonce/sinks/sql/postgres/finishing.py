"""Finishes prepared or staged transactions in PostgreSQL, based on the table of markers.

A prepared transaction includes its own marker, which becomes visible with its rows. The marker of staged rows exists as
soon as they are prepared, and names their target. Whoever finishes the rows locks the marker. Merging the rows,
updating the marker and dropping the staging table happen in one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from sparkonce.errors import PrepareError
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks._shared.committing import Claims
from sparkonce.sinks.sql.committer import NOT_HERE
from sparkonce.sinks.sql.dialect import (
    GONE,
    KEPT_BATCHES,
    MARKED,
    OPEN,
    Location,
    Names,
    SqlTransaction,
    StagedCopy,
    StagedTables,
    StagesFound,
    absent_verdict,
    previous_id,
)
from sparkonce.sinks.sql.postgres.catalog import list_changes, read_table, unique_keys
from sparkonce.sinks.sql.postgres.connection import Connection, begin
from sparkonce.sinks.sql.postgres.outcomes import NOT_FOUND
from sparkonce.sinks.sql.postgres.settings import COMMITS_TABLE, BackendName, staging_table
from sparkonce.sinks.sql.postgres.statements import COMMITTED_STATE, STAGED_STATE, commits, merge_steps
from sparkonce.sinks.sql.settings import STAGED, TWO_PHASE, UPSERT, Limits, Target, quoted

_SOON_S = 0.01
_TERMINATE = """
SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
WHERE application_name = ANY (%s) AND datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()
"""
_SESSIONS = "SELECT application_name FROM pg_catalog.pg_stat_activity WHERE datname = pg_catalog.current_database()"
_PREPARED = "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database()"
_SYSTEM = """
SELECT system_identifier::text, (
    SELECT pg_catalog.obj_description(c.oid, 'pg_class')
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s)
FROM pg_catalog.pg_control_system()
"""


# --- markers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerState:
    """The server's answer about one transaction.

    Attributes:
        state: Its marker's state; None if there is no marker.
        newest: The latest batch of its query and prefix that has a marker.
        row_security: True if row-level security may hide markers from this role.
    """

    state: str | None
    is_prepared: bool
    location: Location
    newest: int | None
    row_security: bool


def read_marker(connection: Connection, name: TransactionName, location: Location) -> MarkerState:
    """Reads what the server knows about one transaction. Raises `psycopg.Error` if the server does not answer."""
    table = commits(location.schema)
    query = sql.SQL(
        "SELECT (SELECT state FROM {0} WHERE name = {1}), "
        "EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts WHERE gid = {1}), pg_catalog.current_database()::text, "
        "(SELECT max(batch) FROM {0} WHERE query = {2} AND prefix = {3} AND state = {4}), "
        "pg_catalog.row_security_active({5}::text)"
    ).format(table, str(name), name.query, name.prefix, COMMITTED_STATE, table.as_string(connection))
    ((state, is_prepared, database, newest, row_security),) = connection.execute(query).fetchall()
    server = read_system(connection, location.schema) if location.server else ""
    return MarkerState(
        state=state,
        is_prepared=is_prepared,
        location=Location(server=server, database=database, schema=location.schema),
        newest=newest,
        row_security=row_security,
    )


def verdict(found: MarkerState, name: TransactionName, location: Location) -> Finished:
    """Returns the outcome of a transaction that the server did not know when it was to be finished."""
    if found.state is not None:
        return MARKED
    if found.is_prepared:
        return Finished(outcome=Outcome.RETRY, reason="It has been prepared just now.")
    if found.location != location:
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason=f"This is database {found.location.database} of system {found.location.server or '?'}, and the "
            f"transaction was prepared in {location.database} of {location.server or '?'}: connect there.",
        )
    if found.row_security:
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason="Row-level security may hide the marker from this role: DISABLE ROW LEVEL SECURITY on the table "
            f"{COMMITS_TABLE}, and start the query again.",
        )
    return absent_verdict(name, found.newest, "Neither the transaction nor its marker is there.")


def not_committed(connection: Connection, names: Names, location: Location) -> list[TransactionName]:
    """Returns the names that are not committed here. Leaves out those whose markers may have been tidied away."""
    texts = [str(name) for name in names]
    there = {one.name for one in _read(connection, location, COMMITTED_STATE, "name = ANY ({})", texts)}

    def is_gone(name: TransactionName) -> bool:
        found = read_marker(connection, name, location)
        if found.state is not None or found.is_prepared:
            return found.state != COMMITTED_STATE
        return verdict(found, name, location).outcome is Outcome.LOST

    return [name for name in names if name not in there and is_gone(name)]


def committed(connection: Connection, prefix: str, query: str, location: Location) -> Iterator[SqlTransaction]:
    """Yields each transaction that a query has committed and whose marker still exists."""
    found = _read(connection, location, COMMITTED_STATE, "query = {} AND prefix = {}", query, prefix)
    yield from (one for one in found if (one.name.prefix, one.name.query) == (prefix, query))


def list_staged(connection: Connection, location: Location, queries: Sequence[str]) -> list[TransactionName]:
    """Returns the names of these queries' staged rows that are neither committed nor aborted."""
    return [one.name for one in _read(connection, location, STAGED_STATE, "query = ANY ({})", list(queries))]


def _read(
    connection: Connection, location: Location, state: str, where: str, *values: object
) -> Iterator[SqlTransaction]:
    query = sql.SQL(f"SELECT name, target FROM {{}} WHERE state = {{}} AND {where}")
    for text, target in connection.execute(query.format(commits(location.schema), state, *values)).fetchall():
        if (name := TransactionName.parse(text)) is not None:
            # Only staged rows have a description of their target.
            yield SqlTransaction(kind=STAGED if target else TWO_PHASE, name=name, location=location)


def read_system(connection: Connection, schema: str) -> str:
    """Returns the cluster's system identifier, which its copies share; empty if this role may not read it.

    The identifier changes with pg_upgrade, and with a dump and restore. The comment on the table of markers may
    therefore name a cluster's predecessor, see `previous_id`.
    """
    may = "SELECT pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')"
    if connection.execute(may).fetchall() != [(True,)]:
        return ""
    ((system, comment),) = connection.execute(_SYSTEM, (schema, COMMITS_TABLE)).fetchall()
    return previous_id("system", system, comment)


def tidy(connection: Connection, known: Sequence[SqlTransaction], batch: int, _is_due: bool) -> None:
    """Deletes the markers of batches that no log mentions any longer."""
    delete = sql.SQL("DELETE FROM {} WHERE query = {} AND prefix = {} AND state = {} AND batch < {}")
    for schema, prefix, query in {(one.location.schema, one.name.prefix, one.name.query) for one in known}:
        values = (query, prefix, COMMITTED_STATE, batch - KEPT_BATCHES)
        connection.execute(delete.format(commits(schema), *values))


# --- writers, and what they have prepared ----------------------------------------------------------------------------


def list_open(connection: Connection, claims: Claims, location: Location) -> Iterator[SqlTransaction]:
    """Yields writing sessions, prepared transactions and staged rows."""
    # Check the states in the order a transaction passes through them, so that one that moves on meanwhile is seen at
    # least once.
    for kind, names in (
        (OPEN, list_sessions(connection)),
        (TWO_PHASE, list_prepared(connection)),
        (STAGED, list_staged(connection, location, claims.queries)),
    ):
        yield from (SqlTransaction(kind=kind, name=name, location=location) for name in names)


def list_sessions(connection: Connection) -> list[BackendName]:
    """Returns the writing sessions in this database."""
    rows = connection.execute(_SESSIONS).fetchall()
    return [name for (text,) in rows if (name := BackendName.parse(text)) is not None]


def list_prepared(connection: Connection) -> list[TransactionName]:
    """Returns sparkonce's prepared transactions in this database."""
    rows = connection.execute(_PREPARED).fetchall()
    return [name for (gid,) in rows if (name := TransactionName.parse(gid)) is not None]


def transactions_of(connection: Connection, one: SqlTransaction) -> list[SqlTransaction]:
    """Returns the transactions that a session has prepared or staged."""
    prepared, staged = list_prepared(connection), list_staged(connection, one.location, [one.name.query])
    return [
        SqlTransaction(kind=kind, name=name, location=one.location)
        for kind, names in ((TWO_PHASE, prepared), (STAGED, staged))
        for name in names
        if BackendName.of(name) == one.name
    ]


def end_writers(connection: Connection, wanted: Sequence[SqlTransaction], give_up_at: float) -> bool:
    """Ends the sessions that write these transactions. Returns True once the sessions are gone."""
    names = (one.name for one in wanted)
    texts = [str(name if isinstance(name, BackendName) else BackendName.of(name)) for name in names]
    while connection.execute(_TERMINATE, (texts,)).fetchall():
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(_SOON_S)
    return True


def finish_prepared(connection: Connection, one: SqlTransaction, commit: bool, _give_up_at: float) -> Finished:
    """Commits or aborts a prepared transaction."""
    statement = sql.SQL("COMMIT PREPARED {}" if commit else "ROLLBACK PREPARED {}")
    try:
        connection.execute(statement.format(str(one.name)))
    except psycopg.errors.UndefinedObject as error:
        if error.sqlstate != NOT_FOUND:
            raise
        # Read the marker after the server's error: a commit makes its marker visible before it removes the name.
        found = verdict(read_marker(connection, one.name, one.location), one.name, one.location)
        return GONE if found.outcome is Outcome.LOST and not commit else found
    return Finished(outcome=Outcome.COMMITTED if commit else Outcome.ABORTED)


# --- staged copies ---------------------------------------------------------------------------------------------------


def begin_merge(connection: Connection, location: Location, names: Names, limits: Limits, _is_trial: bool) -> bool:
    """Begins the transaction, and locks the existing markers. Other sessions wait for these locks.

    All drivers lock in the same order, so that they cannot deadlock.
    """
    lock = sql.SQL("SELECT FROM {} WHERE name = ANY ({}) ORDER BY name FOR UPDATE").format(
        commits(location.schema), [str(name) for name in names]
    )
    # Other drivers wait for these locks for lock_s and then retry, so a disconnected driver must not hold them any
    # longer.
    connection.execute(begin(limits, limits.commit_s, "sparkonce finishing", idle_s=limits.lock_s) + lock)
    return True


def stages(connection: Connection, location: Location, names: Names, commit: bool) -> StagesFound:
    """Returns the staged rows of transactions that are not committed, and the answers for all others."""
    found = _markers(connection, location, names)
    waiting: dict[TransactionName, StagedCopy | None] = {}
    answers: dict[TransactionName, Finished] = {}
    for name in names:
        state, text = found.get(str(name), ("", ""))
        if not state:
            answers[name] = verdict(read_marker(connection, name, location), name, location)
        elif state == COMMITTED_STATE:
            answers[name] = MARKED
        elif commit:
            target, columns = _target_of(location, str(name), text)
            waiting[name] = StagedCopy(table=staging_table(name), target=target, columns=columns)
        else:
            waiting[name] = None
    return waiting, answers


def _markers(connection: Connection, location: Location, names: Names) -> dict[str, tuple[str, str]]:
    """Returns the state and the target of each existing marker, by its name."""
    query = sql.SQL("SELECT name, state, target FROM {} WHERE name = ANY ({})").format(
        commits(location.schema), [str(name) for name in names]
    )
    return {name: (state, target) for name, state, target in connection.execute(query).fetchall()}


def _target_of(location: Location, name: str, text: str) -> tuple[Target, tuple[str, ...]]:
    """Returns the target and the columns of staged rows, as their marker describes them."""
    try:
        return Target.from_text(text)
    except ValueError as error:
        raise PrepareError(
            f"Row {name!r} of table {quoted(location.schema)}.{COMMITS_TABLE} is damaged: target={text!r} is "
            f"{error}. {NOT_HERE}",
            next_step="UPDATE its target to that of another row of the same sink and batch.",
        ) from error


def move(connection: Connection, location: Location, stage: StagedCopy, tables: StagedTables, is_trial: bool) -> str:
    """Locks staging tables, checks that each holds as many rows as were prepared, and moves them to the target.

    Never returns LOST, because the rows may still be restored, and the decision also covers other slots' rows.
    """
    staged = [table for table, _ in tables.values()]
    tabled = [quoted(location.schema, table) for table in staged]
    # Send one message. If the counts are wrong or the table has changed, everything is rolled back, including the
    # merge.
    steps = [
        f"LOCK TABLE {', '.join(tabled)} IN ACCESS EXCLUSIVE MODE",
        " UNION ALL ".join(f"SELECT {number}, count(*) FROM {table}" for number, table in enumerate(tabled)),
        *merge_steps(stage.target, stage.columns, tabled),
        *(["SET CONSTRAINTS ALL IMMEDIATE"] if is_trial else []),
    ]
    changes = list_changes(stage.target, location.schema, staged)
    cursor = connection.execute(sql.SQL("; ").join([*map(sql.SQL, steps), changes]))
    cursor.nextset()
    counted: dict[int, int] = dict(cursor.fetchall())
    for number, (name, (_, rows)) in enumerate(tables.items()):
        if counted[number] != rows:
            return (
                f"Staging table {tabled[number]} holds {counted[number]} rows, and {rows} were "
                f"prepared. {NOT_HERE} Restore the rows; or, if they are permanently gone, drop the table, and in the "
                f"same transaction the row {str(name)!r} of {COMMITS_TABLE}: then they count as lost, and are written "
                "again."
            )
    while cursor.nextset():
        pass
    if found := [text for (text,) in cursor.fetchall()]:
        return (
            f"Table {stage.target} has changed since the rows were prepared: {'; '.join(found)}. {NOT_HERE} Restore "
            "it (a column its type, by ALTER TABLE; a partition by DETACH), and start the query again; change it once "
            "the query is stopped and its last batch is committed."
        )
    return ""


def settled(connection: Connection, stage: StagedCopy, on_conflict: str) -> StagedCopy | Finished:
    """Applies an operator's choice for conflicting keys to staged rows that were to be appended.

    To replace rows, one index must decide: the primary key if the rows have all of its columns, otherwise another
    unique index.
    """
    target = stage.target
    if on_conflict == "nothing":
        return replace(stage, target=replace(target, mode=UPSERT, on_conflict="nothing"))
    table = read_table(connection, target)
    known = unique_keys(connection, table.oid) if table is not None else []
    fitting = [keys for keys, not_null, alike in known if not_null and alike and keys <= set(stage.columns)]
    if fitting:
        return replace(stage, target=replace(target, mode=UPSERT, keys=tuple(sorted(fitting[0]))))
    reason = f"Table {target} has no unique index on written NOT NULL columns, by which rows could be replaced."
    return Finished(outcome=Outcome.UNKNOWN, reason=reason, next_step="Run the command with --on-conflict nothing.")


def commit_merge(connection: Connection, location: Location, merged: Sequence[SqlTransaction]) -> None:
    """Updates the markers, drops the staging tables, and commits."""
    _end(connection, location, "UPDATE {} SET state = {} WHERE name = ANY ({})", [one.name for one in merged])


def drop(connection: Connection, location: Location, names: Names, _give_up_at: float) -> None:
    """Drops the staging tables, deletes their markers, and commits."""
    _end(connection, location, "DELETE FROM {0} WHERE name = ANY ({2})", names)


def _end(connection: Connection, location: Location, change: str, names: Names) -> None:
    steps: list[sql.Composable] = []
    if names:
        tables = sql.SQL(", ").join(sql.Identifier(location.schema, staging_table(name)) for name in names)
        steps = [
            sql.SQL(change).format(commits(location.schema), COMMITTED_STATE, [str(name) for name in names]),
            sql.SQL("DROP TABLE IF EXISTS {}").format(tables),
        ]
    # Send one message, so that the server completes it even if this driver dies.
    connection.execute(sql.SQL("; ").join([*steps, sql.SQL("COMMIT")]))


def refers_to_unit(connection: Connection, error: Exception, names: Names, location: Location) -> bool:
    """Returns True if a foreign key refers to rows that another sink of the batch may have."""
    if not isinstance(error, psycopg.errors.ForeignKeyViolation):
        return False
    one = names[0]

    def is_other(name: TransactionName) -> bool:
        return name.prefix != one.prefix and (name.query, name.batch) == (one.query, one.batch)

    if any(map(is_other, list_prepared(connection))):
        return True
    found = connection.execute(
        "SELECT n.nspname::text, r.relname::text FROM pg_catalog.pg_constraint c "
        "JOIN pg_catalog.pg_class r ON r.oid = c.confrelid JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace "
        "WHERE c.conname = %s AND c.contype = 'f'",
        (error.diag.constraint_name,),
    ).fetchall()
    others = [name for name in list_staged(connection, location, [one.query]) if is_other(name)]
    markers = _markers(connection, location, others)
    targets = [_target_of(location, name, text)[0] for name, (_, text) in markers.items()]
    return any((target.schema, target.table) in found for target in targets)
