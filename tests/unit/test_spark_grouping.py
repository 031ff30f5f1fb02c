"""The number of slots that follows from a batch's recorded offsets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.spark.grouping import may_be_listed_anew, slots_of_offsets

ONE = '{"t":{"0":100,"1":100}}'


@pytest.mark.parametrize(
    ("before", "now", "slots"),
    [
        ([ONE], ['{"t":{"0":101,"1":100}}'], 1),
        ([ONE], ['{"t":{"0":110,"1":100}}'], 1),
        ([ONE], ['{"t":{"0":110,"1":101}}'], 2),
        ([ONE], [ONE], 1),
        ([ONE, '{"u":{"0":5}}'], ['{"t":{"0":115,"1":100}}', '{"u":{"0":15}}'], 3),
        ([ONE], ['{"t":{"0":120}}'], 2),
        (["-"], [ONE], None),
        ([ONE], ['{"t":{"0":100,"1":100,"2":17}}'], 2),
        ([ONE], ['{"t":{"0":1,"1":101}}'], 1),
        (['{"logOffset":3}'], ['{"logOffset":4}'], None),
        (["3"], ["4"], None),
        ([ONE], [ONE, ONE], None),
        (None, [ONE], None),
    ],
)
def test_a_slot_is_counted_for_each_ten_rows_read(before: list[str] | None, now: list[str], slots: int | None) -> None:
    assert slots_of_offsets(before, now, 10) == slots


def test_no_slots_are_counted_unless_they_are_asked_for() -> None:
    assert slots_of_offsets([ONE], ['{"t":{"0":110,"1":101}}'], None) is None


def node(kind: str, *children: Any, **more: Any) -> Any:
    name = SimpleNamespace(getName=lambda: f"org.apache.spark.sql.execution.{kind}")
    sequence = SimpleNamespace(size=lambda: len(children), apply=lambda place: children[place])
    return SimpleNamespace(getClass=lambda: name, children=lambda: sequence, **more)


def scan(*topics: int) -> Any:
    """Reads topics of so many partitions."""
    ends = {f"t{number}": {str(partition): 7 for partition in range(size)} for number, size in enumerate(topics)}
    return node("MicroBatchScanExec", end=lambda: SimpleNamespace(json=lambda: json.dumps(ends)))


def behind(kind: str, plan: Any) -> Any:
    return node(kind, inputPlan=lambda: plan, relation=lambda: SimpleNamespace(cachedPlan=lambda: plan))


@pytest.mark.parametrize(
    ("topics", "anew"), [([1], False), ([2], True), ([4], True), ([2, 2], True), ([2, 3], False), ([5], False)]
)
def test_spark_may_list_up_to_four_partitions_of_a_source_in_another_order(topics: Sequence[int], anew: bool) -> None:
    assert may_be_listed_anew(node("ProjectExec", scan(*topics))) == anew
    assert may_be_listed_anew(behind("AdaptiveSparkPlanExec", scan(*topics))) == anew
    assert may_be_listed_anew(behind("InMemoryTableScanExec", scan(*topics))) == anew
    assert may_be_listed_anew(node("UnionExec", scan(9), scan(*topics))) == anew
    assert not may_be_listed_anew(node("UnionExec", scan(9), node("ShuffleExchangeExec", scan(*topics))))
