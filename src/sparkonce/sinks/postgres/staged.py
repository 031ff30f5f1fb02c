"""Finishing staged copies: all that are given, in one transaction, under locks on their markers.

A driver whose commit was not answered asks again, waits for these locks until the first commit has ended, and then
reads its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import psycopg
from psycopg import sql

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.postgres.catalog import list_changes
from sparkonce.sinks.postgres.connection import Connection, begin
from sparkonce.sinks.postgres.markers import absent_verdict, look_for
from sparkonce.sinks.postgres.names import Location, staging_table
from sparkonce.sinks.postgres.outcomes import finished
from sparkonce.sinks.postgres.settings import COMMITS_TABLE, Limits, Target
from sparkonce.sinks.postgres.statements import COMMITTED_STATE, commits, drop_staging, merge

Answers = dict[TransactionName, Finished]

_APPLICATION = "sparkonce finishing"


def commit_staged(
    connection: Connection, rows: Mapping[TransactionName, int], location: Location, limits: Limits
) -> Answers:
    """Merges the rows of all these copies into their tables at once.

    Args:
        connection: A connection.
        rows: How many rows each copy has prepared.
        location: The database.
        limits: How long each kind of request may take.
    """
    return _finish(connection, list(rows), location, limits, rows=rows)


def abort_staged(
    connection: Connection, names: Sequence[TransactionName], location: Location, limits: Limits
) -> Answers:
    """Drops the rows of all these copies."""
    return _finish(connection, names, location, limits)


def _finish(
    connection: Connection,
    names: Sequence[TransactionName],
    location: Location,
    limits: Limits,
    *,
    rows: Mapping[TransactionName, int] | None = None,
) -> Answers:
    """Commits if the numbers of rows are given, and aborts if not."""
    commit = rows is not None
    try:
        # Other drivers wait lock_s for these locks, and ask again: one that is gone must not hold them for longer.
        connection.execute(begin(limits, limits.commit_s, _APPLICATION, idle_s=limits.lock_s))
        found = _lock(connection, names, location)
        waiting = {name: target for name, (state, target) in found.items() if state != COMMITTED_STATE}
        answers = _before(connection, names, found, location, commit=commit)
        if rows is not None and waiting:
            wrong = _changed(connection, waiting, rows, location) or _merge(connection, waiting, location)
            if wrong is not None:
                _roll_back(connection)
                return {**answers, **dict.fromkeys(waiting, wrong)}
        steps = [(_commit if commit else _abort)(list(waiting), location)] if waiting else []
        # In one message: whatever happens to this driver now, the server carries it out to the end.
        connection.execute(sql.SQL("; ").join([*steps, sql.SQL("COMMIT")]))
    except (psycopg.Error, ValueError) as error:
        _roll_back(connection)
        if isinstance(error, ValueError):
            reason = f"A marker is damaged: {error}"
            return dict.fromkeys(names, Finished(outcome=Outcome.UNKNOWN, reason=reason))
        return dict.fromkeys(names, finished(error))
    done = Finished(outcome=Outcome.COMMITTED if commit else Outcome.ABORTED)
    return {**answers, **dict.fromkeys(waiting, done)}


def _lock(
    connection: Connection, names: Sequence[TransactionName], location: Location
) -> dict[TransactionName, tuple[str, str]]:
    """Locks the markers that are there, and returns the state and target of each.

    All drivers lock in the same order, so that none blocks another for ever.
    """
    rows = connection.execute(
        sql.SQL("SELECT name, state, target FROM {} WHERE name = ANY ({}) ORDER BY name FOR UPDATE").format(
            commits(location.commits), [str(name) for name in names]
        )
    ).fetchall()
    by_text = {str(name): name for name in names}
    return {by_text[text]: (state, target) for text, state, target in rows}


def _before(
    connection: Connection,
    names: Sequence[TransactionName],
    found: Mapping[TransactionName, tuple[str, str]],
    location: Location,
    *,
    commit: bool,
) -> Answers:
    """Returns the answers for those that need not be finished now."""
    answers: Answers = {}
    for name in names:
        if name not in found:
            verdict = absent_verdict(look_for(connection, name, location), name, location)
            if verdict.outcome is Outcome.LOST and not commit:
                verdict = Finished(outcome=Outcome.ABORTED, reason="It was gone already.")
            answers[name] = verdict
        elif found[name][0] == COMMITTED_STATE:
            answers[name] = Finished(outcome=Outcome.ALREADY_COMMITTED, reason="Its marker is there.")
    return answers


def _changed(
    connection: Connection, waiting: Iterable[TransactionName], rows: Mapping[TransactionName, int], location: Location
) -> Finished | None:
    """Locks the staging tables, and returns an answer if one holds other rows than were prepared.

    The answer is not LOST: the rows may be put back, and a decision names the others.
    """
    tables = {name: sql.Identifier(location.commits, staging_table(name)) for name in waiting}
    counts = sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT {}, count(*) FROM {}").format(number, table) for number, table in enumerate(tables.values())
    )
    lock = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.SQL(", ").join(tables.values()))
    cursor = connection.execute(sql.SQL("; ").join([lock, counts]))
    cursor.nextset()
    found: dict[int, int] = dict(cursor.fetchall())
    for number, (name, table) in enumerate(tables.items()):
        if found[number] != rows[name]:
            return Finished(
                outcome=Outcome.UNKNOWN,
                reason=f"Staging table {table.as_string(connection)} holds {found[number]} rows, and {rows[name]} were "
                "prepared. Nothing of the batch is visible. Put the rows back; or, where they are gone for good, drop "
                f"the table, and in the same transaction the row {str(name)!r} of {COMMITS_TABLE}: then they count as "
                "lost, and are written again.",
            )
    return None


def _merge(connection: Connection, waiting: Mapping[TransactionName, str], location: Location) -> Finished | None:
    """Merges the rows into their tables; returns an answer if a table has changed so that its rows would, too."""
    groups: dict[str, list[TransactionName]] = {}
    for name in sorted(waiting, key=lambda one: (one.slot, one.copy)):
        groups.setdefault(waiting[name], []).append(name)
    for text, members in groups.items():
        target, columns = Target.from_text(text)
        tables = [staging_table(one) for one in members]
        merging = merge(target, columns, [sql.Identifier(location.commits, table) for table in tables])
        cursor = connection.execute(sql.SQL("; ").join([merging, list_changes(target, location.commits, tables)]))
        while cursor.nextset():
            pass
        if found := [text for (text,) in cursor.fetchall()]:
            return Finished(
                outcome=Outcome.UNKNOWN,
                reason=f"Table {target} has changed since the rows were prepared: {'; '.join(found)}. Nothing of the "
                "batch is visible. Put it back (a column its type, by ALTER TABLE; a partition by DETACH), and start "
                "the query again; change it once the query is stopped and its last batch is committed.",
            )
    return None


def _commit(waiting: Sequence[TransactionName], location: Location) -> sql.Composed:
    update = sql.SQL("UPDATE {} SET state = {} WHERE name = ANY ({})").format(
        commits(location.commits), COMMITTED_STATE, [str(name) for name in waiting]
    )
    return sql.SQL("; ").join([update, drop_staging(location.commits, waiting)])


def _abort(waiting: Sequence[TransactionName], location: Location) -> sql.Composed:
    delete = sql.SQL("DELETE FROM {} WHERE name = ANY ({})").format(
        commits(location.commits), [str(name) for name in waiting]
    )
    return sql.SQL("; ").join([drop_staging(location.commits, waiting), delete])


def _roll_back(connection: Connection) -> None:
    try:
        connection.execute("ROLLBACK")
    except psycopg.Error:
        connection.close()
