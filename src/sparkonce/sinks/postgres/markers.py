"""The marker table: which transactions are committed, and which staged copies exist."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from sparkonce.protocol.handles import Finished, Outcome, transaction_fields
from sparkonce.protocol.horizon import SINKS_KEEP_BATCHES
from sparkonce.protocol.ownership import TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sinks._shared.preflight import check_columns
from sparkonce.sinks._shared.settings import STAGED, TWO_PHASE
from sparkonce.sinks.postgres.connection import Connection
from sparkonce.sinks.postgres.names import Location, PostgresTransaction
from sparkonce.sinks.postgres.settings import COMMITS_TABLE
from sparkonce.sinks.postgres.statements import COMMITS_COLUMNS, COMMITTED_STATE, STAGED_STATE, commits

KEPT_BATCHES = SINKS_KEEP_BATCHES
TIDY_EVERY = 20
"""Batches: tidying costs a round trip."""

_MOVED = re.compile(r"system (?P<new>[0-9]+) was (?P<old>[0-9]+)")
_SYSTEM = """
SELECT system_identifier::text, (
    SELECT pg_catalog.obj_description(c.oid, 'pg_class')
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s)
FROM pg_catalog.pg_control_system()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerState:
    """The server's answer about one transaction.

    Attributes:
        state: Its marker's state; None without a marker.
        is_prepared: True if it is among the prepared transactions.
        system: See `Location`.
        database: See `Location`.
        newest: The newest batch of its query and prefix that has a marker, -1 if none has.
        row_security: True if policies may have hidden markers from this role.
    """

    state: str | None
    is_prepared: bool
    system: str
    database: str
    newest: int
    row_security: bool


def find_commits(connection: Connection, schema: str) -> tuple[int, bool, bool] | None:
    """Returns the table's number, and whether it keeps its rows over a crash and policies may hide some of them."""
    return connection.execute(
        "SELECT c.oid::int8, c.relkind = 'r' AND c.relpersistence = 'p', pg_catalog.row_security_active(c.oid) "
        "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s",
        (schema, COMMITS_TABLE),
    ).fetchone()


def check_markers(connection: Connection, schema: str) -> None:
    """Refuses a table of markers with columns of a newer version. Raises `PreflightError`."""
    found = connection.execute(
        "SELECT a.attname::text FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped",
        (schema, COMMITS_TABLE),
    ).fetchall()
    check_columns("commits_schema", f"{schema}.{COMMITS_TABLE}", (name for (name,) in found), COMMITS_COLUMNS)


def look_for(connection: Connection, name: TransactionName, location: Location) -> MarkerState:
    """Looks for one transaction. Raises `psycopg.Error` if the server does not say."""
    query = sql.SQL(
        "SELECT (SELECT state FROM {table} WHERE name = {name}), "
        "EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts WHERE gid = {name}), pg_catalog.current_database()::text, "
        "(SELECT max(batch) FROM {table} WHERE query = {query} AND prefix = {prefix} AND state = {committed}), "
        "pg_catalog.row_security_active({table_name}::text)"
    ).format(
        table=commits(location.commits),
        table_name=commits(location.commits).as_string(connection),
        name=str(name),
        query=name.query,
        prefix=name.prefix,
        committed=COMMITTED_STATE,
    )
    row = connection.execute(query).fetchone()
    if row is None:
        raise RuntimeError("a SELECT without FROM gives one row")
    state, is_prepared, database, newest, row_security = row
    return MarkerState(
        state=state,
        is_prepared=is_prepared,
        system=read_system(connection, location.commits) if location.system else "",
        database=database,
        newest=-1 if newest is None else newest,
        row_security=row_security,
    )


def not_committed(
    connection: Connection, names: Sequence[TransactionName], location: Location
) -> list[TransactionName]:
    """Returns those of these that are not committed here, and cannot have been tidied away."""
    rows = connection.execute(
        sql.SQL("SELECT name FROM {} WHERE name = ANY ({}) AND state = {}").format(
            commits(location.commits), [str(name) for name in names], COMMITTED_STATE
        )
    ).fetchall()
    there = {text for (text,) in rows}
    return [
        name
        for name in names
        if str(name) not in there and _is_gone(look_for(connection, name, location), name, location)
    ]


def _is_gone(found: MarkerState, name: TransactionName, location: Location) -> bool:
    return found.state != COMMITTED_STATE and (
        found.state is not None or found.is_prepared or absent_verdict(found, name, location).outcome is Outcome.LOST
    )


def read_system(connection: Connection, schema: str) -> str:
    """Returns the cluster's number, which its copies share; empty if this role may not read it.

    pg_upgrade, and a move by dump and restore, give another one. So the comment on the table of markers may say whose
    successor a cluster is: ``system <new> was <old>``. In a copy elsewhere that is void: its number is a third one.

    Args:
        connection: In no failed transaction.
        schema: Where the table of markers is, or will be.
    """
    allowed = connection.execute(
        "SELECT pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')"
    ).fetchone()
    if allowed is None or not allowed[0]:
        return ""
    row = connection.execute(_SYSTEM, (schema, COMMITS_TABLE)).fetchone()
    if row is None:
        return ""
    system, comment = str(row[0]), str(row[1] or "")
    moved = _MOVED.fullmatch(comment.strip())
    return moved["old"] if moved is not None and moved["new"] == system else system


def absent_verdict(found: MarkerState, name: TransactionName, location: Location) -> Finished:
    """Returns the verdict on a transaction that is neither prepared nor staged, and has no marker."""
    if (found.system, found.database) != (location.system, location.database):
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason=f"This is database {found.database} of system {found.system or '?'}, and the transaction was "
            f"prepared in {location.database} of {location.system or '?'}: connect there.",
        )
    if found.row_security:
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason="Row-level security may hide the marker from this role: DISABLE ROW LEVEL SECURITY on the table "
            f"{COMMITS_TABLE}, and start the query again.",
        )
    if found.newest >= name.batch + KEPT_BATCHES:
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason=f"Batch {found.newest} is committed: the marker of batch {name.batch} may have been tidied away.",
        )
    return Finished(outcome=Outcome.LOST, reason="Neither the transaction nor its marker is there.")


def list_staged(connection: Connection, schema: str, queries: Sequence[str]) -> list[TransactionName]:
    """Returns the staged copies of these queries that are neither committed nor aborted."""
    rows = connection.execute(
        sql.SQL("SELECT name FROM {} WHERE query = ANY ({}) AND state = {}").format(
            commits(schema), list(queries), STAGED_STATE
        )
    ).fetchall()
    return [name for (text,) in rows if (name := TransactionName.parse(text)) is not None]


def read_traces(connection: Connection, prefix: str, query: str, location: Location) -> list[Trace]:
    """Returns a trace of each transaction that a query has committed and that has not been tidied away."""
    rows = connection.execute(
        sql.SQL("SELECT name, target FROM {} WHERE query = {} AND prefix = {} AND state = {}").format(
            commits(location.commits), query, prefix, COMMITTED_STATE
        )
    ).fetchall()
    traces = []
    for text, target in rows:
        name = TransactionName.parse(text)
        if name is not None and (name.prefix, name.query) == (prefix, query):
            # Once committed, only a staged copy has a description of its target.
            kind = STAGED if target else TWO_PHASE
            fields = PostgresTransaction(kind=kind, name=name, location=location).fields()
            traces.append(Trace(token=name.token, committed=transaction_fields(fields), batch=name.batch))
    return traces


def tidy(connection: Connection, schema: str, prefix: str, query: str, batch: int) -> None:
    """Deletes the markers of batches that no log names any more."""
    connection.execute(
        sql.SQL("DELETE FROM {} WHERE query = {} AND prefix = {} AND state = {} AND batch < {}").format(
            commits(schema), query, prefix, COMMITTED_STATE, batch - KEPT_BATCHES
        )
    )
