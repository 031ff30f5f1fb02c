"""Checks a server and a table before anything is claimed or written.

Privileges are not read but tested: each statement of the writers and of the driver is sent once, in a form that changes
nothing.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sparkonce.errors import ANEW, PreflightError
from sparkonce.sink import Facts
from sparkonce.sinks._shared.preflight import Attempts, check_columns, check_same, refusal
from sparkonce.sinks.sql.dialect import DIRECT
from sparkonce.sinks.sql.mysql import finishing
from sparkonce.sinks.sql.mysql.catalog import MySQLColumn, bind, describe, unique_keys
from sparkonce.sinks.sql.mysql.connection import (
    MARIADB,
    SERVER_ERRORS,
    Connection,
    Flavour,
    MySQLError,
    connect,
    flavour_of,
    numbered_message,
    numbers_of,
)
from sparkonce.sinks.sql.mysql.settings import address, quote, stage_table
from sparkonce.sinks.sql.mysql.statements import insert_into, merge_steps, stage_columns
from sparkonce.sinks.sql.settings import STAGED, TWO_PHASE

if TYPE_CHECKING:
    from sparkonce.sinks.sql.mysql.sink import MySQLSink

log = logging.getLogger(__name__)

REPLY_LIMIT_S = 15.0
"""The time limit of each query."""

_attempts = Attempts(SERVER_ERRORS, numbered_message)

_VARIABLES = (
    "version innodb_flush_log_at_trx_commit sync_binlog log_bin binlog_format read_only super_read_only "
    "innodb_read_only local_infile wsrep_on"
)
_TOO_WIDE = re.compile(r"error 111[78]\b|errno: (139|185)\b")
"""ER_TOO_MANY_FIELDS, ER_TOO_BIG_ROWSIZE, and InnoDB's own numbers for both."""
_TABLES = ("BASE TABLE", "SYSTEM VERSIONED")


def preflight(sink: MySQLSink, recorded: Facts | None) -> Facts:
    """Checks the server, the table and the privileges, and that the server is still the recorded one.

    Raises `PreflightError` if a check fails. At EXACTLY_ONCE, returns ``prefix``, ``server`` (the server's identity),
    ``database`` and ``table``.
    """
    recorded = recorded or {}
    where = f"The server at {address(sink.conninfo)}"
    with _attempts.of(where, "Check host, port, user, password and the server."):
        connection = connect(sink.conninfo, program="sparkonce preflight", timeout_s=REPLY_LIMIT_S, lock_wait_s=5)
    with contextlib.closing(connection), _attempts.of(where, "Check that it runs."):
        variables = _variables(connection)
        connection.flavour = flavour_of(variables["version"])
        _check_server(connection.flavour, variables, sink)
        _warn_of_server(variables, sink)
        columns = _check_table(connection, sink)
        _check_writing(connection, sink, columns)
        if sink.kind == DIRECT:
            return {}
        database = str(connection.row("SELECT IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE())")[0])
        # Markers and staging tables are in this database. In a different one, all committed rows would seem lost.
        why = "this query wrote to database {before} until now, and its markers and open transactions are there"
        step = f"Use the previous database, or {ANEW}."
        check_same("database", database, recorded, "database", why, step)
        if connection.flavour.identity is None:
            _make_table(connection, finishing.SERVERS)
            connection.execute(finishing.DRAW_IDENTITY, (secrets.token_hex(8).encode(),))
        server = _check_identity(connection, recorded)
        _make_table(connection, finishing.COMMITS, is_new="server" not in recorded)
        _check_commit(connection, sink, columns)
    return {"prefix": sink.prefix, "server": server, "database": database, "table": sink.target.table}


def _variables(connection: Connection) -> dict[str, str]:
    names = ", ".join(f"'{name}'" for name in _VARIABLES.split())
    rows = connection.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    return {str(name).lower(): str(value) for name, value in rows}


def _is_on(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "OFF").upper() in {"ON", "1"}


def _check_server(flavour: Flavour, variables: Mapping[str, str], sink: MySQLSink) -> None:
    version, durable = variables["version"], "innodb_flush_log_at_trx_commit"
    if numbers_of(version) < flavour.oldest:
        oldest = ".".join(map(str, flavour.oldest))
        what = f"The server is {flavour.name} {version}, and the sink needs {oldest} or newer: {flavour.why_oldest}."
        step = f"Update the server to {flavour.name} {oldest} or newer."
        raise PreflightError(what, next_step=step, setting="version")
    for name in ("read_only", "super_read_only", "innodb_read_only"):
        if _is_on(variables, name) or variables.get(name, "").upper().startswith("READ_ONLY"):
            raise refusal(name, variables[name], "the server accepts no writes", "Point the sink to the primary.")
    if _is_on(variables, "log_bin") and variables.get("binlog_format", "").upper() == "STATEMENT":
        why = "READ COMMITTED, which the sink uses, needs rows in the binary log"
        raise refusal("binlog_format", "STATEMENT", why, "Set it to ROW.")
    if sink.kind != DIRECT and variables[durable] not in {"1", "3"}:
        why = "prepared transactions would not survive a crash of the machine"
        raise refusal(durable, variables[durable], why, "Set it to 1.")
    if sink.kind == TWO_PHASE and _is_on(variables, "wsrep_on"):
        raise refusal("wsrep_on", "ON", "Galera has no XA", "Use commit='staged'.")


def _warn_of_server(variables: Mapping[str, str], sink: MySQLSink) -> None:
    if sink.conninfo.get("local_infile", True) and not _is_on(variables, "local_infile"):
        log.warning("The server has local_infile=OFF, so rows are inserted, which is slower. Turn it on for LOAD DATA.")
    if sink.kind != DIRECT and _is_on(variables, "log_bin") and variables.get("sync_binlog") != "1":
        log.warning(
            "sync_binlog=%s: after a crash of the machine, replicas may lack committed rows. Set it to 1.",
            variables.get("sync_binlog"),
        )


def _check_table(connection: Connection, sink: MySQLSink) -> list[MySQLColumn]:
    columns = describe(connection, sink.target.table)
    database = sink.conninfo["database"]
    if not columns:
        what = f"There is no table {sink.target} in database {database!r}, or no right to see it."
        raise PreflightError(what, next_step="Create it, or grant SELECT and INSERT on it.", setting="table")
    rows = connection.rows(
        "SELECT TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
        "AND TABLE_NAME = %s",
        (sink.target.table,),
    )
    _, kind, engine = next((row for row in rows if row[0] == sink.target.table), rows[0])
    if str(kind).upper() not in _TABLES:
        what = f"{sink.target} is a {str(kind).lower()}, and rows go into tables."
        raise PreflightError(what, next_step="Name the table itself.", setting="table")
    if str(engine or "").lower() != "innodb":
        what = f"{sink.target} is a table of engine {engine}, and only InnoDB has transactions."
        raise PreflightError(what, next_step="ALTER TABLE … ENGINE=InnoDB, or name another table.", setting="table")
    if sink.schema is not None:
        bind(sink.target, columns, sink.schema)
    if sink.target.keys:
        _check_keys(connection, sink, columns)
    return columns


def _check_keys(connection: Connection, sink: MySQLSink, columns: Sequence[MySQLColumn]) -> None:
    # An upsert replaces the row that matches on any unique key, so the rows must be able to match on only one.
    by_name = {column.name.lower(): column for column in columns}
    found, partial = unique_keys(connection, sink.target.table)
    unique = {index: [name.lower() for name in names] for index, names in found.items()}
    keys = {key.lower() for key in sink.target.keys}
    written = {name.lower() for name in sink.schema.names} if sink.schema is not None else set()
    if not any(set(parts) == keys and index not in partial for index, parts in unique.items()):
        why = f"table {sink.target} has no unique key of exactly these columns; it has {sorted(unique.values())}"
        step = "Add one, or name the columns of one that is there."
    elif nullable := sorted(key for key in keys if by_name[key].nullable):
        why = f"{nullable} of table {sink.target} take NULL, and rows with NULL are never the same row"
        step = "Make them NOT NULL."
    elif sink.schema is not None and (
        others := [
            index
            for index, parts in unique.items()
            if set(parts) != keys and not any(by_name[part].automatic and part not in written for part in parts)
        ]
    ):
        why = f"table {sink.target} has other unique keys, too, {sorted(others)}: a row that meets another one there "
        why += "would replace that one"
        step = "Drop them, or choose mode='append'."
    else:
        return
    raise refusal("key_columns", list(sink.target.keys), why, step)


def _check_writing(connection: Connection, sink: MySQLSink, columns: Sequence[MySQLColumn]) -> None:
    names = [column.name for column in columns if not column.generated]
    if sink.schema is not None:
        lower = {name.lower() for name in sink.schema.names}
        names = [name for name in names if name.lower() in lower]
    table, nulls = quote(sink.target.table), ", ".join(["NULL"] * len(names))
    nothing, rights = f"{insert_into(sink.target.table, names)} SELECT {nulls} FROM DUAL WHERE FALSE", "INSERT"
    if sink.target.keys:
        rights = "SELECT, INSERT and UPDATE"
        sets = ", ".join(f"{table}.{quote(name)} = {table}.{quote(name)}" for name in names)
        nothing += f" ON DUPLICATE KEY UPDATE {sets}"
    what = f"Writing to table {sink.target} on {connection.flavour.name}"
    with _attempts.of(what, f"Grant {rights} on it to the user of the settings."):
        connection.execute(nothing)


def _make_table(connection: Connection, name: str, *, is_new: bool = True) -> None:
    found = describe(connection, name)
    if not found and not is_new:
        what = f"The table {name} is gone, and without it this query's commits are unknown."
        raise PreflightError(what, next_step=f"Restore it, with all its rows, or {ANEW}.", setting="database")
    if not found:
        statement = finishing.TABLES[name]
        step = f"Grant CREATE on the database, or create it yourself: {statement}."
        with _attempts.of(f"Creating the table {name}", step):
            connection.execute(statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1))
    check_columns("database", name, (one.name.lower() for one in found), finishing.KNOWN_COLUMNS[name])
    with _attempts.of(f"Writing to {name}", f"Grant SELECT, INSERT and DELETE on {name} to the user."):
        connection.execute(f"DELETE FROM {name} WHERE FALSE")
        connection.execute(f"INSERT INTO {name} SELECT * FROM {name} WHERE FALSE")


def _check_commit(connection: Connection, sink: MySQLSink, columns: Sequence[MySQLColumn]) -> None:
    what = "XA RECOVER, which tells prepared transactions from finished ones,"
    with _attempts.of(what, f"Grant {connection.flavour.recover_right} to the user of the settings."):
        connection.rows(connection.flavour.recover)
    if sink.kind != STAGED:
        return
    name = stage_table(secrets.token_hex(6))
    probe = quote(name)
    step = "Grant CREATE, DROP, SELECT and INSERT on the database to the user of the settings."
    with _attempts.of("Creating a staging table", step):
        bound = bind(sink.target, columns, sink.schema) if sink.schema is not None else []
        known = {column.name for column in columns}
        parts = stage_columns(bound, known)
        try:
            connection.execute(f"CREATE TABLE {probe} ({', '.join(parts)}) ENGINE=InnoDB")
        except MySQLError as error:
            if _TOO_WIDE.search(numbered_message(error)) is None:
                raise
            why = f"table {sink.target} is at InnoDB's limits, and a staging table has a column more: "
            why += numbered_message(error)
            raise refusal("commit", repr(STAGED), why, "Use commit='two_phase', or fewer or shorter columns.") from None
        connection.execute(f"INSERT INTO {probe} SELECT * FROM {probe} WHERE FALSE")
        try:
            _check_rules(connection, sink, name, [one.name for one in bound if one.name in known])
        finally:
            connection.execute(f"DROP TABLE {probe}")


def _check_rules(connection: Connection, sink: MySQLSink, stage: str, written: Sequence[str]) -> None:
    """Merges an empty staging table with the conditions of the upsert, to see whether the server accepts them."""
    if not sink.target.rules.to_dict() or not written:
        return
    try:
        for step in merge_steps([stage], sink.target, written):
            connection.execute(step)
    except MySQLError as error:
        shown = " and ".join(f"{setting}={text!r}" for setting, text in sink.target.rules.to_dict().items())
        raise PreflightError(
            f"The server refuses to upsert into table {sink.target} with {shown}: {numbered_message(error)}",
            next_step="Write the server's SQL, over source.… (the batch's row) and target.… (the table's row). "
            "delete_when needs the right DELETE on the table.",
            setting=next(iter(sink.target.rules.to_dict())),
        ) from None


def _check_identity(connection: Connection, recorded: Facts) -> str:
    server = finishing.identity(connection)
    before = recorded.get("server", server)
    if before != server:
        host = connection.row("SELECT CONCAT(@@hostname, ':', @@port)")[0]
        advice = f"Point the sink to the old server, or {ANEW}."
        if connection.flavour is MARIADB:
            advice += (
                f" If this is the old server with a new name, remove the row {server!r} from {finishing.SERVERS}, and "
                f"set host to {host!r} in the row {before!r}."
            )
        else:
            advice += (
                " If this is the new primary, with all that the old one had committed or prepared: ALTER TABLE "
                f"{finishing.COMMITS} COMMENT='server {server} was {before}'."
            )
        what = f"The settings lead to the server {server!r} ({host}), but this query wrote to {before!r} until now."
        raise PreflightError(what, next_step=advice, setting="host")
    return server
