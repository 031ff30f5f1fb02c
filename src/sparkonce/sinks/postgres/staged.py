"""Finishing staged copies: all that are given, in one transaction, under locks on their rows in the table of markers.

The lock is what answers for a commit whose reply was lost: whoever asks again waits until the first one has ended, and
then reads what it did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg
from psycopg import sql

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.postgres.connection import Connection, begin
from sparkonce.sinks.postgres.markers import look_for, nowhere
from sparkonce.sinks.postgres.names import Place, staging_table
from sparkonce.sinks.postgres.outcomes import finished
from sparkonce.sinks.postgres.settings import Limits, Target
from sparkonce.sinks.postgres.statements import COMMITTED_STATE, apply, commits, drop_staging

Answers = dict[TransactionName, Finished]

_APPLICATION = "sparkonce finishing"


def commit_staged(connection: Connection, names: Sequence[TransactionName], place: Place, limits: Limits) -> Answers:
    """Moves the rows of all these copies into their tables at once."""
    return _finish(connection, names, place, limits, commit=True)


def abort_staged(connection: Connection, names: Sequence[TransactionName], place: Place, limits: Limits) -> Answers:
    """Drops the rows of all these copies."""
    return _finish(connection, names, place, limits, commit=False)


def _finish(
    connection: Connection, names: Sequence[TransactionName], place: Place, limits: Limits, *, commit: bool
) -> Answers:
    try:
        connection.execute(begin(limits, limits.commit_s, _APPLICATION))
        found = _lock(connection, names, place)
        waiting = {name: target for name, (state, target) in found.items() if state != COMMITTED_STATE}
        answers = _before(connection, names, found, place, commit=commit)
        if waiting:
            connection.execute(_commit(waiting, place) if commit else _abort(list(waiting), place))
        connection.execute("COMMIT")
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
        sql.SQL("SELECT name, state, target FROM {} WHERE name = ANY (%s) ORDER BY name FOR UPDATE").format(
            commits(place.commits)
        ),
        ([str(name) for name in names],),
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


def _commit(waiting: Mapping[TransactionName, str], place: Place) -> sql.Composed:
    groups: dict[str, list[TransactionName]] = {}
    for name in sorted(waiting, key=lambda one: (one.slot, one.copy)):
        groups.setdefault(waiting[name], []).append(name)
    steps: list[sql.Composable] = []
    for text, members in groups.items():
        target, columns = Target.from_text(text)
        steps.append(apply(target, columns, [sql.Identifier(place.commits, staging_table(one)) for one in members]))
    texts = [str(name) for name in waiting]
    steps.append(
        sql.SQL("UPDATE {} SET state = {} WHERE name = ANY ({})").format(commits(place.commits), COMMITTED_STATE, texts)
    )
    steps.append(drop_staging(place.commits, waiting))
    return sql.SQL("; ").join(steps)


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
