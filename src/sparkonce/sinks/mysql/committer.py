"""The driver half: finishes what writers in other processes have prepared or staged.

Staging tables are merged into the target in one transaction, with their markers, and then dropped.

XA branches were prepared by connections of workers, and MariaDB's OK is not enough to commit or roll one back. When a
connection that has prepared a branch ends, the server releases the branch a moment before InnoDB does. An ``XA COMMIT``
or ``XA ROLLBACK`` in between is answered with OK, forgets the branch, and does nothing: the rows stay prepared,
invisible and locked, and nothing lists them until the server restarts (measured with 10.11.19: 16 of 26 branches of 30
MB that were committed right after their connection had closed). So the committer ends the connection, waits a moment,
and reads the marker after every OK: a branch that was forgotten all the same is neither committed nor lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner
from sparkonce.sinks._shared.committing import FOREIGN, Claims, Every, finish_each
from sparkonce.sinks._shared.databases import NOTHING_UNDONE, DatabaseCommitter
from sparkonce.sinks._shared.settings import STAGED, TWO_PHASE
from sparkonce.sinks.mysql import markers
from sparkonce.sinks.mysql.connection import (
    MARIADB,
    SERVER_ERRORS,
    Connection,
    Flavour,
    MySQLError,
    Session,
    connect,
    flavour_of,
    number_of,
    numbered_message,
    server_message,
)
from sparkonce.sinks.mysql.markers import Marker, StagingTable, Xid, lock_name, parse_recovered, quote, stage_table
from sparkonce.sinks.mysql.outcomes import (
    DUPLICATE_KEY,
    LOCKED,
    NO_PARENT,
    NO_SUCH_TABLE,
    NO_SUCH_THREAD,
    ROLLED_BACK,
    XAER_NOTA,
    finished,
    is_no_reply,
    step_for_rows,
)
from sparkonce.sinks.mysql.settings import address
from sparkonce.sinks.mysql.statements import merge as merge_statement
from sparkonce.sinks.mysql.statements import upsert_steps
from sparkonce.sinks.mysql.target import columns_of_key, describe, may_refuse

log = logging.getLogger(__name__)

ATTEMPT_LIMIT_S = 10.0
"""The time that one call asks about branches of XA."""

AT_ONCE = 8
"""Branches are finished over so many connections at most."""

_KEY = re.compile(r"for key '(?:[^']*\.)?([^']+)'")
_LOCK_WAIT_S = 2
_TIDY_EVERY = 20

Answers = dict[Marker, Finished]


class MySQLCommitter(DatabaseCommitter[Marker, Session]):
    """Commits and aborts by the transaction's name, from any process.

    Args:
        settings: The connection's settings.
        name: The sink's, for the handles that `list_lingering` makes.
        commit_timeout_s: How long the merge of a batch's staging tables may take.
        attempt_limit_s: How long one call asks about branches of XA.
        on_conflict: See `commit_staged`.
    """

    errors = SERVER_ERRORS
    name_field = "transaction"
    handle_fields = markers.FIELDS

    def __init__(
        self,
        settings: Mapping[str, Any],
        name: str,
        *,
        commit_timeout_s: float,
        attempt_limit_s: float = ATTEMPT_LIMIT_S,
        on_conflict: str = "",
    ) -> None:
        super().__init__(name, f"The server at {address(settings)}", answer_s=attempt_limit_s)
        self._settings = dict(settings)
        self._commit_timeout_s = commit_timeout_s
        self._on_conflict = on_conflict
        self._tidying = Every(_TIDY_EVERY)

    # --- SinkCommitter ----------------------------------------------------------------------------------------------

    def commit_all(self, wanted: Mapping[Marker, Handle]) -> Answers:
        """Merges staged rows together, or none of them, and commits branches of XA one by one."""
        branches = [marker for marker in wanted if marker.kind == TWO_PHASE]
        rows = {marker: handle.rows for marker, handle in wanted.items() if marker.kind == STAGED}
        self._settle(branches)
        answers = finish_each(branches, self._commit_branch, at_once=AT_ONCE)
        if rows:
            answers |= self.answer_all(list(rows), self._commit_timeout_s, lambda session: self._merge(session, rows))
        return answers

    def _merge(self, session: Session, rows: Mapping[Marker, int]) -> Answers:
        # A proxy may have led an open connection to another server meanwhile, which has no staging tables to merge.
        server = markers.identity(session.connection, session.flavour)
        self.check_newest(replace(session, server=server))
        answers = {marker: wrong for marker in rows if (wrong := _wrong_server(marker, server))}
        groups: dict[tuple[str, str], dict[Marker, int]] = {}
        for marker in rows:
            if marker not in answers:
                groups.setdefault((marker.name.prefix, marker.name.query), {})[marker] = rows[marker]
        for group in groups.values():
            answers |= commit_staged(session.connection, group, self._on_conflict)
        return answers

    def abort_all(self, wanted: Mapping[Marker, Handle]) -> Answers:
        """Ends the connection of a writer that still writes, and with it its transaction; rolls back or drops."""
        return finish_each(list(wanted), self._abort_one, at_once=AT_ONCE)

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """Lists open and prepared branches, and staging tables.

        Raises:
            UnknownOutcomeError: if the server does not say which transactions are open.
        """
        claims = Claims(owners)
        if not claims:
            return ()
        with self.asking("which transactions are open") as session:
            connection, server = session.connection, session.server
            found = {
                marker.name: marker
                for prefix, query in claims
                for marker in markers.not_committed(connection, prefix, query, server)
            }
            copies = {name.copy for name in found}
            branches = [xid.named() for xid in recovered(connection, session.flavour) if xid.copy not in copies]
            found |= {name: Marker(name=name, kind=TWO_PHASE, server=server, begun_ms=0) for name in branches}
            found |= {
                one.name: Marker(name=one.name, kind=STAGED, server=server, begun_ms=one.begun_ms)
                for one in list_staging_tables(connection)
            }
            own = {name: marker for name, marker in found.items() if claims.has(name)}
            settled = markers.committed(connection, own)
        return [
            Handle(sink=self._name, slot=0, opened_ms=one.begun_ms, transaction=transaction_fields(one.fields()))
            for name, one in own.items()
            if name not in settled
        ]

    def check_prepared(self, handles: Sequence[Handle]) -> str:
        """Merges the staged rows of all slots on trial: what the table refuses now is refused before the decision.

        Raises:
            PrepareError: if the table refuses a row, in the server's words.
            UnknownOutcomeError: if the server does not say, or rows are locked.
        """
        known = {one: handle.rows for handle in handles if isinstance(one := self._read(handle), Marker)}
        rows = {marker: count for marker, count in known.items() if marker.kind == STAGED}
        if not rows:
            return ""
        try:
            with self.lent(self._commit_timeout_s) as session:
                return try_merge(session, rows)
        except SERVER_ERRORS as error:
            found, number = self.outcome_of(error), number_of(error)
            if found.outcome is Outcome.RETRY:
                what = f"{self._server} did not say if the table takes the batch: {found.reason}"
                raise UnknownOutcomeError(what, next_step=NOTHING_UNDONE) from error
            message = f"The table refuses rows, so the batch is not decided: {numbered_message(error)}"
            if number == DUPLICATE_KEY and (key := _KEY.search(message)):
                message += f" ({', '.join(self._columns_of(next(iter(rows)), key[1]))})"
            raise PrepareError(f"{message}.", next_step=step_for_rows(number)) from error

    def _columns_of(self, marker: Marker, key: str) -> list[str]:
        with self.asking("what its keys are") as session:
            tables = [one.table for one in list_staging_tables(session.connection) if one.name == marker.name]
            return [name for table in tables for name in columns_of_key(session.connection, table, key)]

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        """Lists what the markers show as committed, which are kept for `markers.KEPT_BATCHES` batches.

        Raises:
            UnknownOutcomeError: if the server does not say what is committed.
        """
        prefix = facts.get("prefix")
        if prefix is None:
            return ()
        with self.asking("what is committed") as session:
            found = markers.of_query(session.connection, prefix, query, session.server)
        return [
            Trace(token=one.name.token, committed=transaction_fields(one.fields()), batch=one.name.batch)
            for one in found
        ]

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """Drops the batch's staging tables, and now and then those and the markers of much older batches.

        Raises:
            UnknownOutcomeError: if the server cannot be reached.
        """
        known = [one for handle in handles if isinstance(one := self.transaction_of(handle), Marker)]
        self.note_newest(handles)
        merged = [marker.name for marker in known if marker.kind == STAGED]
        if not merged and not (known and self._tidying.is_due(batch)):
            return
        with self.asking("that it has tidied up") as session:
            try:
                drop_merged(session.connection, merged)
                if self._tidying.is_due(batch):
                    _tidy(session, known[0].name, batch)
                    self._tidying.done(batch)
            except SERVER_ERRORS as error:
                if number_of(error) not in LOCKED:
                    raise
                log.info("Old markers or staging tables are left for later: %s.", server_message(error))

    # --- DatabaseCommitter ------------------------------------------------------------------------------------------

    def transaction_of(self, handle: Handle) -> Marker | Finished:
        """Returns the marker of the transaction that a handle names, or `FOREIGN`."""
        return Marker.of(dict(handle.transaction)) or FOREIGN

    def open_session(self) -> Session:
        """Connects, and learns which server it is."""
        connection = connect(
            self._settings,
            program=f"sparkonce driver {self._name}",
            timeout_s=self._answer_s,
            lock_wait_s=_LOCK_WAIT_S,
        )
        try:
            flavour = flavour_of(str(connection.row("SELECT VERSION()")[0]))
            return Session(connection=connection, flavour=flavour, server=markers.identity(connection, flavour))
        except BaseException:
            connection.end()
            raise

    def is_idle(self, session: Session) -> bool:
        """Returns True if a connection is open."""
        return bool(session.connection.open)

    def is_alive(self, session: Session) -> bool:
        """Returns True if the server has kept an idle connection."""
        return session.connection.is_alive()

    def within(self, session: Session, limit_s: float) -> AbstractContextManager[None]:
        """Sets how long to wait for each reply."""
        return session.connection.within(limit_s)

    def outcome_of(self, error: Exception) -> Finished:
        """Returns what an error says of the transaction that was to be finished."""
        return finished(error)

    def not_committed(self, session: Session, handles: Sequence[Handle]) -> list[Handle]:
        """Returns those without a marker on the server that prepared them, unless it may have been tidied away."""
        connection = session.connection
        known = {
            one.name: handle
            for handle in handles
            if isinstance(one := self.transaction_of(handle), Marker) and one.server == session.server
        }
        there = markers.committed(connection, known)
        return [
            handle
            for name, handle in known.items()
            if name not in there and markers.absent_verdict(connection, name, "").outcome is Outcome.LOST
        ]

    @contextlib.contextmanager
    def lent(self, limit_s: float | None = None) -> Iterator[Session]:
        """Lends a session. If it loses its server, the idle ones have most likely lost it, too, and are closed."""
        try:
            with super().lent(limit_s) as session:
                yield session
        except SERVER_ERRORS as error:
            if is_no_reply(number_of(error)):
                self._sessions.drop()
            raise

    # --- one at a time ----------------------------------------------------------------------------------------------

    def _settle(self, branches: Sequence[Marker]) -> None:
        """Waits once for the writers of all these. If the server cannot be asked, the commits say so."""
        if branches:
            with contextlib.suppress(*SERVER_ERRORS), self.lent() as session:
                settle(session.connection, [marker.name for marker in branches], self._give_up_at())

    def _commit_branch(self, marker: Marker) -> Finished:
        return self.answer(
            lambda session: (
                _wrong_server(marker, session.server) or commit_prepared(session, marker.name, self._give_up_at())
            )
        )

    def _abort_one(self, marker: Marker) -> Finished:
        abort = abort_staged if marker.kind == STAGED else rollback_prepared
        return self.answer(
            lambda session: _wrong_server(marker, session.server) or abort(session, marker.name, self._give_up_at())
        )

    def _give_up_at(self) -> float:
        return time.monotonic() + self._answer_s


def _tidy(session: Session, name: TransactionName, batch: int) -> None:
    connection, whose = session.connection, (name.prefix, name.query)
    mine = [one.name for one in list_staging_tables(connection) if (one.name.prefix, one.name.query) == whose]
    done = markers.committed(connection, mine)
    drop_merged(connection, [stage for stage in mine if stage in done and stage.batch < batch])
    if batch > markers.KEPT_BATCHES:
        markers.tidy(connection, *whose, batch - markers.KEPT_BATCHES)


def _wrong_server(marker: Marker, server: str) -> Finished | None:
    """Returns UNKNOWN for a transaction of another server: nothing of it can be seen here."""
    if server == marker.server:
        return None
    return Finished(
        outcome=Outcome.UNKNOWN,
        reason=f"The settings lead to the server {server or 'without an id'!r}, and the rows were prepared on "
        f"{marker.server!r}: a replica, a copy, or a renamed host. Point the sink to the server that has them.",
    )


_ASK_AGAIN_S = 0.005
SETTLE_S = 0.1
"""The time that InnoDB gets to notice that a connection has ended: microseconds, unless its thread is kept waiting."""

_RELEASE_S = 0.5
"""The time that the server may take to release a branch whose writer closes its connection after PREPARE."""

_LOST = "The branch is not prepared on this server any more, and has no marker: it was rolled back."
_HOLDER = "SELECT IS_USED_LOCK(%s)"
_FORGOTTEN = Finished(
    outcome=Outcome.RETRY,
    reason="The server holds the rows prepared and does not list them (a fault of MariaDB, see docs/mysql.md): restart "
    "the server, and it will. Nothing is lost.",
)


def recovered(connection: Connection, flavour: Flavour) -> set[Xid]:
    """Returns all prepared branches of sparkonce's, of any query."""
    found = (parse_recovered(*row) for row in connection.rows(flavour.recover))
    return {xid for xid in found if xid is not None}


def commit_prepared(session: Session, name: TransactionName, give_up_at: float) -> Finished:
    """Commits a prepared branch.

    The server answers XAER_NOTA for a branch that is committed, that is rolled back, or that another connection is
    finishing; MariaDB also as long as the connection that prepared it is there. ``XA RECOVER`` lists the last two. A
    branch that it does not list has been finished before: the marker, read afterwards, tells whether by a commit.

    Args:
        session: A connection that is in no transaction.
        name: The transaction's name.
        give_up_at: Until when to ask, by `time.monotonic`.
    """
    xid, connection = Xid.of(name), session.connection
    ask_until = min(time.monotonic() + _RELEASE_S, give_up_at)
    answered = Outcome.ALREADY_COMMITTED
    while True:
        refusal = _try(connection, f"XA COMMIT {xid}")
        if refusal is None:
            answered = Outcome.COMMITTED
        elif not _is_absent(refusal):
            return finished(refusal)
        elif xid in recovered(connection, session.flavour):
            if time.monotonic() >= ask_until:
                # It is decided, so its writer has nothing more to do: its connection only holds the branch.
                end_holder(connection, name)
                return finished(refusal)
            time.sleep(_ASK_AGAIN_S)
            continue
        if markers.committed(connection, [name]):
            return Finished(outcome=answered)
        return _FORGOTTEN if markers.is_seen(connection, name) else markers.absent_verdict(connection, name, _LOST)


def rollback_prepared(session: Session, name: TransactionName, give_up_at: float) -> Finished:
    """Rolls a branch back, prepared or not. A writer that still has it loses its connection.

    Args:
        session: A connection that is in no transaction.
        name: The transaction's name.
        give_up_at: Until when to ask, by `time.monotonic`.
    """
    xid, connection = Xid.of(name), session.connection
    end_holder(connection, name)
    settle(connection, [name], give_up_at)
    while True:
        refusal = _try(connection, f"XA ROLLBACK {xid}")
        if refusal is not None and not _is_absent(refusal):
            return finished(refusal)
        listed = xid in recovered(connection, session.flavour)
        if not listed and markers.committed(connection, [name]):
            return Finished(outcome=Outcome.ALREADY_COMMITTED)
        if not listed and not markers.is_seen(connection, name):
            return Finished(outcome=Outcome.ABORTED)
        held = end_holder(connection, name)
        if time.monotonic() >= give_up_at or not (listed or held):
            return _FORGOTTEN
        settle(connection, [name], give_up_at)


def settle(connection: Connection, names: Iterable[TransactionName], give_up_at: float) -> None:
    """Waits until the connections of these writers have ended, and then for InnoDB to notice."""
    waiting = [lock_name(name.copy) for name in names]
    ask_until = min(time.monotonic() + _RELEASE_S, give_up_at)
    while waiting and time.monotonic() < ask_until:
        answers = connection.row("SELECT " + ", ".join(["IS_USED_LOCK(%s)"] * len(waiting)), waiting)
        waiting = [lock for lock, holder in zip(waiting, answers, strict=True) if holder is not None]
        if waiting:
            time.sleep(_ASK_AGAIN_S)
    time.sleep(SETTLE_S)


def end_holder(connection: Connection, name: TransactionName) -> bool:
    """Ends the connection of a transaction's writer, and returns whether it was there."""
    # The lock that it has held since it began tells it apart, also from a connection with the same number after a
    # restart of the server.
    (holder,) = connection.row(_HOLDER, (lock_name(name.copy),))
    if holder is None or int(holder) == connection.thread_id():
        return False
    try:
        connection.run(f"KILL CONNECTION {int(holder)}")
    except MySQLError as error:
        if number_of(error) != NO_SUCH_THREAD:
            raise
    return True


def _is_absent(refusal: Exception) -> bool:
    return number_of(refusal) == XAER_NOTA or number_of(refusal) in ROLLED_BACK


def _try(connection: Connection, statement: str) -> Exception | None:
    try:
        connection.run(statement)
    except MySQLError as error:
        if not connection.open:
            raise
        refusal: Exception = error
        return refusal
    return None


_WAIT_S = 5
_IDLE_S = 3
"""The longest time between two statements of a merge, unless the driver is paused or cut off."""

_PARENT = re.compile(r"REFERENCES (?:`[^`]+`\.)?`((?:[^`]|``)+)`")
_STAGE_LOST = "Neither the staging table nor the marker of its merge is there: nothing of it is visible."
_UNREADABLE = Finished(
    outcome=Outcome.UNKNOWN,
    reason="The staging table is there, and its comment, which says where the rows go, was changed: put it back.",
)
_TABLES = (
    "SELECT TABLE_NAME, TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
    "AND TABLE_NAME LIKE 'sparkonce\\_stage\\_%'"
)
_IDLE = "SELECT ID FROM information_schema.PROCESSLIST WHERE ID = %s AND COMMAND = 'Sleep' AND TIME >= %s"


class _LockedError(Exception):
    """Another connection holds the lock of merges."""


def list_staging_tables(connection: Connection) -> list[StagingTable]:
    """Returns all staging tables of sparkonce's in the database, of any query."""
    found = (StagingTable.parse(str(table), str(comment)) for table, comment in connection.rows(_TABLES))
    return [one for one in found if one is not None]


def commit_staged(
    connection: Connection, wanted: Mapping[markers.Marker, int], on_conflict: str = ""
) -> dict[markers.Marker, Finished]:
    """Merges all of these, or none, in one transaction; those that are gone are left out and LOST.

    One connection at a time does so for a query, under a lock that the server releases when the connection has ended
    and its transaction is finished. So the holder sees whether an earlier merge, whose reply was lost, was committed.

    Args:
        connection: A connection that is in no transaction. After an error it must be closed.
        wanted: The transactions, each with its rows; of one query.
        on_conflict: What an operator has chosen for appended rows whose key is there, see `merge_statement`.

    Raises:
        pymysql.err.MySQLError: if the server refuses the merge as a whole, or does not answer.
    """
    try:
        with _alone(connection, next(iter(wanted)).name):
            return _merge(connection, wanted, on_conflict)
    except _LockedError:
        reason = "Another connection is merging rows of this query."
        return {marker: Finished(outcome=Outcome.RETRY, reason=reason) for marker in wanted}


def try_merge(session: Session, wanted: Mapping[markers.Marker, int]) -> str:
    """Merges all of these, and rolls back, where their tables may refuse any row.

    Args:
        session: A connection that is in no transaction. After an error it must be closed.
        wanted: The transactions, each with its rows.

    Returns:
        What is wrong with the staging tables; empty for nothing.

    Raises:
        pymysql.err.MySQLError: if a table refuses a row, or the server does not answer.
    """
    connection, listed = session.connection, list_staging_tables(session.connection)
    there = {stage.name: stage for stage in listed}
    stages = {there[one.name]: one for one in wanted if one.name in there}
    has_checks = session.flavour is MARIADB
    refusing = {
        (stage.table, stage.keys)
        for stage in {(stage.table, stage.keys): stage for stage in stages}.values()
        if stage.rules.conditions
        or may_refuse(connection, stage.table, _columns(connection, stage), stage.keys, has_checks=has_checks)
    }
    trying = [stage for stage in stages if (stage.table, stage.keys) in refusing]
    if not trying:
        return ""
    connection.run("START TRANSACTION")
    try:
        for stage in sorted(trying, key=lambda one: (one.name.slot, one.name.copy)):
            if (wrong := _merge_one(connection, stage, wanted[stages[stage]])) is not None:
                return wrong.reason
    except MySQLError as error:
        parent = _PARENT.search(str(error.args[-1])) if number_of(error) == NO_PARENT else None
        if parent is None or not _is_in_unit(session, trying[0].name, parent[1].replace("``", "`"), listed):
            raise
        # Another sink of the batch may have these rows. The commits are repeated until that sink's is through.
    finally:
        if connection.open:
            connection.run("ROLLBACK")
    return ""


def _is_in_unit(session: Session, one: TransactionName, parent: str, listed: Sequence[StagingTable]) -> bool:
    """Returns True if another sink of the batch may have rows for a table that a foreign key refers to."""
    pending = [xid.named() for xid in recovered(session.connection, session.flavour)]
    pending += [stage.name for stage in listed if stage.table == parent and stage.name.batch == one.batch]
    return any(name.query == one.query and name.prefix != one.prefix for name in pending)


def _columns(connection: Connection, stage: StagingTable) -> list[str]:
    found = describe(connection, stage_table(stage.name.copy))
    return [column.name for column in found if column.name != "sparkonce_row"]


def _merge(
    connection: Connection, wanted: Mapping[markers.Marker, int], on_conflict: str
) -> dict[markers.Marker, Finished]:
    done = markers.committed(connection, [marker.name for marker in wanted])
    answers = {marker: Finished(outcome=Outcome.ALREADY_COMMITTED) for marker in wanted if marker.name in done}
    there = {stage.name: stage for stage in list_staging_tables(connection)}
    answers |= {
        marker: _not_listed(connection, marker.name)
        for marker in wanted
        if marker not in answers and marker.name not in there
    }
    left = sorted((one for one in wanted if one not in answers), key=lambda one: (one.name.slot, one.name.copy))
    if not left:
        return answers
    connection.run("START TRANSACTION")
    for marker in left:
        markers.insert(connection, marker)
    for marker in left:
        stage = there[marker.name]
        try:
            wrong = _merge_one(connection, stage, wanted[marker], on_conflict)
        except MySQLError as error:
            if number_of(error) in LOCKED or not connection.open:
                raise
            found = finished(error)
            where = f"{stage_table(stage.name.copy)} into {stage.table!r}"
            wrong = replace(found, reason=f"The merge of {where} failed: {found.reason}")
        if wrong is not None:
            connection.run("ROLLBACK")
            return answers | dict.fromkeys(left, wrong)
    connection.run("COMMIT")
    return answers | dict.fromkeys(left, Finished(outcome=Outcome.COMMITTED))


def _not_listed(connection: Connection, name: TransactionName) -> Finished:
    """Returns the answer for a staging table that is not listed."""
    # information_schema lists only the tables that the user has a right on.
    try:
        connection.rows(f"SELECT 1 FROM {quote(stage_table(name.copy))} LIMIT 0")  # noqa: S608 - quoted
    except MySQLError as error:
        if not connection.open:
            raise
        if number_of(error) != NO_SUCH_TABLE:
            return finished(error)
        return markers.absent_verdict(connection, name, _STAGE_LOST)
    return _UNREADABLE


def _merge_one(connection: Connection, stage: StagingTable, rows: int, on_conflict: str = "") -> Finished | None:
    """Merges one staging table's rows; returns an answer if they cannot be merged as they are."""
    source, table, columns = stage_table(stage.name.copy), stage.table, _columns(connection, stage)
    if stage.rules.given():
        steps = upsert_steps(source, table, columns, stage.keys, stage.rules)
    else:
        steps = [merge_statement(source, table, columns, stage.keys, on_conflict)]
    for step in steps:
        merged = connection.run(step)
        if merged.warnings:
            return _changed(source, table, connection.first_warnings())
    # An upsert's count is not that of its rows. Counted afterwards, a row that was deleted in between is missed, too.
    is_counted = bool(stage.keys or on_conflict)
    came = connection.row(f"SELECT COUNT(*) FROM {quote(source)}")[0] if is_counted else merged.rows  # noqa: S608 - quoted
    if came != rows:
        return _changed(
            source,
            table,
            f"{came} rows came where {rows} were prepared. Put the rows back; or, where they are gone for good, drop "
            "the staging table: then they count as lost, and are written again",
        )
    return None


def _changed(stage: str, table: str, what: str) -> Finished:
    return Finished(
        outcome=Outcome.UNKNOWN,
        reason=f"The merge of {stage} into {table!r} would have changed rows, and was rolled back: {what}.",
    )


def abort_staged(session: Session, name: TransactionName, give_up_at: float) -> Finished:
    """Drops a staging table that is not to be merged. A writer that still writes to it loses its connection.

    Args:
        session: A connection that is in no transaction.
        name: The transaction's name.
        give_up_at: Until when to try, by `time.monotonic`.
    """
    connection = session.connection
    try:
        with _alone(connection, name):
            late = bool(markers.committed(connection, [name]))
            end_holder(connection, name)
            _drop(connection, name, give_up_at)
            return Finished(outcome=Outcome.ALREADY_COMMITTED if late else Outcome.ABORTED)
    except _LockedError:
        return Finished(outcome=Outcome.RETRY, reason="Another connection is merging rows of this query.")


def _drop(connection: Connection, name: TransactionName, give_up_at: float) -> None:
    # The connection that was just ended may still hold the table while it rolls back; each try waits for it.
    while True:
        try:
            connection.run(f"DROP TABLE IF EXISTS {quote(stage_table(name.copy))}")
            return
        except MySQLError as error:  # noqa: PERF203 - waiting
            if number_of(error) not in LOCKED or time.monotonic() >= give_up_at:
                raise


def drop_merged(connection: Connection, names: Sequence[TransactionName]) -> None:
    """Drops staging tables that are merged."""
    if names:
        connection.run("DROP TABLE IF EXISTS " + ", ".join(quote(stage_table(name.copy)) for name in names))


@contextlib.contextmanager
def _alone(connection: Connection, name: TransactionName) -> Iterator[None]:
    digest = hashlib.sha256(f"{name.prefix}.{name.query}".encode()).hexdigest()[:24]
    lock = f"sparkonce:merge:{digest}"
    (got,) = connection.row("SELECT GET_LOCK(%s, %s)", (lock, _WAIT_S))
    if got != 1:
        _end_idler(connection, lock)
        raise _LockedError
    try:
        yield
    finally:
        if connection.open:
            connection.row("SELECT RELEASE_LOCK(%s)", (lock,))


def _end_idler(connection: Connection, lock: str) -> None:
    """Ends a connection that holds the lock and is idle: of a driver that is paused or cut off.

    Its transaction is rolled back, and the next driver merges. Ending one that is at work would gain nothing.
    """
    (holder,) = connection.row("SELECT IS_USED_LOCK(%s)", (lock,))
    if holder is None:
        return
    if connection.row(_IDLE, (int(holder), _IDLE_S)):
        with contextlib.suppress(MySQLError):
            connection.run(f"KILL CONNECTION {int(holder)}")
