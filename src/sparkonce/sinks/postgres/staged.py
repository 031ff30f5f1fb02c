"""Finishing staged copies: all that are given, in one transaction, under locks on their markers.

A driver whose commit was not answered asks again, waits for these locks until the first commit has ended, and then
reads its result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import psycopg
from psycopg import sql

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks._shared.settings import APPEND, UPSERT
from sparkonce.sinks.postgres.catalog import list_changes, list_refusers, read_table, unique_keys
from sparkonce.sinks.postgres.connection import Connection, begin
from sparkonce.sinks.postgres.markers import absent_verdict, list_staged, look_for
from sparkonce.sinks.postgres.names import Location, staging_table
from sparkonce.sinks.postgres.outcomes import finished
from sparkonce.sinks.postgres.prepared import list_prepared
from sparkonce.sinks.postgres.settings import COMMITS_TABLE, Limits, Target
from sparkonce.sinks.postgres.statements import COMMITTED_STATE, commits, drop_staging, merge

log = logging.getLogger(__name__)

Answers = dict[TransactionName, Finished]

_NOT_HERE = "The table shows none of the batch's rows; another sink of the query may already show its own."
_APPLICATION = "sparkonce finishing"


def commit_staged(
    connection: Connection,
    rows: Mapping[TransactionName, int],
    location: Location,
    limits: Limits,
    on_conflict: str = "",
) -> Answers:
    """Merges the rows of all these copies into their tables at once.

    Args:
        connection: A connection.
        rows: How many rows each copy has prepared.
        location: The database.
        limits: How long each kind of request may take.
        on_conflict: What an operator has chosen for appended rows whose key is there: ``nothing`` leaves them out,
            ``update`` replaces the others. Empty to refuse the merge.
    """
    return _finish(connection, list(rows), location, limits, rows=rows, on_conflict=on_conflict)


def try_merge(connection: Connection, rows: Mapping[TransactionName, int], location: Location, limits: Limits) -> str:
    """Merges these copies, checks all constraints, and rolls back, where their tables may refuse any row.

    Returns:
        What is wrong with the copies or the tables; empty for nothing.

    Raises:
        psycopg.Error: if the table refuses a row, or the server cannot say.
        ValueError: if a marker is damaged.
    """
    texts = connection.execute(
        sql.SQL("SELECT DISTINCT target FROM {} WHERE name = ANY ({})").format(
            commits(location.commits), [str(name) for name in rows]
        )
    ).fetchall()
    if not any(list_refusers(connection, *Target.from_text(text)) for (text,) in texts):
        return ""
    try:
        connection.execute(begin(limits, limits.commit_s, _APPLICATION, idle_s=limits.lock_s))
        waiting = {name: target for name, (_, target) in _lock(connection, list(rows), location).items()}
        wrong = _changed(connection, waiting, rows, location) or _merge(connection, waiting, location)
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except psycopg.errors.ForeignKeyViolation as error:
        _roll_back(connection)
        if not _refers_to_unit(connection, error, list(rows), location):
            raise
        log.debug("Rows that another sink of the batch has staged may be what a foreign key misses: %s", error)
        return ""
    finally:
        _roll_back(connection)
    return wrong.reason if wrong is not None else ""


def _refers_to_unit(
    connection: Connection, error: psycopg.Error, names: Sequence[TransactionName], location: Location
) -> bool:
    """Returns True if another sink of the batch may hold the rows that a foreign key misses.

    They are invisible before the decision. After it, the commits are repeated until that sink's is through.
    """
    one = names[0]

    def is_other(name: TransactionName) -> bool:
        return name.prefix != one.prefix and (name.query, name.batch) == (one.query, one.batch)

    if any(map(is_other, list_prepared(connection))):
        return True
    found = connection.execute(
        "SELECT n.nspname::text, r.relname::text FROM pg_catalog.pg_constraint c "
        "JOIN pg_catalog.pg_class r ON r.oid = c.confrelid JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace "
        "WHERE c.conname = %s AND c.contype = 'f'",
        (error.diag.constraint_name,),
    ).fetchall()
    others = [str(name) for name in list_staged(connection, location.commits, [one.query]) if is_other(name)]
    texts = connection.execute(
        sql.SQL("SELECT DISTINCT target FROM {} WHERE name = ANY ({})").format(commits(location.commits), others)
    ).fetchall()
    targets = [Target.from_text(text)[0] for (text,) in texts]
    return any((target.schema, target.table) in found for target in targets)


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
    on_conflict: str = "",
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
            wrong = _changed(connection, waiting, rows, location) or _merge(connection, waiting, location, on_conflict)
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
                f"prepared. {_NOT_HERE} Put the rows back; or, where they are gone for good, drop "
                f"the table, and in the same transaction the row {str(name)!r} of {COMMITS_TABLE}: then they count as "
                "lost, and are written again.",
            )
    return None


def _merge(
    connection: Connection, waiting: Mapping[TransactionName, str], location: Location, on_conflict: str = ""
) -> Finished | None:
    """Merges the rows into their tables; returns an answer if a table has changed so that its rows would, too."""
    groups: dict[str, list[TransactionName]] = {}
    for name in sorted(waiting, key=lambda one: (one.slot, one.copy)):
        groups.setdefault(waiting[name], []).append(name)
    for text, members in groups.items():
        target, columns = Target.from_text(text)
        if on_conflict and target.mode == APPEND:
            settled = _settled(connection, target, columns, on_conflict)
            if isinstance(settled, Finished):
                return settled
            target = settled
        tables = [staging_table(one) for one in members]
        merging = merge(target, columns, [sql.Identifier(location.commits, table) for table in tables])
        cursor = connection.execute(sql.SQL("; ").join([merging, list_changes(target, location.commits, tables)]))
        if on_conflict:
            log.warning("%d rows go into table %s by on_conflict=%r.", cursor.rowcount, target, target.on_conflict)
        while cursor.nextset():
            pass
        if found := [text for (text,) in cursor.fetchall()]:
            return Finished(
                outcome=Outcome.UNKNOWN,
                reason=f"Table {target} has changed since the rows were prepared: {'; '.join(found)}. {_NOT_HERE} "
                "Put it back (a column its type, by ALTER TABLE; a partition by DETACH), and start the query again; "
                "change it once the query is stopped and its last batch is committed.",
            )
    return None


def _settled(connection: Connection, target: Target, columns: Sequence[str], on_conflict: str) -> Target | Finished:
    """Returns the rules for rows that were to be appended, where an operator has said what a conflict does.

    To replace rows takes one index that decides: the primary key if all of it is written, else another one.
    """
    if on_conflict == "nothing":
        return replace(target, mode=UPSERT, on_conflict="nothing")
    table = read_table(connection, target)
    known = unique_keys(connection, table.oid) if table is not None else []
    fitting = [keys for keys, not_null, alike in known if not_null and alike and keys <= set(columns)]
    if fitting:
        return replace(target, mode=UPSERT, keys=tuple(sorted(fitting[0])))
    return Finished(
        outcome=Outcome.UNKNOWN,
        reason=f"Table {target} has no unique index on written NOT NULL columns, by which rows could be replaced.",
        next_step="Run the command with --on-conflict nothing.",
    )


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
