"""Finishing prepared transactions: the server's list of them first, then the marker that the transaction left."""

from __future__ import annotations

import psycopg
from psycopg import sql

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.postgres.connection import Connection
from sparkonce.sinks.postgres.markers import Look, look_for, nowhere
from sparkonce.sinks.postgres.names import Place
from sparkonce.sinks.postgres.outcomes import NOT_FOUND, finished


def commit_prepared(connection: Connection, name: TransactionName, place: Place) -> Finished:
    """Commits one, or says what has become of it. Raises `psycopg.Error` if the connection is lost."""
    try:
        connection.execute(sql.SQL("COMMIT PREPARED {}").format(str(name)))
    except psycopg.errors.UndefinedObject as error:
        if error.sqlstate != NOT_FOUND:
            raise
        return _gone(look_for(connection, name, place), name, place)
    return Finished(outcome=Outcome.COMMITTED)


def rollback_prepared(connection: Connection, name: TransactionName, place: Place) -> Finished:
    """Aborts one, or says what has become of it. Raises `psycopg.Error` if the connection is lost."""
    try:
        connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(str(name)))
    except psycopg.errors.UndefinedObject as error:
        if error.sqlstate != NOT_FOUND:
            raise
        verdict = _gone(look_for(connection, name, place), name, place)
        if verdict.outcome is Outcome.LOST:
            return Finished(outcome=Outcome.ABORTED, reason="It was gone already.")
        return verdict
    return Finished(outcome=Outcome.ABORTED)


def list_prepared(connection: Connection) -> list[TransactionName]:
    """Those of sparkonce in this database."""
    rows = connection.execute(
        "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database()"
    ).fetchall()
    return [name for (gid,) in rows if (name := TransactionName.parse(gid)) is not None]


def try_finish(connection: Connection, name: TransactionName, place: Place, *, commit: bool) -> Finished:
    """`commit_prepared` or `rollback_prepared`, with the server's errors as outcomes."""
    call = commit_prepared if commit else rollback_prepared
    try:
        return call(connection, name, place)
    except psycopg.Error as error:
        return finished(error)


def _gone(look: Look, name: TransactionName, place: Place) -> Finished:
    """What is true of a transaction that the server did not have when it was asked to finish it.

    The look comes after that: whoever has committed it in the meantime was told that it is busy, or had made the marker
    visible before the name went.
    """
    if look.state is not None:
        return Finished(outcome=Outcome.ALREADY_COMMITTED, reason="Its marker is there.")
    if look.is_prepared:
        return Finished(outcome=Outcome.RETRY, reason="It has been prepared just now.")
    return nowhere(look, name, place)
