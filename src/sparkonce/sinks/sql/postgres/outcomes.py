"""Maps PostgreSQL's errors (SQLSTATE) to an outcome and a sentence. Unlisted errors are UNKNOWN.

The codes are those of the manual's appendix "PostgreSQL Error Codes". A class of two characters stands for all of its
codes that are not listed. An error without a code means that a connection was lost or never established.

``COMMIT PREPARED`` (the server's ``twophase.c``) makes a commit durable and visible before it removes the name from the
list of prepared transactions. It answers a request in between with "busy" (55000). A name that is not found (42704) has
therefore already been finished, and its marker, read afterward, shows how.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

import psycopg

from sparkonce.errors import OutageError, PrepareError, one_line
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks._shared.error_table import ErrorTable, Meaning, entry_of

log = logging.getLogger(__name__)

NOT_FOUND = "42704"

_CLASS_LENGTHS = (3, 2)
"""The appendix groups codes by two characters; ``57P`` are the codes of a server that stops or starts."""

_QUOTED = re.compile(r'".*"', re.DOTALL)
"""Matches the value in an error that is about a value."""

_LOGIN = re.compile(r"authentication failed|does not exist|pg_hba\.conf|permission denied|not permitted|no password")
"""The server's messages to a client that it will never let in, or libpq's message about a missing file."""

_NOT_CONNECTED = (psycopg.OperationalError, psycopg.InterfaceError)

_WITH_VALUES = ("22", "42601")
"""Codes of errors whose message repeats a value. 42601 is also the code for text that is not a tsvector."""

_ABOUT_ROWS = ("22", "23", "P0001")

_CONTEXTS = ("COPY ", "PL/pgSQL function ")
"""The beginnings of context lines that contain a location but no value. For binary COPY, no such line contains one."""

_RETRY, _UNKNOWN = Outcome.RETRY, Outcome.UNKNOWN
_DECIDED = (
    "The table refuses rows that are decided. It shows none of them, and nothing is lost; other sinks of the query may "
    "show theirs."
)
_REFUSED_ROWS = Meaning(
    _UNKNOWN,
    _DECIDED,
    "Change the constraint or the trigger, attach the partition that is missing, or UPDATE the rows in the staging "
    "tables, of which none may be missing.",
)
_CONFLICT = Meaning(
    _UNKNOWN,
    _DECIDED,
    "Run sparkonce transactions resolve CHECKPOINT --config FILE --on-conflict nothing, which keeps the table's rows, "
    "or --on-conflict update, which replaces them. Or remove the rows that are in the way.",
)

_MEANINGS: Mapping[str, Meaning] = {
    "": Meaning(_RETRY, "No answer: the connection could not be made, or was lost.", outage=True),
    "08": Meaning(_RETRY, "The connection failed.", outage=True),
    "25006": Meaning(
        _RETRY, "The server is a standby now.", "Connect to the primary (target_session_attrs=read-write).", outage=True
    ),
    **dict.fromkeys(("25P03", "25P04", "40001", "40P01", "53"), Meaning(_RETRY)),
    "53100": Meaning(_RETRY, outage=True),
    "53200": Meaning(_RETRY, "The server lacks memory; raise max_locks_per_transaction if it says so."),
    "53300": Meaning(
        _RETRY,
        "The server has as many connections as it takes; nothing is lost.",
        "Raise max_connections above the slots of all queries together.",
        outage=True,
    ),
    "55000": Meaning(_RETRY, "Another connection is finishing the same transaction."),
    "55P03": Meaning(_RETRY, "Another session holds a lock on the table or the marker for longer than lock_timeout_s."),
    "57014": Meaning(_RETRY, "It took longer than commit_timeout_s."),
    "57P": Meaning(_RETRY, "The server is stopping or starting.", outage=True),
    "57P04": Meaning(_UNKNOWN, "The database was dropped.", "Restore it."),
    "0A000": Meaning(_UNKNOWN, "The transaction belongs to another database of this server.", "Correct dbname."),
    "28": Meaning(_UNKNOWN, "The server refuses the credentials; nothing is lost.", "Correct them."),
    "3D000": Meaning(_UNKNOWN, "The database does not exist on this server.", "Correct dbname, or restore it."),
    "42501": Meaning(
        _UNKNOWN,
        "No permission.",
        "Connect as the role that wrote, or grant what it had. Where a policy refuses rows that are decided, correct "
        "it, or the rows in the staging tables.",
    ),
    "42P01": Meaning(_UNKNOWN, "The table, or the table of markers, was dropped or renamed.", "Put it back."),
    "42703": Meaning(_UNKNOWN, "A column of the table was dropped or renamed.", "Put it back."),
    "42804": Meaning(_UNKNOWN, "A column of the table has another type now.", "Put it back."),
    "42P10": Meaning(_UNKNOWN, "The unique index on key_columns was dropped.", "Put it back."),
    "21000": Meaning(
        _UNKNOWN,
        "Two rows of the batch have the same key for the unique index, but not for its columns. The table shows none "
        "of them, and nothing is lost.",
        "Recreate the index with the collation of the columns.",
    ),
    **dict.fromkeys(("22", "23", "54000", "P0"), _REFUSED_ROWS),
    **dict.fromkeys(("23505", "23P01"), _CONFLICT),
}

_STATEMENT_POOLING = "statement pooling mode"
"""PgBouncer's message for BEGIN.

Its code, 08P01, is also that of all other PgBouncer errors, such as an unreachable server.
"""
_POOL_TRANSACTIONS = "Set pool_mode=transaction or session in PgBouncer, or connect to the server itself."

FINISHING = ErrorTable(
    _MEANINGS,
    phrases=((_STATEMENT_POOLING, Meaning(_UNKNOWN, "The pooler does not support transactions.", _POOL_TRANSACTIONS)),),
    class_lengths=_CLASS_LENGTHS,
)

_STEPS: Mapping[str, str] = {
    **dict.fromkeys(("", "08"), "Check whether the server is up and reachable; the batch is written again."),
    "0A000": "A transaction that uses LISTEN, NOTIFY, temporary objects or foreign tables cannot be prepared: take it "
    "out of the trigger, or use commit='staged'.",
    "22021": "The text is not UTF-8, or has a character that the database's encoding lacks: use make_valid_utf8 in the "
    "query, or write binary to a bytea column.",
    "22P05": "The database's encoding lacks a character of the text: replace it in the query, or use a database with "
    "the encoding UTF8.",
    "22P03": "The table's columns may have changed while the query ran: start it again.",
    "21000": "Give the unique index the collation of its columns.",
    "23503": "Write the rows that these refer to first, filter such rows in the query, or drop the foreign key.",
    "23505": "Write with mode='upsert' and key_columns, which replaces the rows that are there, or keeps them with "
    "on_conflict='nothing'; or drop such rows in the query (dropDuplicates), or from the table.",
    "25006": "Connect to the primary (target_session_attrs=read-write).",
    "25P03": "Raise slot_timeout_s, or make batches smaller.",
    "42501": "Grant what docs/postgres.md lists under rights.",
    "53100": "Free space on the server's disk.",
    "53200": "If max_prepared_transactions is used up, raise it above the slots of all queries together, and see "
    "`sparkonce transactions list --system postgres`.",
    "53300": "Raise max_connections above the slots of all queries together.",
    "55000": "Set max_prepared_transactions above the slots of all queries together, or use commit='staged'.",
    "55P03": "Another session holds a lock, or an unfinished copy holds the same unique key: see `sparkonce "
    "transactions list --system postgres`, or raise lock_timeout_s.",
    "57014": "Raise slot_timeout_s, or make batches smaller.",
    "57P": "The transaction was ended on the server, by a sweep, an administrator or a restart; the batch is written "
    "again.",
}

_STEPS_OF_NUL: Mapping[str, str] = {
    "22021": "Text in PostgreSQL cannot hold the character NUL (U+0000): take it out with regexp_replace, or write "
    "binary to a bytea column.",
    "22P05": "jsonb cannot hold the escape \\u0000, the character NUL: take it out with replace in the query, or make "
    "the column json, which keeps the text as it is.",
}
_NUL = re.compile(r"encoding .*: 0x00$|\\u0000")


def code_of(error: Exception) -> str:
    """Returns the error's SQLSTATE; empty if the server did not answer."""
    return (error.sqlstate if isinstance(error, psycopg.Error) else None) or ""


def server_message(error: Exception) -> str:
    """Returns the server's own message in one line: code, text and location, never the statement or a row's values."""
    if not isinstance(error, psycopg.Error):
        return one_line(error)
    diagnostics = error.diag
    if diagnostics.message_detail:
        # The server's detail repeats keys or whole rows.
        log.debug(
            "PostgreSQL: %s", one_line(f"{code_of(error)} {diagnostics.message_primary}: {diagnostics.message_detail}")
        )
    primary = diagnostics.message_primary or ""
    if code_of(error).startswith(_WITH_VALUES):
        primary = _QUOTED.sub('"…"', primary)
    where = [line for line in (diagnostics.context or "").splitlines() if line.startswith(_CONTEXTS)]
    told = ". ".join(part.strip().rstrip(".") for part in (primary, *where[:1]) if part)
    return one_line(f"{code_of(error)} {told or str(error).strip().partition(chr(10))[0]}")


def finished(error: Exception) -> Finished:
    """Returns the outcome of a commit or an abort that raised an error."""
    return FINISHING.finished(code_of(error), str(error), shown=server_message(error))


def row_refusal(error: psycopg.Error) -> str:
    """Returns the server's message if it rejected a row because of its type, a constraint or a trigger."""
    return server_message(error) if code_of(error).startswith(_ABOUT_ROWS) else ""


def is_outage(error: psycopg.Error) -> bool:
    """Returns True if a task attempt can be written later because the server was unreachable or had no space."""
    code = code_of(error)
    # For a refused connection, libpq gives a message but no SQLSTATE.
    if not code and (not isinstance(error, _NOT_CONNECTED) or _LOGIN.search(str(error))):
        return False
    return FINISHING.meaning(code, str(error)).outage


def prepare_error(error: psycopg.Error, what: str, staging: str = "", table: str = "") -> PrepareError:
    """Returns the error of a task attempt. ``what`` describes the attempt, and ``table`` replaces ``staging``."""
    message = server_message(error).replace(staging, table) if staging else server_message(error)
    code = code_of(error)
    in_full = "\n".join(filter(None, (error.diag.message_detail, error.diag.message_primary)))
    steps = {**_STEPS, **_STEPS_OF_NUL} if _NUL.search(in_full) else _STEPS
    other = "See the server's message; the batch is written again."
    if code.startswith((*_WITH_VALUES, *_ABOUT_ROWS, "P0")):
        other = "Correct such rows in the query, or what refuses them."
    step = steps.get(entry_of(code, steps, _CLASS_LENGTHS), other)
    if _STATEMENT_POOLING in message:
        step = _POOL_TRANSACTIONS
    kind = OutageError if is_outage(error) else PrepareError
    return kind(f"{what}: {message.rstrip('.')}.", next_step=step, sqlstate=code)
