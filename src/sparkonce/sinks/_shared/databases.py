"""The frame of a database's committer: pooled sessions, errors as outcomes, and the newest commit as a witness.

A new session may lead to a server that took over, or came back, without the newest commits. So the committer keeps the
newest finished batch's handles, and looks for them in each new session.

`IdlePool` reuses connections after checking that the server has not closed them meanwhile.
"""

from __future__ import annotations

import abc
import os
import socket
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Generic, Protocol, TypeVar

from sparkonce.errors import StaleServerError, UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks._shared.committing import HandleCommitter

NOTHING_UNDONE = "See whether the server can be reached, and the user's rights; nothing was undone."


class Closable(Protocol):
    """A connection."""

    def close(self) -> None:
        """Closes it. Never raises, also where it is closed already."""


C = TypeVar("C", bound=Closable)


class IdlePool(Generic[C]):
    """Idle connections to one place. Safe to use from several threads.

    Args:
        connect: Opens a connection.
        is_idle: Returns whether a connection is open and in no transaction, so that it may be used again.
        is_alive: Returns whether the server has kept it while it was idle, see `has_nothing_to_read`.
        most: How many are kept.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        *,
        is_idle: Callable[[C], bool],
        is_alive: Callable[[C], bool],
        most: int = 8,
    ) -> None:
        self._connect = connect
        self._is_idle = is_idle
        self._is_alive = is_alive
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._closed = False

    @contextmanager
    def lent(self) -> Iterator[C]:
        """Lends a connection. It is kept for the next use unless something fails on it."""
        connection = self.take()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.give_back(connection)

    def take(self) -> C:
        """Returns an idle connection that the server has kept, or a new one."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect()
            if self._is_alive(connection):
                return connection
            connection.close()

    def give_back(self, connection: C) -> None:
        """Keeps a connection that may be used again; closes any other."""
        is_idle = self._is_idle(connection)
        with self._lock:
            if is_idle and not self._closed and len(self._idle) < self._most:
                self._idle.append(connection)
                return
        connection.close()

    def drop(self) -> None:
        """Closes the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Closes the idle connections, and keeps none from now on: another thread may still use one."""
        with self._lock:
            self._closed = True
        self.drop()


def has_nothing_to_read(descriptor: int) -> bool:
    """Returns True if nothing has arrived on an idle session's socket.

    A server speaks to an idle session only to end it, or by having ended it.
    """
    try:
        with socket.socket(fileno=os.dup(descriptor)) as wire:
            wire.setblocking(False)
            try:
                wire.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return True
    except OSError:
        pass
    return False


T = TypeVar("T", bound=Hashable)
S = TypeVar("S", bound=Closable)
R = TypeVar("R")


class DatabaseCommitter(HandleCommitter[T], Generic[T, S]):
    """Commits and aborts by name, from any process.

    Args:
        name: The sink's name, for the handles of `list_lingering`.
        server: The server's name in messages, without credentials.
        answer_s: How long one call may take, in seconds.

    Attributes:
        errors: The exceptions that the client library raises instead of an answer.
        name_field: The field of a handle that holds the transaction's name.
    """

    errors: ClassVar[tuple[type[Exception], ...]]
    name_field: ClassVar[str]

    def __init__(self, name: str, server: str, *, answer_s: float) -> None:
        self._name = name
        self._server = server
        self._answer_s = answer_s
        self._newest: tuple[Handle, ...] = ()
        self._sessions = IdlePool(self._connect, is_idle=self.is_idle, is_alive=self.is_alive)

    # --- hooks ------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def open_session(self) -> S:
        """Opens a session."""

    @abc.abstractmethod
    def is_idle(self, session: S) -> bool:
        """Returns True if a session may be used again."""

    @abc.abstractmethod
    def is_alive(self, session: S) -> bool:
        """Returns True if the server has kept an idle session."""

    @abc.abstractmethod
    def within(self, session: S, limit_s: float) -> AbstractContextManager[None]:
        """Makes a request on a session fail if it takes longer than this."""

    @abc.abstractmethod
    def outcome_of(self, error: Exception) -> Finished:
        """Returns what an error says of the transaction that was to be finished."""

    @abc.abstractmethod
    def not_committed(self, session: S, handles: Sequence[Handle]) -> list[Handle]:
        """Returns those of these that the server has not committed, and cannot have tidied away."""

    # --- their use --------------------------------------------------------------------------------------------------

    @contextmanager
    def lent(self, limit_s: float | None = None) -> Iterator[S]:
        """Lends a session that nobody else uses meanwhile, for so long at most; after any error it is closed."""
        with self._sessions.lent() as session, self.within(session, limit_s or self._answer_s):
            yield session

    def answer(self, finish: Callable[[S], Finished]) -> Finished:
        """Finishes one transaction on a session; an error becomes its outcome."""
        try:
            with self.lent() as session:
                return finish(session)
        except self.errors as error:
            return self.outcome_of(error)

    def answer_all(
        self, wanted: Sequence[T], limit_s: float, finish: Callable[[S], Mapping[T, Finished]]
    ) -> Mapping[T, Finished]:
        """Finishes several transactions together on a session; an error becomes the outcome of each."""
        try:
            with self.lent(limit_s) as session:
                return finish(session)
        except self.errors as error:
            return dict.fromkeys(wanted, self.outcome_of(error))

    @contextmanager
    def asking(self, what: str) -> Iterator[S]:
        """Lends a session for a question about more than one transaction.

        Raises:
            UnknownOutcomeError: instead of an error of the server.
        """
        try:
            with self.lent() as session:
                yield session
        except self.errors as error:
            raise UnknownOutcomeError(
                f"{self._server} did not say {what}: {self.outcome_of(error).reason}", next_step=NOTHING_UNDONE
            ) from error

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Returns those that the server has not committed. See `SinkCommitter.missing`.

        Raises:
            UnknownOutcomeError: if the server does not say.
        """
        with self.asking("which markers it has") as session:
            gone = self.not_committed(session, handles)
        if not gone:
            self.note_newest(handles)
        return gone

    def note_newest(self, handles: Sequence[Handle]) -> None:
        """Keeps a finished batch's handles, which each new session must have."""
        self._newest = tuple(handle for handle in handles if handle.transaction) or self._newest

    def check_newest(self, session: S) -> None:
        """Refuses a server without the newest finished batch.

        Raises:
            StaleServerError: naming the sink and the batch.
        """
        if self._newest and (gone := self.not_committed(session, self._newest)):
            raise went_back(self._name, str(gone[0][self.name_field]))

    def close(self) -> None:
        """Closes the sessions."""
        self._sessions.close()

    def _connect(self) -> S:
        session = self.open_session()
        try:
            with self.within(session, self._answer_s):
                self.check_newest(session)
        except BaseException:
            session.close()
            raise
        return session


def went_back(sink: str, transaction: str) -> StaleServerError:
    """Returns the error of a run whose server went back to an older state under it, without one of its last commits."""
    name = TransactionName.parse(transaction)
    batches = [] if name is None else [name.batch]
    return StaleServerError(
        f"Sink {sink!r} has connected anew, and its server does not have {transaction} any more, which was committed "
        f"there with batch {batches}: it went back to an older state (a fail-over to a replica that lagged, a restored "
        "backup).",
        next_step="Bring the newer state back, if there is one, and start again: the start says which batches are "
        "missing, and how to go on without them.",
        missing={sink: batches},
    )
