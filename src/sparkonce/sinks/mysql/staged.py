"""Merges staging tables into the target in one transaction, with their markers, and drops them."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.mysql import markers
from sparkonce.sinks.mysql.connection import Connection, MySQLError, Session, number_of
from sparkonce.sinks.mysql.flavours import MARIADB
from sparkonce.sinks.mysql.names import StagingTable, quote, stage_table
from sparkonce.sinks.mysql.outcomes import LOCKED, NO_PARENT, NO_SUCH_TABLE, finished
from sparkonce.sinks.mysql.prepared import end_holder, recovered
from sparkonce.sinks.mysql.statements import merge as merge_statement
from sparkonce.sinks.mysql.statements import upsert_steps
from sparkonce.sinks.mysql.target import describe, may_refuse

_WAIT_S = 5
_IDLE_S = 3
"""The longest time between two statements of a merge, unless the driver is paused or cut off."""

_PARENT = re.compile(r"REFERENCES (?:`[^`]+`\.)?`((?:[^`]|``)+)`")
_LOST = "Neither the staging table nor the marker of its merge is there: nothing of it is visible."
_UNREADABLE = Finished(
    outcome=Outcome.UNKNOWN,
    reason="The staging table is there, and its comment, which says where the rows go, was changed: put it back.",
)
_TABLES = (
    "SELECT TABLE_NAME, TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
    "AND TABLE_NAME LIKE 'sparkonce\\_stage\\_%'"
)
_IDLE = "SELECT ID FROM information_schema.PROCESSLIST WHERE ID = %s AND COMMAND = 'Sleep' AND TIME >= %s"


class _LockedError(Exception):
    """Another connection holds the lock of merges."""


def list_staging_tables(connection: Connection) -> list[StagingTable]:
    """Returns all staging tables of sparkonce's in the database, of any query."""
    found = (StagingTable.parse(str(table), str(comment)) for table, comment in connection.rows(_TABLES))
    return [one for one in found if one is not None]


def commit_staged(
    connection: Connection, wanted: Mapping[markers.Marker, int], on_conflict: str = ""
) -> dict[markers.Marker, Finished]:
    """Merges all of these, or none, in one transaction; those that are gone are left out and LOST.

    One connection at a time does so for a query, under a lock that the server releases when the connection has ended
    and its transaction is finished. So the holder sees whether an earlier merge, whose reply was lost, was committed.

    Args:
        connection: A connection that is in no transaction. After an error it must be closed.
        wanted: The transactions, each with its rows; of one query.
        on_conflict: What an operator has chosen for appended rows whose key is there, see `merge_statement`.

    Raises:
        pymysql.err.MySQLError: if the server refuses the merge as a whole, or does not answer.
    """
    try:
        with _alone(connection, next(iter(wanted)).name):
            return _merge(connection, wanted, on_conflict)
    except _LockedError:
        reason = "Another connection is merging rows of this query."
        return {marker: Finished(outcome=Outcome.RETRY, reason=reason) for marker in wanted}


def try_merge(session: Session, wanted: Mapping[markers.Marker, int]) -> str:
    """Merges all of these, and rolls back, where their tables may refuse any row.

    Args:
        session: A connection that is in no transaction. After an error it must be closed.
        wanted: The transactions, each with its rows.

    Returns:
        What is wrong with the staging tables; empty for nothing.

    Raises:
        pymysql.err.MySQLError: if a table refuses a row, or the server does not answer.
    """
    connection, listed = session.connection, list_staging_tables(session.connection)
    there = {stage.name: stage for stage in listed}
    stages = {there[one.name]: one for one in wanted if one.name in there}
    has_checks = session.flavour is MARIADB
    refusing = {
        (stage.table, stage.keys)
        for stage in {(stage.table, stage.keys): stage for stage in stages}.values()
        if stage.rules.conditions
        or may_refuse(connection, stage.table, _columns(connection, stage), stage.keys, has_checks=has_checks)
    }
    trying = [stage for stage in stages if (stage.table, stage.keys) in refusing]
    if not trying:
        return ""
    connection.run("START TRANSACTION")
    try:
        for stage in sorted(trying, key=lambda one: (one.name.slot, one.name.copy)):
            if (wrong := _merge_one(connection, stage, wanted[stages[stage]])) is not None:
                return wrong.reason
    except MySQLError as error:
        parent = _PARENT.search(str(error.args[-1])) if number_of(error) == NO_PARENT else None
        if parent is None or not _is_in_unit(session, trying[0].name, parent[1].replace("``", "`"), listed):
            raise
        # Another sink of the batch may have these rows. The commits are repeated until that sink's is through.
    finally:
        if connection.open:
            connection.run("ROLLBACK")
    return ""


def _is_in_unit(session: Session, one: TransactionName, parent: str, listed: Sequence[StagingTable]) -> bool:
    """Returns True if another sink of the batch may have rows for a table that a foreign key refers to."""
    pending = [xid.named() for xid in recovered(session.connection, session.flavour)]
    pending += [stage.name for stage in listed if stage.table == parent and stage.name.batch == one.batch]
    return any(name.query == one.query and name.prefix != one.prefix for name in pending)


def _columns(connection: Connection, stage: StagingTable) -> list[str]:
    found = describe(connection, stage_table(stage.name.copy))
    return [column.name for column in found if column.name != "sparkonce_row"]


def _merge(
    connection: Connection, wanted: Mapping[markers.Marker, int], on_conflict: str
) -> dict[markers.Marker, Finished]:
    done = markers.committed(connection, [marker.name for marker in wanted])
    answers = {marker: Finished(outcome=Outcome.ALREADY_COMMITTED) for marker in wanted if marker.name in done}
    there = {stage.name: stage for stage in list_staging_tables(connection)}
    answers |= {
        marker: _not_listed(connection, marker.name)
        for marker in wanted
        if marker not in answers and marker.name not in there
    }
    left = sorted((one for one in wanted if one not in answers), key=lambda one: (one.name.slot, one.name.copy))
    if not left:
        return answers
    connection.run("START TRANSACTION")
    for marker in left:
        markers.insert(connection, marker)
    for marker in left:
        stage = there[marker.name]
        try:
            wrong = _merge_one(connection, stage, wanted[marker], on_conflict)
        except MySQLError as error:
            if number_of(error) in LOCKED or not connection.open:
                raise
            found = finished(error)
            where = f"{stage_table(stage.name.copy)} into {stage.table!r}"
            wrong = replace(found, reason=f"The merge of {where} failed: {found.reason}")
        if wrong is not None:
            connection.run("ROLLBACK")
            return answers | dict.fromkeys(left, wrong)
    connection.run("COMMIT")
    return answers | dict.fromkeys(left, Finished(outcome=Outcome.COMMITTED))


def _not_listed(connection: Connection, name: TransactionName) -> Finished:
    """Returns the answer for a staging table that is not listed."""
    # information_schema lists only the tables that the user has a right on.
    try:
        connection.rows(f"SELECT 1 FROM {quote(stage_table(name.copy))} LIMIT 0")  # noqa: S608 - quoted
    except MySQLError as error:
        if not connection.open:
            raise
        if number_of(error) != NO_SUCH_TABLE:
            return finished(error)
        return markers.absent_verdict(connection, name, _LOST)
    return _UNREADABLE


def _merge_one(connection: Connection, stage: StagingTable, rows: int, on_conflict: str = "") -> Finished | None:
    """Merges one staging table's rows; returns an answer if they cannot be merged as they are."""
    source, table, columns = stage_table(stage.name.copy), stage.table, _columns(connection, stage)
    if stage.rules.given():
        steps = upsert_steps(source, table, columns, stage.keys, stage.rules)
    else:
        steps = [merge_statement(source, table, columns, stage.keys, on_conflict)]
    for step in steps:
        merged = connection.run(step)
        if merged.warnings:
            return _changed(source, table, connection.first_warnings())
    # An upsert's count is not that of its rows. Counted afterwards, a row that was deleted in between is missed, too.
    is_counted = bool(stage.keys or on_conflict)
    came = connection.row(f"SELECT COUNT(*) FROM {quote(source)}")[0] if is_counted else merged.rows  # noqa: S608 - quoted
    if came != rows:
        return _changed(
            source,
            table,
            f"{came} rows came where {rows} were prepared. Put the rows back; or, where they are gone for good, drop "
            "the staging table: then they count as lost, and are written again",
        )
    return None


def _changed(stage: str, table: str, what: str) -> Finished:
    return Finished(
        outcome=Outcome.UNKNOWN,
        reason=f"The merge of {stage} into {table!r} would have changed rows, and was rolled back: {what}.",
    )


def abort_staged(session: Session, name: TransactionName, give_up_at: float) -> Finished:
    """Drops a staging table that is not to be merged. A writer that still writes to it loses its connection.

    Args:
        session: A connection that is in no transaction.
        name: Of the transaction.
        give_up_at: Until when to try, by `time.monotonic`.
    """
    connection = session.connection
    try:
        with _alone(connection, name):
            late = bool(markers.committed(connection, [name]))
            end_holder(connection, name)
            _drop(connection, name, give_up_at)
            return Finished(outcome=Outcome.ALREADY_COMMITTED if late else Outcome.ABORTED)
    except _LockedError:
        return Finished(outcome=Outcome.RETRY, reason="Another connection is merging rows of this query.")


def _drop(connection: Connection, name: TransactionName, give_up_at: float) -> None:
    # The connection that was just ended may still hold the table while it rolls back; each try waits for it.
    while True:
        try:
            connection.run(f"DROP TABLE IF EXISTS {quote(stage_table(name.copy))}")
            return
        except MySQLError as error:  # noqa: PERF203 - waiting
            if number_of(error) not in LOCKED or time.monotonic() >= give_up_at:
                raise


def drop_merged(connection: Connection, names: Sequence[TransactionName]) -> None:
    """Drops staging tables that are merged."""
    if names:
        connection.run("DROP TABLE IF EXISTS " + ", ".join(quote(stage_table(name.copy)) for name in names))


@contextlib.contextmanager
def _alone(connection: Connection, name: TransactionName) -> Iterator[None]:
    digest = hashlib.sha256(f"{name.prefix}.{name.query}".encode()).hexdigest()[:24]
    lock = f"sparkonce:merge:{digest}"
    (got,) = connection.row("SELECT GET_LOCK(%s, %s)", (lock, _WAIT_S))
    if got != 1:
        _end_idler(connection, lock)
        raise _LockedError
    try:
        yield
    finally:
        if connection.open:
            connection.row("SELECT RELEASE_LOCK(%s)", (lock,))


def _end_idler(connection: Connection, lock: str) -> None:
    """Ends a connection that holds the lock and is idle: of a driver that is paused or cut off.

    Its transaction is rolled back, and the next driver merges. Ending one that is at work would gain nothing.
    """
    (holder,) = connection.row("SELECT IS_USED_LOCK(%s)", (lock,))
    if holder is None:
        return
    if connection.row(_IDLE, (int(holder), _IDLE_S)):
        with contextlib.suppress(MySQLError):
            connection.run(f"KILL CONNECTION {int(holder)}")
