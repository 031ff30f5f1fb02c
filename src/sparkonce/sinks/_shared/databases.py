"""The frame of a committer of a database: pooled sessions, errors as outcomes, and the newest commit as a witness.

A new session may lead to a server that took over, or came back, without the newest commits. So the committer keeps the
newest finished batch's handles, and looks for them on each new session.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Generic, TypeVar

from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Handle
from sparkonce.sinks._shared.committing import HandleCommitter
from sparkonce.sinks._shared.idle_pool import Closable, IdlePool
from sparkonce.sinks._shared.went_back import went_back

T = TypeVar("T", bound=Hashable)
S = TypeVar("S", bound=Closable)
R = TypeVar("R")

NOTHING_UNDONE = "See whether the server can be reached, and the user's rights; nothing was undone."


class DatabaseCommitter(HandleCommitter[T], Generic[T, S]):
    """Commits and aborts by name, from any process.

    Args:
        name: The sink's name, for the handles of `list_lingering`.
        server: The server's name in messages, without credentials.
        answer_s: How long one call may take, in seconds.

    Attributes:
        errors: The exceptions that the client library raises in place of an answer.
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
        """Returns whether a session may be used again."""

    @abc.abstractmethod
    def is_alive(self, session: S) -> bool:
        """Returns whether the server has kept an idle session."""

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
            UnknownOutcomeError: in place of an error of the server.
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
