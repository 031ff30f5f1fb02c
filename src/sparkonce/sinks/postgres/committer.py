"""The driver half of the PostgreSQL sink: finishes what writers in other processes have prepared or staged."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from sparkonce.errors import SparkonceError, UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner
from sparkonce.sinks._shared.committing import FOREIGN, Every, finish_each
from sparkonce.sinks._shared.databases import NOTHING_UNDONE, DatabaseCommitter
from sparkonce.sinks._shared.names import Claims
from sparkonce.sinks._shared.settings import STAGED, TWO_PHASE
from sparkonce.sinks.postgres.catalog import definition, read_signature
from sparkonce.sinks.postgres.connection import Connection, connect, is_alive, is_idle, within
from sparkonce.sinks.postgres.markers import TIDY_EVERY, list_staged, not_committed, read_traces, tidy
from sparkonce.sinks.postgres.names import FIELDS, OPEN, BackendName, Location, Transaction
from sparkonce.sinks.postgres.outcomes import finished, is_busy, prepare_error
from sparkonce.sinks.postgres.prepared import list_prepared, try_finish
from sparkonce.sinks.postgres.settings import Conninfo, Limits, Target
from sparkonce.sinks.postgres.staged import abort_staged, commit_staged, try_merge

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Connections that commit prepared transactions side by side: each waits for the server's disk."""

_SOON_S = 0.01
_TERMINATE = """
SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
WHERE application_name = ANY (%s) AND datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()
"""

Answers = dict[Transaction, Finished]


class PostgresCommitter(DatabaseCommitter[Transaction, Connection]):
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

    def commit_all(self, wanted: Mapping[Transaction, Handle]) -> Answers:
        """Commits staged copies in one transaction, and prepared transactions one by one."""
        return self._finish(wanted, commit=True)

    def abort_all(self, wanted: Mapping[Transaction, Handle]) -> Answers:
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
        found: list[Transaction] = []
        for location in dict.fromkeys(Location.of(owner.facts) for owner in owners if owner.facts.get("prefix")):
            with self.asking("which transactions are open") as connection:
                # In the order in which a transaction goes through these states: one on its way is seen at least once.
                sessions = _list_sessions(connection)
                prepared = list_prepared(connection)
                staged = list_staged(connection, location.commits, claims.queries)
            for kind, names in ((OPEN, sessions), (TWO_PHASE, prepared), (STAGED, staged)):
                found += [Transaction(kind=kind, name=one, location=location) for one in names if claims.has(one)]
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
            if isinstance(one, Transaction) and one.kind == STAGED:
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
        known = [one for handle in handles if isinstance(one := self.transaction_of(handle), Transaction)]
        for schema, prefix, query in {(one.location.commits, *one.prefix_and_query): None for one in known}:
            with self.asking("that it deleted old markers") as connection:
                tidy(connection, schema, prefix, query, batch)
            self._tidying.done(batch)

    # --- DatabaseCommitter ------------------------------------------------------------------------------------------

    def transaction_of(self, handle: Handle) -> Transaction | Finished:
        """Returns the transaction that a handle names, or `FOREIGN`."""
        return Transaction.of(dict(handle.transaction)) or FOREIGN

    def open_session(self) -> Connection:
        """Opens a connection."""
        return connect(self._to)

    def is_idle(self, session: Connection) -> bool:
        """Returns whether a connection is open and in no transaction."""
        return is_idle(session)

    def is_alive(self, session: Connection) -> bool:
        """Returns whether the server has kept an idle connection."""
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
            if isinstance(one := self.transaction_of(handle), Transaction):
                groups.setdefault(one.location, {})[one.name] = handle
        return [
            group[name]
            for location, group in groups.items()
            for name in not_committed(session, list(group), location)  # type: ignore[arg-type]
        ]

    # --- finishing --------------------------------------------------------------------------------------------------

    def _finish(self, wanted: Mapping[Transaction, Handle], *, commit: bool) -> Answers:
        answers: Answers = {}
        for one in (one for one in wanted if one.kind == OPEN):
            answers[one] = FOREIGN if commit else self._abort_session(one)

        def finish(one: Transaction) -> Finished:
            return self.answer(lambda connection: try_finish(connection, one.name, one.location, commit=commit))

        answers |= finish_each([one for one in wanted if one.kind == TWO_PHASE], finish, at_once=AT_ONCE)
        staged: dict[Location, list[Transaction]] = {}
        for one in wanted:
            if one.kind == STAGED:
                staged.setdefault(one.location, []).append(one)
        for location, group in staged.items():
            answers |= self._finish_staged(location, {one: wanted[one].rows for one in group}, commit=commit)
        return answers

    def _finish_staged(self, location: Location, rows: Mapping[Transaction, int], *, commit: bool) -> Answers:
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

    def _abort_session(self, one: Transaction) -> Finished:
        """Aborts what a session, which is gone by now, has prepared or staged just before."""
        try:
            with self.lent() as connection:
                prepared = list_prepared(connection)
                staged = list_staged(connection, one.location.commits, [one.backend.query])
        except psycopg.Error as error:
            return self.outcome_of(error)
        left = [
            Transaction(kind=kind, name=name, location=one.location).handle(self._name)
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
