"""Keeps Arrow's memory for as long as librdkafka reads rows from it, in place of a copy of each row."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

Place = tuple[str, int]
"""A topic and one of its partitions."""


@dataclass(slots=True)
class _Loan:
    memory: object
    rows: int
    place: Place


class Loans:
    """Memory that rows were lent from, until a report of their delivery gives it back.

    An idempotent producer's rows for one partition arrive in the order in which it got them, and are reported so, many
    in one report. So a report gives back the oldest loans of its partition. A row that fails, or a report that is not
    about the oldest loan, ends that order: from then on all memory is kept until the producer has ended.
    """

    def __init__(self) -> None:
        self._loans: dict[int, _Loan] = {}
        self._lines: dict[Place, deque[int]] = {}
        self._last = 0
        self._in_order = True

    def __len__(self) -> int:
        """Returns the number of loans that are not given back."""
        return len(self._loans)

    @property
    def in_order(self) -> bool:
        """Tells if more may be lent: False once memory is kept to the end."""
        return self._in_order

    def lend(self, place: Place, memory: object, rows: int) -> int:
        """Keeps memory of rows that go to a partition, and returns the loan's number, which is not 0."""
        self._last += 1
        self._loans[self._last] = _Loan(memory, rows, place)
        self._lines.setdefault(place, deque()).append(self._last)
        return self._last

    def give_back(self, number: int, rows: int) -> None:
        """Counts delivered rows of one partition, the first of which belongs to this loan."""
        if not self._in_order:
            return
        loan = self._loans.get(number)
        line = self._lines[loan.place] if loan else deque()
        if not line or line[0] != number:
            self.keep()
        while rows and self._in_order:
            oldest = self._loans[line[0]]
            returned = min(rows, oldest.rows)
            rows, oldest.rows = rows - returned, oldest.rows - returned
            if not oldest.rows:
                del self._loans[line.popleft()]
            if rows and not line:
                self.keep()

    def keep(self) -> None:
        """Keeps all memory until the producer has ended: what is delivered cannot be told from what is not."""
        self._in_order = False
