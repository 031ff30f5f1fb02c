"""The system: transactions, what is visible, and faults on request."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

import pyarrow as pa

from sparkonce.protocol.outcomes import Finished, Outcome

Row = tuple[object, ...]


class TransactionState(str, Enum):
    """Where a transaction stands."""

    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Transaction:
    """One transaction: who opened it and for which batch, its rows, its state."""

    number: int
    owner: str
    batch: int | None
    state: TransactionState = TransactionState.OPEN
    rows: list[Row] = field(default_factory=list)


class MemoryServer:
    """Holds transactions and shows committed rows. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._transactions: dict[int, Transaction] = {}
        self._direct: list[Row] = []
        self._faults: dict[str, deque[Finished | BaseException]] = {}

    def visible(self) -> list[Row]:
        """What a reader of committed rows sees."""
        with self._lock:
            committed = [
                row
                for transaction in self._transactions.values()
                if transaction.state is TransactionState.COMMITTED
                for row in transaction.rows
            ]
            return committed + list(self._direct)

    def transactions(self) -> dict[int, TransactionState]:
        """Every transaction's state."""
        with self._lock:
            return {number: transaction.state for number, transaction in self._transactions.items()}

    def fail(self, call: str, *answers: Finished | BaseException) -> None:
        """Makes the next calls of ``commit``, ``abort``, ``begin``, ``write`` or ``prepare`` give these answers.

        An exception is raised before anything is done. A `Finished` answer of ``commit`` or ``abort`` is given
        without doing anything; see `reply_lost` for the other case.
        """
        self._faults.setdefault(call, deque()).extend(answers)

    def expire(self, number: int) -> None:
        """Aborts a transaction that is not finished, as a timeout does."""
        with self._lock:
            transaction = self._transactions[number]
            if transaction.state in _UNFINISHED:
                transaction.state = TransactionState.ABORTED

    def begin(self, owner: str, batch: int | None = None) -> int:
        """Opens a transaction and returns its number."""
        self._fault("begin")
        with self._lock:
            number = next(self._numbers)
            self._transactions[number] = Transaction(number, owner, batch)
            return number

    def write(self, number: int | None, rows: pa.RecordBatch) -> None:
        """Adds rows to an open transaction; with no number they are visible at once."""
        self._fault("write")
        values = [tuple(row.values()) for row in rows.to_pylist()]
        with self._lock:
            if number is None:
                self._direct.extend(values)
                return
            transaction = self._transactions[number]
            if transaction.state is not TransactionState.OPEN:
                raise ValueError(f"transaction {number} is {transaction.state.value}")
            transaction.rows.extend(values)

    def prepare(self, number: int) -> None:
        """From here on the transaction can be committed and no longer written to."""
        self._fault("prepare")
        with self._lock:
            transaction = self._transactions[number]
            if transaction.state is not TransactionState.OPEN:
                raise ValueError(f"transaction {number} is {transaction.state.value}")
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
        """Gives up a transaction that is not committed."""
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
        """Number and owner of every transaction that is open or prepared."""
        with self._lock:
            return [
                (transaction.number, transaction.owner)
                for transaction in self._transactions.values()
                if transaction.state in _UNFINISHED
            ]

    def committed(self) -> list[tuple[int, str, int | None]]:
        """Returns number, owner and batch of every transaction that is committed."""
        with self._lock:
            return [
                (transaction.number, transaction.owner, transaction.batch)
                for transaction in self._transactions.values()
                if transaction.state is TransactionState.COMMITTED
            ]

    def owners_of(self, transactions: Iterable[int]) -> list[str]:
        """Which run opened each of these transactions, as the sink names it."""
        with self._lock:
            return [self._transactions[number].owner for number in transactions]

    def _commit(self, number: int) -> Finished:
        transaction = self._transactions.get(number)
        if transaction is None:
            return Finished(outcome=Outcome.UNKNOWN, reason=f"there is no transaction {number}")
        if transaction.state is TransactionState.COMMITTED:
            return Finished(outcome=Outcome.ALREADY_COMMITTED)
        if transaction.state is TransactionState.ABORTED:
            return Finished(outcome=Outcome.LOST, reason=f"transaction {number} was aborted")
        transaction.state = TransactionState.COMMITTED
        return Finished(outcome=Outcome.COMMITTED)

    def _fault(self, call: str) -> Finished | None:
        waiting = self._faults.get(call)
        fault = waiting.popleft() if waiting else None
        if isinstance(fault, BaseException):
            raise fault
        return fault


_UNFINISHED = frozenset({TransactionState.OPEN, TransactionState.PREPARED})

APPLIED = "applied, but the reply was lost"
"""Reason of a `Finished` fault of ``commit`` that does what was asked before it answers."""


def reply_lost(outcome: Outcome = Outcome.RETRY) -> Finished:
    """A fault for `MemoryServer.fail`: the commit is applied, and its reply is lost."""
    return Finished(outcome=outcome, reason=APPLIED)
