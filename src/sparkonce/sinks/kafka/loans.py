"""Keeps Arrow's memory for as long as librdkafka reads rows from it, in place of a copy of each row."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pyarrow as pa

Place = tuple[str, int]
"""A topic and one of its partitions."""


@dataclass(slots=True)
class _Loan:
    """Rows of one call: the numbers of the next one to be reported and of the first behind them, and their memory."""

    due: int
    end: int
    memory: pa.Buffer | None


class Loans:
    """Memory that rows were lent from, until a report of their delivery gives it back.

    All rows are numbered. An idempotent producer sends the rows of a partition in the order in which it got them, and
    reports them so, many at once: a report begins with the oldest row of its partition that is not reported. If one
    begins with another row, or if a row fails, no memory is given back any more, before `renew`.

    Args:
        limit_bytes: Once so much memory is kept, rows are to be copied.
        in_order: False for a producer that is not idempotent: it lends nothing.
    """

    def __init__(self, limit_bytes: int, *, in_order: bool = True) -> None:
        self._limit_bytes = limit_bytes
        self._may_lend = in_order
        self._next = 1
        self.renew()

    def renew(self) -> None:
        """Begins anew, once no row is in flight and each report has been given here."""
        self.in_order = self._may_lend
        self._lines: dict[Place, deque[_Loan]] = {}
        self._due: dict[int, deque[_Loan]] = {}
        self._kept: dict[int, list[pa.Buffer]] = {}
        self.kept_bytes = 0

    def room_for(self, column: pa.Array) -> pa.Buffer | None:
        """Returns the memory that texts or bytes lie in, all of which is kept with them; None if it is too much."""
        memory: pa.Buffer | None = column.buffers()[2]
        while memory is not None and memory.parent is not None:
            memory = memory.parent  # all columns of a batch from Spark are one piece of memory
        if memory is None or memory.address in self._kept or not self._kept:
            return memory
        return memory if self.kept_bytes + memory.size <= self._limit_bytes else None

    def lend(self, place: Place, memory: pa.Buffer | None, rows: int) -> int:
        """Takes note of rows that go to a partition next, and keeps their memory; None if they are copied.

        Returns:
            The number of the first row. The others follow it.
        """
        loan = _Loan(self._next, self._next + rows, memory)
        self._next = loan.end
        line = self._lines.setdefault(place, deque())
        if not line:
            self._due[loan.due] = line
        line.append(loan)
        if memory is not None:
            uses = self._kept.setdefault(memory.address, [])
            self.kept_bytes += 0 if uses else memory.size
            uses.append(memory)
        return loan.due

    def give_back(self, first: int, rows: int) -> None:
        """Takes note that so many rows of one partition were delivered, beginning with this number."""
        if not self.in_order:
            return
        line = self._due.pop(first, deque())
        while rows and line:
            loan = line[0]
            told = min(rows, loan.end - loan.due)
            loan.due, rows = loan.due + told, rows - told
            if loan.due == loan.end:
                self._release(line.popleft())
        if rows:
            self.keep()
        elif line:
            self._due[line[0].due] = line

    def keep(self) -> None:
        """Gives nothing back from now on: what librdkafka still reads cannot be told from the rest."""
        self.in_order = False

    def _release(self, loan: _Loan) -> None:
        if loan.memory is None:
            return
        uses = self._kept[loan.memory.address]
        uses.pop()
        if not uses:
            del self._kept[loan.memory.address]
            self.kept_bytes -= loan.memory.size
