"""Checks a server and a table before anything is claimed or written."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from sparkonce.errors import ANEW, PreflightError
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import Facts
from sparkonce.sinks._shared.preflight import Attempts, check_columns, check_same, refusal
from sparkonce.sinks.sql.dialect import DIRECT
from sparkonce.sinks.sql.postgres import catalog
from sparkonce.sinks.sql.postgres.catalog import CatalogTable
from sparkonce.sinks.sql.postgres.connection import Connection, connect, warn_of_wire, within
from sparkonce.sinks.sql.postgres.finishing import read_system
from sparkonce.sinks.sql.postgres.outcomes import POOL_TRANSACTIONS, STATEMENT_POOLING, server_message
from sparkonce.sinks.sql.postgres.settings import COMMITS_TABLE, Conninfo
from sparkonce.sinks.sql.postgres.statements import COMMITS_COLUMNS, create_commits, merge_steps
from sparkonce.sinks.sql.settings import APPEND, TWO_PHASE, UPSERT, quoted, read_by

if TYPE_CHECKING:
    from sparkonce.sinks.sql.postgres.sink import PostgresSink

log = logging.getLogger(__name__)

TIMEOUT_S = 15.0
"""The longest wait for a server that is starting, and for all queries once it answers, in seconds."""

OLDEST = 120_000
_PAUSE_S = 0.25
_STARTING = ("57P03", "starting up", "not yet accepting")
_MADE_BY_ANOTHER = ("23505", "42P07", "42710")
_TABLES = {"r": "table", "p": "partitioned table"}
_KINDS = {"v": "view", "m": "materialized view", "f": "foreign table", "S": "sequence", "i": "index"}
_WRONG_SQL = ("42", "22", "0A")
"""The SQLSTATE classes of statements that no server of this version supports."""
_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")

# The table's oid, whether its rows survive a crash, whether row-level security may hide some, and its columns.
_COMMITS = """
SELECT c.oid::int8, c.relkind = 'r' AND c.relpersistence = 'p', pg_catalog.row_security_active(c.oid),
       ARRAY(SELECT attname::text FROM pg_catalog.pg_attribute
             WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""


def preflight(sink: PostgresSink, query: str, recorded: Facts | None) -> tuple[Facts, CatalogTable]:
    """Checks server, table, limits and permissions, and creates the table of markers if it does not exist."""
    recorded = recorded or {}
    if sink.kind != DIRECT:
        why = "this query has its markers and staging tables in schema {before}"
        step = f"Set commits_schema={{before}}, whatever the schema of the table is, or {ANEW}."
        check_same("commits_schema", sink.commits_schema, recorded, "commits", why, step)
    with _connected(sink) as connection:
        warn_of_wire(connection)
        facts = _check_server(connection, sink, recorded)
        table = _check_table(connection, sink)
        if sink.kind == DIRECT:
            return facts, table
        _check_durable(connection, sink, table)
        _warn_of_changes(connection, sink, table)
        if sink.commit == TWO_PHASE:
            _check_two_phase(connection, sink, query, table)
        else:
            _check_staged(connection, sink)
        _check_commits(connection, sink, is_new="commits" not in recorded)
        target = {"schema": sink.target.schema, "table": sink.target.table}
        return {**facts, "commits": sink.commits_schema, "prefix": sink.prefix, **target}, table


def read_target(sink: PostgresSink) -> CatalogTable:
    """Reads only the table, for callers that need its columns before the preflight."""
    with _connected(sink) as connection:
        return _check_table(connection, sink)


@contextmanager
def _connected(sink: PostgresSink) -> Iterator[Connection]:
    what = f"Checking PostgreSQL at {sink.conninfo}"
    with (
        closing(_connect(sink.conninfo)) as connection,
        Attempts((psycopg.Error,), server_message).of(what, "See the server's message and its log."),
        within(connection, TIMEOUT_S),
    ):
        yield connection


def _connect(conninfo: Conninfo) -> Connection:
    give_up_at = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return connect(conninfo)
        except psycopg.Error as error:
            why = server_message(error)
        # Do not retry other errors: some servers lock out users after repeated wrong passwords.
        if not any(one in why for one in _STARTING) or time.monotonic() >= give_up_at:
            what = f"PostgreSQL at {conninfo} cannot be reached: {why}."
            step = "Check the address, that the server runs, the credentials and pg_hba.conf."
            raise PreflightError(what, next_step=step, setting="conninfo")
        time.sleep(_PAUSE_S)


def _check_server(connection: Connection, sink: PostgresSink, recorded: Facts) -> Facts:
    version, standby, database, pid = _row(
        connection,
        "SELECT pg_catalog.current_setting('server_version_num')::int, pg_catalog.pg_is_in_recovery(), "
        "pg_catalog.current_database()::text, pg_catalog.pg_backend_pid()",
    )
    if version < OLDEST:
        why = f"PostgreSQL {OLDEST // 10_000} is the oldest that is supported"
        raise refusal("server_version_num", version, why, "Update the server.")
    if standby:
        what = f"The server at {sink.conninfo} is a standby (pg_is_in_recovery), which takes no rows."
        step = "Connect to the primary: name all hosts and set target_session_attrs=read-write."
        raise PreflightError(what, next_step=step, setting="conninfo")
    if pid != connection.info.backend_pid:
        log.info(
            "There is a connection pooler in front of PostgreSQL at %s. Sessions and transactions may be pooled, but "
            "not statements: everything is set within transactions.",
            sink.conninfo,
        )
    _check_transactions(connection, sink)
    facts = {"system": read_system(connection, sink.commits_schema), "database": database}
    before = {name: recorded.get(name, facts[name]) for name in facts}
    if not before["system"]:
        # Handles also contain the system id. If the privilege is granted later, the id must not appear to have changed.
        facts["system"] = ""
    if before != facts:
        then, now = before["system"], facts["system"]
        step = f"Connect to the previous database, or {ANEW}."
        if not now:
            step = "GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO the role of the query, as before."
        elif then != now:
            step += (
                " If this is the same server after pg_upgrade, or that whole database was moved here: COMMENT ON TABLE "
                f"{quoted(sink.commits_schema)}.{COMMITS_TABLE} IS 'system {now} was {then}'."
            )
        problem = (
            f"conninfo leads to database {database!r} of system {now or '?'}, and this query has written "
            f"to {before['database']!r} of system {then}: its open transactions are there."
        )
        raise PreflightError(problem, next_step=step, setting="conninfo")
    return facts


def _check_transactions(connection: Connection, sink: PostgresSink) -> None:
    """Begins a transaction of several statements, as each batch does."""
    try:
        for statement in ("BEGIN", "SELECT 1", "ROLLBACK"):
            connection.execute(statement)
    except psycopg.errors.ProtocolViolation as error:
        if STATEMENT_POOLING not in str(error):
            raise
        what = f"The server at {sink.conninfo} takes no transactions: {server_message(error)}."
        raise PreflightError(what, next_step=POOL_TRANSACTIONS, setting="conninfo") from None


def _check_table(connection: Connection, sink: PostgresSink) -> CatalogTable:
    target = sink.target
    table = catalog.read_table(connection, target)
    if table is None:
        schema, dot, name = target.table.partition(".")
        raise PreflightError(
            f"There is no table {target} that this role can see.",
            next_step=f"Give schema={schema!r} and table={name!r} separately."
            if dot and name
            else "Create it, or correct schema and table: each exactly as the catalog has it.",
            setting="table",
        )
    if table.kind not in _TABLES:
        what = f"{target} is a {_KINDS.get(table.kind, table.kind)}, and rows go into tables."
        raise PreflightError(what, next_step="Name the table itself.", setting="table")
    rights = ["INSERT"] if target.mode == APPEND else ["INSERT", "SELECT", "UPDATE"]
    missing = _missing(connection, "has_any_column_privilege", table.oid, rights)
    missing += _missing(connection, "has_table_privilege", table.oid, ["DELETE"] * bool(target.rules.delete_when))
    _check_usage(connection, target.schema, "schema")
    if missing:
        what = f"No permission on table {target}: {', '.join(missing)} missing."
        step = f"GRANT {', '.join(missing)} ON {target} TO the role of the query."
        raise PreflightError(what, next_step=step, setting="table")
    if target.mode == UPSERT:
        catalog.check_keys(connection, target, table)
        _check_conditions(connection, sink, table)
    return table


def _check_conditions(connection: Connection, sink: PostgresSink, table: CatalogTable) -> None:
    """Lets the server plan the merge of a batch, to see whether it accepts the conditions."""
    target, schema = sink.target, sink.schema
    if not target.rules.conditions:
        return
    staged, known = str(target), {column.name for column in table.columns}
    if schema is None and target.rules.staged_only(read_by(target.rules.delete_when), known):
        return  # nothing can be planned without the types of columns that only the rows have
    more = [one for one in table.staged(schema, target).columns if one.name not in known] if schema is not None else []
    if more:
        nulls = ", ".join(f"NULL::{one.declared} AS {quoted(one.name)}" for one in more)
        staged = f"(SELECT *, ctid, {nulls} FROM {staged}) AS t"
    columns = [column.name for column in table.columns if not column.computed]
    try:
        for step in merge_steps(target, columns, [staged]):
            connection.execute(f"EXPLAIN {step}")
    except psycopg.Error as error:
        if (error.sqlstate or "")[:2] not in _WRONG_SQL:
            raise
        shown = " and ".join(f"{setting}={condition!r}" for setting, condition in target.rules.conditions.items())
        what = f"PostgreSQL refuses {shown} for table {target}: {server_message(error)}."
        advice = "Write it in PostgreSQL's SQL, over source.… (the batch's row) and target.… (the table's row)."
        raise PreflightError(what, next_step=advice, setting=next(iter(target.rules.conditions))) from None


def _warn_of_changes(connection: Connection, sink: PostgresSink, table: CatalogTable) -> None:
    if "3" in table.rules:
        log.warning(
            "Table %s has rules ON INSERT. They apply with commit='staged', which inserts, and may silently leave rows "
            "out or send them elsewhere; with commit='two_phase', which copies, they do not.",
            sink.target,
        )
    if count := catalog.row_triggers(connection, table.oid):
        log.warning(
            "Table %s has %d trigger(s) BEFORE INSERT FOR EACH ROW. They may silently change rows, or leave them out: "
            "progress counts the rows that were sent to the table.",
            *(sink.target, count),
        )


def _check_durable(connection: Connection, sink: PostgresSink, table: CatalogTable) -> None:
    if table.fragile:
        what = f"Rows of table {sink.target} may go where they are not safe: {table.fragile}."
        raise PreflightError(what, next_step=catalog.MEND_PARTITION, setting="table")
    (fsync,) = _row(connection, "SELECT pg_catalog.current_setting('fsync')")
    if fsync != "on":
        why = "the server may lose confirmed commits when its machine crashes"
        raise refusal("fsync", fsync, why, "Set fsync=on, or choose another guarantee.")


def _check_two_phase(connection: Connection, sink: PostgresSink, query: str, table: CatalogTable) -> None:
    (most,) = _row(connection, "SELECT pg_catalog.current_setting('max_prepared_transactions')::int")
    if most == 0:
        step = (
            "Set max_prepared_transactions above the slots of all queries together and restart the server, or use "
            "commit='staged', which needs none."
        )
        raise refusal("max_prepared_transactions", most, "the server takes no prepared transactions", step)
    rows = connection.execute("SELECT gid FROM pg_catalog.pg_prepared_xacts").fetchall()
    names = [TransactionName.parse(gid) for (gid,) in rows]
    # Do not count this query's own transactions: they are finished or swept before it writes.
    others = sum(name is None or (name.prefix, name.query) != (sink.prefix, query) for name in names)
    if others >= most:
        raise PreflightError(
            f"max_prepared_transactions={most}, and {others} are in use by others.",
            next_step="Raise it and restart the server, or finish abandoned ones (`sparkonce transactions list "
            "--system postgres` lists sparkonce's, pg_prepared_xacts all).",
            setting="max_prepared_transactions",
        )
    free = most - others
    log.info("max_prepared_transactions=%d, of which %d are free; each slot of a batch takes one.", most, free)
    if table.row_security:
        what = f"Row-level security applies to this role on table {sink.target}, and COPY does not work then."
        raise PreflightError(what, next_step="Use commit='staged', or a role with BYPASSRLS.", setting="commit")
    if keys := catalog.unique_keys(connection, table.oid):
        log.warning(
            "Table %s has %d unique index(es). With commit='two_phase' a retried slot waits for its first attempt, if "
            "that was prepared and its worker lost, until lock_timeout_s ends the batch; commit='staged' does not.",
            *(sink.target, len(keys)),
        )


def _check_staged(connection: Connection, sink: PostgresSink) -> None:
    found = catalog.may_on_schema(connection, sink.commits_schema, "CREATE")
    if not found:
        why = "there is no such schema" if found is None else "no permission to make staging tables in it"
        step = f"CREATE SCHEMA {quoted(sink.commits_schema)}, or GRANT CREATE, USAGE on it TO the query's role."
        raise refusal("commits_schema", repr(sink.commits_schema), why, step)
    if refusers := catalog.list_refusers(connection, sink.target):
        log.info(
            "Table %s has %s. With commit='staged' each batch is merged on trial before it is decided, see "
            "docs/postgres.md.",
            *(sink.target, " and ".join(refusers)),
        )


def _check_commits(connection: Connection, sink: PostgresSink, *, is_new: bool) -> None:
    name = quoted(sink.commits_schema, COMMITS_TABLE)
    _check_usage(connection, sink.commits_schema, "commits_schema")
    found = connection.execute(_COMMITS, (sink.commits_schema, COMMITS_TABLE)).fetchone()
    if found is None and not is_new:
        problem = f"The table of markers {name} is gone, and without it this query's commits are unknown."
        raise PreflightError(problem, next_step=f"Restore it, with all its rows, or {ANEW}.", setting="commits_schema")
    if found is None:
        statement = create_commits(sink.commits_schema).as_string(connection)
        try:
            connection.execute(create_commits(sink.commits_schema))
        except psycopg.Error as error:
            # If two queries start at the same time, one of them creates the table, and the other one finds it.
            if error.sqlstate not in _MADE_BY_ANOTHER:
                raise PreflightError(
                    f"The table of markers {name} does not exist and cannot be created: {server_message(error)}.",
                    next_step=f"Let its owner run: {statement}; then GRANT "
                    f"{', '.join(_RIGHTS)} ON {name} TO the role of the query. Or set commits_schema.",
                    setting="commits_schema",
                ) from None
        found = connection.execute(_COMMITS, (sink.commits_schema, COMMITS_TABLE)).fetchone()
    oid, is_durable, row_security, columns = found or (0, False, False, ())
    if missing := _missing(connection, "has_table_privilege", oid, _RIGHTS):
        what = f"No permission on the table of markers {name}: {', '.join(missing)} missing."
        step = f"GRANT {', '.join(missing)} ON {name} TO the role of the query, or set commits_schema."
        raise PreflightError(what, next_step=step, setting="commits_schema")
    check_columns("commits_schema", f"{sink.commits_schema}.{COMMITS_TABLE}", columns, COMMITS_COLUMNS)
    if not is_durable:
        what = f"{name} is a view, or is unlogged: markers would be lost when the server crashes."
        step = "Make it an ordinary table: ALTER TABLE … SET LOGGED."
        raise PreflightError(what, next_step=step, setting="commits_schema")
    if row_security:
        what = f"Row-level security applies to this role on the table of markers {name}: markers may be hidden from it."
        step = f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY, or give the role BYPASSRLS."
        raise PreflightError(what, next_step=step, setting="commits_schema")


def _check_usage(connection: Connection, schema: str, setting: str) -> None:
    # The catalog shows tables and privileges even to roles without USAGE on the schema.
    if catalog.may_on_schema(connection, schema, "USAGE") is False:
        why = "no permission on the schema: USAGE missing"
        raise refusal(setting, repr(schema), why, f"GRANT USAGE ON SCHEMA {quoted(schema)} TO the role of the query.")


def _missing(connection: Connection, may: str, oid: int, rights: Sequence[str]) -> list[str]:
    query = f"SELECT pg_catalog.{may}(%s::oid, %s)"
    return [right for right in rights if not _row(connection, query, oid, right)[0]]


def _row(connection: Connection, query: str, *values: object) -> tuple[Any, ...]:
    return connection.execute(query, values).fetchall()[0]
