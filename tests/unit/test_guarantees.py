from __future__ import annotations

import pytest

from sparkonce.guarantees import Guarantee, weakest

MOST, LEAST, EXACTLY = Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([EXACTLY], EXACTLY),
        ([EXACTLY, EXACTLY], EXACTLY),
        ([EXACTLY, LEAST], LEAST),
        ([LEAST, EXACTLY, MOST], MOST),
        ([MOST, EXACTLY], MOST),
        ([LEAST, MOST], MOST),
    ],
)
def test_a_whole_is_as_good_as_its_weakest_part(parts: list[Guarantee], whole: Guarantee) -> None:
    assert weakest(parts) is whole
    assert weakest(reversed(parts)) is whole


def test_guarantees_are_given_as_text_too() -> None:
    assert [Guarantee(text) for text in ("at-most-once", "at-least-once", "exactly-once")] == [MOST, LEAST, EXACTLY]
    with pytest.raises(ValueError, match="once-more"):
        Guarantee("once-more")

    with pytest.raises(ValueError, match="without parts"):
        weakest([])
