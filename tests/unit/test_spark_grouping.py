"""The number of slots that follows from a batch's recorded offsets."""

from __future__ import annotations

import pytest

from sparkonce.spark.grouping import slots_of_offsets

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
