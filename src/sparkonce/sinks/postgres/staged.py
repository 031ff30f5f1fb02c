"""Finishing staged copies: all that are given, in one transaction, under locks on their rows in the table of markers.

The lock is what answers for a commit whose reply was lost: whoever asks again waits until the first one has ended, and
then reads what it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import psycopg
from psycopg import sql

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.postgres.catalog import what_has_changed
from sparkonce.sinks.postgres.connection import Connection, begin
from sparkonce.sinks.postgres.markers import look_for, nowhere
from sparkonce.sinks.postgres.names import Place, staging_table
from sparkonce.sinks.postgres.outcomes import finished
from sparkonce.sinks.postgres.settings import COMMITS_TABLE, Limits, Target
from sparkonce.sinks.postgres.statements import COMMITTED_STATE, apply, commits, drop_staging

Answers = dict[TransactionName, Finished]

_APPLICATION = "sparkonce finishing"


def commit_staged(connection: Connection, rows: Mapping[TransactionName, int], place: Place, limits: Limits) -> Answers:
    """Moves the rows of all these copies, so many of each, into their tables at once."""
    return _finish(connection, list(rows), place, limits, rows=rows)


def abort_staged(connection: Connection, names: Sequence[TransactionName], place: Place, limits: Limits) -> Answers:
    """Drops the rows of all these copies."""
    return _finish(connection, names, place, limits)


def _finish(
    connection: Connection,
    names: Sequence[TransactionName],
    place: Place,
    limits: Limits,
    *,
    rows: Mapping[TransactionName, int] | None = None,
) -> Answers:
    """Commits if it is said how many rows there must be, and aborts if not."""
    commit = rows is not None
    try:
        # Others wait for these locks for lock_s, and ask again: a driver that is gone must not hold them for longer.
        connection.execute(begin(limits, limits.commit_s, _APPLICATION, idle_s=limits.lock_s))
        found = _lock(connection, names, place)
        waiting = {name: target for name, (state, target) in found.items() if state != COMMITTED_STATE}
        answers = _before(connection, names, found, place, commit=commit)
        if rows is not None and waiting:
            wrong = _changed(connection, waiting, rows, place) or _move(connection, waiting, place)
            if wrong is not None:
                _roll_back(connection)
                return {**answers, **dict.fromkeys(waiting, wrong)}
        steps = [(_commit if commit else _abort)(list(waiting), place)] if waiting else []
        # In one message: whatever happens to this driver now, the server goes on to the end.
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
    connection: Connection, names: Sequence[TransactionName], place: Place
) -> dict[TransactionName, tuple[str, str]]:
    """State and target of those that are there, in the order of all drivers, so that none blocks the other for ever."""
    rows = connection.execute(
        sql.SQL("SELECT name, state, target FROM {} WHERE name = ANY ({}) ORDER BY name FOR UPDATE").format(
            commits(place.commits), [str(name) for name in names]
        )
    ).fetchall()
    by_text = {str(name): name for name in names}
    return {by_text[text]: (state, target) for text, state, target in rows}


def _before(
    connection: Connection,
    names: Sequence[TransactionName],
    found: Mapping[TransactionName, tuple[str, str]],
    place: Place,
    *,
    commit: bool,
) -> Answers:
    """What is known of those that are not to be finished now."""
    answers: Answers = {}
    for name in names:
        if name not in found:
            verdict = nowhere(look_for(connection, name, place), name, place)
            if verdict.outcome is Outcome.LOST and not commit:
                verdict = Finished(outcome=Outcome.ABORTED, reason="It was gone already.")
            answers[name] = verdict
        elif found[name][0] == COMMITTED_STATE:
            answers[name] = Finished(outcome=Outcome.ALREADY_COMMITTED, reason="Its marker is there.")
    return answers


def _changed(
    connection: Connection, waiting: Iterable[TransactionName], rows: Mapping[TransactionName, int], place: Place
) -> Finished | None:
    """What is wrong if a staging table holds other rows than were prepared; from now on nobody can change it.

    Not LOST: whoever has taken rows away may put them back, and what is left is named by a decision.
    """
    tables = {name: sql.Identifier(place.commits, staging_table(name)) for name in waiting}
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


def _move(connection: Connection, waiting: Mapping[TransactionName, str], place: Place) -> Finished | None:
    """Moves the rows into their tables; says what is wrong if these have changed, and the rows would with them."""
    groups: dict[str, list[TransactionName]] = {}
    for name in sorted(waiting, key=lambda one: (one.slot, one.copy)):
        groups.setdefault(waiting[name], []).append(name)
    for text, members in groups.items():
        target, columns = Target.from_text(text)
        tables = [staging_table(one) for one in members]
        moving = apply(target, columns, [sql.Identifier(place.commits, table) for table in tables])
        cursor = connection.execute(sql.SQL("; ").join([moving, what_has_changed(target, place.commits, tables)]))
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


def _commit(waiting: Sequence[TransactionName], place: Place) -> sql.Composed:
    update = sql.SQL("UPDATE {} SET state = {} WHERE name = ANY ({})").format(
        commits(place.commits), COMMITTED_STATE, [str(name) for name in waiting]
    )
    return sql.SQL("; ").join([update, drop_staging(place.commits, waiting)])


def _abort(waiting: Sequence[TransactionName], place: Place) -> sql.Composed:
    delete = sql.SQL("DELETE FROM {} WHERE name = ANY ({})").format(
        commits(place.commits), [str(name) for name in waiting]
    )
    return sql.SQL("; ").join([drop_staging(place.commits, waiting), delete])


def _roll_back(connection: Connection) -> None:
    try:
        connection.execute("ROLLBACK")
    except psycopg.Error:
        connection.close()
