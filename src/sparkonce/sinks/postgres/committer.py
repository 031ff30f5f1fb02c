"""The driver half of the PostgreSQL sink: finishes what writers in other processes have prepared or staged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner, SinkCommitter
from sparkonce.sinks.postgres.catalog import look_again
from sparkonce.sinks.postgres.connection import Connection, Connections, within
from sparkonce.sinks.postgres.markers import TIDY_EVERY, list_staged, not_committed, read_traces, tidy
from sparkonce.sinks.postgres.names import FIELDS, OPEN, STAGED, TWO_PHASE, BackendName, Claimed, Place, handle_of
from sparkonce.sinks.postgres.outcomes import code_of, finished, words_of
from sparkonce.sinks.postgres.prepared import list_prepared, try_finish
from sparkonce.sinks.postgres.settings import Connecting, Limits, Target
from sparkonce.sinks.postgres.staged import abort_staged, commit_staged
from sparkonce.sinks.went_back import went_back

log = logging.getLogger(__name__)

_AT_ONCE = 8
"""Connections that commit prepared transactions side by side: each waits for the server's disk."""

_SOON_S = 0.01

_NOTHING = Finished(outcome=Outcome.COMMITTED, reason="The slot had no rows: there is nothing to finish.")
_FOREIGN = Finished(outcome=Outcome.UNKNOWN, reason="The handle names nothing that this sink makes.")

Group = dict[Handle, TransactionName]


class PostgresCommitter(SinkCommitter):
    """Commits and aborts by name, from any process.

    Args:
        to: Where the server is.
        name: The sink's name, for the handles that `list_lingering` makes.
        limits: How long what may take.
        target: Where staged rows will go, to be looked at before each decision; None for others.
    """

    def __init__(self, to: Connecting, name: str, *, limits: Limits, target: Target | None = None) -> None:
        self._connections = Connections(to, self._look)
        self._name = name
        self._limits = limits
        self._target = target
        self._tidy_from = 0
        self._newest: tuple[Handle, ...] = ()

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """See `SinkCommitter.commit`. Staged copies are committed in one transaction, prepared ones one by one."""
        return self._finish(handles, commit=True)

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """See `SinkCommitter.abort`. A writer that is still at it loses its connection first."""
        writing = [name for handle in handles if (name := _backend_name(handle)) is not None]
        try:
            stopped = self._stop_writers(writing)
        except psycopg.Error as error:
            return [finished(error) if handle.transaction else _NOTHING for handle in handles]
        if not stopped:
            busy = Finished(outcome=Outcome.RETRY, reason="The server has not ended the writer's session yet.")
            return [busy if handle.transaction else _NOTHING for handle in handles]
        return self._finish(handles, commit=False)

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """See `SinkCommitter.list_lingering`: prepared transactions, staged copies, and sessions that still write.

        Raises:
            UnknownOutcomeError: if the server does not say.
        """
        claimed = Claimed(owners)
        found: list[Handle] = []
        for place in claimed.places:
            with self._asking("which transactions are open") as connection:
                # In the order in which a transaction goes through these states: one on its way is seen at least once.
                sessions = _list_sessions(connection)
                prepared = list_prepared(connection)
                staged = list_staged(connection, place.commits, claimed.queries)
            found += [handle_of(self._name, OPEN, str(one), place) for one in sessions if claimed.has(one)]
            found += [handle_of(self._name, TWO_PHASE, str(one), place) for one in prepared if claimed.has(one)]
            found += [handle_of(self._name, STAGED, str(one), place) for one in staged if claimed.has(one)]
        return list(dict.fromkeys(found))

    def before_decision(self, facts: Facts) -> str:  # noqa: ARG002 - the table is asked
        """See `SinkCommitter.before_decision`. Whose rows are in the table already have looked under their lock."""
        if self._target is None:
            return ""
        try:
            with self._asking("whether the table is as it was") as connection:
                _, fragile = look_again(connection, self._target)
        except UnknownOutcomeError as error:
            log.warning("%s The batch is decided: its commit looks again.", error.message)
            return ""
        return fragile and f"rows of table {self._target} may go where they are not safe: {fragile}"

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        """See `SinkCommitter.list_traces`: what the markers say, of the last 250 batches at least.

        Raises:
            UnknownOutcomeError: if the server does not say.
        """
        if "prefix" not in facts:
            return ()
        with self._asking("what it remembers of this query") as connection:
            return read_traces(connection, facts["prefix"], query, Place.of(facts))

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """See `SinkCommitter.conclude`: now and then, deletes the markers of batches long gone."""
        self._newest = tuple(handle for handle in handles if handle.transaction) or self._newest
        if batch < self._tidy_from:
            return
        places = {
            (str(handle["commits"]), name.prefix, name.query): None
            for handle in handles
            if handle.transaction and (name := TransactionName.parse(str(handle["name"]))) is not None
        }
        for schema, prefix, query in places:
            with self._asking("to delete old markers") as connection:
                tidy(connection, schema, prefix, query, batch)
            self._tidy_from = batch + TIDY_EVERY

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """See `SinkCommitter.missing`.

        Raises:
            UnknownOutcomeError: if the server does not say.
        """
        with self._asking("which markers it has") as connection:
            gone = _missing(connection, handles)
        if not gone:
            self._newest = tuple(handles)
        return gone

    def close(self) -> None:
        """Closes the connections."""
        self._connections.close()

    # --- finishing --------------------------------------------------------------------------------------------------

    def _finish(self, handles: Sequence[Handle], *, commit: bool) -> list[Finished]:
        answers: dict[Handle, Finished] = {}
        prepared: dict[Place, Group] = {}
        staged: dict[Place, Group] = {}
        for handle in dict.fromkeys(handles):
            if not handle.transaction:
                answers[handle] = _NOTHING
                continue
            fields = dict(handle.transaction)
            if set(fields) != FIELDS:
                answers[handle] = _FOREIGN
                continue
            kind, place = fields["commit"], Place.of(fields)
            name = TransactionName.parse(str(fields["name"]))
            if kind == OPEN and not commit:
                answers[handle] = self._abort_session(str(handle["name"]), place)
            elif name is None or kind not in (TWO_PHASE, STAGED):
                answers[handle] = _FOREIGN
            else:
                groups = prepared if kind == TWO_PHASE else staged
                groups.setdefault(place, {})[handle] = name
        for place, group in prepared.items():
            answers |= self._finish_prepared(group, place, commit=commit)
        for place, group in staged.items():
            answers |= self._finish_staged(group, place, commit=commit)
        return [answers[handle] for handle in handles]

    def _finish_prepared(self, group: Group, place: Place, *, commit: bool) -> dict[Handle, Finished]:
        def one(name: TransactionName) -> Finished:
            return self._answered(
                self._limits.answer_s, lambda connection: try_finish(connection, name, place, commit=commit)
            )

        if len(group) == 1:
            return {handle: one(name) for handle, name in group.items()}
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(group))) as pool:
            return dict(zip(group, pool.map(one, group.values()), strict=True))

    def _finish_staged(self, group: Group, place: Place, *, commit: bool) -> dict[Handle, Finished]:
        rows = {name: handle.rows for handle, name in group.items()}
        limit_s = self._limits.commit_s + self._limits.answer_s
        try:
            with self._connections.lent() as connection, within(connection, limit_s):
                if commit:
                    answers = commit_staged(connection, rows, place, self._limits)
                else:
                    answers = abort_staged(connection, list(rows), place, self._limits)
        except psycopg.Error as error:
            return dict.fromkeys(group, finished(error))
        return {handle: answers[name] for handle, name in group.items()}

    def _answered(self, limit_s: float, call: Callable[[Connection], Finished]) -> Finished:
        try:
            with self._connections.lent() as connection, within(connection, limit_s):
                return call(connection)
        except psycopg.Error as error:
            return finished(error)

    def _look(self, connection: Connection) -> None:
        """A new connection may lead to a server that took over, or came back, without what was committed last."""
        if not self._newest:
            return
        with within(connection, self._limits.answer_s):
            gone = _missing(connection, self._newest)
        if gone:
            raise went_back(self._name, str(gone[0]["name"]))

    # --- writers that are still at it -------------------------------------------------------------------------------

    def _stop_writers(self, names: Sequence[BackendName]) -> bool:
        """Ends the sessions that write these, and waits until they are gone. Whether they are."""
        if not names:
            return True
        texts = [str(name) for name in names]
        give_up_at = time.monotonic() + self._limits.answer_s
        with self._connections.lent() as connection, within(connection, 2 * self._limits.answer_s):
            while connection.execute(_TERMINATE, (texts,)).fetchall():
                if time.monotonic() >= give_up_at:
                    return False
                time.sleep(_SOON_S)
        return True

    def _abort_session(self, text: str, place: Place) -> Finished:
        """Its session is gone by now. It may have prepared or staged just before."""
        wanted = BackendName.parse(text)
        if wanted is None:
            return _FOREIGN
        try:
            with self._connections.lent() as connection, within(connection, self._limits.answer_s):
                prepared = [one for one in list_prepared(connection) if BackendName.of(one) == wanted]
                staged = [
                    one
                    for one in list_staged(connection, place.commits, [wanted.query])
                    if BackendName.of(one) == wanted
                ]
        except psycopg.Error as error:
            return finished(error)
        left = [handle_of(self._name, TWO_PHASE, str(one), place) for one in prepared]
        left += [handle_of(self._name, STAGED, str(one), place) for one in staged]
        answers = self._finish(left, commit=False)
        return answers[0] if answers else Finished(outcome=Outcome.ABORTED)

    @contextmanager
    def _asking(self, what: str) -> Iterator[Connection]:
        try:
            with self._connections.lent() as connection, within(connection, self._limits.answer_s):
                yield connection
        except psycopg.Error as error:
            raise UnknownOutcomeError(
                f"PostgreSQL did not say {what}: {words_of(error)}",
                next_step="see whether the server can be reached, and the role's rights; nothing was undone.",
                sqlstate=code_of(error),
            ) from None


_TERMINATE = """
SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
WHERE application_name = ANY (%s) AND datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()
"""


def _missing(connection: Connection, handles: Sequence[Handle]) -> list[Handle]:
    groups: dict[Place, dict[TransactionName, Handle]] = {}
    for handle in handles:
        if (name := TransactionName.parse(str(handle["name"]))) is not None:
            groups.setdefault(Place.of(dict(handle.transaction)), {})[name] = handle
    return [group[name] for place, group in groups.items() for name in not_committed(connection, list(group), place)]


def _backend_name(handle: Handle) -> BackendName | None:
    text = str(dict(handle.transaction).get("name", ""))
    name = TransactionName.parse(text)
    return BackendName.of(name) if name is not None else BackendName.parse(text)


def _list_sessions(connection: Connection) -> list[BackendName]:
    rows = connection.execute(
        "SELECT application_name FROM pg_catalog.pg_stat_activity WHERE datname = pg_catalog.current_database()"
    ).fetchall()
    return [name for (text,) in rows if (name := BackendName.parse(text)) is not None]
