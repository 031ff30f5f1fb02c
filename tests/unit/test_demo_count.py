from __future__ import annotations

import json

import pytest

from sparkonce.lab.demo.count import Cell, Total, compare, expected_totals
from sparkonce.lab.demo.crash import CrashPoint
from sparkonce.lab.demo.orders import CLOSING, Order
from sparkonce.lab.demo.proof import Standing

RIGHT = {Cell(1000, "a"): Total(30, 2), Cell(1000, "b"): Total(5, 1), Cell(2000, "a"): Total(7, 1)}


def row(cell: Cell, total: Total) -> bytes:
    fields = {"window_start_ms": cell.window_ms, "customer": cell.customer}
    return json.dumps({**fields, "amount": total.amount, "orders": total.orders}).encode()


ROWS = [row(cell, total) for cell, total in RIGHT.items()]


def test_orders_are_summed_by_customer_and_window_and_closing_ones_are_left_out() -> None:
    orders = [
        Order("a", 10, 1000),
        Order("b", 5, 1500),
        Order("a", 20, 1999),
        Order("a", 7, 2000),
        Order(CLOSING, 0, 9000),
    ]
    assert expected_totals(order.encode() for order in orders) == RIGHT


def test_every_row_once_is_exactly_once() -> None:
    count = compare(RIGHT, ROWS)
    assert count.exactly_once
    assert (count.orders, count.expected, count.seen, count.amount_expected, count.amount_seen) == (4, 3, 3, 42, 42)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        pytest.param(ROWS[1:], {"missing": 1}, id="missing"),
        pytest.param([*ROWS, ROWS[0], ROWS[0]], {"doubled": 2}, id="came three times"),
        pytest.param([row(Cell(1000, "a"), Total(10, 1)), *ROWS[1:]], {"wrong": 1}, id="half of its orders"),
        pytest.param([*ROWS, row(Cell(3000, "a"), Total(1, 1))], {"wrong": 1}, id="a window without orders"),
        pytest.param([ROWS[0], ROWS[0], ROWS[2]], {"missing": 1, "doubled": 1}, id="the number alone would be right"),
    ],
)
def test_what_is_not_exactly_once_is_named(rows: list[bytes], found: dict[str, int]) -> None:
    count = compare(RIGHT, rows)
    assert not count.exactly_once
    assert {name: getattr(count, name) for name in ("missing", "doubled", "wrong") if getattr(count, name)} == found


def test_nothing_at_all_is_not_exactly_once() -> None:
    assert not compare({}, []).exactly_once


@pytest.mark.parametrize(
    ("decided", "still_open", "ended", "proved"),
    [
        (False, 4, 0, CrashPoint.PREPARED),
        (True, 4, 0, CrashPoint.DECIDED),
        (True, 2, 2, CrashPoint.HALFWAY),
        (False, 0, 0, None),
        (True, 0, 4, None),
    ],
)
def test_a_standing_proves_one_point_or_none(
    decided: bool, still_open: int, ended: int, proved: CrashPoint | None
) -> None:
    found = Standing(batch=7, decided=decided, ended=ended, open=still_open)
    assert [point for point in CrashPoint if found.proves(point)] == ([proved] if proved else [])
