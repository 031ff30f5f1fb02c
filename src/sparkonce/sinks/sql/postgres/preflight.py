"""Checks a server and a table before anything is claimed or written."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from sparkonce.errors import ANEW, PreflightError
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import Facts
from sparkonce.sinks._shared.preflight import Attempts, check_columns, check_same, refusal
from sparkonce.sinks.sql.postgres.catalog import (
    MEND_PARTITION,
    CatalogTable,
    check_keys,
    list_refusers,
    may_on_schema,
    read_table,
    row_triggers,
    unique_keys,
)
from sparkonce.sinks.sql.postgres.connection import Connection, connect, warn_of_wire, within
from sparkonce.sinks.sql.postgres.finishing import read_system
from sparkonce.sinks.sql.postgres.outcomes import POOL_TRANSACTIONS, STATEMENT_POOLING, server_message
from sparkonce.sinks.sql.postgres.settings import COMMITS_TABLE, Conninfo
from sparkonce.sinks.sql.postgres.statements import COMMITS_COLUMNS, create_commits, merge_steps
from sparkonce.sinks.sql.settings import APPEND, TWO_PHASE, UPSERT, quoted, read_by
from sparkonce.sinks.sql.transactions import DIRECT

if TYPE_CHECKING:
    from typing_extensions import LiteralString

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


# The table's oid, True if it keeps rows after a crash, True if row-level security may hide some, and its columns.
_COMMITS = """
SELECT c.oid::int8, c.relkind = 'r' AND c.relpersistence = 'p', pg_catalog.row_security_active(c.oid),
       ARRAY(SELECT attname::text FROM pg_catalog.pg_attribute
             WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""


def preflight(sink: PostgresSink, query: str, recorded: Facts | None) -> tuple[Facts, CatalogTable]:
    """Checks server, table, limits and permissions, and creates the table of markers if it does not exist.

    Raises:
        PreflightError: If a check fails. The message names the setting and its value.
    """
    recorded = recorded or {}
    if sink.kind != DIRECT:
        check_same(
            "commits_schema",
            sink.commits_schema,
            recorded,
            "commits",
            "this query has its markers and staging tables in schema {before}",
            f"Set commits_schema={{before}}, whatever the schema of the table is, or {ANEW}.",
        )
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
    """Reads only the table, for callers that need its columns before the preflight.

    Raises:
        PreflightError: If the table does not exist or is not writable.
    """
    with _connected(sink) as connection:
        return _check_table(connection, sink)


@contextmanager
def _connected(sink: PostgresSink) -> Iterator[Connection]:
    attempts = Attempts((psycopg.Error,), server_message)
    with (
        closing(_connect(sink.conninfo)) as connection,
        attempts.of(f"Checking PostgreSQL at {sink.conninfo}", "See the server's message and its log."),
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
        # Retry nothing else: some servers lock out users who repeatedly use a wrong password.
        if not any(one in why for one in _STARTING) or time.monotonic() >= give_up_at:
            raise PreflightError(
                f"PostgreSQL at {conninfo} cannot be reached: {why}.",
                next_step="Check the address, that the server runs, the credentials and pg_hba.conf.",
                setting="conninfo",
            )
        time.sleep(_PAUSE_S)


def _check_server(connection: Connection, sink: PostgresSink, recorded: Facts) -> Facts:
    version, standby, database, pid = _row(
        connection,
        "SELECT pg_catalog.current_setting('server_version_num')::int, pg_catalog.pg_is_in_recovery(), "
        "pg_catalog.current_database()::text, pg_catalog.pg_backend_pid()",
    )
    if version < OLDEST:
        raise refusal(
            "server_version_num",
            version,
            f"PostgreSQL {OLDEST // 10_000} is the oldest that is supported",
            "Update the server.",
        )
    if standby:
        raise PreflightError(
            f"The server at {sink.conninfo} is a standby (pg_is_in_recovery), which takes no rows.",
            next_step="Connect to the primary: name all hosts and set target_session_attrs=read-write.",
            setting="conninfo",
        )
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
        # Handles contain the system id, too. If the privilege is granted later, the id must not appear to have changed.
        facts["system"] = ""
    if before != facts:
        raise PreflightError(
            f"conninfo leads to database {database!r} of system {facts['system'] or '?'}, and this query has written "
            f"to {before['database']!r} of system {before['system']}: its open transactions are there.",
            next_step=_next_step_for(sink, before["system"], facts["system"]),
            setting="conninfo",
        )
    return facts


def _check_transactions(connection: Connection, sink: PostgresSink) -> None:
    """Begins a transaction of several statements, as each batch does."""
    try:
        for statement in ("BEGIN", "SELECT 1", "ROLLBACK"):
            connection.execute(statement)
    except psycopg.errors.ProtocolViolation as error:
        if STATEMENT_POOLING not in str(error):
            raise
        raise PreflightError(
            f"The server at {sink.conninfo} takes no transactions: {server_message(error)}.",
            next_step=POOL_TRANSACTIONS,
            setting="conninfo",
        ) from None


def _next_step_for(sink: PostgresSink, before: str, now: str) -> str:
    advice = f"Connect to the previous database, or {ANEW}."
    if not now:
        return "GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO the role of the query, as before."
    if before == now:
        return advice
    return (
        f"{advice} If this is the same server after pg_upgrade, or that whole database was moved here: COMMENT ON "
        f"TABLE {quoted(sink.commits_schema)}.{COMMITS_TABLE} IS 'system {now} was {before}'."
    )


def _check_table(connection: Connection, sink: PostgresSink) -> CatalogTable:
    target = sink.target
    table = read_table(connection, target)
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
        raise PreflightError(
            f"{target} is a {_KINDS.get(table.kind, table.kind)}, and rows go into tables.",
            next_step="Name the table itself.",
            setting="table",
        )
    rights = ["INSERT"] if target.mode == APPEND else ["INSERT", "SELECT", "UPDATE"]
    missing = _missing(connection, _MAY_ON_A_COLUMN, table.oid, rights)
    missing += _missing(connection, _MAY, table.oid, ["DELETE"] if target.rules.delete_when else [])
    _check_usage(connection, target.schema, "schema")
    if missing:
        raise PreflightError(
            f"No permission on table {target}: {', '.join(missing)} missing.",
            next_step=f"GRANT {', '.join(missing)} ON {target} TO the role of the query.",
            setting="table",
        )
    if target.mode == UPSERT:
        check_keys(connection, target, table)
        _check_conditions(connection, sink, table)
    return table


def _check_conditions(connection: Connection, sink: PostgresSink, table: CatalogTable) -> None:
    """Lets the server plan the merge of a batch, to see whether it accepts the conditions."""
    target, schema = sink.target, sink.schema
    if not target.rules.conditions:
        return
    staged: sql.Composable = sql.Identifier(target.schema, target.table)
    known = {column.name for column in table.columns}
    if schema is None and target.rules.staged_only(read_by(target.rules.delete_when), known):
        return  # without the types of columns that only the rows have, nothing can be planned
    more = [one for one in table.staged(schema, target).columns if one.name not in known] if schema is not None else []
    if more:
        nulls = [sql.SQL("NULL::{} AS {}").format(sql.SQL(one.declared), sql.Identifier(one.name)) for one in more]
        staged = sql.SQL("(SELECT *, ctid, {} FROM {}) AS t").format(sql.SQL(", ").join(nulls), staged)
    columns = [column.name for column in table.columns if not column.computed]
    try:
        for step in merge_steps(target, columns, [staged]):
            connection.execute(sql.SQL("EXPLAIN ") + step)
    except psycopg.Error as error:
        if (error.sqlstate or "")[:2] not in _WRONG_SQL:
            raise
        shown = " and ".join(f"{setting}={condition!r}" for setting, condition in target.rules.conditions.items())
        raise PreflightError(
            f"PostgreSQL refuses {shown} for table {target}: {server_message(error)}.",
            next_step="Write it in PostgreSQL's SQL, over source.… (the batch's row) and target.… (the table's row).",
            setting=next(iter(target.rules.conditions)),
        ) from None


def _warn_of_changes(connection: Connection, sink: PostgresSink, table: CatalogTable) -> None:
    if "3" in table.rules:
        log.warning(
            "Table %s has rules ON INSERT. They apply with commit='staged', which inserts, and may silently leave rows "
            "out or send them elsewhere; with commit='two_phase', which copies, they do not.",
            sink.target,
        )
    if count := row_triggers(connection, table.oid):
        log.warning(
            "Table %s has %d trigger(s) BEFORE INSERT FOR EACH ROW. They may silently change rows, or leave them out: "
            "progress counts the rows that were sent to the table.",
            *(sink.target, count),
        )


def _check_durable(connection: Connection, sink: PostgresSink, table: CatalogTable) -> None:
    if table.fragile:
        raise PreflightError(
            f"Rows of table {sink.target} may go where they are not safe: {table.fragile}.",
            next_step=MEND_PARTITION,
            setting="table",
        )
    (fsync,) = _row(connection, "SELECT pg_catalog.current_setting('fsync')")
    if fsync != "on":
        raise refusal(
            "fsync",
            fsync,
            "the server may lose confirmed commits when its machine crashes",
            "Set fsync=on, or choose another guarantee.",
        )


def _check_two_phase(connection: Connection, sink: PostgresSink, query: str, table: CatalogTable) -> None:
    (most,) = _row(connection, "SELECT pg_catalog.current_setting('max_prepared_transactions')::int")
    if most == 0:
        raise refusal(
            "max_prepared_transactions",
            most,
            "the server takes no prepared transactions",
            "Set max_prepared_transactions above the slots of all queries together and restart the server, or use "
            "commit='staged', which needs none.",
        )
    gids = [gid for (gid,) in connection.execute("SELECT gid FROM pg_catalog.pg_prepared_xacts").fetchall()]
    # Do not count this query's own transactions, which are finished or swept before it writes.
    others = [gid for gid in gids if not _is_own(gid, sink.prefix, query)]
    if len(others) >= most:
        raise PreflightError(
            f"max_prepared_transactions={most}, and {len(others)} are in use by others.",
            next_step="Raise it and restart the server, or finish abandoned ones (`sparkonce transactions list "
            "--system postgres` lists sparkonce's, pg_prepared_xacts all).",
            setting="max_prepared_transactions",
        )
    log.info(
        "max_prepared_transactions=%d, of which %d are free; each slot of a batch takes one.", most, most - len(others)
    )
    if table.row_security:
        raise PreflightError(
            f"Row-level security applies to this role on table {sink.target}, and COPY does not work then.",
            next_step="Use commit='staged', or a role with BYPASSRLS.",
            setting="commit",
        )
    if keys := unique_keys(connection, table.oid):
        log.warning(
            "Table %s has %d unique index(es). With commit='two_phase' a retried slot waits for its first attempt, if "
            "that was prepared and its worker lost, until lock_timeout_s ends the batch; commit='staged' does not.",
            *(sink.target, len(keys)),
        )


def _check_staged(connection: Connection, sink: PostgresSink) -> None:
    found = may_on_schema(connection, sink.commits_schema, "CREATE")
    if not found:
        raise refusal(
            "commits_schema",
            repr(sink.commits_schema),
            "there is no such schema" if found is None else "no permission to make staging tables in it",
            f"CREATE SCHEMA {quoted(sink.commits_schema)}, or GRANT CREATE, USAGE on it TO the query's role.",
        )
    if refusers := list_refusers(connection, sink.target):
        log.info(
            "Table %s has %s. With commit='staged' each batch is merged on trial before it is decided, see "
            "docs/postgres.md.",
            *(sink.target, " and ".join(refusers)),
        )


def _check_commits(connection: Connection, sink: PostgresSink, *, is_new: bool) -> None:
    name = f"{quoted(sink.commits_schema)}.{quoted(COMMITS_TABLE)}"
    _check_usage(connection, sink.commits_schema, "commits_schema")
    found = connection.execute(_COMMITS, (sink.commits_schema, COMMITS_TABLE)).fetchone()
    if found is None and not is_new:
        raise PreflightError(
            f"The table of markers {name} is gone, and without it this query's commits are unknown.",
            next_step=f"Restore it, with all its rows, or {ANEW}.",
            setting="commits_schema",
        )
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
    missing = _missing(connection, _MAY, oid, _RIGHTS)
    if missing:
        raise PreflightError(
            f"No permission on the table of markers {name}: {', '.join(missing)} missing.",
            next_step=f"GRANT {', '.join(missing)} ON {name} TO the role of the query, or set commits_schema.",
            setting="commits_schema",
        )
    check_columns("commits_schema", f"{sink.commits_schema}.{COMMITS_TABLE}", columns, COMMITS_COLUMNS)
    if not is_durable:
        raise PreflightError(
            f"{name} is a view, or is unlogged: markers would be lost when the server crashes.",
            next_step="Make it an ordinary table: ALTER TABLE … SET LOGGED.",
            setting="commits_schema",
        )
    if row_security:
        raise PreflightError(
            f"Row-level security applies to this role on the table of markers {name}: markers may be hidden from it.",
            next_step=f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY, or give the role BYPASSRLS.",
            setting="commits_schema",
        )


def _check_usage(connection: Connection, schema: str, setting: str) -> None:
    # The catalog shows tables and privileges even to roles that may not use the schema.
    if may_on_schema(connection, schema, "USAGE") is False:
        raise refusal(
            setting,
            repr(schema),
            "no permission on the schema: USAGE missing",
            f"GRANT USAGE ON SCHEMA {quoted(schema)} TO the role of the query.",
        )


_MAY = "SELECT pg_catalog.has_table_privilege(%s::oid, %s)"
_MAY_ON_A_COLUMN = "SELECT pg_catalog.has_any_column_privilege(%s::oid, %s)"


def _missing(connection: Connection, may: LiteralString, oid: int, rights: Sequence[str]) -> list[str]:
    return [right for right in rights if not _row(connection, may, oid, right)[0]]


def _is_own(gid: str, prefix: str, query: str) -> bool:
    name = TransactionName.parse(gid)
    return name is not None and (name.prefix, name.query) == (prefix, query)


def _row(connection: Connection, query: LiteralString, *values: object, **named: object) -> tuple[Any, ...]:
    row = connection.execute(query, named or values).fetchone()
    if row is None:
        raise RuntimeError("the catalog gave no row")
    return row
