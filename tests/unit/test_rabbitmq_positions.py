"""Positions in streams: which messages a batch takes, and what is read between two positions."""

from __future__ import annotations

import pytest

from sparkonce.errors import CheckpointMismatchError
from sparkonce_rabbitmq.stream.positions import (
    Positions,
    StreamRange,
    beginning,
    behind,
    ranges_of,
    rows_between,
    shares,
)


def test_a_batch_takes_of_each_stream_in_proportion_and_of_none_nothing() -> None:
    assert shares({"a": 3, "b": 4}, 7) == {"a": 3, "b": 4}
    assert shares({"a": 3, "b": 4}, None) == {"a": 3, "b": 4}

    assert shares({"a": 900, "b": 100}, 100) == {"a": 90, "b": 10}
    assert shares({"a": 1_000_000, "b": 1}, 10) == {"a": 9, "b": 1}
    assert shares({"a": 5, "b": 5, "c": 5}, 1) == {"a": 1, "b": 1, "c": 1}


def test_what_is_read_lies_between_two_positions() -> None:
    start: Positions = {"a": behind(10, (5, 1000), beginning(0)), "b": beginning(3)}
    end: Positions = {"a": behind(30, (25, 2000), start["a"]), "b": beginning(3)}
    assert ranges_of(start, end) == [StreamRange(stream="a", start=10, end=30, before=(5, 1000), last=(25, 2000))]
    assert ranges_of(end, end) == []

    end: Positions = {"a": behind(30, (25, 2000), beginning(7))}
    wanted = [StreamRange(stream="a", start=7, end=30, before=None, last=(25, 2000))]
    for asked_again in (beginning(7), beginning(12), beginning(0)):
        assert ranges_of({"a": asked_again}, end) == wanted
    assert ranges_of({}, end) == wanted, "a stream that was added"

    start: Positions = {"a": behind(30, (25, 2000), beginning(0))}
    with pytest.raises(CheckpointMismatchError, match="ends at offset 10 of the stream 'a', before its start at 30"):
        ranges_of(start, {"a": behind(10, (5, 1000), beginning(0))})


@pytest.mark.parametrize(
    ("before", "now", "rows"),
    [
        ({"a": beginning(5)}, {"a": beginning(5)}, 0),
        ({"a": beginning(5)}, {"a": behind(30, (25, 2000), beginning(5))}, 25),
        (
            {"a": behind(30, (25, 2000), beginning(0))},
            {"a": behind(41, (40, 3000), beginning(0)), "b": beginning(7)},
            18,
        ),
        ({}, {"a": beginning(7)}, 7),
        ({"a": {"0": 17}}, {"a": {"0": 18}}, None),
        ({"a": beginning(0)}, {"a": {"offset": 1, "timestamp": 2}}, None),
        ({"a": 17}, {"a": 18}, None),
        (17, 18, None),
        ({}, {}, None),
    ],
)
def test_messages_are_counted_between_positions_only(before: object, now: object, rows: int | None) -> None:
    assert rows_between(before, now) == rows
