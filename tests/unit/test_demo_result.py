from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from sparkonce_lab.demo.result import Count, CrashPoint, Kill, Result, Standing, Variant, compare
from sparkonce_lab.history import ROWS
from sparkonce_lab.systems.observed import of_texts

# Kind, customer, order number or window, cents, number of orders.
RIGHT = [
    ("row", 1, 0, 30, 1),
    ("row", 2, 0, 5, 1),
    ("row", 1, 1, 7, 1),
    ("sum", 1, 1000, 37, 2),
    ("sum", 2, 1000, 5, 1),
]
EXPECTED = pa.Table.from_pylist([dict(zip(ROWS.names, row, strict=True)) for row in RIGHT], schema=ROWS)


def row(*values: object, batch: int = 0) -> bytes:
    return ",".join(map(str, (*values, batch))).encode()


SEEN = [row(*each) for each in RIGHT]


def test_every_row_once_is_exactly_once():
    count = compare(EXPECTED, of_texts(SEEN))
    assert count.exactly_once
    assert (count.orders, count.expected, count.seen, count.amount_expected, count.amount_seen) == (3, 5, 5, 42, 42)

    assert not compare(ROWS.empty_table(), of_texts([])).exactly_once


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        pytest.param(SEEN[1:], {"missing": 1}, id="missing"),
        pytest.param([*SEEN, SEEN[3], SEEN[3]], {"doubled": 2}, id="came three times"),
        pytest.param([*SEEN, row(*RIGHT[3], batch=7)], {"doubled": 1}, id="came again in another batch"),
        pytest.param([*SEEN[:3], row("sum", 1, 1000, 30, 1), SEEN[4]], {"wrong": 1, "missing": 1}, id="a wrong sum"),
        pytest.param([*SEEN, b"{}"], {"wrong": 1}, id="no row"),
        pytest.param([SEEN[0], *SEEN[:4]], {"missing": 1, "doubled": 1}, id="the number alone would be right"),
    ],
)
def test_what_is_not_exactly_once_is_named(seen, found):
    count = compare(EXPECTED, of_texts(seen))
    assert not count.exactly_once
    assert {name: getattr(count, name) for name in ("missing", "doubled", "wrong") if getattr(count, name)} == found


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
def test_a_standing_proves_one_point_or_none(decided, still_open, ended, proved):
    found = Standing(decided=decided, ended=ended, open=still_open)
    assert [point for point in CrashPoint if found.proves(point)] == ([proved] if proved else [])


COUNT = Count(orders=9, expected=3, seen=3, missing=0, doubled=0, wrong=0, amount_expected=42, amount_seen=42)
KILL = Kill(driver=1, point="halfway", batch=1, proved=True, standing="two of four")
GOOD = Variant(title="with sparkonce", kills=(KILL, KILL, KILL), count=COUNT, aborted_rows=4, seconds=1.0)


def result(variant: Variant) -> Result:
    return Result(with_sparkonce=variant, without=None, seconds=2.0)


def test_it_is_well_where_all_is():
    assert result(GOOD).ok

    at_least_once = replace(GOOD, title="Spark's own sink", count=replace(COUNT, doubled=5))
    assert replace(result(GOOD), without=at_least_once).ok


@pytest.mark.parametrize(
    "variant",
    [
        replace(GOOD, kills=(KILL, KILL)),
        replace(GOOD, kills=(KILL, KILL, replace(KILL, proved=False))),
        replace(GOOD, checked=False),
        replace(GOOD, seen_uncommitted=1),
        replace(GOOD, left_open=1),
        *(replace(GOOD, count=replace(COUNT, **{fault: 1})) for fault in ("missing", "doubled", "wrong")),
        replace(GOOD, count=replace(COUNT, seen=0)),
    ],
    ids=["too few kills", "elsewhere", "broke off", "early", "open", "missing", "doubled", "wrong", "nothing seen"],
)
def test_it_is_not_where_one_thing_is_not(variant):
    assert not result(variant).ok
