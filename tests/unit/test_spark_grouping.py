from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.sources.offsets import rows_read
from sparkonce.spark.grouping import SMALL_PARTITIONS, Grouping, grouping_of
from sparkonce_rabbitmq.sources import RabbitMQStreams

ONE = '{"t":{"0":100,"1":100}}'
STREAM = '{"s":{"offset":100,"first":0}}'
"""A stream has its own order, which a restart does not change."""


def grouped(before: list[str] | None, now: list[str], *more: int | None) -> Grouping | None:
    rows = rows_read(before, now, [RabbitMQStreams()])
    return grouping_of(rows, before, now, *more)


@pytest.mark.parametrize(
    ("before", "now", "slots"),
    [
        ([ONE], ['{"t":{"0":101,"1":100}}'], 1),
        ([ONE], ['{"t":{"0":110,"1":100}}'], 1),
        ([ONE], ['{"t":{"0":110,"1":101}}'], 2),
        ([ONE], [ONE], 1),
        ([ONE, '{"u":{"0":5}}'], ['{"t":{"0":115,"1":100}}', '{"u":{"0":15}}'], 3),
        ([ONE], ['{"t":{"0":120}}'], 2),
        ([STREAM], ['{"s":{"offset":115,"chunk":90,"at":1795633666592,"first":0}}'], 2),
        ([STREAM], ['{"s":{"offset":100,"first":0},"new":{"offset":21,"first":0}}'], 3),
        ([STREAM, ONE], [STREAM, '{"t":{"0":110,"1":101}}'], 2),
        (["-"], [ONE], None),
        ([ONE], ['{"t":{"0":100,"1":100,"2":17}}'], 2),
        ([ONE], ['{"t":{"0":1,"1":101}}'], 1),
        (['{"logOffset":3}'], ['{"logOffset":4}'], None),
        (["3"], ["4"], None),
        ([ONE], [ONE, ONE], None),
        (None, [ONE], None),
    ],
)
def test_a_slot_is_counted_for_each_ten_rows_read(before, now, slots):
    found = grouped(before, now, 10)
    assert (found and found.slots) == slots


def test_what_is_not_grouped():
    assert grouped([STREAM], [STREAM], 10) == Grouping(1, is_renumbered=False)

    assert grouped([ONE], ['{"t":{"0":110,"1":101}}'], None) is None

    assert grouped(['{"logOffset":3}'], ['{"logOffset":4}'], None, None, 1) == Grouping(1)


SMALL = Grouping(1, merges=True)


def told(*offsets: int) -> list[str]:
    return [json.dumps({"t": {str(number): offset for number, offset in enumerate(offsets)}})]


@pytest.mark.parametrize(("partitions", "grouping"), [(SMALL_PARTITIONS, SMALL), (SMALL_PARTITIONS + 1, None)])
def test_few_partitions_with_rows_are_one_slot(partitions, grouping):
    assert grouped(told(*[5] * 99), told(*[6] * partitions, *[5] * (99 - partitions)), None, 10) == grouping


@pytest.mark.parametrize(
    ("decided", "given", "row_bytes", "grouping"),
    [
        (1, None, 10, SMALL),
        (1, None, None, Grouping(1)),
        (1, 1, None, Grouping(1)),
        (4, None, 10, None),
        (4, 100, 10, Grouping(1)),
        (2, 6, 10, Grouping(2)),
    ],
)
def test_a_decided_batch_is_one_slot_only_if_it_was_then(decided, given, row_bytes, grouping):
    assert grouped(told(0), told(10), given, row_bytes, decided) == grouping


@pytest.mark.parametrize(
    ("topics", "small"), [([1], False), ([2], True), ([4], True), ([2, 2], True), ([2, 3], False), ([5], False)]
)
def test_a_source_of_two_to_four_partitions_may_be_numbered_anew(topics, small):
    many = '{"u":{"0":1,"1":1,"2":1,"3":1,"4":1}}'
    said = json.dumps({f"t{topic}": {str(one): 7 for one in range(size)} for topic, size in enumerate(topics)})
    assert grouped([said], [said], 10) == Grouping(1, is_renumbered=small)
    assert grouped([said, many], [said, many], 10) == Grouping(1, is_renumbered=small)


def rdd(kind: str, *behind: Any, by: str = "OneToOneDependency") -> Any:
    links = [thing(by, rdd=lambda one=one: one) for one in behind]
    sequence = SimpleNamespace(size=lambda: len(links), apply=lambda place: links[place])
    return thing(kind, dependencies=lambda: sequence, getNumPartitions=lambda: 3)


def thing(kind: str, **more: Any) -> Any:
    return SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: f"org.apache.spark.{kind}"), **more)


def rows(kind: str, read: Any) -> Any:
    plan = thing(kind, execute=lambda: read)
    return SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: SimpleNamespace(executedPlan=lambda: plan)))


SOURCE = rdd("sql.execution.datasources.v2.DataSourceRDD")
READ = rdd("rdd.MapPartitionsRDD", SOURCE)
SHUFFLED = rdd("rdd.MapPartitionsRDD", rdd("sql.execution.ShuffledRowRDD", SOURCE, by="ShuffleDependency"))


@pytest.mark.parametrize(
    ("read", "grouping", "worth"),
    [
        (READ, Grouping(2), True),
        (READ, Grouping(3), False),
        (READ, Grouping(2, is_renumbered=True), False),
        (READ, Grouping(1, is_renumbered=True), True),
        (SHUFFLED, Grouping(2, is_renumbered=True), True),
        (rdd("rdd.UnionRDD", SHUFFLED, READ), Grouping(2, is_renumbered=True), False),
    ],
)
def test_slots_are_grouped_where_they_stay_the_same(read, grouping, worth):
    assert grouping.is_worth_it(rows("sql.execution.ProjectExec", read)) == worth
    assert SMALL.is_worth_it(rows("sql.execution.ProjectExec", read))
    assert grouping.is_worth_it(rows("sql.execution.adaptive.AdaptiveSparkPlanExec", None))
