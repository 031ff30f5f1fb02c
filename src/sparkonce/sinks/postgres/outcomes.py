"""What PostgreSQL's errors mean: SQLSTATE → outcome → one sentence. What is not listed is UNKNOWN.

The codes are those of the manual's appendix "PostgreSQL Error Codes"; a class of two characters stands for all of its
codes that are not listed themselves. An error without a code is a connection that was lost or never made.

Where answers to ``COMMIT PREPARED`` and ``ROLLBACK PREPARED`` come from (the server's ``twophase.c``): the commit is
durable and visible before its name is taken off the list of prepared transactions, and whoever asks in between is told
that the name is busy (55000). So a name that is not found (42704) has been finished before, and a look at the marker
afterwards tells how.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

import psycopg

from sparkonce.errors import OutageError, PrepareError
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.words import one_line

log = logging.getLogger(__name__)

NOT_FOUND = "42704"

_QUOTED = re.compile(r'".*"', re.DOTALL)
"""In an error of a value: the value."""

_LOGIN = re.compile(r"authentication failed|does not exist|pg_hba\.conf|permission denied|not permitted|no password")
"""What a server says to whoever it never lets in, or libpq of a file that is missing."""

_PLACES = ("COPY ", "PL/pgSQL function ")
"""How the lines of a context begin that name a place and no value: binary COPY shows none."""


@dataclass(frozen=True, slots=True)
class _Meaning:
    outcome: Outcome
    sentence: str
    next_step: str = ""
    outage: bool = False
    """Whether a copy that is being written may be written later: the server is away, or has no room."""


_RETRY, _UNKNOWN = Outcome.RETRY, Outcome.UNKNOWN
_REFUSED_ROWS = _Meaning(
    _UNKNOWN,
    "The table refuses rows that are decided: nothing of the batch is visible, and nothing is lost.",
    "change the constraint or the trigger, attach the partition that is missing, or UPDATE the rows in the staging "
    "tables, of which none may be missing.",
)

FINISHING: Mapping[str, _Meaning] = {
    "": _Meaning(_RETRY, "No answer: the connection could not be made, or was lost.", outage=True),
    "08": _Meaning(_RETRY, "The connection failed.", outage=True),
    "25006": _Meaning(
        _RETRY,
        "The server is a standby now.",
        "connect to the primary (target_session_attrs=read-write).",
        outage=True,
    ),
    "25P03": _Meaning(_RETRY, "This driver stood still with locks held, and the server ended its session."),
    "25P04": _Meaning(_RETRY, "This driver stood still with locks held, and the server ended its session."),
    "40001": _Meaning(_RETRY, "Another transaction was in the way."),
    "40P01": _Meaning(_RETRY, "Another transaction was in the way."),
    "53": _Meaning(_RETRY, "The server lacks memory, disk or connections; nothing is lost."),
    "53100": _Meaning(_RETRY, "The server's disk is full; nothing is lost.", "free space there.", outage=True),
    "53200": _Meaning(_RETRY, "The server lacks memory; raise max_locks_per_transaction if it says so."),
    "53300": _Meaning(
        _RETRY,
        "The server has as many connections as it takes; nothing is lost.",
        "raise max_connections above the slots of all queries together.",
        outage=True,
    ),
    "55000": _Meaning(_RETRY, "Somebody else is finishing the same transaction."),
    "55P03": _Meaning(_RETRY, "Somebody holds a lock on the table or the marker for longer than lock_timeout_s."),
    "57014": _Meaning(_RETRY, "It took longer than commit_timeout_s."),
    "57P": _Meaning(_RETRY, "The server is stopping or starting.", outage=True),
    "57P04": _Meaning(_UNKNOWN, "The database was dropped.", "restore it."),
    "0A000": _Meaning(_UNKNOWN, "The transaction belongs to another database of this server.", "correct dbname."),
    "28": _Meaning(_UNKNOWN, "The server refuses the credentials; nothing is lost.", "correct them."),
    "3D000": _Meaning(_UNKNOWN, "The database does not exist on this server.", "correct dbname, or restore it."),
    "42501": _Meaning(
        _UNKNOWN,
        "No permission.",
        "connect as the role that wrote, or grant what it had. Where a policy refuses rows that are decided, correct "
        "it, or the rows in the staging tables.",
    ),
    "42P01": _Meaning(_UNKNOWN, "The table, or the table of markers, was dropped or renamed.", "put it back."),
    "42703": _Meaning(_UNKNOWN, "A column of the table was dropped or renamed.", "put it back."),
    "42804": _Meaning(_UNKNOWN, "A column of the table has another type now.", "put it back."),
    "42P10": _Meaning(_UNKNOWN, "The unique index on key_columns was dropped.", "put it back."),
    "21000": _Meaning(
        _UNKNOWN,
        "Two rows of the batch are one key to the unique index, and two to its columns: nothing of it is visible, and "
        "nothing is lost.",
        "make the index anew with the collation of the columns.",
    ),
    "22": _REFUSED_ROWS,
    "23": _REFUSED_ROWS,
    "P0": _REFUSED_ROWS,
}

_STEPS: Mapping[str, str] = {
    "": "see whether the server is up and reachable; the batch is written again.",
    "08": "see whether the server is up and reachable; the batch is written again.",
    "0A000": "a transaction that uses LISTEN, NOTIFY, temporary objects or foreign tables cannot be prepared: take it "
    "out of the trigger, or use commit='staged'.",
    "22001": "shorten the text in the query, or widen the column.",
    "22003": "widen the column, or filter such rows.",
    "22021": "text in PostgreSQL cannot hold the character NUL (U+0000): take it out with regexp_replace, or write "
    "binary to a bytea column.",
    "22P03": "the table's columns may have changed while the query ran: start it again.",
    "23": "correct such rows in the query, or the constraint.",
    "25006": "connect to the primary (target_session_attrs=read-write).",
    "25P03": "raise slot_timeout_s, or make batches smaller.",
    "42501": "grant what docs/postgres.md lists under rights.",
    "53100": "free space on the server's disk.",
    "53200": "if max_prepared_transactions is used up, raise it above the slots of all queries together, and see "
    "`sparkonce postgres orphans`.",
    "53300": "raise max_connections above the slots of all queries together.",
    "55000": "set max_prepared_transactions above the slots of all queries together, or use commit='staged'.",
    "55P03": "somebody holds a lock, or an unfinished copy holds the same unique key: see `sparkonce postgres "
    "orphans`, or raise lock_timeout_s.",
    "57014": "raise slot_timeout_s, or make batches smaller.",
    "57P": "the transaction was ended on the server, by a sweep, an administrator or a restart; the batch is written "
    "again.",
    "P0": "a trigger or function refuses the rows: correct it, or the rows.",
}


def code_of(error: psycopg.Error) -> str:
    """Its SQLSTATE; empty if the server did not speak."""
    return error.sqlstate or ""


def words_of(error: psycopg.Error) -> str:
    """The server's own words in one line: message and where, never the statement, nor what a row holds.

    Its detail is logged at DEBUG: there it repeats keys, or whole rows.
    """
    said = error.diag
    if said.message_detail:
        log.debug("PostgreSQL: %s", one_line(f"{code_of(error)} {said.message_primary}: {said.message_detail}"))
    primary = said.message_primary or ""
    if code_of(error).startswith("22"):
        primary = _QUOTED.sub('"…"', primary)
    where = [line for line in (said.context or "").splitlines() if line.startswith(_PLACES)]
    told = ". ".join(part.strip().rstrip(".") for part in (primary, *where[:1]) if part)
    return one_line(f"{code_of(error)} {told or str(error).strip().partition(chr(10))[0]}")


def finished(error: psycopg.Error) -> Finished:
    """What an error says of a commit or an abort."""
    meaning = FINISHING.get(_key(code_of(error), FINISHING))
    if meaning is None:
        return Finished(
            outcome=Outcome.UNKNOWN, reason=f"{words_of(error)}. No answer that this request is known to get."
        )
    return Finished(
        outcome=meaning.outcome, reason=f"{words_of(error)}. {meaning.sentence}", next_step=meaning.next_step
    )


def is_outage(error: psycopg.Error) -> bool:
    """Whether the server could not be reached, or had no room: a copy may be written later.

    Of a connection that it refuses libpq tells the words alone.
    """
    code = code_of(error)
    if not code and not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    meaning = FINISHING.get(_key(code, FINISHING))
    return meaning is not None and meaning.outage and not (code == "" and _LOGIN.search(str(error)))


def prepare_error(error: psycopg.Error, what: str, staging: str = "", table: str = "") -> PrepareError:
    """What an error says of a copy that was being written.

    Args:
        error: The server's.
        what: Was being written.
        staging: The copy's staging table, which nobody knows; empty for none.
        table: The target's name, which stands for it in the message.
    """
    words = words_of(error).replace(staging, table) if staging else words_of(error)
    step = _STEPS.get(_key(code_of(error), _STEPS), "see the server's own words; the batch is written again.")
    kind = OutageError if is_outage(error) else PrepareError
    return kind(f"{what}: {words}", next_step=step, sqlstate=code_of(error))


def _key(code: str, table: Mapping[str, object]) -> str:
    """The longest entry that stands for a code."""
    if not code:
        return ""
    return next((start for start in (code, code[:3], code[:2]) if start in table), code)
