"""Merges staging tables into the target in one transaction, with their markers, and drops them."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.mysql import markers
from sparkonce.sinks.mysql.connection import Link, MySQLError, number_of, words_of
from sparkonce.sinks.mysql.names import Stage, quote, stage_table
from sparkonce.sinks.mysql.outcomes import LOCKED, NO_SUCH_TABLE, outcome_of
from sparkonce.sinks.mysql.prepared import end_holder
from sparkonce.sinks.mysql.statements import merge as merge_statement
from sparkonce.sinks.mysql.target import describe

_WAIT_S = 5
_IDLE_S = 3
"""Between two statements of a merge a driver lets less time go by, unless it is paused or cut off."""

_LOST = "The staging table is not there, and the marker of its merge is not there either: nothing of it is visible."
_UNREADABLE = Finished(
    outcome=Outcome.UNKNOWN,
    reason="The staging table is there, and its comment, which says where the rows go, was changed: put it back.",
)
_TABLES = (
    "SELECT TABLE_NAME, TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
    "AND TABLE_NAME LIKE 'sparkonce\\_stage\\_%'"
)
_IDLE = "SELECT ID FROM information_schema.PROCESSLIST WHERE ID = %s AND COMMAND = 'Sleep' AND TIME >= %s"


class _InTheWay(Exception):  # noqa: N818 - not an error
    """Somebody else holds the lock of merges."""


def list_stages(link: Link) -> list[Stage]:
    """All staging tables of sparkonce's in the database, whoever's they are."""
    found = (Stage.parse(str(table), str(comment)) for table, comment in link.rows(_TABLES))
    return [one for one in found if one is not None]


def merge(link: Link, wanted: Mapping[markers.Marker, int]) -> dict[markers.Marker, Finished]:
    """Merges all of these, or none, in one transaction; those that are gone are left out and LOST.

    One connection at a time does so for a query, by a lock that the server gives back when the connection has ended and
    its transaction is finished. So who has the lock sees whether an earlier merge, whose reply was lost, was committed.

    Args:
        link: A connection that is in no transaction. After an error it must be closed.
        wanted: The transactions, each with its rows; of one query.

    Raises:
        pymysql.err.MySQLError: if the server refuses the merge as a whole, or does not answer.
    """
    try:
        with _alone(link, next(iter(wanted)).name):
            return _merge(link, wanted)
    except _InTheWay:
        reason = "Another connection is merging rows of this query."
        return {marker: Finished(outcome=Outcome.RETRY, reason=reason) for marker in wanted}


def _merge(link: Link, wanted: Mapping[markers.Marker, int]) -> dict[markers.Marker, Finished]:
    done = markers.committed(link, [marker.name for marker in wanted])
    finished = {marker: Finished(outcome=Outcome.ALREADY_COMMITTED) for marker in wanted if marker.name in done}
    there = {stage.name: stage for stage in list_stages(link)}
    finished |= {
        marker: _not_listed(link, marker.name)
        for marker in wanted
        if marker not in finished and marker.name not in there
    }
    left = sorted((one for one in wanted if one not in finished), key=lambda one: (one.name.slot, one.name.copy))
    if not left:
        return finished
    link.run("START TRANSACTION")
    for marker in left:
        markers.insert(link, marker)
    for marker in left:
        wrong = _move(link, there[marker.name], wanted[marker])
        if wrong is not None:
            link.run("ROLLBACK")
            return finished | dict.fromkeys(left, wrong)
    link.run("COMMIT")
    return finished | dict.fromkeys(left, Finished(outcome=Outcome.COMMITTED))


def _not_listed(link: Link, name: TransactionName) -> Finished:
    """What it says that a staging table is not among those listed: information_schema shows what one has a right on."""
    try:
        link.rows(f"SELECT 1 FROM {quote(stage_table(name.copy))} LIMIT 0")  # noqa: S608 - quoted
    except MySQLError as error:
        if not link.open:
            raise
        if number_of(error) != NO_SUCH_TABLE:
            return outcome_of(number_of(error), words_of(error))
        return markers.nowhere(link, name, _LOST)
    return _UNREADABLE


def _move(link: Link, stage: Stage, rows: int) -> Finished | None:
    """Moves one staging table's rows; says what is wrong if they cannot be moved as they are."""
    source, table = stage_table(stage.name.copy), stage.table
    columns = [column.name for column in describe(link, source) if column.name != "sparkonce_row"]
    try:
        moved = link.run(merge_statement(source, table, columns, stage.keys))
    except MySQLError as error:
        if number_of(error) in LOCKED or not link.open:
            raise
        found = outcome_of(number_of(error), words_of(error))
        return replace(found, reason=f"The merge of {source} into {table!r} failed: {found.reason}")
    if moved.warnings:
        return _changed(source, table, link.first_warnings())
    # An upsert's count is not that of its rows. Counted afterwards, a row that was deleted in between is missed too.
    came = link.row(f"SELECT COUNT(*) FROM {quote(source)}")[0] if stage.keys else moved.rows  # noqa: S608 - quoted
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


def drop(link: Link, name: TransactionName, *, give_up_at: float) -> Finished:
    """Drops a staging table whose rows are not to be seen; its writer, if there still is one, loses its connection.

    Args:
        link: A connection that is in no transaction.
        name: Of the transaction.
        give_up_at: Until when to try, by `time.monotonic`.
    """
    try:
        with _alone(link, name):
            late = bool(markers.committed(link, [name]))
            end_holder(link, name)
            _drop(link, name, give_up_at)
            return Finished(outcome=Outcome.ALREADY_COMMITTED if late else Outcome.ABORTED)
    except _InTheWay:
        return Finished(outcome=Outcome.RETRY, reason="Another connection is merging rows of this query.")


def _drop(link: Link, name: TransactionName, give_up_at: float) -> None:
    """The connection that was just ended may still hold the table while it rolls back; each try waits for it."""
    while True:
        try:
            link.run(f"DROP TABLE IF EXISTS {quote(stage_table(name.copy))}")
            return
        except MySQLError as error:  # noqa: PERF203 - waiting
            if number_of(error) not in LOCKED or time.monotonic() >= give_up_at:
                raise


def drop_merged(link: Link, names: Sequence[TransactionName]) -> None:
    """Drops staging tables that are merged."""
    if names:
        link.run("DROP TABLE IF EXISTS " + ", ".join(quote(stage_table(name.copy)) for name in names))


@contextlib.contextmanager
def _alone(link: Link, name: TransactionName) -> Iterator[None]:
    digest = hashlib.sha256(f"{name.prefix}.{name.query}".encode()).hexdigest()[:24]
    lock = f"sparkonce:merge:{digest}"
    (got,) = link.row("SELECT GET_LOCK(%s, %s)", (lock, _WAIT_S))
    if got != 1:
        _end_idler(link, lock)
        raise _InTheWay
    try:
        yield
    finally:
        if link.open:
            link.row("SELECT RELEASE_LOCK(%s)", (lock,))


def _end_idler(link: Link, lock: str) -> None:
    """Ends a connection that holds the lock and has done nothing for a while: of a driver that is paused or cut off.

    Its transaction is rolled back, and whoever asks next merges. Ending one that is at work would gain nothing.
    """
    (holder,) = link.row("SELECT IS_USED_LOCK(%s)", (lock,))
    if holder is None:
        return
    if link.row(_IDLE, (int(holder), _IDLE_S)):
        with contextlib.suppress(MySQLError):
            link.run(f"KILL CONNECTION {int(holder)}")
