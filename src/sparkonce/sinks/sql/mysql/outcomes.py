"""Maps the server's errors when finishing a transaction to an outcome and a sentence. Unlisted errors are UNKNOWN.

The table never returns LOST, which takes three observations: the server is the one that prepared the transaction; ``XA
RECOVER`` does not list it (or its staging table does not exist); and its marker, read after that, is missing. XAER_NOTA
alone proves nothing: MariaDB also returns it for a committed transaction, and while the connection that prepared the
transaction still exists (measured with 10.11).
"""

from __future__ import annotations

import re

from sparkonce.errors import OutageError, PrepareError
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks._shared.error_table import ErrorTable, Meaning
from sparkonce.sinks.sql.mysql.connection import number_of, numbered_message, server_message

XAER_NOTA = 1397
DUPLICATE_KEY = 1062
NO_PARENT = 1452
NO_PARTITION = 1526
NO_SUCH_TABLE = 1146
NO_SUCH_THREAD = 1094

ROLLED_BACK = frozenset({1402, 1613, 1614})
"""XA_RBROLLBACK, XA_RBTIMEOUT, XA_RBDEADLOCK: the server has aborted the branch, or is about to."""

LOCKED = frozenset({1205, 1213})
"""Another transaction holds the row or the table."""

CHECKED = (3819, 4025)
"""The errors of a CHECK that rejects a row, on MySQL and on MariaDB."""

ABOUT_ROWS = frozenset(
    {1048, DUPLICATE_KEY, 1264, 1265, 1292, 1366, 1406, NO_PARENT, NO_PARTITION, 1644, 1690, *CHECKED}
)
"""Errors about a row's values: null, duplicate, range, type, length, foreign key, a trigger's SIGNAL, a CHECK."""

_NO_REPLY = frozenset({0, 2002, 2003, 2005, 2006, 2013, 2027, 2055})

_OF_FILES = frozenset({3, 20, 1005, 1026, 1030, 1180})
"""Errors about files of the tablespace or the log. The operating system's error shows the reason."""
_FULL = re.compile(r"rr(?:or|code|no):? 28\b|No space left|Disk full|Disk quota exceeded")
"""Matches ENOSPC by its number, but not EDQUOT (122), a number that the server also uses (HA_ERR_INTERNAL_ERROR)."""

_NOTHING_LOST = "Nothing is lost."
_GRANT = "Grant the right."
_NOT_APPLIED = (
    "The whole merge was rolled back, and none of its rows are visible; other sinks of the query may show theirs."
)
_UPDATE = "UPDATE one in its staging table, of whose rows none may be missing."
_PUT_RIGHT = f"Correct what refuses the row, or {_UPDATE}"

_RETRY, _UNKNOWN = Outcome.RETRY, Outcome.UNKNOWN
_FORBIDDEN = Meaning(_UNKNOWN, _NOTHING_LOST, _GRANT)
_PASSES = (1020, 1037, 1041, 1205, 1206, 1213, 1226, 1317, 1399, 1400, 1969, 3024, *ROLLED_BACK)
"""Errors whose message says it all: a lock, a deadlock, a limit, a killed statement, no memory."""
_OUTAGES = (1021, 1040, 1053, 1114, 1158, 1159, 1160, 1161, 1203, 1927)
"""The same, of a server that is unreachable, stopping, or out of space or connections."""

ERRORS = ErrorTable(
    {
        **dict.fromkeys(_PASSES, Meaning(_RETRY)),
        **dict.fromkeys(_OUTAGES, Meaning(_RETRY, outage=True)),
        **dict.fromkeys((1044, 1142, 1143, 1370), _FORBIDDEN),
        1045: Meaning(_UNKNOWN, f"The credentials are refused. {_NOTHING_LOST}", "Correct them."),
        DUPLICATE_KEY: Meaning(
            _UNKNOWN,
            f"A row of the batch has a key that the table, or another row of the batch, has already. {_NOT_APPLIED}",
            "Run sparkonce transactions resolve CHECKPOINT --config FILE --on-conflict nothing, which keeps the "
            "table's rows, or --on-conflict update, which replaces them. Or remove the row that is in the way.",
        ),
        NO_SUCH_TABLE: Meaning(
            _UNKNOWN,
            "A table that the sink needs is gone, the target or sparkonce_commits.",
            "Restore it; without the latter it is unknown which transactions are committed.",
        ),
        1180: Meaning(_UNKNOWN, "The commit failed inside the server.", "See its log."),
        1227: Meaning(_UNKNOWN, _NOTHING_LOST, f"{_GRANT} On MySQL it is XA_RECOVER_ADMIN."),
        1290: Meaning(
            _UNKNOWN, "The server is read-only now: it may have become a replica.", "Point the sink to the primary."
        ),
        XAER_NOTA: Meaning(_RETRY, "The connection that prepared it has not ended yet."),
        1398: Meaning(_UNKNOWN, "The server does not take the xid."),
        1401: Meaning(
            _UNKNOWN,
            # If the privilege is missing, MySQL only issues a warning (1227; see its
            # `Sql_cmd_xa_recover::check_xa_recover_privilege`).
            "The server failed in the branch. MySQL says the same to a user without XA_RECOVER_ADMIN.",
            "See the server's log, and XA RECOVER; grant the right if it is missing, and nothing is lost.",
        ),
        NO_PARENT: Meaning(_UNKNOWN, f"A foreign key refuses a row. {_NOT_APPLIED}", _PUT_RIGHT),
        NO_PARTITION: Meaning(
            _UNKNOWN,
            f"The table has no partition for a row. {_NOT_APPLIED}",
            f"Add the partition (ALTER TABLE … ADD PARTITION), or {_UPDATE}",
        ),
        1644: Meaning(_UNKNOWN, f"A trigger refuses a row. {_NOT_APPLIED}", _PUT_RIGHT),
        1836: Meaning(_UNKNOWN, "The server is read-only now.", "Point the sink to the primary."),
        **dict.fromkeys(
            CHECKED,
            Meaning(_UNKNOWN, f"A CHECK, or what makes a column JSON, refuses a row. {_NOT_APPLIED}", _PUT_RIGHT),
        ),
    }
)

_STEPS = {
    DUPLICATE_KEY: "Write with mode='upsert' and key_columns, which replaces the rows that are there; or drop such "
    "rows in the query (dropDuplicates), or from the table.",
    NO_PARENT: "Write the rows that these refer to first, filter such rows in the query, or drop the foreign key.",
    NO_PARTITION: "Add the partition (ALTER TABLE … ADD PARTITION), or filter such rows in the query.",
    **dict.fromkeys(CHECKED, "Correct or filter such rows in the query, or change the CHECK."),
    **dict.fromkeys(
        LOCKED,
        "Rows of the same key are locked by another slot, or by an earlier copy of this one that is prepared: use "
        "commit='staged', or partition the rows by key. What is left over is swept when the query starts.",
    ),
}


def prepare_error(error: BaseException, what: str, staging: str = "", table: str = "") -> PrepareError:
    """Returns the error of a task attempt. ``what`` describes the attempt, and ``table`` replaces ``staging``."""
    message = numbered_message(error).replace(staging, table) if staging else numbered_message(error)
    if is_outage(error):
        step = "Check whether the server is up, can be reached and has room; none of the rows is visible."
        return OutageError(f"{what}: {message}.", next_step=step)
    step = _STEPS.get(number_of(error) or 0, "Correct such rows in the query, or what refuses them.")
    return PrepareError(f"{what}: {message}.", next_step=step)


def finished(error: BaseException) -> Finished:
    """Returns what an error means for the transaction being finished."""
    number, message = number_of(error), server_message(error)
    if number is None or number in _NO_REPLY:
        return Finished(outcome=Outcome.RETRY, reason=f"No reply from the server: {message}.")
    return ERRORS.finished(number, message)


def is_outage(error: BaseException) -> bool:
    """Returns True if a task attempt can be written later because the server was unreachable or had no space."""
    number = number_of(error)
    if isinstance(error, ConnectionError | TimeoutError) or number in _NO_REPLY:
        return True
    if number in _OF_FILES:
        # The message includes the operating system's error.
        return _FULL.search(server_message(error)) is not None
    return number is not None and ERRORS.meaning(number).outage
