"""Commits and rolls back branches of XA that connections which are gone have prepared, and ends those that are not.

MariaDB's word is not enough for either. When a connection that has prepared a branch ends, the server gives the branch
free a moment before InnoDB does. An ``XA COMMIT`` or ``XA ROLLBACK`` in between is answered with OK, forgets the
branch, and does nothing: the rows stay prepared, seen by nobody and locked, and nothing lists them until the server
restarts (measured with 10.11.19: 16 of 26 branches of 30 MB that were committed right after their connection had
closed). So the marker is looked at after every OK, and a branch that was forgotten is brought back, see `_revive`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.mysql import markers
from sparkonce.sinks.mysql.connection import Link, MySQLError, number_of, words_of
from sparkonce.sinks.mysql.flavours import Flavour
from sparkonce.sinks.mysql.names import Xid, lock_name, parse_recovered
from sparkonce.sinks.mysql.outcomes import NO_SUCH_THREAD, ROLLED_BACK, XAER_DUPID, XAER_NOTA, outcome_of

_ASK_AGAIN_S = 0.005
_LONGEST_PAUSE_S = 0.3
_PATIENCE_S = 0.5
"""After PREPARE the writer closes its connection; the server takes a moment to let go of the branch."""

_LOST = "The branch is not prepared on this server any more, and its marker is not there: it was rolled back."
_FORGOTTEN = Finished(
    outcome=Outcome.RETRY,
    reason="The server has forgotten the branch before it was finished, and could not be made to remember it yet.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What finishing a branch takes.

    Attributes:
        link: A connection that is in no transaction.
        flavour: Of the server.
        connect: Opens one more.
        give_up_at: Until when to ask, by `time.monotonic`.
    """

    link: Link
    flavour: Flavour
    connect: Callable[[], Link]
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
    pauses = _pauses_s()
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
            return Finished(outcome=Outcome.LOST, reason=_LOST)
        time.sleep(next(pauses))
        if desk.is_late or not _revive(desk, name):
            return _FORGOTTEN


def roll_back(desk: Desk, name: TransactionName) -> Finished:
    """Rolls a branch back, prepared or not; a writer that still has it loses its connection."""
    xid = Xid.of(name)
    pauses = _pauses_s()
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
        time.sleep(next(pauses))
        if desk.is_late or not (listed or held or _revive(desk, name)):
            return _FORGOTTEN


def _pauses_s() -> Iterator[float]:
    """Short at first: the server is usually done in a moment."""
    pause_s = _ASK_AGAIN_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _revive(desk: Desk, name: TransactionName) -> bool:
    """Makes the server know a branch again that InnoDB still has prepared; False if that must wait.

    ``XA COMMIT`` and ``XA ROLLBACK`` ask the server's own list for the id first and then InnoDB, which finishes what it
    has under the id. So a second branch with the same id and nothing but an empty marker, of nobody's, brings the id
    back into the list. Which of the two is finished first is all the same: the caller looks, and comes again.
    """
    xid = Xid.of(name)
    link = desk.connect()
    try:
        link.row("SELECT GET_LOCK(%s, 0)", (lock_name(name.copy),))
        refusal = _try(link, f"XA START {xid}")
        if refusal is not None:
            if number_of(refusal) != XAER_DUPID:
                raise refusal
            return False
        markers.insert_empty(link, secrets.token_hex(6))
        link.run(f"XA END {xid}")
        link.run(f"XA PREPARE {xid}")
    finally:
        link.end()
    while not desk.is_late and desk.link.row(_HOLDER, (lock_name(name.copy),))[0] is not None:
        time.sleep(_ASK_AGAIN_S)
    time.sleep(_ASK_AGAIN_S)
    return True


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
