"""Finishes prepared or staged transactions in MariaDB and MySQL, based on the table of markers.

The marker of a task attempt is written in the transaction that makes its rows visible: the XA branch, or the merge of
staging tables. At READ UNCOMMITTED, the table also shows markers of uncommitted transactions. This reveals open
transactions of dead or paused workers without any privilege and without ``performance_schema``.

MariaDB's OK alone does not prove that an XA branch was committed or rolled back. When the connection that prepared a
branch ends, the server releases the branch a moment before InnoDB does. In between, ``XA COMMIT`` and ``XA ROLLBACK``
return OK and forget the branch, but do nothing: the rows stay prepared, invisible and locked, and nothing lists them
until the server restarts (measured with 10.11.19: 16 of 26 branches of 30 MB that were committed right after their
connection had closed). The committer therefore ends the connection, waits a moment, and reads the marker after every
OK. A branch that was forgotten anyway counts as neither committed nor lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks._shared.committing import Claims
from sparkonce.sinks.sql.dialect import (
    KEPT_BATCHES,
    MARKED,
    Location,
    Names,
    SqlTransaction,
    StagedCopy,
    StagedTables,
    StagesFound,
    absent_verdict,
    previous_id,
)
from sparkonce.sinks.sql.mysql import outcomes
from sparkonce.sinks.sql.mysql.catalog import describe, unique_keys
from sparkonce.sinks.sql.mysql.connection import Connection, MySQLError, number_of, server_message
from sparkonce.sinks.sql.mysql.settings import StagingTable, Xid, lock_name, quote, stage_table
from sparkonce.sinks.sql.mysql.statements import ROW, merge_steps
from sparkonce.sinks.sql.settings import STAGED, TWO_PHASE, UPSERT, Limits, Target

log = logging.getLogger(__name__)

# --- markers ---------------------------------------------------------------------------------------------------------

COMMITS = "sparkonce_commits"
SERVERS = "sparkonce_servers"
TABLES = {
    COMMITS: f"CREATE TABLE {COMMITS} (prefix VARBINARY(64) NOT NULL, query VARBINARY(12) NOT NULL, "
    "batch BIGINT UNSIGNED NOT NULL, copy VARBINARY(12) NOT NULL, slot INT UNSIGNED NOT NULL, "
    "position BIGINT UNSIGNED NOT NULL, nonce VARBINARY(8) NOT NULL, kind VARBINARY(9) NOT NULL, "
    "begun_ms BIGINT UNSIGNED NOT NULL, connection BIGINT UNSIGNED NOT NULL, "
    "PRIMARY KEY (prefix, query, batch, copy)) ENGINE=InnoDB",
    SERVERS: f"CREATE TABLE {SERVERS} (host VARBINARY(300) NOT NULL PRIMARY KEY, id VARBINARY(32) NOT NULL) "
    "ENGINE=InnoDB",
}
"""The statements that create the sink's own tables, by table name. Only MariaDB needs the second one."""

_COLUMNS = "prefix, query, batch, copy, slot, position, nonce, kind, begun_ms"
KNOWN_COLUMNS = {COMMITS: frozenset({*_COLUMNS.split(", "), "connection"}), SERVERS: frozenset({"host", "id"})}
"""The columns of each table."""
_HOST = "CONCAT(@@hostname, ':', @@port)"
DRAW_IDENTITY = f"INSERT IGNORE INTO {SERVERS} (host, id) SELECT {_HOST}, %s"
_DIRTY = "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"


def insert(connection: Connection, one: SqlTransaction) -> None:
    """Writes the marker in the open transaction."""
    name = one.name
    values = (name.prefix, name.query, name.batch, name.copy, name.slot, name.token.position, name.token.nonce)
    connection.execute(
        f"INSERT INTO {COMMITS} ({_COLUMNS}, connection) VALUES ({', '.join(['%s'] * 9)}, CONNECTION_ID())",
        (*values, one.kind, one.begun_ms),
    )


def marked(connection: Connection, names: Iterable[TransactionName]) -> set[TransactionName]:
    """Returns the names that are committed. Looks up names with batch 0 in all batches; see `Xid.named`."""
    groups: dict[tuple[str, str, int], list[TransactionName]] = {}
    for name in names:
        groups.setdefault((name.prefix, name.query, name.batch), []).append(name)
    found: set[TransactionName] = set()
    for (prefix, query, batch), wanted in groups.items():
        of_batch, copies = "=" if batch else ">=", ", ".join(["%s"] * len(wanted))
        where = f"prefix = %s AND query = %s AND batch {of_batch} %s AND copy IN ({copies})"
        rows = _read(connection, where, prefix, query, batch, *(name.copy for name in wanted))
        there = {Xid.of(one.name) for one in rows}
        found |= {name for name in wanted if Xid.of(name) in there}
    return found


def markers_of(connection: Connection, prefix: str, query: str) -> list[SqlTransaction]:
    """Returns all of a query's markers that the session can see."""
    return _read(connection, "prefix = %s AND query = %s", prefix, query)


def _read(connection: Connection, where: str, *values: object) -> list[SqlTransaction]:
    location, found = Location(server=connection.server), []
    for row in connection.rows(f"SELECT {_COLUMNS} FROM {COMMITS} WHERE {where}", values):
        known: list[Any] = [value.decode() if isinstance(value, bytes) else value for value in row]
        prefix, query, batch, copy, slot, position, nonce, kind, begun_ms = known
        token = Token(position, nonce)
        name = TransactionName(prefix=prefix, query=query, token=token, batch=batch, slot=slot, copy=copy)
        found.append(SqlTransaction(kind=kind, name=name, location=location, begun_ms=begun_ms))
    return found


def queries(connection: Connection) -> list[tuple[str, str]]:
    """Returns the prefix and query of all markers, including those of uncommitted transactions."""
    connection.execute(_DIRTY)
    rows = connection.rows(f"SELECT DISTINCT prefix, query FROM {COMMITS}")
    return [(prefix.decode(), query.decode()) for prefix, query in rows]


def unsettled(connection: Connection, prefix: str, query: str) -> list[SqlTransaction]:
    """Returns a query's open and prepared transactions, from a dirty read. Leaves out those that are just committed."""
    connection.execute(_DIRTY)
    with_open = markers_of(connection, prefix, query)
    settled = {one.name for one in markers_of(connection, prefix, query)} if with_open else set()
    return [one for one in with_open if one.name not in settled]


def is_seen(connection: Connection, name: TransactionName) -> bool:
    """Returns True if a transaction still exists: a dirty read shows its marker, whether committed or not."""
    connection.execute(_DIRTY)
    return bool(marked(connection, [name]))


def _absent(connection: Connection, name: TransactionName, lost: str) -> Finished:
    query = f"SELECT MAX(batch) FROM {COMMITS} WHERE prefix = %s AND query = %s"
    return absent_verdict(name, connection.row(query, (name.prefix, name.query))[0], lost)


def identity(connection: Connection) -> str:
    """Returns the server's identity; empty if the sink has never been started on the server.

    MySQL has ``server_uuid``, which changes after a failover, see `previous_id`. MariaDB has no such id, so the first
    start generates one, and stores it with the host name and port. A replica, a restored copy and a clone contain that
    row, too, but have a different host name or port.
    """
    if connection.flavour.identity is not None:
        server, comment = connection.row(connection.flavour.identity)
        return previous_id("server", server, comment)
    found = connection.row(f"SELECT id FROM {SERVERS} WHERE host = {_HOST}")
    return found[0].decode() if found else ""


def refreshed(connection: Connection) -> Connection:
    """Returns the connection with the server's current id."""
    connection.server = identity(connection)
    return connection


def not_committed(connection: Connection, names: Names, location: Location) -> list[TransactionName]:
    """Returns the names without a marker on the server that prepared them, except those whose marker may be deleted."""
    if location.server != connection.server:
        return []
    there = marked(connection, names)
    return [one for one in names if one not in there and _absent(connection, one, "").outcome is Outcome.LOST]


def tidy(connection: Connection, known: Sequence[SqlTransaction], batch: int, is_due: bool) -> None:
    """Drops the batch's staging tables. If cleanup is due, also drops tables and markers of much older batches."""
    try:
        _drop_all(connection, [one.name for one in known if one.kind == STAGED])
        for prefix, query in {(one.name.prefix, one.name.query) for one in known} if is_due else ():
            mine = [one.name for one in list_staging_tables(connection)]
            mine = [one for one in mine if (one.prefix, one.query) == (prefix, query) and one.batch < batch]
            _drop_all(connection, sorted(marked(connection, mine), key=str))
            if batch > KEPT_BATCHES:
                delete = f"DELETE FROM {COMMITS} WHERE prefix = %s AND query = %s AND batch < %s"
                connection.execute(delete, (prefix, query, batch - KEPT_BATCHES))
    except MySQLError as error:
        if number_of(error) not in outcomes.LOCKED:
            raise
        log.info("Old markers or staging tables are left for later: %s.", server_message(error))


def _drop_all(connection: Connection, names: Names) -> None:
    if names:
        connection.execute("DROP TABLE IF EXISTS " + ", ".join(quote(stage_table(name.copy)) for name in names))


# --- writers, and what they have prepared ----------------------------------------------------------------------------

_ASK_AGAIN_S = 0.005
SETTLE_S = 0.1
"""The time that InnoDB gets to notice that a connection has ended, in seconds. It normally takes microseconds."""

_RELEASE_S = 0.5
"""The time that the server gets to release a branch whose writer closes its connection after PREPARE, in seconds."""

_LOST = "The branch is no longer prepared on this server, and has no marker: it was rolled back."
_FORGOTTEN = Finished(
    outcome=Outcome.RETRY,
    reason="The server holds the rows prepared and does not list them (a fault of MariaDB, see docs/mysql.md): restart "
    "the server, and it will. Nothing is lost.",
)


def list_open(connection: Connection, claims: Claims, _location: Location) -> list[SqlTransaction]:
    """Lists open and prepared branches, and staging tables."""
    location = Location(server=connection.server)
    found = {one.name: one for whose in claims for one in unsettled(connection, *whose)}
    copies = {name.copy for name in found}
    branches = [xid.named() for xid in recovered(connection) if xid.copy not in copies]
    found |= {name: SqlTransaction(kind=TWO_PHASE, name=name, location=location) for name in branches}
    for one in list_staging_tables(connection):
        found[one.name] = SqlTransaction(kind=STAGED, name=one.name, location=location, begun_ms=one.begun_ms)
    own = {name: one for name, one in found.items() if claims.has(name)}
    settled = marked(connection, own)
    return [one for name, one in own.items() if name not in settled]


def recovered(connection: Connection) -> set[Xid]:
    """Returns all prepared branches of sparkonce, from any query."""
    found = (Xid.parse(*row) for row in connection.rows(connection.flavour.recover))
    return {xid for xid in found if xid is not None}


def end_writers(connection: Connection, wanted: Sequence[SqlTransaction], _give_up_at: float) -> bool:
    """Ends the connections that write these transactions. To finish one, first wait until the server has noticed."""
    for one in wanted:
        end_holder(connection, one.name)
    return True


def settle(connection: Connection, names: Iterable[TransactionName], give_up_at: float) -> None:
    """Waits until the connections of these writers have ended, and until InnoDB has noticed that."""
    waiting = [lock_name(name.copy) for name in names]
    ask_until = min(time.monotonic() + _RELEASE_S, give_up_at)
    while waiting and time.monotonic() < ask_until:
        answers = connection.row("SELECT " + ", ".join(["IS_USED_LOCK(%s)"] * len(waiting)), waiting)
        waiting = [lock for lock, holder in zip(waiting, answers, strict=True) if holder is not None]
        if waiting:
            time.sleep(_ASK_AGAIN_S)
    time.sleep(SETTLE_S)


def end_holder(connection: Connection, name: TransactionName) -> bool:
    """Ends the connection of a transaction's writer. Returns True if it existed."""
    # Identify the connection by the lock that it has held since its transaction began. Connection numbers can be reused
    # after a restart of the server.
    (holder,) = connection.row("SELECT IS_USED_LOCK(%s)", (lock_name(name.copy),))
    if holder is None or int(holder) == connection.thread_id():
        return False
    try:
        connection.execute(f"KILL CONNECTION {int(holder)}")
    except MySQLError as error:
        if number_of(error) != outcomes.NO_SUCH_THREAD:
            raise
    return True


def finish_prepared(connection: Connection, one: SqlTransaction, commit: bool, give_up_at: float) -> Finished:
    """Commits or rolls back a prepared branch."""
    finish = commit_prepared if commit else rollback_prepared
    return _wrong_server(connection, one.location) or finish(connection, one.name, give_up_at)


def _wrong_server(connection: Connection, location: Location) -> Finished | None:
    if connection.server == location.server:
        return None
    return Finished(
        outcome=Outcome.UNKNOWN,
        reason=f"The settings lead to the server {connection.server or 'without an id'!r}, and the rows were prepared "
        f"on {location.server!r}: a replica, a copy, or a renamed host. Point the sink to the server that has them.",
    )


def commit_prepared(connection: Connection, name: TransactionName, give_up_at: float) -> Finished:
    """Commits a prepared branch.

    The server answers XAER_NOTA for a branch that is committed, rolled back, or being finished by another connection.
    MariaDB also does so while the connection that prepared the branch still exists. In the last two cases, ``XA
    RECOVER`` lists the branch. If it does not, the branch is finished, and its marker shows whether it was committed.
    """
    xid = Xid.of(name)
    ask_until = min(time.monotonic() + _RELEASE_S, give_up_at)
    answered = Outcome.ALREADY_COMMITTED
    while True:
        refusal = _try(connection, f"XA COMMIT {xid}")
        if refusal is None:
            answered = Outcome.COMMITTED
        elif not _is_absent(refusal):
            return outcomes.finished(refusal)
        elif xid in recovered(connection):
            if time.monotonic() >= ask_until:
                # The batch is decided, so the writer is done, and its connection only delays the commit.
                end_holder(connection, name)
                return outcomes.finished(refusal)
            time.sleep(_ASK_AGAIN_S)
            continue
        if marked(connection, [name]):
            return Finished(outcome=answered)
        return _FORGOTTEN if is_seen(connection, name) else _absent(connection, name, _LOST)


def rollback_prepared(connection: Connection, name: TransactionName, give_up_at: float) -> Finished:
    """Rolls a branch back, whether it is prepared or not. Ends the connection of a writer that still has the branch."""
    xid = Xid.of(name)
    end_holder(connection, name)
    settle(connection, [name], give_up_at)
    while True:
        refusal = _try(connection, f"XA ROLLBACK {xid}")
        if refusal is not None and not _is_absent(refusal):
            return outcomes.finished(refusal)
        listed = xid in recovered(connection)
        if not listed and marked(connection, [name]):
            return MARKED
        if not listed and not is_seen(connection, name):
            return Finished(outcome=Outcome.ABORTED)
        held = end_holder(connection, name)
        if time.monotonic() >= give_up_at or not (listed or held):
            return _FORGOTTEN
        settle(connection, [name], give_up_at)


def _is_absent(refusal: Exception) -> bool:
    return number_of(refusal) == outcomes.XAER_NOTA or number_of(refusal) in outcomes.ROLLED_BACK


def _try(connection: Connection, statement: str) -> Exception | None:
    try:
        connection.execute(statement)
    except MySQLError as error:
        if not connection.open:
            raise
        refusal: Exception = error
        return refusal
    return None


# --- staged copies ---------------------------------------------------------------------------------------------------

_WAIT_S = 5
_IDLE_S = 3
"""The maximum time between two statements of a merge, in seconds, unless the driver is paused or disconnected."""

_KEY = re.compile(r"for key '(?:[^']*\.)?([^']+)'")
_PARENT = re.compile(r"REFERENCES (?:`[^`]+`\.)?`((?:[^`]|``)+)`")
_STAGE_LOST = "Neither the staging table nor the marker of its merge is there: none of its rows are visible."
_UNREADABLE = Finished(
    outcome=Outcome.UNKNOWN,
    reason="The staging table is there, and its comment, which says where the rows go, was changed: restore it.",
)
_TABLES = (
    "SELECT TABLE_NAME, TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
    "AND TABLE_NAME LIKE 'sparkonce\\_stage\\_%'"
)
_IDLE = "SELECT ID FROM information_schema.PROCESSLIST WHERE ID = %s AND COMMAND = 'Sleep' AND TIME >= %s"


def list_staging_tables(connection: Connection) -> list[StagingTable]:
    """Returns all staging tables of sparkonce in the database, from any query."""
    found = (StagingTable.parse(str(table), str(comment)) for table, comment in connection.rows(_TABLES))
    return [one for one in found if one is not None]


def begin_merge(connection: Connection, _location: Location, names: Names, _limits: Limits, is_trial: bool) -> bool:
    """Begins a merge or a trial, under a lock that only one connection at a time holds for a query.

    The server releases the lock once the connection has ended and its transaction is finished. The next holder
    therefore sees whether an earlier merge was committed, even if its reply was lost. A trial commits nothing. It has a
    separate lock, so no abort has to wait for it. Its lock only shows which connection has locked the table's rows.
    """
    digest = hashlib.sha256(f"{names[0].prefix}.{names[0].query}".encode()).hexdigest()[:24]
    merging, trying = f"sparkonce:merge:{digest}", f"sparkonce:trial:{digest}"
    own = trying if is_trial else merging
    # MySQL evaluates the expressions from left to right, so IS_USED_LOCK sees the state after the wait.
    got, merger, trier = connection.row(
        "SELECT GET_LOCK(%s, %s), IS_USED_LOCK(%s), IS_USED_LOCK(%s)", (own, _WAIT_S, merging, trying)
    )
    for holder in (merger, trier):
        # If a holder is idle, its driver is paused or disconnected. Killing it rolls its transaction back, and the next
        # driver can then merge. Killing a busy connection would gain nothing.
        if holder not in (None, connection.thread_id()) and connection.row(_IDLE, (int(holder), _IDLE_S)):
            with contextlib.suppress(MySQLError):
                connection.execute(f"KILL CONNECTION {int(holder)}")
    if got == 1:
        connection.execute("START TRANSACTION")
    return bool(got == 1)


def stages(connection: Connection, location: Location, names: Names, commit: bool) -> StagesFound:
    """Returns the staged rows of transactions that are not committed, and the answers for all others."""
    if (wrong := _wrong_server(connection, location)) is not None:
        return {}, dict.fromkeys(names, wrong)
    answers = dict.fromkeys(marked(connection, names), MARKED)
    left = [name for name in names if name not in answers]
    if not commit:
        return dict.fromkeys(left), answers
    there = {one.name: one.target for one in list_staging_tables(connection)} if left else {}
    waiting: dict[TransactionName, StagedCopy | None] = {}
    for name in left:
        if name not in there:
            answers[name] = _not_listed(connection, name)
            continue
        table = stage_table(name.copy)
        columns = [column.name for column in describe(connection, table)]
        written = tuple(columns[columns.index(ROW) + 1 :])
        waiting[name] = StagedCopy(table=table, target=there[name], columns=written)
    return waiting, answers


def _not_listed(connection: Connection, name: TransactionName) -> Finished:
    """Returns the answer for a staging table that is missing from the list of tables."""
    # information_schema only lists tables on which the user has a privilege.
    try:
        connection.rows(f"SELECT 1 FROM {quote(stage_table(name.copy))} LIMIT 0")
    except MySQLError as error:
        if not connection.open:
            raise
        if number_of(error) != outcomes.NO_SUCH_TABLE:
            return outcomes.finished(error)
        return _absent(connection, name, _STAGE_LOST)
    return _UNREADABLE


def move(connection: Connection, _location: Location, stage: StagedCopy, tables: StagedTables, is_trial: bool) -> str:
    """Moves the rows of staging tables. Checks that all prepared rows have arrived, and are unchanged."""
    every = list(tables.values())
    for group in [every] if stage.target.rules.to_dict() else [[one] for one in every]:
        names = [table for table, _ in group]
        listed = ", ".join(names)
        changed = f"into {stage.target} would have changed rows, and was rolled back"
        try:
            for step in merge_steps(names, stage.target, stage.columns):
                merged = connection.execute(step)
                if merged.warnings:
                    return f"The merge of {listed} {changed}: {connection.first_warnings()}."
        except MySQLError as error:
            if not is_trial and connection.open and len(error.args) > 1:
                error.args = (error.args[0], f"{error.args[1]} (in the merge of {listed})")
            raise
        for table, rows in group:
            came = merged.rows
            if stage.target.mode == UPSERT:  # an upsert's affected-row count differs from its number of rows
                # Counting after the merge also detects a row that was deleted meanwhile.
                (came,) = connection.row(f"SELECT COUNT(*) FROM {quote(table)}")
            if came != rows:
                return (
                    f"The merge of {table} {changed}: {came} rows arrived, but {rows} were prepared. Restore the "
                    "rows; or, if they are permanently gone, drop the staging table: then they count as lost, and are "
                    "written again."
                )
    return ""


def settled(_connection: Connection, stage: StagedCopy, on_conflict: str) -> StagedCopy:
    """Applies an operator's choice for conflicting keys to staged rows that were to be appended."""
    return replace(stage, target=replace(stage.target, mode=UPSERT, on_conflict=on_conflict))


def commit_merge(connection: Connection, _location: Location, merged: Sequence[SqlTransaction]) -> None:
    """Writes the markers, and commits. The staging tables are dropped later, because that would end the transaction."""
    for one in merged:
        insert(connection, one)
    connection.execute("COMMIT")
    roll_back(connection)


def drop(connection: Connection, _location: Location, names: Names, give_up_at: float) -> None:
    """Drops staging tables."""
    # A connection that was just killed may keep a table locked while it rolls back. Each attempt waits for that.
    while True:
        try:
            _drop_all(connection, names)
            break
        except MySQLError as error:
            if number_of(error) not in outcomes.LOCKED or time.monotonic() >= give_up_at:
                raise
    roll_back(connection)


def roll_back(connection: Connection) -> None:
    """Rolls the transaction back if it is still open, and releases the lock."""
    connection.execute("ROLLBACK")
    connection.row("SELECT RELEASE_ALL_LOCKS()")


def refers_to_unit(connection: Connection, error: Exception, names: Names, _location: Location) -> bool:
    """Returns True if a foreign key refers to rows that another sink of the batch may have."""
    found = _PARENT.search(str(error.args[-1])) if number_of(error) == outcomes.NO_PARENT else None
    if found is None:
        return False
    one, parent = names[0], found[1].replace("``", "`")
    stages = [stage for stage in list_staging_tables(connection) if stage.target.table == parent]
    others = [xid.named() for xid in recovered(connection)]
    others += [stage.name for stage in stages if stage.name.batch == one.batch]
    return any(name.query == one.query and name.prefix != one.prefix for name in others)


def named(connection: Connection, error: Exception, target: Target) -> str:
    """Returns the key that a row duplicates, with its columns."""
    key = _KEY.search(server_message(error)) if number_of(error) == outcomes.DUPLICATE_KEY else None
    if key is None:
        return ""
    return f"key {key[1]!r} ({', '.join(unique_keys(connection, target.table)[0].get(key[1], []))})"
