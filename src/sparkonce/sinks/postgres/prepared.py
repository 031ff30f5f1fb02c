"""Finishing prepared transactions: the server's list of them first, then the marker that the transaction left."""

from __future__ import annotations

import psycopg
from psycopg import sql

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.postgres.connection import Connection
from sparkonce.sinks.postgres.markers import MarkerState, absent_verdict, look_for
from sparkonce.sinks.postgres.names import Location
from sparkonce.sinks.postgres.outcomes import NOT_FOUND, finished


def try_finish(connection: Connection, name: TransactionName, location: Location, *, commit: bool) -> Finished:
    """Commits or aborts a prepared transaction, with the server's errors as outcomes."""
    try:
        return _finish(connection, name, location, commit=commit)
    except psycopg.Error as error:
        return finished(error)


def list_prepared(connection: Connection) -> list[TransactionName]:
    """Returns those of sparkonce in this database."""
    rows = connection.execute(
        "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database()"
    ).fetchall()
    return [name for (gid,) in rows if (name := TransactionName.parse(gid)) is not None]


def _finish(connection: Connection, name: TransactionName, location: Location, *, commit: bool) -> Finished:
    statement = sql.SQL("COMMIT PREPARED {}" if commit else "ROLLBACK PREPARED {}")
    try:
        connection.execute(statement.format(str(name)))
    except psycopg.errors.UndefinedObject as error:
        if error.sqlstate != NOT_FOUND:
            raise
        # Read after the refusal: a commit makes the marker visible before it removes the name.
        verdict = _gone(look_for(connection, name, location), name, location)
        if verdict.outcome is Outcome.LOST and not commit:
            return Finished(outcome=Outcome.ABORTED, reason="It was gone already.")
        return verdict
    return Finished(outcome=Outcome.COMMITTED if commit else Outcome.ABORTED)


def _gone(found: MarkerState, name: TransactionName, location: Location) -> Finished:
    """Returns the verdict on a transaction that the server did not have when it was asked to finish it."""
    if found.state is not None:
        return Finished(outcome=Outcome.ALREADY_COMMITTED, reason="Its marker is there.")
    if found.is_prepared:
        return Finished(outcome=Outcome.RETRY, reason="It has been prepared just now.")
    return absent_verdict(found, name, location)
