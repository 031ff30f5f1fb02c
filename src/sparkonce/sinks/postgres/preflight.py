"""What is checked about a server and a table before anything is claimed or written."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from sparkonce.errors import PreflightError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import Facts
from sparkonce.sinks.postgres.catalog import (
    MEND_PARTITION,
    Table,
    check_keys,
    late_refusals,
    may_on_schema,
    read_table,
    row_triggers,
    unique_keys,
)
from sparkonce.sinks.postgres.connection import Connection, connect, warn_of_wire, within
from sparkonce.sinks.postgres.markers import find_commits, read_system
from sparkonce.sinks.postgres.names import TWO_PHASE
from sparkonce.sinks.postgres.outcomes import words_of
from sparkonce.sinks.postgres.settings import COMMITS_TABLE, Connecting, Target, quoted
from sparkonce.sinks.postgres.statements import create_commits

if TYPE_CHECKING:
    from typing_extensions import LiteralString

log = logging.getLogger(__name__)

TIMEOUT_S = 15.0
"""How long a server that is starting is waited for, and how long all questions may take once it answers."""

OLDEST = 120_000
_PAUSE_S = 0.25
_COMES_UP = ("57P03", "starting up", "not yet accepting")
_MADE_BY_ANOTHER = ("23505", "42P07", "42710")
_TABLES = {"r": "table", "p": "partitioned table"}
_KINDS = {"v": "view", "m": "materialized view", "f": "foreign table", "S": "sequence", "i": "index"}
_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is to be checked.

    Attributes:
        to: Where the server is.
        target: The table and its rules.
        commit: ``staged`` or ``two_phase``.
        commits_schema: The schema of the markers and staging tables.
        prefix: What begins this sink's names.
        guarantee: Below EXACTLY_ONCE nothing about transactions is checked.
    """

    to: Connecting
    target: Target
    commit: str
    commits_schema: str
    prefix: str
    guarantee: Guarantee


def preflight(ask: Ask, query: str, recorded: Facts | None) -> tuple[Facts, Table]:
    """Checks server, table, limits and permissions, and makes the table of markers if it is not there.

    Raises:
        PreflightError: naming the setting and its value.
    """
    recorded = recorded or {}
    if ask.guarantee is Guarantee.EXACTLY_ONCE:
        _check_same_schema(ask, recorded)
    with _looking(ask) as connection:
        warn_of_wire(connection)
        facts = _check_server(connection, ask, recorded)
        table = _check_table(connection, ask)
        if ask.guarantee is not Guarantee.EXACTLY_ONCE:
            return facts, table
        _check_durable(connection, ask, table)
        if "3" in table.rules:
            log.warning(
                "Table %s has rules ON INSERT. They apply with commit='staged', which inserts, and may leave rows out "
                "or send them elsewhere, unseen; with commit='two_phase', which copies, they do not.",
                ask.target,
            )
        if count := row_triggers(connection, table.oid):
            log.warning(
                "Table %s has %d trigger(s) BEFORE INSERT FOR EACH ROW. They may change rows, or leave them out, "
                "unseen: progress counts the rows that were given to the table.",
                *(ask.target, count),
            )
        if ask.commit == TWO_PHASE:
            _check_two_phase(connection, ask, query, table)
        else:
            _check_staged(connection, ask, table)
        _check_commits(connection, ask, is_new="commits" not in recorded)
        return {**facts, "commits": ask.commits_schema, "prefix": ask.prefix}, table


def look_at_table(ask: Ask) -> Table:
    """The table alone, for whoever asks for its columns first.

    Raises:
        PreflightError: if it is not there or may not be written.
    """
    with _looking(ask) as connection:
        return _check_table(connection, ask)


@contextmanager
def _looking(ask: Ask) -> Iterator[Connection]:
    connection = _connect(ask.to)
    try:
        with within(connection, TIMEOUT_S):
            yield connection
    except psycopg.Error as error:
        raise PreflightError(
            f"PostgreSQL at {ask.to} did not answer the checks: {words_of(error)}",
            next_step="see the server's own words and its log.",
        ) from None
    finally:
        connection.close()


def _connect(to: Connecting) -> Connection:
    give_up_at = time.monotonic() + TIMEOUT_S
    found = _try_to_connect(to)
    # Nothing else is tried again: some servers lock users out who keep giving a wrong password.
    while isinstance(found, str) and any(one in found for one in _COMES_UP) and time.monotonic() < give_up_at:
        time.sleep(_PAUSE_S)
        found = _try_to_connect(to)
    if isinstance(found, str):
        raise PreflightError(
            f"PostgreSQL at {to} cannot be reached: {found}",
            next_step="check the address, that the server runs, the credentials and pg_hba.conf.",
            setting="conninfo",
        )
    return found


def _try_to_connect(to: Connecting) -> Connection | str:
    """A connection, or why there is none."""
    try:
        return connect(to)
    except psycopg.Error as error:
        return words_of(error)


def _check_same_schema(ask: Ask, recorded: Facts) -> None:
    before = recorded.get("commits", ask.commits_schema)
    if before != ask.commits_schema:
        raise PreflightError(
            f"commits_schema={ask.commits_schema!r}, and this query has its markers and staging tables in schema "
            f"{before!r}: they say what is committed",
            next_step=f"set commits_schema={before!r}, whatever the schema of the table is, or start a new query with "
            "a new checkpoint.",
            setting="commits_schema",
        )


def _check_server(connection: Connection, ask: Ask, recorded: Facts) -> Facts:
    version, standby, database, pid = _row(
        connection,
        "SELECT pg_catalog.current_setting('server_version_num')::int, pg_catalog.pg_is_in_recovery(), "
        "pg_catalog.current_database()::text, pg_catalog.pg_backend_pid()",
    )
    if version < OLDEST:
        raise PreflightError(
            f"server_version_num={version}: PostgreSQL {OLDEST // 10_000} is the oldest that is supported",
            next_step="update the server.",
        )
    if standby:
        raise PreflightError(
            f"the server at {ask.to} is a standby (pg_is_in_recovery), which takes no rows",
            next_step="connect to the primary: name all hosts and set target_session_attrs=read-write.",
            setting="conninfo",
        )
    if pid != connection.info.backend_pid:
        log.info(
            "There is a connection pooler before PostgreSQL at %s. Sessions and transactions may be pooled, statements "
            "not: everything is set within transactions.",
            ask.to,
        )
    facts = {"system": read_system(connection, ask.commits_schema), "database": database}
    before = {name: recorded.get(name, facts[name]) for name in facts}
    if not before["system"]:
        # Handles say so, too; a right that is granted later must not make this another server.
        facts["system"] = ""
    if before != facts:
        raise PreflightError(
            f"conninfo leads to database {database!r} of system {facts['system'] or '?'}, and this query has written "
            f"to {before['database']!r} of system {before['system']}: its open transactions are there",
            next_step=_way_on(ask, before["system"], facts["system"]),
            setting="conninfo",
        )
    return facts


def _way_on(ask: Ask, before: str, now: str) -> str:
    advice = "connect to the database of before, or start a new query with a new checkpoint."
    if not now:
        return "GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO the role of the query, as before."
    if before == now:
        return advice
    return (
        f"{advice} If this is the server of before after pg_upgrade, or all of that database moved here: COMMENT ON "
        f"TABLE {quoted(ask.commits_schema)}.{COMMITS_TABLE} IS 'system {now} was {before}'."
    )


def _check_table(connection: Connection, ask: Ask) -> Table:
    target = ask.target
    table = read_table(connection, target)
    if table is None:
        raise PreflightError(
            f"there is no table {target} that this role can see",
            next_step="make it, or correct schema and table: each exactly as the catalog has it.",
            setting="table",
        )
    if table.kind not in _TABLES:
        raise PreflightError(
            f"{target} is a {_KINDS.get(table.kind, table.kind)}, and rows go into tables",
            next_step="name the table itself.",
            setting="table",
        )
    rights = ["INSERT"] if target.mode == "append" else ["INSERT", "SELECT", "UPDATE"]
    missing = [
        right
        for right in rights
        if not _row(connection, "SELECT pg_catalog.has_any_column_privilege(%s::oid, %s)", table.oid, right)[0]
    ]
    _check_usage(connection, target.schema, "schema")
    if missing:
        raise PreflightError(
            f"no permission on table {target}: {', '.join(missing)} missing",
            next_step=f"GRANT {', '.join(missing)} ON {target} TO the role of the query.",
            setting="table",
        )
    if target.mode == "upsert":
        check_keys(connection, target, table)
    return table


def _check_durable(connection: Connection, ask: Ask, table: Table) -> None:
    if table.fragile:
        raise PreflightError(
            f"rows of table {ask.target} may go where they are not safe: {table.fragile}",
            next_step=MEND_PARTITION,
            setting="table",
        )
    (fsync,) = _row(connection, "SELECT pg_catalog.current_setting('fsync')")
    if fsync != "on":
        raise PreflightError(
            f"fsync={fsync}: the server may lose what it has confirmed when its machine crashes",
            next_step="set fsync=on, or choose another guarantee.",
            setting="fsync",
        )


def _check_two_phase(connection: Connection, ask: Ask, query: str, table: Table) -> None:
    (most,) = _row(connection, "SELECT pg_catalog.current_setting('max_prepared_transactions')::int")
    if most == 0:
        raise PreflightError(
            "max_prepared_transactions=0: the server takes no prepared transactions",
            next_step="set max_prepared_transactions above the slots of all queries together and restart the server, "
            "or use commit='staged', which needs none.",
            setting="max_prepared_transactions",
        )
    gids = [gid for (gid,) in connection.execute("SELECT gid FROM pg_catalog.pg_prepared_xacts").fetchall()]
    # What this query left is finished or swept before it writes.
    others = [gid for gid in gids if not _is_own(gid, ask.prefix, query)]
    if len(others) >= most:
        raise PreflightError(
            f"max_prepared_transactions={most}, and {len(others)} are in use by others",
            next_step="raise it and restart the server, or finish those that nobody will (`sparkonce postgres "
            "orphans` lists sparkonce's, pg_prepared_xacts all).",
            setting="max_prepared_transactions",
        )
    log.info(
        "max_prepared_transactions=%d, of which %d are free; each slot of a batch takes one.", most, most - len(others)
    )
    if table.row_security:
        raise PreflightError(
            f"row-level security applies to this role on table {ask.target}, and COPY does not work then",
            next_step="use commit='staged', or a role with BYPASSRLS.",
            setting="commit",
        )
    if keys := unique_keys(connection, table.oid):
        log.warning(
            "Table %s has %d unique index(es). With commit='two_phase' a slot that is tried again waits for its first "
            "try, if that was prepared and its worker lost, until lock_timeout_s ends the batch; commit='staged' does "
            "not.",
            *(ask.target, len(keys)),
        )


def _check_staged(connection: Connection, ask: Ask, table: Table) -> None:
    found = may_on_schema(connection, ask.commits_schema, "CREATE")
    if not found:
        raise PreflightError(
            f"commits_schema={ask.commits_schema!r}: "
            + ("there is no such schema" if found is None else "no permission to make staging tables in it"),
            next_step=f"CREATE SCHEMA {quoted(ask.commits_schema)}, or GRANT CREATE, USAGE on it TO the query's role.",
            setting="commits_schema",
        )
    if late := late_refusals(connection, ask.target, table):
        log.warning(
            "Table %s has %s. With commit='staged' a row that these refuse is refused after its batch is decided: the "
            "query stops until the row or the table is corrected, see docs/postgres.md.",
            *(ask.target, " and ".join(late)),
        )


def _check_commits(connection: Connection, ask: Ask, *, is_new: bool) -> None:
    name = f"{quoted(ask.commits_schema)}.{quoted(COMMITS_TABLE)}"
    _check_usage(connection, ask.commits_schema, "commits_schema")
    found = find_commits(connection, ask.commits_schema)
    if found is None and not is_new:
        raise PreflightError(
            f"the table of markers {name} is gone, and without it nobody can tell what this query has committed",
            next_step="put it back, with all its rows, or start a new query with a new checkpoint.",
            setting="commits_schema",
        )
    if found is None:
        try:
            connection.execute(create_commits(ask.commits_schema))
        except psycopg.Error as error:
            # Two that start at once make it together; whoever comes second finds it.
            if error.sqlstate not in _MADE_BY_ANOTHER:
                raise PreflightError(
                    f"the table of markers {name} is not there and cannot be made: {words_of(error)}",
                    next_step=f"let its owner run: {create_commits(ask.commits_schema).as_string(connection)}; then "
                    f"GRANT {', '.join(_RIGHTS)} ON {name} TO the role of the query. Or set commits_schema.",
                    setting="commits_schema",
                ) from None
        found = find_commits(connection, ask.commits_schema)
    oid, is_durable, row_security = found or (0, False, False)
    missing = [
        right
        for right in _RIGHTS
        if not _row(connection, "SELECT pg_catalog.has_table_privilege(%s::oid, %s)", oid, right)[0]
    ]
    if missing:
        raise PreflightError(
            f"no permission on the table of markers {name}: {', '.join(missing)} missing",
            next_step=f"GRANT {', '.join(missing)} ON {name} TO the role of the query, or set commits_schema.",
            setting="commits_schema",
        )
    if not is_durable:
        raise PreflightError(
            f"{name} is a view, or is unlogged: markers would be lost when the server crashes",
            next_step="make it an ordinary table: ALTER TABLE … SET LOGGED.",
            setting="commits_schema",
        )
    if row_security:
        raise PreflightError(
            f"row-level security applies to this role on the table of markers {name}: what is committed may be hidden "
            "from it",
            next_step=f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY, or give the role BYPASSRLS.",
            setting="commits_schema",
        )


def _check_usage(connection: Connection, schema: str, setting: str) -> None:
    """The catalog shows tables, and rights on them, to roles that may not use their schema."""
    if may_on_schema(connection, schema, "USAGE") is False:
        raise PreflightError(
            f"{setting}={schema!r}: no permission on the schema: USAGE missing",
            next_step=f"GRANT USAGE ON SCHEMA {quoted(schema)} TO the role of the query.",
            setting=setting,
        )


def _is_own(gid: str, prefix: str, query: str) -> bool:
    name = TransactionName.parse(gid)
    return name is not None and (name.prefix, name.query) == (prefix, query)


def _row(connection: Connection, query: LiteralString, *values: object, **named: object) -> tuple[Any, ...]:
    row = connection.execute(query, named or values).fetchone()
    if row is None:
        raise RuntimeError("the catalog gave no row")
    return row
