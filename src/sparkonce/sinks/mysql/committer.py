"""The driver half: finishes what writers in other processes have prepared or staged."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner
from sparkonce.sinks._shared.committing import FOREIGN, Every, finish_each
from sparkonce.sinks._shared.databases import NOTHING_UNDONE, DatabaseCommitter
from sparkonce.sinks._shared.names import Claims
from sparkonce.sinks._shared.settings import STAGED, TWO_PHASE
from sparkonce.sinks.mysql import markers, prepared, staged
from sparkonce.sinks.mysql.connection import (
    SERVER_ERRORS,
    Session,
    connect,
    number_of,
    numbered_message,
    server_message,
)
from sparkonce.sinks.mysql.flavours import flavour_of
from sparkonce.sinks.mysql.markers import Marker
from sparkonce.sinks.mysql.outcomes import DUPLICATE_KEY, LOCKED, finished, is_no_reply, step_for_rows
from sparkonce.sinks.mysql.settings import address
from sparkonce.sinks.mysql.target import columns_of_key

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
        settings: Of the connection.
        name: The sink's, for the handles that `list_lingering` makes.
        commit_timeout_s: How long the merge of a batch's staging tables may take.
        attempt_limit_s: How long one call asks about branches of XA.
        on_conflict: See `staged.commit_staged`.
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
            answers |= staged.commit_staged(session.connection, group, self._on_conflict)
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
            branches = [
                xid.named() for xid in prepared.recovered(connection, session.flavour) if xid.copy not in copies
            ]
            found |= {name: Marker(name=name, kind=TWO_PHASE, server=server, begun_ms=0) for name in branches}
            found |= {
                one.name: Marker(name=one.name, kind=STAGED, server=server, begun_ms=one.begun_ms)
                for one in staged.list_staging_tables(connection)
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
                return staged.try_merge(session, rows)
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
            tables = [one.table for one in staged.list_staging_tables(session.connection) if one.name == marker.name]
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
                staged.drop_merged(session.connection, merged)
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
        """Returns whether a connection is open."""
        return bool(session.connection.open)

    def is_alive(self, session: Session) -> bool:
        """Returns whether the server has kept an idle connection."""
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
                prepared.settle(session.connection, [marker.name for marker in branches], self._give_up_at())

    def _commit_branch(self, marker: Marker) -> Finished:
        return self.answer(
            lambda session: (
                _wrong_server(marker, session.server)
                or prepared.commit_prepared(session, marker.name, self._give_up_at())
            )
        )

    def _abort_one(self, marker: Marker) -> Finished:
        abort = staged.abort_staged if marker.kind == STAGED else prepared.rollback_prepared
        return self.answer(
            lambda session: _wrong_server(marker, session.server) or abort(session, marker.name, self._give_up_at())
        )

    def _give_up_at(self) -> float:
        return time.monotonic() + self._answer_s


def _tidy(session: Session, name: TransactionName, batch: int) -> None:
    connection, whose = session.connection, (name.prefix, name.query)
    mine = [one.name for one in staged.list_staging_tables(connection) if (one.name.prefix, one.name.query) == whose]
    done = markers.committed(connection, mine)
    staged.drop_merged(connection, [stage for stage in mine if stage in done and stage.batch < batch])
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
