"""Compares what came out with what must come out. Pure: it is given records and returns numbers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sparkonce.lab.demo.orders import CLOSING, WINDOW_MS, Order


class Cell(NamedTuple):
    """One window of one customer; ``window_ms`` is its start, in milliseconds since the epoch."""

    window_ms: int
    customer: str


class Total(NamedTuple):
    """What one cell adds up to: cents and orders."""

    amount: int
    orders: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What a reader saw, held against what is right.

    Attributes:
        orders: Orders in the source.
        expected: Rows that must come out: one for each window and customer with orders.
        seen: Rows that did.
        missing: Expected rows that never came.
        doubled: Rows that came again, counted each time.
        wrong: Rows with a sum or number of orders that is not right, or for a window without orders.
        amount_expected: The sum of all orders, in cents.
        amount_seen: The sum of all rows seen, in cents.
    """

    orders: int
    expected: int
    seen: int
    missing: int
    doubled: int
    wrong: int
    amount_expected: int
    amount_seen: int

    @property
    def exactly_once(self) -> bool:
        """Whether every row came once and was right."""
        return self.missing == self.doubled == self.wrong == 0 < self.seen


def expected_totals(orders: Iterable[bytes]) -> dict[Cell, Total]:
    """What the query must give, computed from the source's own records.

    Args:
        orders: The values of the records.
    """
    sums: dict[Cell, list[int]] = defaultdict(lambda: [0, 0])
    for value in orders:
        order = Order.decode(value)
        if order.customer != CLOSING:
            cell = sums[Cell(order.event_ms // WINDOW_MS * WINDOW_MS, order.customer)]
            cell[0] += order.amount
            cell[1] += 1
    return {cell: Total(amount, number) for cell, (amount, number) in sums.items()}


def decode_row(value: bytes) -> tuple[Cell, Total]:
    """One row of the query's output."""
    fields = json.loads(value)
    return Cell(fields["window_start_ms"], fields["customer"]), Total(fields["amount"], fields["orders"])


def compare(expected: Mapping[Cell, Total], rows: Iterable[bytes]) -> Count:
    """Holds the output against what is right.

    Args:
        expected: See `expected_totals`.
        rows: The values of the output's records.
    """
    decoded = [decode_row(value) for value in rows]
    cells = {cell for cell, _ in decoded}
    return Count(
        orders=sum(total.orders for total in expected.values()),
        expected=len(expected),
        seen=len(decoded),
        missing=len(expected.keys() - cells),
        doubled=len(decoded) - len(cells),
        wrong=sum(expected.get(cell) != total for cell, total in decoded),
        amount_expected=sum(total.amount for total in expected.values()),
        amount_seen=sum(total.amount for _, total in decoded),
    )
