"""Commits and rolls back branches of XA that were prepared by connections of workers, and ends these connections.

MariaDB's OK is not enough for either. When a connection that has prepared a branch ends, the server releases the branch
a moment before InnoDB does. An ``XA COMMIT`` or ``XA ROLLBACK`` in between is answered with OK, forgets the branch, and
does nothing: the rows stay prepared, invisible and locked, and nothing lists them until the server restarts (measured
with 10.11.19: 16 of 26 branches of 30 MB that were committed right after their connection had closed). So a moment
passes after the connection has ended, and after every OK the marker is read: a branch that was forgotten all the same
is neither committed nor lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.mysql import markers
from sparkonce.sinks.mysql.connection import Connection, MySQLError, Session, number_of
from sparkonce.sinks.mysql.flavours import Flavour
from sparkonce.sinks.mysql.names import Xid, lock_name, parse_recovered
from sparkonce.sinks.mysql.outcomes import NO_SUCH_THREAD, ROLLED_BACK, XAER_NOTA, finished

_ASK_AGAIN_S = 0.005
SETTLE_S = 0.1
"""The time that InnoDB gets to notice that a connection has ended: microseconds, unless its thread is kept waiting."""

_RELEASE_S = 0.5
"""The time that the server may take to release a branch whose writer closes its connection after PREPARE."""

_LOST = "The branch is not prepared on this server any more, and has no marker: it was rolled back."
_HOLDER = "SELECT IS_USED_LOCK(%s)"
_FORGOTTEN = Finished(
    outcome=Outcome.RETRY,
    reason="The server holds the rows prepared and does not list them (a fault of MariaDB, see docs/mysql.md): restart "
    "the server, and it will. Nothing is lost.",
)


def recovered(connection: Connection, flavour: Flavour) -> set[Xid]:
    """Returns all prepared branches of sparkonce's, of any query."""
    found = (parse_recovered(*row) for row in connection.rows(flavour.recover))
    return {xid for xid in found if xid is not None}


def commit_prepared(session: Session, name: TransactionName, give_up_at: float) -> Finished:
    """Commits a prepared branch.

    The server answers XAER_NOTA for a branch that is committed, that is rolled back, or that another connection is
    finishing; MariaDB also as long as the connection that prepared it is there. ``XA RECOVER`` lists the last two. A
    branch that it does not list has been finished before: the marker, read afterwards, tells whether by a commit.

    Args:
        session: A connection that is in no transaction.
        name: Of the transaction.
        give_up_at: Until when to ask, by `time.monotonic`.
    """
    xid, connection = Xid.of(name), session.connection
    ask_until = min(time.monotonic() + _RELEASE_S, give_up_at)
    answered = Outcome.ALREADY_COMMITTED
    while True:
        refusal = _try(connection, f"XA COMMIT {xid}")
        if refusal is None:
            answered = Outcome.COMMITTED
        elif not _is_absent(refusal):
            return finished(refusal)
        elif xid in recovered(connection, session.flavour):
            if time.monotonic() >= ask_until:
                # It is decided, so its writer has nothing more to do: its connection only holds the branch.
                end_holder(connection, name)
                return finished(refusal)
            time.sleep(_ASK_AGAIN_S)
            continue
        if markers.committed(connection, [name]):
            return Finished(outcome=answered)
        return _FORGOTTEN if markers.is_seen(connection, name) else markers.absent_verdict(connection, name, _LOST)


def rollback_prepared(session: Session, name: TransactionName, give_up_at: float) -> Finished:
    """Rolls a branch back, prepared or not. A writer that still has it loses its connection.

    Args:
        session: A connection that is in no transaction.
        name: Of the transaction.
        give_up_at: Until when to ask, by `time.monotonic`.
    """
    xid, connection = Xid.of(name), session.connection
    end_holder(connection, name)
    settle(connection, [name], give_up_at)
    while True:
        refusal = _try(connection, f"XA ROLLBACK {xid}")
        if refusal is not None and not _is_absent(refusal):
            return finished(refusal)
        listed = xid in recovered(connection, session.flavour)
        if not listed and markers.committed(connection, [name]):
            return Finished(outcome=Outcome.ALREADY_COMMITTED)
        if not listed and not markers.is_seen(connection, name):
            return Finished(outcome=Outcome.ABORTED)
        held = end_holder(connection, name)
        if time.monotonic() >= give_up_at or not (listed or held):
            return _FORGOTTEN
        settle(connection, [name], give_up_at)


def settle(connection: Connection, names: Iterable[TransactionName], give_up_at: float) -> None:
    """Waits until the connections of these writers have ended, and then for InnoDB to notice."""
    waiting = [lock_name(name.copy) for name in names]
    ask_until = min(time.monotonic() + _RELEASE_S, give_up_at)
    while waiting and time.monotonic() < ask_until:
        answers = connection.row("SELECT " + ", ".join(["IS_USED_LOCK(%s)"] * len(waiting)), waiting)
        waiting = [lock for lock, holder in zip(waiting, answers, strict=True) if holder is not None]
        if waiting:
            time.sleep(_ASK_AGAIN_S)
    time.sleep(SETTLE_S)


def end_holder(connection: Connection, name: TransactionName) -> bool:
    """Ends the connection of a transaction's writer, and returns whether it was there."""
    # The lock that it has held since it began tells it apart, also from a connection with the same number after a
    # restart of the server.
    (holder,) = connection.row(_HOLDER, (lock_name(name.copy),))
    if holder is None or int(holder) == connection.thread_id():
        return False
    try:
        connection.run(f"KILL CONNECTION {int(holder)}")
    except MySQLError as error:
        if number_of(error) != NO_SUCH_THREAD:
            raise
    return True


def _is_absent(refusal: Exception) -> bool:
    return number_of(refusal) == XAER_NOTA or number_of(refusal) in ROLLED_BACK


def _try(connection: Connection, statement: str) -> Exception | None:
    try:
        connection.run(statement)
    except MySQLError as error:
        if not connection.open:
            raise
        refusal: Exception = error
        return refusal
    return None
