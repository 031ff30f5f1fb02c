"""The driver half: finishes what writers in other processes have prepared."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner, SinkCommitter, claimed_by
from sparkonce.sinks._shared.went_back import went_back
from sparkonce.sinks.mysql import markers, prepared, staged
from sparkonce.sinks.mysql.connection import SERVER_ERRORS, Link, connect, number_of, words_of
from sparkonce.sinks.mysql.flavours import Flavour, flavour_of
from sparkonce.sinks.mysql.outcomes import LOCKED, is_no_reply, outcome_of
from sparkonce.sinks.mysql.settings import place

log = logging.getLogger(__name__)

ATTEMPT_LIMIT_S = 10.0
"""How long one call asks about branches of XA."""

LINKS = 8
"""Branches are finished over so many connections at most."""

_LOCK_WAIT_S = 2
_TIDY_EVERY = 20
_NOTHING = Finished(outcome=Outcome.COMMITTED, reason="The slot had no rows: there is nothing to finish.")


class MySQLCommitter(SinkCommitter):
    """Commits and aborts by the transaction's name, from any process.

    Args:
        settings: Of the connection.
        name: The sink's, for the handles that `list_lingering` makes.
        commit_timeout_s: How long the merge of a batch's staging tables may take.
        attempt_limit_s: How long one call asks about branches of XA.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        name: str,
        *,
        commit_timeout_s: float,
        attempt_limit_s: float = ATTEMPT_LIMIT_S,
    ) -> None:
        self._settings = dict(settings)
        self._name = name
        self._commit_timeout_s = commit_timeout_s
        self._attempt_limit_s = attempt_limit_s
        self._lock = threading.Lock()
        self._idle: list[tuple[Link, Flavour, str]] = []
        self._closed = False
        self._tidy_from = 0
        self._newest: tuple[Handle, ...] = ()

    # --- SinkCommitter ----------------------------------------------------------------------------------------------

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """See `SinkCommitter.commit`. Staged rows of one call are merged together, or none of them."""
        known = [(handle, _marker_of(handle)) for handle in handles]
        staged_rows = {marker: handle.rows for handle, marker in known if marker and marker.kind == markers.STAGED}
        branches = [marker for _, marker in known if marker and marker.kind == markers.TWO_PHASE]
        self._settle(branches)
        answers = dict(zip(branches, self._each(branches, self._commit_branch), strict=True))
        if staged_rows:
            answers |= self._merge(staged_rows)
        return [_answer(handle, marker, answers) for handle, marker in known]

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """See `SinkCommitter.abort`. A writer that is still at it loses its connection, and with it its transaction."""
        known = [(handle, _marker_of(handle)) for handle in handles]
        wanted = [marker for _, marker in known if marker]
        answers = dict(zip(wanted, self._each(wanted, self._abort_one), strict=True))
        return [_answer(handle, marker, answers) for handle, marker in known]

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """See `SinkCommitter.list_lingering`. Runs whose facts hold no prefix wrote no transactions.

        Raises:
            UnknownOutcomeError: if the server does not say which transactions are open.
        """
        claimed = claimed_by(owners)
        if not claimed:
            return ()
        with self._asking("which transactions are open") as (link, flavour, server):
            found = {
                marker.name: marker
                for prefix, query in claimed
                for marker in markers.not_committed(link, prefix, query, server)
            }
            copies = {name.copy for name in found}
            branches = [xid.named() for xid in prepared.recovered(link, flavour) if xid.copy not in copies]
            found |= {name: _marker(name, markers.TWO_PHASE, server, 0) for name in branches}
            stages = {
                one.name: _marker(one.name, markers.STAGED, server, one.begun_ms) for one in staged.list_stages(link)
            }
            own = {
                name: marker
                for name, marker in (found | stages).items()
                if name.token in claimed.get((name.prefix, name.query), ())
            }
            settled = markers.committed(link, own)
        return [self._lingering(marker) for name, marker in own.items() if name not in settled]

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        """See `SinkCommitter.list_traces`: the markers, which are kept for `markers.KEPT_BATCHES` batches.

        Raises:
            UnknownOutcomeError: if the server does not say what is committed.
        """
        prefix = facts.get("prefix")
        if prefix is None:
            return ()
        with self._asking("what is committed") as (link, _, server):
            found = markers.of_query(link, prefix, query, server)
        return [
            Trace(token=one.name.token, committed=transaction_fields(one.fields()), batch=one.name.batch)
            for one in found
        ]

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """Drops the batch's staging tables, and now and then what is left of much older batches.

        Raises:
            UnknownOutcomeError: if the server cannot be reached.
        """
        known = [marker for handle in handles if (marker := _marker_of(handle))]
        if not known:
            return
        self._newest = tuple(handle for handle in handles if handle.transaction)
        merged = [marker.name for marker in known if marker.kind == markers.STAGED]
        tidying = batch >= self._tidy_from
        if not merged and not tidying:
            return
        with self._asking("whether it has tidied up") as (link, _, _server):
            try:
                staged.drop_merged(link, merged)
                if tidying:
                    self._tidy(link, known[0].name, batch)
                    self._tidy_from = batch + _TIDY_EVERY
            except SERVER_ERRORS as error:
                if number_of(error) not in LOCKED:
                    raise
                log.info("Old markers or staging tables are left for later: %s.", words_of(error))

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """See `SinkCommitter.missing`.

        Raises:
            UnknownOutcomeError: if the server does not say.
        """
        with self._asking("which markers it has") as (link, _, server):
            gone = _missing(link, server, handles)
        if not gone:
            self._newest = tuple(handles)
        return gone

    def close(self) -> None:
        """Closes the idle connections, and keeps none from now on: a thread nobody waits for may still have one."""
        with self._lock:
            self._closed = True
        self._drop_idle()

    # --- one at a time ----------------------------------------------------------------------------------------------

    def _settle(self, branches: Sequence[markers.Marker]) -> None:
        """Once for all. If the server cannot be asked, committing says so."""
        if branches:
            with contextlib.suppress(*SERVER_ERRORS), self._link() as (link, _, _server):
                prepared.settle(link, [marker.name for marker in branches], self._give_up_at())

    def _commit_branch(self, marker: markers.Marker) -> Finished:
        with self._link() as (link, flavour, server):
            wrong = _wrong_server(marker, server)
            return wrong or prepared.commit(self._desk(link, flavour), marker.name)

    def _abort_one(self, marker: markers.Marker) -> Finished:
        with self._link() as (link, flavour, server):
            if wrong := _wrong_server(marker, server):
                return wrong
            if marker.kind == markers.STAGED:
                return staged.drop(link, marker.name, give_up_at=self._give_up_at())
            return prepared.roll_back(self._desk(link, flavour), marker.name)

    def _merge(self, wanted: Mapping[markers.Marker, int]) -> dict[markers.Marker, Finished]:
        try:
            with self._link(self._commit_timeout_s) as (link, _, server):
                wrong = {marker: no for marker in wanted if (no := _wrong_server(marker, server))}
                right = {marker: rows for marker, rows in wanted.items() if marker not in wrong}
                groups: dict[tuple[str, str], dict[markers.Marker, int]] = {}
                for marker, rows in right.items():
                    groups.setdefault((marker.name.prefix, marker.name.query), {})[marker] = rows
                for group in groups.values():
                    wrong |= staged.merge(link, group)
                return wrong
        except SERVER_ERRORS as error:
            return dict.fromkeys(wanted, outcome_of(number_of(error), words_of(error)))

    def _each(self, wanted: Sequence[markers.Marker], finish: Callable[[markers.Marker], Finished]) -> list[Finished]:
        def guarded(marker: markers.Marker) -> Finished:
            try:
                return finish(marker)
            except SERVER_ERRORS as error:
                return outcome_of(number_of(error), words_of(error))

        if len(wanted) < 2:
            return [guarded(marker) for marker in wanted]
        with ThreadPoolExecutor(max_workers=min(LINKS, len(wanted))) as pool:
            return list(pool.map(guarded, wanted))

    def _tidy(self, link: Link, name: TransactionName, batch: int) -> None:
        whose = (name.prefix, name.query)
        mine = [one.name for one in staged.list_stages(link) if (one.name.prefix, one.name.query) == whose]
        done = markers.committed(link, mine)
        staged.drop_merged(link, [stage for stage in mine if stage in done and stage.batch < batch])
        if batch > markers.KEPT_BATCHES:
            markers.tidy(link, name.prefix, name.query, batch - markers.KEPT_BATCHES)

    # --- connections ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _link(self, limit_s: float | None = None) -> Iterator[tuple[Link, Flavour, str]]:
        """A connection that nobody else uses meanwhile; after any error it is closed."""
        one = self._take(limit_s)
        try:
            yield one
        except BaseException as error:
            one[0].end()
            if is_no_reply(number_of(error)):
                self._drop_idle()  # they have most likely lost their server too
            raise
        with self._lock:
            keep = limit_s is None and one[0].open and not self._closed
            if keep:
                self._idle.append(one)
        if not keep:
            one[0].end()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for link, _, _ in idle:
            link.end()

    def _take(self, limit_s: float | None) -> tuple[Link, Flavour, str]:
        with self._lock:
            if self._idle and limit_s is None:
                return self._idle.pop()
        link = connect(
            self._settings,
            program=f"sparkonce driver {self._name}",
            timeout_s=limit_s or self._attempt_limit_s,
            lock_wait_s=_LOCK_WAIT_S,
        )
        try:
            flavour = flavour_of(str(link.row("SELECT VERSION()")[0]))
            server = markers.identity(link, flavour)
            if gone := _missing(link, server, self._newest):
                raise went_back(self._name, str(gone[0]["transaction"]))
            return link, flavour, server
        except BaseException:
            link.end()
            raise

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[tuple[Link, Flavour, str]]:
        try:
            with self._link() as one:
                yield one
        except SERVER_ERRORS as error:
            found = outcome_of(number_of(error), words_of(error))
            raise UnknownOutcomeError(
                f"The server at {place(self._settings)} did not say {what}: {found.reason}",
                next_step="See whether the server can be reached and the user has its rights; nothing was undone.",
                phase="sweep",
            ) from error

    def _desk(self, link: Link, flavour: Flavour) -> prepared.Desk:
        return prepared.Desk(link=link, flavour=flavour, give_up_at=self._give_up_at())

    def _give_up_at(self) -> float:
        return time.monotonic() + self._attempt_limit_s

    def _lingering(self, marker: markers.Marker) -> Handle:
        return Handle(
            sink=self._name,
            slot=0,
            opened_ms=marker.begun_ms,
            transaction=transaction_fields(marker.fields()),
        )


def _marker(name: TransactionName, kind: str, server: str, begun_ms: int) -> markers.Marker:
    return markers.Marker(name=name, kind=kind, server=server, begun_ms=begun_ms)


def _marker_of(handle: Handle) -> markers.Marker | None:
    """What a handle finishes; None if it is not one of this sink's, or has nothing to finish."""
    fields = dict(handle.transaction)
    name = TransactionName.parse(str(fields.get("transaction", "")))
    kind, begun = fields.get("commit"), fields.get("begun_ms")
    if name is None or kind not in (markers.TWO_PHASE, markers.STAGED) or not isinstance(begun, int):
        return None
    return _marker(name, str(kind), str(fields.get("server", "")), begun)


def _missing(link: Link, server: str, handles: Sequence[Handle]) -> list[Handle]:
    """Those that are committed nowhere here, and that the server cannot have tidied away."""
    known = {marker.name: handle for handle in handles if (marker := _marker_of(handle)) and marker.server == server}
    there = markers.committed(link, known)
    return [
        handle
        for name, handle in known.items()
        if name not in there and markers.nowhere(link, name, "").outcome is Outcome.LOST
    ]


def _answer(handle: Handle, marker: markers.Marker | None, answers: Mapping[markers.Marker, Finished]) -> Finished:
    if marker is not None:
        return answers[marker]
    if not handle.transaction:
        return _NOTHING
    return Finished(outcome=Outcome.UNKNOWN, reason=f"{dict(handle.transaction)} names no transaction of this sink.")


def _wrong_server(marker: markers.Marker, server: str) -> Finished | None:
    """On another server nothing of a transaction can be seen, and nothing follows from that."""
    if server == marker.server:
        return None
    return Finished(
        outcome=Outcome.UNKNOWN,
        reason=f"The settings lead to the server {server or 'without an id'!r}, and the rows were prepared on "
        f"{marker.server!r}: a replica, a copy, or a renamed host. Point the sink to the server that has them.",
    )
