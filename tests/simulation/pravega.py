"""A Pravega controller: transactions of a stream, with the methods of the Java client.

- A commit or an abort is accepted immediately, and completed a little later; meanwhile the status is COMMITTING or
  ABORTING.
- Committing what is not open fails. Aborting what is not open is silently ignored.
- A transaction whose writer is gone, or paused, is aborted when its lease expires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from simulation.staged import Staged
from sparkonce.sinks.tables.committer import never
from sparkonce.sinks.write_ahead.application import Applies
from sparkonce_pravega.application import PravegaApplication, PravegaCommitter
from sparkonce_pravega.client import PravegaStream
from sparkonce_pravega.segments import StreamSegments

if TYPE_CHECKING:
    from simulation.engine import Party, Simulation

_SLOWLY = 0.5


class JavaError(Py4JJavaError):
    """A Java error, with its message."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)
        self.java_exception = SimpleNamespace(toString=lambda: text)

    def __str__(self) -> str:
        return str(self.args[0])


class Transaction:
    """A transaction."""

    __slots__ = ("rows", "status", "writer")

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.status = "OPEN"
        self.rows: list[int] = []


class Pravega(Staged):
    """A stream, and its controller."""

    refusals = (JavaError,)

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.transactions: dict[str, Transaction] = {}
        simulation.events.append(self.finish_one)

    def committer(self) -> PravegaCommitter:
        settings = self.settings(Applies.TRANSACTIONAL, never)
        application = PravegaApplication(self.folder, self.name, settings, _Stream(self))
        return PravegaCommitter(self.folder, self.name, self.prefix, settings, application)

    def no_answer(self) -> Exception:
        return JavaError("RetriesExhaustedException: DEADLINE_EXCEEDED")

    def refused(self) -> Exception:
        return JavaError("StatusRuntimeException: INTERNAL")

    def expire(self) -> Callable[[], None] | None:
        left = [number for number, one in self.transactions.items() if one.status == "OPEN" and one.writer.is_silent]

        def run_out(number: str) -> None:
            self.simulation.say(self.called, "the lease of", number, "runs out")
            self.transactions[number].status = "ABORTING"

        return self.one_of(left, run_out) or super().expire()

    # --- requests -----------------------------------------------------------------------------------------------------

    def begin(self, writer: Writer) -> str:
        """A new transaction."""
        number = f"t{len(self.transactions)}"
        self.transactions[number] = Transaction(writer)
        return number

    def write(self, number: str, row: int) -> None:
        """Adds an event, which nobody sees yet."""
        found = self.transactions[number]
        if found.status != "OPEN":
            raise JavaError(f"TxnFailedException: {number}")
        found.rows.append(row)

    def commit(self, number: str) -> None:
        """From here on it will be committed."""
        found = self.transactions[number]
        if found.status != "OPEN":
            raise JavaError(f"TxnFailedException: {number}")
        found.status = "COMMITTING"
        self._go_on(number)

    def abort(self, number: str) -> None:
        """Does nothing if it is too late."""
        found = self.transactions[number]
        if found.status == "OPEN":
            found.status = "ABORTING"
            self._go_on(number)

    def status(self, number: str) -> str:
        """Returns the response that a client gets."""
        if number not in self.transactions:
            raise JavaError(f"StatusRuntimeException: NOT_FOUND: {number}")
        self._go_on(number)
        return self.transactions[number].status

    def finish_one(self) -> Callable[[], None] | None:
        """Completes what was accepted; returns None if there is nothing."""
        for number, one in self.transactions.items():
            if one.status in ("COMMITTING", "ABORTING"):
                return lambda number=number: self._finish(number)
        return None

    def _go_on(self, number: str) -> None:
        if self.simulation.peace or not self.simulation.dice.chance(_SLOWLY):
            self._finish(number)

    def _finish(self, number: str) -> None:
        found = self.transactions[number]
        if found.status == "ABORTING":
            found.status = "ABORTED"
        elif found.status == "COMMITTING":
            found.status = "COMMITTED"
            for row in found.rows:
                self.show(row)


class _Stream(PravegaStream):
    """The product's stream, with a model of the Java client."""

    def __init__(self, pravega: Pravega) -> None:
        self._server = pravega
        text = SimpleNamespace(fromString=lambda number: number)
        self._jvm = SimpleNamespace(java=SimpleNamespace(util=SimpleNamespace(UUID=text)))

    @contextmanager
    def writer(self) -> Iterator[Any]:
        made = Writer(self._server)
        made.ask(("connects",), lambda: None)
        try:
            yield made
        finally:
            made.is_closed = True

    def segments(self) -> StreamSegments:
        return _Segments()

    def write(self, transaction: Any, urls: Sequence[str]) -> int:
        rows = self._server.numbers_at(urls)
        for row in rows:
            transaction.write(row)
        return len(rows)


class _Segments(StreamSegments):
    """The segments of a stream that never changes."""

    def __init__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def birth(self) -> str:
        return "s/t/0.#epoch.0@1"

    def has(self, birth: str) -> bool:
        return birth == self.birth()


class Writer:
    """A writer of transactions. It renews their leases as long as it exists and is not paused."""

    def __init__(self, pravega: Pravega) -> None:
        self.server, self.ask = pravega, pravega.ask
        self.is_closed = False
        self._party: Party | None = pravega.simulation.current

    @property
    def is_silent(self) -> bool:
        return self.is_closed or (self._party is not None and (self._party.dead or self._party.paused))

    def beginTxn(self) -> _Handle:
        number = self.ask(("begins",), lambda: self.server.begin(self))
        return _Handle(self, number)

    def getTxn(self, number: str) -> _Handle:
        return _Handle(self, number)


class _Handle:
    """A transaction of the Java client."""

    def __init__(self, writer: Writer, number: str) -> None:
        self._writer, self._number = writer, number

    def write(self, row: int) -> None:
        self._writer.ask(("writes", row, "in", self._number), lambda: self._writer.server.write(self._number, row))

    def commit(self) -> None:
        self._writer.ask(("commits", self._number), lambda: self._writer.server.commit(self._number))

    def abort(self) -> None:
        self._writer.ask(("aborts", self._number), lambda: self._writer.server.abort(self._number))

    def getTxnId(self) -> _Text:
        return _Text(self._number)

    def checkStatus(self) -> _Text:
        return _Text(self._writer.ask(("asks for", self._number), lambda: self._writer.server.status(self._number)))


class _Text:
    def __init__(self, text: str) -> None:
        self._text = text

    def toString(self) -> str:
        return self._text


REPLACED: tuple[tuple[str, Any], ...] = (("_SETTLES_WITHIN_S", 0.2), ("_ASK_EVERY_S", 0.05))
"""Deadlines of `sparkonce_pravega.client`, of which a run has few within its own."""
