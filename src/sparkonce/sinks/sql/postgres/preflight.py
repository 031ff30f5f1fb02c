"""Checks a server and a table before anything is claimed or written."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import psycopg

from sparkonce.errors import ANEW, PreflightError
from sparkonce.sink import Facts
from sparkonce.sinks._shared.preflight import Attempts, check_columns, check_same, refusal
from sparkonce.sinks.sql.dialect import DIRECT
from sparkonce.sinks.sql.postgres import catalog
from sparkonce.sinks.sql.postgres.catalog import CatalogTable
from sparkonce.sinks.sql.postgres.connection import Connection, connect, within
from sparkonce.sinks.sql.postgres.finishing import read_system
from sparkonce.sinks.sql.postgres.outcomes import server_message
from sparkonce.sinks.sql.postgres.settings import COMMITS_TABLE, Conninfo
from sparkonce.sinks.sql.postgres.statements import COMMITS_COLUMNS, create_commits, merge_steps
from sparkonce.sinks.sql.settings import STAGED, TWO_PHASE, UPSERT, quoted, read_by

if TYPE_CHECKING:
    from sparkonce.sinks.sql.postgres.sink import PostgresSink

TIMEOUT_S = 15.0
"""The longest wait for a server that is starting, and for all queries once it answers, in seconds."""

OLDEST = 120_000
_PAUSE_S = 0.25
_STARTING = ("57P03", "starting up", "not yet accepting")
_MADE_BY_ANOTHER = (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject)
_TABLES = {"r": "table", "p": "partitioned table"}
_KINDS = {"v": "view", "m": "materialized view", "f": "foreign table", "S": "sequence", "i": "index"}
_RIGHTS = "SELECT, INSERT, UPDATE, DELETE"

_attempts = Attempts((psycopg.Error,), server_message)

# True if the table keeps rows after a crash, True if row-level security may hide some, and its columns.
_COMMITS = """
SELECT c.relkind = 'r' AND c.relpersistence = 'p', pg_catalog.row_security_active(c.oid),
       ARRAY(SELECT attname::text FROM pg_catalog.pg_attribute
             WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""


def preflight(sink: PostgresSink, recorded: Facts | None) -> Facts:
    """Checks server, table, limits and permissions, and creates the table of markers if it does not exist."""
    recorded = recorded or {}
    if sink.kind != DIRECT:
        why = "this query has its markers and staging tables in schema {before}"
        step = f"Set commits_schema={{before}}, whatever the schema of the table is, or {ANEW}."
        check_same("commits_schema", sink.commits_schema, recorded, "commits", why, step)
    with (
        closing(_connect(sink.conninfo)) as connection,
        _attempts.of(f"Checking PostgreSQL at {sink.conninfo}", "See the server's message and its log."),
        within(connection, TIMEOUT_S),
    ):
        facts = _check_server(connection, sink, recorded)
        table = _check_table(connection, sink)
        _check_writing(connection, sink, table)
        if sink.kind == DIRECT:
            return facts
        _check_durable(connection, sink, table)
        _check_commits(connection, sink, is_new="commits" not in recorded)
    target = {"schema": sink.target.schema, "table": sink.target.table}
    return {**facts, "commits": sink.commits_schema, "prefix": sink.prefix, **target}


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
    ((version, standby, database),) = connection.execute(
        "SELECT pg_catalog.current_setting('server_version_num')::int, pg_catalog.pg_is_in_recovery(), "
        "pg_catalog.current_database()::text"
    ).fetchall()
    if version < OLDEST:
        why = f"PostgreSQL {OLDEST // 10_000} is the oldest that is supported"
        raise refusal("server_version_num", version, why, "Update the server.")
    if standby:
        what = f"The server at {sink.conninfo} is a standby (pg_is_in_recovery), which takes no rows."
        step = "Connect to the primary: name all hosts and set target_session_attrs=read-write."
        raise PreflightError(what, next_step=step, setting="conninfo")
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
    if target.mode == UPSERT:
        catalog.check_keys(connection, target, table)
    return table


def _check_writing(connection: Connection, sink: PostgresSink, table: CatalogTable) -> None:
    """Lets the server plan the merge of a batch, which shows whether it allows it and accepts the conditions."""
    target, schema = sink.target, sink.schema
    there = [column.name for column in table.columns if not column.computed]
    if schema is not None:
        table.check(schema, target)
        table = table.staged(schema, target)
    elif target.rules.staged_only(read_by(target.rules.delete_when), there):
        return  # without the types of columns that only the rows have, nothing can be planned
    names = there if schema is None else schema.names
    types = {column.name: column.declared for column in table.columns}
    nulls = ", ".join(f"NULL::{types[name]} AS {quoted(name)}" for name in names)
    steps = merge_steps(
        target, [name for name in names if name in there], [f"(SELECT NULL::tid AS ctid, {nulls}) AS n"]
    )
    settings = target.rules.conditions
    shown = " and ".join(f"{setting}={condition!r}" for setting, condition in settings.items())
    step = "Grant the rights that docs/postgres.md lists, or give the table what the server misses."
    if settings:
        step += " Write conditions in PostgreSQL's SQL, over source.… (the batch's row) and target.… (the table's row)."
    with _attempts.of(f"Writing to table {target}{shown and f' with {shown}'}", step, next(iter(settings), "table")):
        connection.execute("BEGIN")
        for statement in steps:
            connection.execute(f"EXPLAIN {statement}")
        connection.execute("ROLLBACK")


def _check_durable(connection: Connection, sink: PostgresSink, table: CatalogTable) -> None:
    if table.fragile:
        what = f"Rows of table {sink.target} may go where they are not safe: {table.fragile}."
        raise PreflightError(what, next_step=catalog.MEND_PARTITION, setting="table")
    fsync, prepared = connection.execute(
        "SELECT pg_catalog.current_setting('fsync'), pg_catalog.current_setting('max_prepared_transactions')"
    ).fetchall()[0]
    if fsync != "on":
        why = "the server may lose confirmed commits when its machine crashes"
        raise refusal("fsync", fsync, why, "Set fsync=on, or choose another guarantee.")
    if sink.commit == TWO_PHASE and prepared == "0":
        step = (
            "Set max_prepared_transactions above the slots of all queries together and restart the server, or use "
            "commit='staged', which needs none."
        )
        raise refusal("max_prepared_transactions", prepared, "the server takes no prepared transactions", step)


def _check_commits(connection: Connection, sink: PostgresSink, *, is_new: bool) -> None:
    name = quoted(sink.commits_schema, COMMITS_TABLE)
    found = connection.execute(_COMMITS, (sink.commits_schema, COMMITS_TABLE)).fetchone()
    if found is None and not is_new:
        problem = f"The table of markers {name} is gone, and without it this query's commits are unknown."
        raise PreflightError(problem, next_step=f"Restore it, with all its rows, or {ANEW}.", setting="commits_schema")
    if found is None:
        create = create_commits(sink.commits_schema)
        step = (
            f"Set commits_schema, create that schema, or let its owner run: {create.as_string(connection)}; then GRANT "
            f"{_RIGHTS} ON {name} TO the role of the query."
        )
        # If two queries start at the same time, one of them creates the table, and the other one finds it.
        with _attempts.of(f"Creating the table of markers {name}", step, "commits_schema"), suppress(*_MADE_BY_ANOTHER):
            connection.execute(create)
        found = connection.execute(_COMMITS, (sink.commits_schema, COMMITS_TABLE)).fetchone()
    is_durable, row_security, columns = found or (False, False, ())
    check_columns("commits_schema", f"{sink.commits_schema}.{COMMITS_TABLE}", columns, COMMITS_COLUMNS)
    if not is_durable:
        what = f"{name} is a view, or is unlogged: markers would be lost when the server crashes."
        step = "Make it an ordinary table: ALTER TABLE … SET LOGGED."
        raise PreflightError(what, next_step=step, setting="commits_schema")
    if row_security:
        what = f"Row-level security applies to this role on the table of markers {name}: markers may be hidden from it."
        step = f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY, or give the role BYPASSRLS."
        raise PreflightError(what, next_step=step, setting="commits_schema")
    step = f"GRANT {_RIGHTS} ON {name}, and USAGE on its schema, TO the role of the query, or set commits_schema."
    with _attempts.of(f"Writing to the table of markers {name}", step, "commits_schema"):
        connection.execute(
            f"INSERT INTO {name} SELECT * FROM {name} WHERE false; UPDATE {name} SET state = state WHERE false; "
            f"DELETE FROM {name} WHERE false"
        )
    if sink.commit == STAGED:
        step = f"GRANT CREATE, USAGE ON SCHEMA {quoted(sink.commits_schema)} TO the role of the query."
        with _attempts.of("Creating a staging table", step, "commits_schema"):
            connection.execute(f"BEGIN; CREATE TABLE {quoted(sink.commits_schema, 'sparkonce_probe')} (); ROLLBACK")
