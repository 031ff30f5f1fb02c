"""The driver half of the PostgreSQL sink: finishes what writers in other processes have prepared or staged.

Staged copies are finished together, in one transaction, under locks on their markers. A driver whose commit was not
answered asks again, waits for these locks until the first commit has ended, and then reads its result.

Prepared transactions are finished one by one: by the server's list of them first, then by the marker that the
transaction left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import sql

from sparkonce.errors import SparkonceError, UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner
from sparkonce.sinks._shared.committing import FOREIGN, Claims, Every, finish_each
from sparkonce.sinks._shared.databases import NOTHING_UNDONE, DatabaseCommitter
from sparkonce.sinks._shared.settings import APPEND, STAGED, TWO_PHASE, UPSERT
from sparkonce.sinks.postgres.catalog import (
    definition,
    list_changes,
    list_refusers,
    read_signature,
    read_table,
    unique_keys,
)
from sparkonce.sinks.postgres.connection import Connection, begin, connect, is_alive, is_idle, within
from sparkonce.sinks.postgres.markers import (
    TIDY_EVERY,
    MarkerState,
    absent_verdict,
    list_staged,
    look_for,
    not_committed,
    read_traces,
    tidy,
)
from sparkonce.sinks.postgres.names import FIELDS, OPEN, BackendName, Location, PostgresTransaction, staging_table
from sparkonce.sinks.postgres.outcomes import NOT_FOUND, finished, is_busy, prepare_error
from sparkonce.sinks.postgres.settings import COMMITS_TABLE, Conninfo, Limits, Target
from sparkonce.sinks.postgres.statements import COMMITTED_STATE, commits, drop_staging, merge

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Connections that commit prepared transactions side by side: each waits for the server's disk."""

_SOON_S = 0.01
_TERMINATE = """
SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
WHERE application_name = ANY (%s) AND datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()
"""

Answers = dict[PostgresTransaction, Finished]


class PostgresCommitter(DatabaseCommitter[PostgresTransaction, Connection]):
    """Commits and aborts by name, from any process.

    Args:
        to: The server's address.
        name: The sink's name, for the handles that `list_lingering` makes.
        limits: How long each kind of request may take.
        target: The table of staged rows, which is checked before each decision; None for others.
        on_conflict: See `commit_staged`.
    """

    errors = (psycopg.Error,)
    name_field = "name"
    handle_fields = FIELDS

    def __init__(
        self, to: Conninfo, name: str, *, limits: Limits, target: Target | None = None, on_conflict: str = ""
    ) -> None:
        super().__init__(name, f"PostgreSQL at {to}", answer_s=limits.answer_s)
        self._to = to
        self._limits = limits
        self._target = target
        self._on_conflict = on_conflict
        self._tidying = Every(TIDY_EVERY)

    # --- SinkCommitter ----------------------------------------------------------------------------------------------

    def commit_all(self, wanted: Mapping[PostgresTransaction, Handle]) -> Answers:
        """Commits staged copies in one transaction, and prepared transactions one by one."""
        return self._finish(wanted, commit=True)

    def abort_all(self, wanted: Mapping[PostgresTransaction, Handle]) -> Answers:
        """Ends the sessions of writers first, and aborts what they have prepared or staged."""
        try:
            stopped = self._stop_writers([one.backend for one in wanted])
        except psycopg.Error as error:
            return dict.fromkeys(wanted, self.outcome_of(error))
        if not stopped:
            busy = Finished(outcome=Outcome.RETRY, reason="The server has not ended the writer's session yet.")
            return dict.fromkeys(wanted, busy)
        return self._finish(wanted, commit=False)

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """Lists prepared transactions, staged copies, and sessions that still write.

        Raises:
            UnknownOutcomeError: if the server does not say.
        """
        claims = Claims(owners)
        found: list[PostgresTransaction] = []
        for location in dict.fromkeys(Location.of(owner.facts) for owner in owners if owner.facts.get("prefix")):
            with self.asking("which transactions are open") as connection:
                # In the order in which a transaction goes through these states: one on its way is seen at least once.
                sessions = _list_sessions(connection)
                prepared = list_prepared(connection)
                staged = list_staged(connection, location.commits, claims.queries)
            for kind, names in ((OPEN, sessions), (TWO_PHASE, prepared), (STAGED, staged)):
                found += [
                    PostgresTransaction(kind=kind, name=one, location=location) for one in names if claims.has(one)
                ]
        return [one.handle(self._name) for one in dict.fromkeys(found)]

    def before_decision(self, facts: Facts) -> str:  # noqa: ARG002 - the table is asked
        """Checks the table of staged rows. Other writers have checked it under the lock that their rows hold."""
        if self._target is None:
            return ""
        try:
            with self.asking("whether the table is as it was") as connection:
                _, fragile = read_signature(connection, self._target)
        except UnknownOutcomeError as error:
            log.warning("%s The batch is decided: its commit checks again.", error.message)
            return ""
        return fragile and f"rows of table {self._target} may go where they are not safe: {fragile}"

    def check_prepared(self, handles: Sequence[Handle]) -> str:
        """Merges the staged rows of all slots on trial: what the table refuses now is refused before the decision.

        Raises:
            PrepareError: if the table refuses a row, in the server's words.
            UnknownOutcomeError: if the server does not say, or the table is locked.
        """
        staged: dict[Location, dict[Any, int]] = {}
        for handle in handles:
            one = self.transaction_of(handle) if handle.transaction else FOREIGN
            if isinstance(one, PostgresTransaction) and one.kind == STAGED:
                staged.setdefault(one.location, {})[one.name] = handle.rows
        for location, rows in staged.items():
            try:
                with self.lent(self._limits.commit_s + self._limits.answer_s) as connection:
                    wrong = try_merge(connection, rows, location, self._limits)
            except psycopg.Error as error:
                raise self._refused(error) from error
            if wrong:
                return wrong
        return ""

    def _refused(self, error: psycopg.Error) -> SparkonceError:
        if is_busy(error):
            what = f"{self._server} did not say if the table takes the batch: {self.outcome_of(error).reason}"
            return UnknownOutcomeError(what, next_step=NOTHING_UNDONE)
        about, known = error.diag, ""
        if about.schema_name and about.table_name and about.constraint_name:
            with self.asking("what its constraint says") as connection:
                known = definition(connection, about.schema_name, about.table_name, about.constraint_name)
        by = f" by {known}" if known else ""
        return prepare_error(error, f"Table {self._target} refuses rows{by}, so the batch is not decided")

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        """Lists what the markers show as committed.

        Raises:
            UnknownOutcomeError: if the server does not say.
        """
        if "prefix" not in facts:
            return ()
        with self.asking("what it remembers of this query") as connection:
            return read_traces(connection, facts["prefix"], query, Location.of(facts))

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """Deletes the markers of batches long gone, now and then."""
        self.note_newest(handles)
        if not self._tidying.is_due(batch):
            return
        known = [one for handle in handles if isinstance(one := self.transaction_of(handle), PostgresTransaction)]
        for schema, prefix, query in {(one.location.commits, *one.prefix_and_query): None for one in known}:
            with self.asking("that it deleted old markers") as connection:
                tidy(connection, schema, prefix, query, batch)
            self._tidying.done(batch)

    # --- DatabaseCommitter ------------------------------------------------------------------------------------------

    def transaction_of(self, handle: Handle) -> PostgresTransaction | Finished:
        """Returns the transaction that a handle names, or `FOREIGN`."""
        return PostgresTransaction.of(dict(handle.transaction)) or FOREIGN

    def open_session(self) -> Connection:
        """Opens a connection."""
        return connect(self._to)

    def is_idle(self, session: Connection) -> bool:
        """Returns True if a connection is open and in no transaction."""
        return is_idle(session)

    def is_alive(self, session: Connection) -> bool:
        """Returns True if the server has kept an idle connection."""
        return is_alive(session)

    def within(self, session: Connection, limit_s: float) -> AbstractContextManager[None]:
        """Cuts a connection when the time is up."""
        return within(session, limit_s)

    def outcome_of(self, error: Exception) -> Finished:
        """Returns what an error says of a commit or an abort."""
        return finished(error)

    def not_committed(self, session: Connection, handles: Sequence[Handle]) -> list[Handle]:
        """Returns those without a marker, but for markers that may have been tidied away."""
        groups: dict[Location, dict[object, Handle]] = {}
        for handle in handles:
            if isinstance(one := self.transaction_of(handle), PostgresTransaction):
                groups.setdefault(one.location, {})[one.name] = handle
        return [
            group[name]
            for location, group in groups.items()
            for name in not_committed(session, list(group), location)  # type: ignore[arg-type]
        ]

    # --- finishing --------------------------------------------------------------------------------------------------

    def _finish(self, wanted: Mapping[PostgresTransaction, Handle], *, commit: bool) -> Answers:
        answers: Answers = {}
        for one in (one for one in wanted if one.kind == OPEN):
            answers[one] = FOREIGN if commit else self._abort_session(one)

        def finish(one: PostgresTransaction) -> Finished:
            return self.answer(lambda connection: try_finish(connection, one.name, one.location, commit=commit))

        answers |= finish_each([one for one in wanted if one.kind == TWO_PHASE], finish, at_once=AT_ONCE)
        staged: dict[Location, list[PostgresTransaction]] = {}
        for one in wanted:
            if one.kind == STAGED:
                staged.setdefault(one.location, []).append(one)
        for location, group in staged.items():
            answers |= self._finish_staged(location, {one: wanted[one].rows for one in group}, commit=commit)
        return answers

    def _finish_staged(self, location: Location, rows: Mapping[PostgresTransaction, int], *, commit: bool) -> Answers:
        def finish(connection: Connection) -> Answers:
            names = {one.name: count for one, count in rows.items()}
            if commit:
                found = commit_staged(connection, names, location, self._limits, self._on_conflict)
            else:
                found = abort_staged(connection, list(names), location, self._limits)
            return {one: found[one.name] for one in rows}

        return dict(self.answer_all(list(rows), self._limits.commit_s + self._limits.answer_s, finish))

    # --- writers that are still writing -----------------------------------------------------------------------------

    def _stop_writers(self, names: Sequence[BackendName]) -> bool:
        """Ends the sessions that write these, and returns whether they are gone."""
        if not names:
            return True
        texts = [str(name) for name in names]
        give_up_at = time.monotonic() + self._limits.answer_s
        with self.lent(2 * self._limits.answer_s) as connection:
            while connection.execute(_TERMINATE, (texts,)).fetchall():
                if time.monotonic() >= give_up_at:
                    return False
                time.sleep(_SOON_S)
        return True

    def _abort_session(self, one: PostgresTransaction) -> Finished:
        """Aborts what a session, which is gone by now, has prepared or staged just before."""
        try:
            with self.lent() as connection:
                prepared = list_prepared(connection)
                staged = list_staged(connection, one.location.commits, [one.backend.query])
        except psycopg.Error as error:
            return self.outcome_of(error)
        left = [
            PostgresTransaction(kind=kind, name=name, location=one.location).handle(self._name)
            for kind, names in ((TWO_PHASE, prepared), (STAGED, staged))
            for name in names
            if BackendName.of(name) == one.backend
        ]
        answers = self.abort(left) if left else ()
        return answers[0] if answers else Finished(outcome=Outcome.ABORTED)


def _list_sessions(connection: Connection) -> list[BackendName]:
    rows = connection.execute(
        "SELECT application_name FROM pg_catalog.pg_stat_activity WHERE datname = pg_catalog.current_database()"
    ).fetchall()
    return [name for (text,) in rows if (name := BackendName.parse(text)) is not None]


StagedAnswers = dict[TransactionName, Finished]

_NOT_HERE = "The table shows none of the batch's rows; another sink of the query may already show its own."
_APPLICATION = "sparkonce finishing"


def commit_staged(
    connection: Connection,
    rows: Mapping[TransactionName, int],
    location: Location,
    limits: Limits,
    on_conflict: str = "",
) -> StagedAnswers:
    """Merges the rows of all these copies into their tables at once.

    Args:
        connection: A connection.
        rows: How many rows each copy has prepared.
        location: The database.
        limits: How long each kind of request may take.
        on_conflict: What an operator has chosen for appended rows whose key is there: ``nothing`` leaves them out,
            ``update`` replaces the others. Empty to refuse the merge.
    """
    return _finish_staged(connection, list(rows), location, limits, rows=rows, on_conflict=on_conflict)


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
) -> StagedAnswers:
    """Drops the rows of all these copies."""
    return _finish_staged(connection, names, location, limits)


def _finish_staged(
    connection: Connection,
    names: Sequence[TransactionName],
    location: Location,
    limits: Limits,
    *,
    rows: Mapping[TransactionName, int] | None = None,
    on_conflict: str = "",
) -> StagedAnswers:
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
) -> StagedAnswers:
    """Returns the answers for those that need not be finished now."""
    answers: StagedAnswers = {}
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


def try_finish(connection: Connection, name: TransactionName, location: Location, *, commit: bool) -> Finished:
    """Commits or aborts a prepared transaction, with the server's errors as outcomes."""
    try:
        return _finish_prepared(connection, name, location, commit=commit)
    except psycopg.Error as error:
        return finished(error)


def list_prepared(connection: Connection) -> list[TransactionName]:
    """Returns those of sparkonce in this database."""
    rows = connection.execute(
        "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database()"
    ).fetchall()
    return [name for (gid,) in rows if (name := TransactionName.parse(gid)) is not None]


def _finish_prepared(connection: Connection, name: TransactionName, location: Location, *, commit: bool) -> Finished:
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
