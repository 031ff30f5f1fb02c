"""The demo succeeds only if every kill was where it was meant to be, and every row came once, right, and in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkonce_lab.demo.result import Count, CrashPoint, Kill, Result, Variant

COUNT = Count(orders=9, expected=3, seen=3, missing=0, doubled=0, wrong=0, amount_expected=42, amount_seen=42)
KILL = Kill(point="halfway", batch=1, proved=True, standing="two of four")
GOOD = Variant(
    title="with sparkonce",
    kills=(KILL,),
    count=COUNT,
    seen_live=3,
    seen_uncommitted=0,
    left_open=0,
    aborted_rows=4,
    seconds=1.0,
)


def result(variant: Variant) -> Result:
    return Result(with_sparkonce=variant, without=None, seconds=2.0)


def test_it_is_well_where_all_is() -> None:
    assert result(GOOD).ok

    at_least_once = replace(GOOD, title="Spark's own sink", count=replace(COUNT, doubled=5))
    assert replace(result(GOOD), without=at_least_once).ok

    assert len({point.words for point in CrashPoint}) == len(CrashPoint)


@pytest.mark.parametrize(
    "variant",
    [
        replace(GOOD, kills=()),
        replace(GOOD, kills=(KILL, replace(KILL, proved=False))),
        replace(GOOD, seen_uncommitted=1),
        replace(GOOD, left_open=1),
        *(replace(GOOD, count=replace(COUNT, **{fault: 1})) for fault in ("missing", "doubled", "wrong")),
        replace(GOOD, count=replace(COUNT, seen=0)),
    ],
    ids=["no kill", "a kill elsewhere", "early", "left open", "missing", "doubled", "wrong", "nothing seen"],
)
def test_it_is_not_where_one_thing_is_not(variant: Variant) -> None:
    assert not result(variant).ok
