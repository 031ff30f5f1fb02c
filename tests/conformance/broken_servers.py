"""Systems and sinks that break a rule of the conformance suite."""

from __future__ import annotations

from collections.abc import Sequence

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.sink import Facts, SinkCommitter, SinkWriter, WriterContext
from sparkonce.sinks.memory import MemoryServer, MemorySink
from sparkonce.sinks.memory.server import TransactionState
from sparkonce.sinks.memory.sink import _Committer, _owner, _Writer


class Server(MemoryServer):
    """The honest server, with its inner parts within reach of those that break it."""

    def state(self, number: int) -> TransactionState | None:
        return self.transactions().get(number)

    def put(self, number: int, state: TransactionState) -> None:
        self._transactions[number].state = state


class Sink(MemorySink):
    """A sink whose halves can be swapped for broken ones."""

    server: Server
    writer_class: type[_Writer] = _Writer
    committer_class: type[_Committer] = _Committer

    def writer(self, context: WriterContext) -> SinkWriter:
        return self.writer_class(self.server, _owner(self.name, context.owner), self.guarantee)

    def committer(self) -> SinkCommitter:
        return self.committer_class(self.server, self.name)


class DoublesOnSecondCommit(Server):
    def commit(self, number: int) -> Finished:
        if self.state(number) is TransactionState.COMMITTED:
            self._direct.extend(self._transactions[number].rows)
        return super().commit(number)


class AbortDeletesWhatIsCommitted(Server):
    def abort(self, number: int) -> Finished:
        answer = super().abort(number)
        if answer.outcome is Outcome.ALREADY_COMMITTED:
            self.put(number, TransactionState.ABORTED)
        return answer


class AbortSaysAbortedOfWhatIsCommitted(Server):
    def abort(self, number: int) -> Finished:
        super().abort(number)
        return Finished(outcome=Outcome.ABORTED)


class PrepareCommits(Server):
    def prepare(self, number: int) -> None:
        super().prepare(number)
        self.put(number, TransactionState.COMMITTED)


class WritesAreVisible(Server):
    def write(self, number: int | None, rows: object) -> None:
        super().write(None, rows)


class SaysCommittedOfWhatIsLost(Server):
    def commit(self, number: int) -> Finished:
        answer = super().commit(number)
        return Finished(outcome=Outcome.COMMITTED) if answer.outcome is Outcome.LOST else answer


class SaysCommittedOfWhatIsUnknown(Server):
    def commit(self, number: int) -> Finished:
        answer = super().commit(number)
        return Finished(outcome=Outcome.COMMITTED) if answer.outcome is Outcome.UNKNOWN else answer


class SaysLostOfWhatIsCommitted(Server):
    def commit(self, number: int) -> Finished:
        committed = self.state(number) is TransactionState.COMMITTED
        return Finished(outcome=Outcome.LOST) if committed else super().commit(number)


class SaysUnknownOfWhatTimedOut(Server):
    def commit(self, number: int) -> Finished:
        answer = super().commit(number)
        return Finished(outcome=Outcome.UNKNOWN) if answer.outcome is Outcome.LOST else answer


class RevivesWhatIsAborted(Server):
    def commit(self, number: int) -> Finished:
        if self.state(number) is TransactionState.ABORTED:
            self.put(number, TransactionState.PREPARED)
            super().commit(number)
            return Finished(outcome=Outcome.LOST)
        return super().commit(number)


class AbortForgetsNothing(Server):
    def abort(self, number: int) -> Finished:
        if self.state(number) is TransactionState.COMMITTED:
            return Finished(outcome=Outcome.ALREADY_COMMITTED)
        return Finished(outcome=Outcome.ABORTED)


class WritesAfterAbort(Server):
    def write(self, number: int | None, rows: object) -> None:
        if number is not None and self.state(number) is TransactionState.ABORTED:
            self.put(number, TransactionState.OPEN)
        super().write(number, rows)


class SecondAbortFails(Server):
    def abort(self, number: int) -> Finished:
        if self.state(number) is TransactionState.ABORTED:
            return Finished(outcome=Outcome.UNKNOWN)
        return super().abort(number)


class DropsTheSecondWrite(Server):
    def write(self, number: int | None, rows: object) -> None:
        if number is None or not self._transactions[number].rows:
            super().write(number, rows)


class CommitTakesAllOfTheOwner(Server):
    def commit(self, number: int) -> Finished:
        owner = self._transactions[number].owner if number in self._transactions else ""
        for other, transaction in self._transactions.items():
            if transaction.owner == owner and transaction.state is TransactionState.PREPARED:
                super().commit(other)
        return super().commit(number)


class OneTransactionForAllCopies(Server):
    def begin(self, owner: str) -> int:
        for number, open_owner in self.unfinished():
            if open_owner == owner:
                self.put(number, TransactionState.OPEN)
                return number
        return super().begin(owner)


class FactsChange(Sink):
    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        return {"started": "again" if recorded else "first"}


class ChoosesWhatIsNotThere(Sink):
    def columns(self, schema: object) -> Sequence[str]:
        return ["number", "word", "number"]


class NegativeTimeout(Sink):
    def transaction_timeout_s(self, facts: Facts) -> float | None:
        return -1.0
