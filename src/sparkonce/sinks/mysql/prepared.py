"""Commits and rolls back branches of XA that connections which are gone have prepared, and ends those that are not.

MariaDB's word is not enough for either. When a connection that has prepared a branch ends, the server gives the branch
free a moment before InnoDB does. An ``XA COMMIT`` or ``XA ROLLBACK`` in between is answered with OK, forgets the
branch, and does nothing: the rows stay prepared, seen by nobody and locked, and nothing lists them until the server
restarts (measured with 10.11.19: 16 of 26 branches of 30 MB that were committed right after their connection had
closed). So a moment passes after the connection has ended; and after every OK the marker is looked at: a branch that
was forgotten all the same is neither committed nor lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.mysql import markers
from sparkonce.sinks.mysql.connection import Link, MySQLError, number_of, words_of
from sparkonce.sinks.mysql.flavours import Flavour
from sparkonce.sinks.mysql.names import Xid, lock_name, parse_recovered
from sparkonce.sinks.mysql.outcomes import NO_SUCH_THREAD, ROLLED_BACK, XAER_NOTA, outcome_of

_ASK_AGAIN_S = 0.005
SETTLE_S = 0.1
"""How long InnoDB is given to notice that a connection has ended. It takes it microseconds, or as long as the server's
thread is kept from running."""

_PATIENCE_S = 0.5
"""After PREPARE the writer closes its connection; the server takes a moment to let go of the branch."""

_LOST = "The branch is not prepared on this server any more, and its marker is not there: it was rolled back."
_FORGOTTEN = Finished(
    outcome=Outcome.RETRY,
    reason="The server holds the rows prepared and does not list them (a fault of MariaDB, see docs/mysql.md): restart "
    "the server, and it will. Nothing is lost.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What finishing a branch takes.

    Attributes:
        link: A connection that is in no transaction.
        flavour: Of the server.
        give_up_at: Until when to ask, by `time.monotonic`.
    """

    link: Link
    flavour: Flavour
    give_up_at: float

    @property
    def is_late(self) -> bool:
        """Whether it is time to give up."""
        return time.monotonic() >= self.give_up_at


def recovered(link: Link, flavour: Flavour) -> set[Xid]:
    """All prepared branches of sparkonce's, whoever's they are; those of others are left out."""
    found = (parse_recovered(*row) for row in link.rows(flavour.recover))
    return {xid for xid in found if xid is not None}


def commit(desk: Desk, name: TransactionName) -> Finished:
    """Commits a prepared branch.

    XAER_NOTA is answered for a branch that is committed, that is rolled back, that another connection is finishing,
    and, by MariaDB, also as long as the connection that prepared it is there. ``XA RECOVER`` lists the last two. What
    it does not list has been finished before, so that the marker, read afterwards, tells the first two apart.
    """
    xid = Xid.of(name)
    patient_until = min(time.monotonic() + _PATIENCE_S, desk.give_up_at)
    answered = Outcome.ALREADY_COMMITTED
    while True:
        refusal = _try(desk.link, f"XA COMMIT {xid}")
        if refusal is None:
            answered = Outcome.COMMITTED
        elif not _is_absent(refusal):
            return outcome_of(number_of(refusal), words_of(refusal))
        elif xid in recovered(desk.link, desk.flavour):
            if time.monotonic() >= patient_until:
                # It is decided, so its writer has nothing more to do: its connection only keeps the branch from us.
                end_holder(desk.link, name)
                return outcome_of(number_of(refusal), words_of(refusal))
            time.sleep(_ASK_AGAIN_S)
            continue
        if markers.committed(desk.link, [name]):
            return Finished(outcome=answered)
        if not markers.is_seen(desk.link, name):
            return markers.nowhere(desk.link, name, _LOST)
        return _FORGOTTEN


def roll_back(desk: Desk, name: TransactionName) -> Finished:
    """Rolls a branch back, prepared or not; a writer that still has it loses its connection."""
    xid = Xid.of(name)
    end_holder(desk.link, name)
    settle(desk.link, [name], desk.give_up_at)
    while True:
        refusal = _try(desk.link, f"XA ROLLBACK {xid}")
        if refusal is not None and not _is_absent(refusal):
            return outcome_of(number_of(refusal), words_of(refusal))
        listed = xid in recovered(desk.link, desk.flavour)
        if not listed and markers.committed(desk.link, [name]):
            return Finished(outcome=Outcome.ALREADY_COMMITTED)
        if not listed and not markers.is_seen(desk.link, name):
            return Finished(outcome=Outcome.ABORTED)
        held = end_holder(desk.link, name)
        if desk.is_late or not (listed or held):
            return _FORGOTTEN
        settle(desk.link, [name], desk.give_up_at)


def settle(link: Link, names: Iterable[TransactionName], give_up_at: float) -> None:
    """Waits until the connections of these writers have ended, and then for InnoDB to notice."""
    waiting = [lock_name(name.copy) for name in names]
    patient_until = min(time.monotonic() + _PATIENCE_S, give_up_at)
    while waiting and time.monotonic() < patient_until:
        answers = link.row("SELECT " + ", ".join(["IS_USED_LOCK(%s)"] * len(waiting)), waiting)
        waiting = [lock for lock, holder in zip(waiting, answers, strict=True) if holder is not None]
        if waiting:
            time.sleep(_ASK_AGAIN_S)
    time.sleep(SETTLE_S)


_HOLDER = "SELECT IS_USED_LOCK(%s)"


def end_holder(link: Link, name: TransactionName) -> bool:
    """Ends the connection of a transaction's writer, and says whether it was there.

    It is known by a lock that it has held since it began. So it is surely that connection, also if the server has
    restarted since and counts its connections from 1 again.
    """
    (holder,) = link.row(_HOLDER, (lock_name(name.copy),))
    if holder is None or int(holder) == link.thread_id():
        return False
    try:
        link.run(f"KILL CONNECTION {int(holder)}")
    except MySQLError as error:
        if number_of(error) != NO_SUCH_THREAD:
            raise
    return True


def _is_absent(refusal: Exception) -> bool:
    return number_of(refusal) == XAER_NOTA or number_of(refusal) in ROLLED_BACK


def _try(link: Link, statement: str) -> Exception | None:
    try:
        link.run(statement)
    except MySQLError as error:
        if not link.open:
            raise
        refusal: Exception = error
        return refusal
    return None
