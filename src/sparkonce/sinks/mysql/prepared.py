"""Commits and rolls back branches of XA that connections which are gone have prepared, and ends those that are not."""

from __future__ import annotations

import time

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.mysql import markers
from sparkonce.sinks.mysql.connection import Link, MySQLError, number_of, words_of
from sparkonce.sinks.mysql.flavours import Flavour
from sparkonce.sinks.mysql.names import Xid, lock_name, parse_recovered
from sparkonce.sinks.mysql.outcomes import NO_SUCH_THREAD, ROLLED_BACK, XAER_NOTA, outcome_of

_ASK_AGAIN_S = 0.003
_PATIENCE_S = 0.5
"""After PREPARE the writer closes its connection; the server takes a moment to let go of the branch."""

_LOST = "The branch is not prepared on this server any more, and its marker is not there: it was rolled back."


def recovered(link: Link, flavour: Flavour) -> set[Xid]:
    """All prepared branches of sparkonce's, whoever's they are; those of others are left out."""
    found = (parse_recovered(*row) for row in link.rows(flavour.recover))
    return {xid for xid in found if xid is not None}


def commit(link: Link, flavour: Flavour, name: TransactionName, *, give_up_at: float) -> Finished:
    """Commits a prepared branch.

    XAER_NOTA is answered for a branch that is committed, that is rolled back, that another connection is finishing,
    and, by MariaDB, also as long as the connection that prepared it is there. ``XA RECOVER`` lists the last two. What
    it does not list has been finished before, so that the marker, read afterwards, tells the first two apart.

    Args:
        link: A connection that is in no transaction.
        flavour: Of the server.
        name: Of the transaction.
        give_up_at: Until when to ask, by `time.monotonic`.
    """
    xid = Xid.of(name)
    patient_until = min(time.monotonic() + _PATIENCE_S, give_up_at)
    while True:
        refusal = _try(link, f"XA COMMIT {xid}")
        if refusal is None:
            return Finished(outcome=Outcome.COMMITTED)
        if number_of(refusal) != XAER_NOTA and number_of(refusal) not in ROLLED_BACK:
            return outcome_of(number_of(refusal), words_of(refusal))
        if xid not in recovered(link, flavour):
            if markers.committed(link, [name]):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.LOST, reason=_LOST)
        if time.monotonic() >= patient_until:
            # It is decided, so its writer has nothing more to do: its connection only keeps the branch from us.
            end_holder(link, name)
            return outcome_of(number_of(refusal), words_of(refusal))
        time.sleep(_ASK_AGAIN_S)


def roll_back(link: Link, flavour: Flavour, name: TransactionName, *, give_up_at: float) -> Finished:
    """Rolls a branch back, prepared or not; a writer that still has it loses its connection.

    Args:
        link: A connection that is in no transaction.
        flavour: Of the server.
        name: Of the transaction.
        give_up_at: Until when to ask, by `time.monotonic`.
    """
    xid = Xid.of(name)
    while True:
        refusal = _try(link, f"XA ROLLBACK {xid}")
        if refusal is None:
            return Finished(outcome=Outcome.ABORTED)
        if number_of(refusal) != XAER_NOTA and number_of(refusal) not in ROLLED_BACK:
            return outcome_of(number_of(refusal), words_of(refusal))
        if xid not in recovered(link, flavour):
            if markers.committed(link, [name]):
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            if not markers.is_seen(link, name):
                return Finished(outcome=Outcome.ABORTED, reason="It was gone already.")
        end_holder(link, name)
        if time.monotonic() >= give_up_at:
            return outcome_of(number_of(refusal), words_of(refusal))
        time.sleep(_ASK_AGAIN_S)


def end_holder(link: Link, name: TransactionName) -> None:
    """Ends the connection of a transaction's writer, if it is there.

    It is known by a lock that it has held since it began. So it is surely that connection, also if the server has
    restarted since and counts its connections from 1 again.
    """
    (holder,) = link.row("SELECT IS_USED_LOCK(%s)", (lock_name(name.copy),))
    own = link.thread_id()
    if holder is None or int(holder) == own:
        return
    try:
        link.run(f"KILL CONNECTION {int(holder)}")
    except MySQLError as error:
        if number_of(error) != NO_SUCH_THREAD:
            raise


def _try(link: Link, statement: str) -> Exception | None:
    try:
        link.run(statement)
    except MySQLError as error:
        if not link.open:
            raise
        refusal: Exception = error
        return refusal
    return None
