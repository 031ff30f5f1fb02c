"""The driver half: finishes the transactions that writers in other processes have prepared or staged.

Staged rows are merged together, in one transaction that only one driver at a time can enter. A driver whose commit was
not answered tries to enter again, which waits until the first commit has ended, and then reads its result.

Prepared transactions are finished one by one. Their outcome is the server's answer or, if that is not conclusive, the
marker that each transaction leaves.

A new session may reach a server that took over, or was restored, without the latest commits. The committer therefore
remembers the handles of the latest finished batch, and looks for them in each new session and before each merge.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sparkonce.errors import PrepareError, SparkonceError, StaleServerError, UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner
from sparkonce.sinks._shared.committing import FOREIGN, Claims, Every, HandleCommitter, finish_each
from sparkonce.sinks.sql.dialect import GONE, OPEN, Dialect, Location, Session, SqlTransaction, StagedCopy
from sparkonce.sinks.sql.pool import IdlePool, closed_on_error
from sparkonce.sinks.sql.settings import APPEND, STAGED, TWO_PHASE, Limits, Target

log = logging.getLogger(__name__)

AT_ONCE = 8
"""The number of connections that finish prepared transactions in parallel, since each waits for the server's disk."""

TIDY_EVERY = 20
"""The number of batches between cleanups, each of which costs a round trip."""

NOTHING_UNDONE = "Check whether the server can be reached, and the user's rights; nothing was undone."
NOT_HERE = "The table shows none of the batch's rows; another sink of the query may already show its own."
_BUSY = Finished(outcome=Outcome.RETRY, reason="Another connection is merging rows of this query.")

Answers = dict[SqlTransaction, Finished]
Counts = Mapping[TransactionName, int]
"""The number of rows that each task attempt has prepared."""

StagedCopies = Mapping[TransactionName, StagedCopy]


class SqlCommitter(HandleCommitter[SqlTransaction]):
    """Commits and aborts by name, from any process.

    `target` is the table of staged rows, which is checked before each decision; None if rows are not staged.
    `on_conflict` is an operator's choice for appended rows whose key already exists: ``nothing`` leaves them out,
    ``update`` replaces the existing rows. If it is empty, the merge fails.
    """

    def __init__(
        self,
        dialect: Dialect,
        conninfo: Any,
        name: str,
        *,
        server: str,
        limits: Limits,
        target: Target | None = None,
        on_conflict: str = "",
    ) -> None:
        self.handle_fields = frozenset(dialect.fields.names.values())
        self._dialect = dialect
        self._conninfo = conninfo
        self._name = name
        self._server = server
        self._limits = limits
        self._target = target
        self._on_conflict = on_conflict
        self._newest: tuple[Handle, ...] = ()
        self._tidying = Every(TIDY_EVERY)
        self._sessions = IdlePool(self._connect, is_idle=dialect.is_idle)

    # --- SinkCommitter ----------------------------------------------------------------------------------------------

    def transaction_of(self, handle: Handle) -> SqlTransaction | Finished:
        return self._dialect.fields.read(dict(handle.transaction)) or FOREIGN

    def commit_all(self, wanted: Mapping[SqlTransaction, Handle]) -> Answers:
        """Commits staged rows in one transaction, and prepared transactions one by one."""
        prepared = [one.name for one in wanted if one.kind == TWO_PHASE]
        if self._dialect.settle is not None and prepared:
            # If the server cannot be reached, the commits will report it.
            with suppress(*self._dialect.errors), self.lent() as session:
                self._dialect.settle(session, prepared, self._give_up_at())
        return self._finish(wanted, commit=True)

    def abort_all(self, wanted: Mapping[SqlTransaction, Handle]) -> Answers:
        """Ends the sessions of writers first, then aborts what they have prepared or staged."""
        try:
            with self.lent(2 * self._limits.answer_s) as session:
                ended = self._dialect.end_writers(session, list(wanted), self._give_up_at())
        except self._dialect.errors as error:
            return dict.fromkeys(wanted, self._dialect.finished(error))
        if not ended:
            busy = Finished(outcome=Outcome.RETRY, reason="The server has not ended the writer's session yet.")
            return dict.fromkeys(wanted, busy)
        return self._finish(wanted, commit=False)

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        claims = Claims(owners)
        found: dict[SqlTransaction, None] = {}
        names = self._dialect.fields.names
        for location in dict.fromkeys(Location.of(one.facts, names) for one in owners if one.facts.get("prefix")):
            with self.asking("which transactions are open") as session:
                listed = self._dialect.list_open(session, claims, location)
                found |= dict.fromkeys(one for one in listed if claims.has(one.name))
        return [self._dialect.fields.handle(self._name, one) for one in found]

    def check_prepared(self, handles: Sequence[Handle]) -> str:
        """Merges the staged rows of all slots and rolls back, to find rows that the table rejects before the decision.

        Raises `PrepareError` if a table rejects a row, and `UnknownOutcomeError` if it is locked or does not answer.
        """
        read = {one: handle.rows for handle in handles if isinstance(one := self._read(handle), SqlTransaction)}
        for location, rows in _groups(one for one in read if one.kind == STAGED):
            try:
                with self.lent(self._limits.commit_s + self._limits.answer_s) as session:
                    wrong = self._try_merge(session, location, {one.name: read[one] for one in rows})
            except self._dialect.errors as error:
                raise self._refused(error) from error
            if wrong:
                return wrong
        return ""

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        if "prefix" not in facts:
            return ()
        fields = self._dialect.fields
        with self.asking("what it remembers of this query") as session:
            found = self._dialect.committed(session, facts["prefix"], query, Location.of(facts, fields.names))
            return [
                Trace(token=one.name.token, committed=transaction_fields(fields.write(one)), batch=one.name.batch)
                for one in found
            ]

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        with self.asking("which markers it has") as session:
            gone = self._not_committed(session, handles)
        if not gone:
            self._note_newest(handles)
        return gone

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """Deletes the remains of merged rows and, periodically, the markers of much older batches."""
        self._note_newest(handles)
        known = [one for handle in handles if isinstance(one := self.transaction_of(handle), SqlTransaction)]
        is_due = bool(known) and self._tidying.is_due(batch)
        if is_due or (not self._dialect.has_transactional_ddl and any(one.kind == STAGED for one in known)):
            with self.asking("that it has tidied up") as session:
                self._dialect.tidy(session, known, batch, is_due)
        if is_due:
            self._tidying.done(batch)

    def close(self) -> None:
        self._sessions.close()

    # --- sessions ---------------------------------------------------------------------------------------------------

    @contextmanager
    def lent(self, limit_s: float | None = None) -> Iterator[Session]:
        """Lends a session for exclusive use, with an optional time limit.

        After any error, closes the session and also the idle sessions, which probably no longer work either.
        """
        try:
            with self._sessions.lent() as session, self._dialect.within(session, limit_s or self._limits.answer_s):
                yield session
        except self._dialect.errors:
            self._sessions.drop()
            raise

    @contextmanager
    def asking(self, what: str) -> Iterator[Session]:
        """Lends a session for a query about several transactions. Any error becomes an `UnknownOutcomeError`."""
        try:
            with self.lent() as session:
                yield session
        except self._dialect.errors as error:
            problem = f"{self._server} did not report {what}: {self._dialect.finished(error).reason}"
            raise UnknownOutcomeError(problem, next_step=NOTHING_UNDONE) from error

    def _connect(self) -> Session:
        session = self._dialect.connect(self._conninfo, f"sparkonce driver {self._name}", self._limits)
        with closed_on_error(session), self._dialect.within(session, self._limits.answer_s):
            self._check_newest(session)
        return session

    def _give_up_at(self) -> float:
        return time.monotonic() + self._limits.answer_s

    # --- the newest commit as a witness -----------------------------------------------------------------------------

    def _note_newest(self, handles: Sequence[Handle]) -> None:
        """Remembers a finished batch's handles. Each new session must show them as committed."""
        self._newest = tuple(handle for handle in handles if handle.transaction) or self._newest

    def _check_newest(self, session: Session) -> None:
        """Raises `StaleServerError` if the server does not have the latest finished batch."""
        if self._newest and (gone := self._not_committed(session, self._newest)):
            raise went_back(self._name, str(gone[0][self._dialect.fields.names["name"]]))

    def _not_committed(self, session: Session, handles: Sequence[Handle]) -> list[Handle]:
        """Returns the handles without a marker, except those whose markers may have been deleted by tidying."""
        read = {one: handle for handle in handles if isinstance(one := self.transaction_of(handle), SqlTransaction)}
        gone = {
            (location, name)
            for location, group in _groups(read)
            for name in self._dialect.not_committed(session, [one.name for one in group], location)
        }
        return [handle for one, handle in read.items() if (one.location, one.name) in gone]

    # --- finishing --------------------------------------------------------------------------------------------------

    def _finish(self, wanted: Mapping[SqlTransaction, Handle], *, commit: bool) -> Answers:
        open_ = [one for one in wanted if one.kind == OPEN]
        answers: Answers = {one: FOREIGN if commit else self._abort_session(one) for one in open_}
        prepared = [one for one in wanted if one.kind == TWO_PHASE]
        answers |= finish_each(prepared, lambda one: self._finish_prepared(one, commit), at_once=AT_ONCE)
        for location, group in _groups(one for one in wanted if one.kind == STAGED):
            rows = {one.name: wanted[one].rows for one in group}
            try:
                with self.lent(self._limits.commit_s + self._limits.answer_s) as session:
                    found = self._finish_staged(session, location, group, rows, commit=commit)
            except self._dialect.errors as error:
                found = dict.fromkeys(rows, self._dialect.finished(error))
            answers |= {one: found[one.name] for one in group}
        return answers

    def _finish_prepared(self, one: SqlTransaction, commit: bool) -> Finished:
        try:
            with self.lent() as session:
                return self._dialect.finish_prepared(session, one, commit, self._give_up_at())
        except self._dialect.errors as error:
            return self._dialect.finished(error)

    def _abort_session(self, one: SqlTransaction) -> Finished:
        """Aborts what a session has prepared or staged just before it ended."""
        try:
            with self.lent() as session:
                found = self._dialect.transactions_of(session, one)
        except self._dialect.errors as error:
            return self._dialect.finished(error)
        left = [self._dialect.fields.handle(self._name, each) for each in found]
        return next(iter(self.abort(left)), Finished(outcome=Outcome.ABORTED))

    def _finish_staged(
        self, session: Session, location: Location, group: Sequence[SqlTransaction], rows: Counts, *, commit: bool
    ) -> dict[TransactionName, Finished]:
        dialect = self._dialect
        session = dialect.refreshed(session)
        self._check_newest(session)
        if not dialect.begin(session, location, list(rows), self._limits, False):
            return dict.fromkeys(rows, _BUSY)
        try:
            waiting, answers = dialect.stages(session, location, list(rows), commit)
            stages = {name: stage for name, stage in waiting.items() if stage is not None}
            wrong = self._merge(session, location, stages, rows, is_trial=False) if stages else None
        except PrepareError as damaged:
            dialect.roll_back(session)
            unknown = Finished(outcome=Outcome.UNKNOWN, reason=damaged.message, next_step=damaged.next_step)
            return dict.fromkeys(rows, unknown)
        if wrong is not None:
            dialect.roll_back(session)
            return {**answers, **dict.fromkeys(waiting, wrong)}
        if commit:
            dialect.commit(session, location, [one for one in group if one.name in waiting])
        else:
            dialect.drop(session, location, list(waiting), self._give_up_at())
            answers = {name: GONE if one.outcome is Outcome.LOST else one for name, one in answers.items()}
        done = Finished(outcome=Outcome.COMMITTED if commit else Outcome.ABORTED)
        return {**answers, **dict.fromkeys(waiting, done)}

    def _merge(
        self, session: Session, location: Location, stages: StagedCopies, rows: Counts, *, is_trial: bool
    ) -> Finished | None:
        """Merges rows into their tables. Returns an answer if the rows or a table have changed."""
        for stage, members in _by_target(stages):
            settled: StagedCopy | Finished = stage
            if self._on_conflict and not is_trial and stage.target.mode == APPEND:
                settled = self._dialect.settled(session, stage, self._on_conflict)
                log.warning("Rows that are in the way of table %s: on_conflict=%r.", stage.target, self._on_conflict)
            if isinstance(settled, Finished):
                return settled
            tables = {name: (stages[name].table, rows[name]) for name in members}
            if wrong := self._dialect.merge(session, location, settled, tables, is_trial):
                return Finished(outcome=Outcome.UNKNOWN, reason=wrong)
        return None

    def _try_merge(self, session: Session, location: Location, rows: Counts) -> str:
        """Merges these rows and rolls back, if their tables may reject a row. Returns the problem; empty if none."""
        dialect, names = self._dialect, list(rows)
        waiting, _ = dialect.stages(session, location, names, True)
        stages = {name: stage for name, stage in waiting.items() if stage is not None}
        if not any(
            dialect.refusers(session, location, stage, [stages[name].table for name in members])
            for stage, members in _by_target(stages)
        ):
            return ""
        if not dialect.begin(session, location, names, self._limits, True):
            raise UnknownOutcomeError(f"{self._server}: {_BUSY.reason}", next_step=NOTHING_UNDONE)
        failed: Exception | None = None
        wrong: Finished | None = None
        try:
            wrong = self._merge(session, location, stages, rows, is_trial=True)
        except dialect.errors as error:
            failed = error
            with suppress(*dialect.errors):
                dialect.roll_back(session)
            if dialect.refers_to_unit(session, error, names, location):
                # Rows of the batch's other sinks are invisible before the decision. After it, the commits are retried
                # until those sinks have finished.
                log.debug("Another sink of the batch may have staged the rows that a foreign key misses: %s", error)
                return ""
        else:
            dialect.roll_back(session)
        if failed is None and wrong is None:
            return ""
        if dialect.stages(session, location, list(stages), True)[0].keys() != stages.keys():
            # A newer run has since aborted the batch, so this run's decision will fail.
            return ""
        if failed is not None:
            raise failed
        return wrong.reason if wrong is not None else ""

    def _refused(self, error: Exception) -> SparkonceError:
        found = self._dialect.finished(error)
        if found.outcome is Outcome.RETRY:
            what = f"{self._server} did not report whether the table accepts the batch: {found.reason}"
            return UnknownOutcomeError(what, next_step=NOTHING_UNDONE)
        with self.asking("what its constraint says") as session:
            named = self._dialect.named(session, error, self._target) if self._target is not None else ""
        by = f" by {named}" if named else ""
        return self._dialect.prepare_error(error, f"Table {self._target} refuses rows{by}, so the batch is not decided")


def _groups(some: Any) -> list[tuple[Location, list[SqlTransaction]]]:
    """Returns transactions grouped by location, prefix and query."""
    found: dict[tuple[Location, str, str], list[SqlTransaction]] = {}
    for one in some:
        found.setdefault((one.location, getattr(one.name, "prefix", ""), one.name.query), []).append(one)
    return [(location, group) for (location, _, _), group in found.items()]


def _by_target(stages: StagedCopies) -> list[tuple[StagedCopy, list[TransactionName]]]:
    """Returns the names of staged transactions in slot order, grouped by target and columns."""
    found: dict[tuple[Target, tuple[str, ...]], list[TransactionName]] = {}
    for name in sorted(stages, key=lambda one: (one.slot, one.copy)):
        found.setdefault((stages[name].target, stages[name].columns), []).append(name)
    return [(stages[names[0]], names) for names in found.values()]


def went_back(sink: str, transaction: str) -> StaleServerError:
    """Returns the error for a server that was restored during the run to a state without one of the latest commits."""
    name = TransactionName.parse(transaction)
    batches = [] if name is None else [name.batch]
    return StaleServerError(
        f"Sink {sink!r} has reconnected, and its server no longer has {transaction}, which was committed there with "
        f"batch {batches}: it returned to an older state (a failover to a lagging replica, a restored backup).",
        next_step=(
            "Restore the newer state, if there is one, and start again: the start reports which batches are "
            "missing, and how to continue without them."
        ),
        missing={sink: batches},
    )
