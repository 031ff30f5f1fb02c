"""What the server's errors mean when a transaction is finished: one table. What is not listed is UNKNOWN.

The table never says LOST. That a transaction is gone is said by three looks together: the server is the one that
prepared it, ``XA RECOVER`` does not list it (or its staging table is not there), and its marker row, read after that,
is absent. XAER_NOTA alone proves nothing: MariaDB gives it also while the connection that prepared is still there
(measured with 10.11), and for what has been committed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparkonce.protocol.outcomes import Finished, Outcome

XAER_NOTA = 1397
DUPLICATE_KEY = 1062
NO_SUCH_TABLE = 1146
NO_SUCH_THREAD = 1094

ROLLED_BACK = frozenset({1402, 1613, 1614})
"""XA_RBROLLBACK, XA_RBTIMEOUT, XA_RBDEADLOCK: the server has given the branch up, or is about to."""

LOCKED = frozenset({1205, 1213})
"""Somebody else holds the row or the table."""

_NO_REPLY = frozenset({0, 2002, 2003, 2005, 2006, 2013, 2027, 2055})

_OF_FILES = frozenset({3, 20, 1005, 1026, 1030, 1180})
"""Errors with a file, in the table space or in the log, of which the operating system says why."""
_FULL = re.compile(r"rr(?:or|code|no):? 28\b|No space left|Disk full|Disk quota exceeded")
"""ENOSPC by its number. EDQUOT's, 122, is also one of the server's own (HA_ERR_INTERNAL_ERROR)."""


@dataclass(frozen=True, slots=True)
class _Meaning:
    name: str
    outcome: Outcome
    sentence: str
    next_step: str = ""
    outage: bool = False
    """Whether a copy that is being written may be written later: the server is away, or has no room."""


_NOTHING_LOST = "Nothing is lost."
_GRANT = "grant the right."
_NOT_APPLIED = "The whole merge was rolled back and nothing of it is visible."
_UPDATE = "UPDATE one in its staging table, of whose rows none may be missing."
_PUT_RIGHT = f"put right what refuses the row, or {_UPDATE}"

_ERRORS: Mapping[int, _Meaning] = {
    1020: _Meaning("ER_CHECKREAD", Outcome.RETRY, "The row has changed meanwhile."),
    1021: _Meaning("ER_DISK_FULL", Outcome.RETRY, "The server's disk is full.", "make room there.", outage=True),
    1037: _Meaning("ER_OUTOFMEMORY", Outcome.RETRY, "The server is out of memory."),
    1040: _Meaning(
        "ER_CON_COUNT_ERROR", Outcome.RETRY, "max_connections is used up.", "raise it, or use fewer slots.", outage=True
    ),
    1041: _Meaning("ER_OUT_OF_RESOURCES", Outcome.RETRY, "The server is out of memory."),
    1044: _Meaning("ER_DBACCESS_DENIED_ERROR", Outcome.UNKNOWN, _NOTHING_LOST, _GRANT),
    1045: _Meaning(
        "ER_ACCESS_DENIED_ERROR", Outcome.UNKNOWN, f"The credentials are refused. {_NOTHING_LOST}", "correct them."
    ),
    1053: _Meaning("ER_SERVER_SHUTDOWN", Outcome.RETRY, "The server is stopping.", outage=True),
    1062: _Meaning(
        "ER_DUP_ENTRY",
        Outcome.UNKNOWN,
        f"A row of the batch has a key that the table, or another row of the batch, has already. {_NOT_APPLIED}",
        f"remove the table's row that is in the way; of two rows of the batch, {_UPDATE}",
    ),
    1114: _Meaning("ER_RECORD_FILE_FULL", Outcome.RETRY, "The tablespace is full.", "make room there.", outage=True),
    1142: _Meaning("ER_TABLEACCESS_DENIED_ERROR", Outcome.UNKNOWN, _NOTHING_LOST, _GRANT),
    1143: _Meaning("ER_COLUMNACCESS_DENIED_ERROR", Outcome.UNKNOWN, _NOTHING_LOST, _GRANT),
    1146: _Meaning(
        "ER_NO_SUCH_TABLE",
        Outcome.UNKNOWN,
        "A table that the sink needs is gone, the target or sparkonce_commits.",
        "restore it; without the latter nobody can tell what is committed.",
    ),
    1158: _Meaning("ER_NET_READ_ERROR", Outcome.RETRY, "The connection broke.", outage=True),
    1159: _Meaning("ER_NET_READ_INTERRUPTED", Outcome.RETRY, "The connection broke.", outage=True),
    1160: _Meaning("ER_NET_ERROR_ON_WRITE", Outcome.RETRY, "The connection broke.", outage=True),
    1161: _Meaning("ER_NET_WRITE_INTERRUPTED", Outcome.RETRY, "The connection broke.", outage=True),
    1180: _Meaning("ER_ERROR_DURING_COMMIT", Outcome.UNKNOWN, "The commit failed inside the server.", "see its log."),
    1203: _Meaning(
        "ER_TOO_MANY_USER_CONNECTIONS",
        Outcome.RETRY,
        "max_user_connections is used up.",
        "raise it, or use fewer slots.",
        outage=True,
    ),
    1205: _Meaning("ER_LOCK_WAIT_TIMEOUT", Outcome.RETRY, "Somebody else holds a lock on it."),
    1206: _Meaning("ER_LOCK_TABLE_FULL", Outcome.RETRY, "innodb_buffer_pool_size is too small for so many locks."),
    1213: _Meaning("ER_LOCK_DEADLOCK", Outcome.RETRY, "The server broke a deadlock off."),
    1226: _Meaning("ER_USER_LIMIT_REACHED", Outcome.RETRY, "The user's hourly limit is used up."),
    1227: _Meaning(
        "ER_SPECIFIC_ACCESS_DENIED_ERROR", Outcome.UNKNOWN, _NOTHING_LOST, f"{_GRANT} On MySQL it is XA_RECOVER_ADMIN."
    ),
    1290: _Meaning(
        "ER_OPTION_PREVENTS_STATEMENT",
        Outcome.UNKNOWN,
        "The server is read-only now: it may have become a replica.",
        "point the sink to the primary.",
    ),
    1317: _Meaning("ER_QUERY_INTERRUPTED", Outcome.RETRY, "Somebody killed the statement."),
    1370: _Meaning("ER_PROCACCESS_DENIED_ERROR", Outcome.UNKNOWN, _NOTHING_LOST, _GRANT),
    1397: _Meaning("XAER_NOTA", Outcome.RETRY, "The server is not done with the connection that prepared it."),
    1398: _Meaning("XAER_INVAL", Outcome.UNKNOWN, "The server does not take the xid."),
    1399: _Meaning("XAER_RMFAIL", Outcome.RETRY, "The connection was in another transaction; it is opened anew."),
    1400: _Meaning("XAER_OUTSIDE", Outcome.RETRY, "The connection was in another transaction; it is opened anew."),
    1401: _Meaning(
        "XAER_RMERR",
        Outcome.UNKNOWN,
        # `Sql_cmd_xa_recover::check_xa_recover_privilege` in MySQL: 1227, which names the right, is but a warning.
        "The server failed in the branch. MySQL says the same to a user without XA_RECOVER_ADMIN.",
        "see the server's log, and XA RECOVER; grant the right if it is missing, and nothing is lost.",
    ),
    1402: _Meaning("XA_RBROLLBACK", Outcome.RETRY, "The server rolls the branch back."),
    1613: _Meaning("XA_RBTIMEOUT", Outcome.RETRY, "The server rolls the branch back."),
    1614: _Meaning("XA_RBDEADLOCK", Outcome.RETRY, "The server rolls the branch back."),
    1452: _Meaning(
        "ER_NO_REFERENCED_ROW_2", Outcome.UNKNOWN, f"A foreign key refuses a row. {_NOT_APPLIED}", _PUT_RIGHT
    ),
    1644: _Meaning("ER_SIGNAL_EXCEPTION", Outcome.UNKNOWN, f"A trigger refuses a row. {_NOT_APPLIED}", _PUT_RIGHT),
    1836: _Meaning(
        "ER_READ_ONLY_MODE", Outcome.UNKNOWN, "The server is read-only now.", "point the sink to the primary."
    ),
    1927: _Meaning("ER_CONNECTION_KILLED", Outcome.RETRY, "Somebody killed the connection.", outage=True),
    1969: _Meaning("ER_STATEMENT_TIMEOUT", Outcome.RETRY, "max_statement_time was too short."),
    3024: _Meaning("ER_QUERY_TIMEOUT", Outcome.RETRY, "max_execution_time was too short."),
    3819: _Meaning(
        "ER_CHECK_CONSTRAINT_VIOLATED", Outcome.UNKNOWN, f"A CHECK refuses a row. {_NOT_APPLIED}", _PUT_RIGHT
    ),
    4025: _Meaning(
        "ER_CONSTRAINT_FAILED",
        Outcome.UNKNOWN,
        f"A CHECK, or what makes a column JSON, refuses a row. {_NOT_APPLIED}",
        _PUT_RIGHT,
    ),
}


def outcome_of(number: int | None, words: str) -> Finished:
    """What an error says about the transaction that was to be finished.

    Args:
        number: The server's or the client's error number; None if there is none.
        words: The server's own.
    """
    if number in _NO_REPLY or number is None:
        return Finished(outcome=Outcome.RETRY, reason=f"No reply from the server: {words}.")
    meaning = _ERRORS.get(number)
    if meaning is None:
        return Finished(outcome=Outcome.UNKNOWN, reason=f"error {number}: {words}. It is not known what that means.")
    return Finished(
        outcome=meaning.outcome,
        reason=f"{meaning.name} ({number}): {words}. {meaning.sentence}",
        next_step=meaning.next_step,
    )


def is_outage(number: int | None, words: str) -> bool:
    """Whether the server could not be reached, or had no room: a copy may be written later.

    Args:
        number: The server's or the client's error number.
        words: The server's own: where a file could not be written they name the operating system's error.
    """
    if number in _OF_FILES:
        return _FULL.search(words) is not None
    meaning = _ERRORS.get(number or 0)
    return number in _NO_REPLY or (meaning is not None and meaning.outage)


def is_no_reply(number: int | None) -> bool:
    """Whether the connection is gone, or was never there."""
    return number is None or number in _NO_REPLY
