"""The system: transactions, visible rows, and injected faults."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

import pyarrow as pa

from sparkonce.protocol.handles import Finished, Outcome

Row = tuple[object, ...]

APPLIED = "Applied, but the reply was lost."
"""The reason of a fault that affects ``commit`` only after the commit was applied."""


class TransactionState(str, Enum):
    """A transaction's state."""

    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"


_UNFINISHED = frozenset({TransactionState.OPEN, TransactionState.PREPARED})


@dataclass(slots=True)
class MemoryTransaction:
    """One transaction: its owner, its batch, its state and its rows."""

    number: int
    owner: str
    batch: int | None
    state: TransactionState = TransactionState.OPEN
    rows: list[Row] = field(default_factory=list)


class MemoryServer:
    """A server that stores transactions and shows committed rows. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._transactions: dict[int, MemoryTransaction] = {}
        self._direct: list[Row] = []
        self._faults: dict[str, deque[Finished | BaseException]] = {}

    def visible(self) -> list[Row]:
        """Returns the rows that a reader of committed rows sees."""
        with self._lock:
            committed = [
                row
                for transaction in self._transactions.values()
                if transaction.state is TransactionState.COMMITTED
                for row in transaction.rows
            ]
            return committed + list(self._direct)

    def transactions(self) -> dict[int, TransactionState]:
        """Returns the state of every transaction."""
        with self._lock:
            return {number: transaction.state for number, transaction in self._transactions.items()}

    def fail(self, call: str, *answers: Finished | BaseException) -> None:
        """Makes the next calls of ``commit``, ``abort``, ``begin``, ``write`` or ``prepare`` return these answers.

        An exception is raised before the server does anything. A `Finished` answer of ``commit`` or ``abort`` replaces
        the request; use `reply_lost` for an answer that follows the request.
        """
        self._faults.setdefault(call, deque()).extend(answers)

    def expire(self, number: int) -> None:
        """Aborts an unfinished transaction, as a timeout would."""
        with self._lock:
            transaction = self._transactions[number]
            if transaction.state in _UNFINISHED:
                transaction.state = TransactionState.ABORTED

    def begin(self, owner: str, batch: int | None = None) -> int:
        """Opens a transaction and returns its number."""
        self._fault("begin")
        with self._lock:
            number = next(self._numbers)
            self._transactions[number] = MemoryTransaction(number, owner, batch)
            return number

    def write(self, number: int | None, rows: pa.RecordBatch) -> None:
        """Adds rows to an open transaction. Without a number, they become visible immediately."""
        self._fault("write")
        values = [tuple(row.values()) for row in rows.to_pylist()]
        with self._lock:
            if number is None:
                self._direct.extend(values)
                return
            transaction = self._transactions[number]
            if transaction.state is not TransactionState.OPEN:
                raise ValueError(f"Transaction {number} is {transaction.state.value}.")
            transaction.rows.extend(values)

    def prepare(self, number: int) -> None:
        """Seals a transaction: it can be committed, but no longer written to."""
        self._fault("prepare")
        with self._lock:
            transaction = self._transactions[number]
            if transaction.state is not TransactionState.OPEN:
                raise ValueError(f"Transaction {number} is {transaction.state.value}.")
            transaction.state = TransactionState.PREPARED

    def commit(self, number: int) -> Finished:
        """Makes a prepared transaction visible."""
        fault = self._fault("commit")
        if fault is not None and fault.reason != APPLIED:
            return fault
        with self._lock:
            answer = self._commit(number)
        return fault if fault is not None else answer

    def abort(self, number: int) -> Finished:
        """Aborts a transaction, unless it is committed."""
        fault = self._fault("abort")
        if fault is not None:
            return fault
        with self._lock:
            transaction = self._transactions.get(number)
            if transaction is not None and transaction.state is TransactionState.COMMITTED:
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            if transaction is not None:
                transaction.state = TransactionState.ABORTED
            return Finished(outcome=Outcome.ABORTED)

    def unfinished(self) -> list[tuple[int, str]]:
        """Lists the number and owner of every open or prepared transaction."""
        with self._lock:
            return [
                (transaction.number, transaction.owner)
                for transaction in self._transactions.values()
                if transaction.state in _UNFINISHED
            ]

    def committed(self) -> list[tuple[int, str, int | None]]:
        """Lists the number, owner and batch of every committed transaction."""
        with self._lock:
            return [
                (transaction.number, transaction.owner, transaction.batch)
                for transaction in self._transactions.values()
                if transaction.state is TransactionState.COMMITTED
            ]

    def owners_of(self, transactions: Iterable[int]) -> list[str]:
        """Returns the owner of each of these transactions, as the sink names it."""
        with self._lock:
            return [self._transactions[number].owner for number in transactions]

    def _commit(self, number: int) -> Finished:
        transaction = self._transactions.get(number)
        if transaction is None:
            return Finished(outcome=Outcome.UNKNOWN, reason=f"There is no transaction {number}.")
        if transaction.state is TransactionState.COMMITTED:
            return Finished(outcome=Outcome.ALREADY_COMMITTED)
        if transaction.state is TransactionState.ABORTED:
            return Finished(outcome=Outcome.LOST, reason=f"Transaction {number} was aborted.")
        transaction.state = TransactionState.COMMITTED
        return Finished(outcome=Outcome.COMMITTED)

    def _fault(self, call: str) -> Finished | None:
        waiting = self._faults.get(call)
        fault = waiting.popleft() if waiting else None
        if isinstance(fault, BaseException):
            raise fault
        return fault


def reply_lost(outcome: Outcome = Outcome.RETRY) -> Finished:
    """Returns a fault for `MemoryServer.fail`: the commit is applied, but its reply is lost."""
    return Finished(outcome=outcome, reason=APPLIED)
