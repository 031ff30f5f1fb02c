from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.errors import PrepareError
from sparkonce.sinks.kafka import writer
from sparkonce.sinks.kafka.writer import StalledRows, TopicLookup

GONE_AFTER_S = 30.0


class Stand:
    def __init__(self) -> None:
        self.rows, self.now_s, self.asked = 10, 0.0, 0
        self.answers = {"a": True, "b": True}
        self.gone_after_s = GONE_AFTER_S

    def __len__(self) -> int:
        return self.rows

    def is_there(self, topics: Collection[str]) -> dict[str, bool]:
        assert topics == {"a", "b"}
        self.asked += 1
        return self.answers


@pytest.fixture
def stand(monkeypatch) -> Stand:
    made = Stand()
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    return made


@pytest.fixture
def later(stand) -> Callable[[float], None]:
    pooled: Any = SimpleNamespace(producer=stand)
    lookup: Any = stand
    stalled = StalledRows(pooled, {"b", "a"}, lookup)

    def polls(seconds: float) -> None:
        for _ in range(int(seconds)):
            stand.now_s += 1.0
            stalled.check()

    return polls


def test_nobody_is_asked_while_rows_arrive(stand, later):
    stand.answers["b"] = False
    for _ in range(9):
        later(4)
        stand.rows -= 1
    assert stand.asked == 0
    later(6)
    assert stand.asked == 1


def test_a_topic_that_is_gone_for_long_is_named(stand, later):
    stand.answers["b"] = False
    later(5 + GONE_AFTER_S - 1)
    stand.rows += 1  # pending statistics do not count as delivered rows
    with pytest.raises(PrepareError, match="topic 'b' does not exist"):
        later(6)
    assert stand.asked == 7


@pytest.mark.parametrize("meanwhile", ["it is there once", "a row arrives"])
def test_a_topic_that_appears_late_stops_nothing(meanwhile, stand, later):
    stand.answers["b"] = False
    later(GONE_AFTER_S)
    if meanwhile == "a row arrives":
        stand.rows -= 1
        later(1)
    else:
        stand.answers["b"] = True
        later(6)
    stand.answers["b"] = False
    later(GONE_AFTER_S)
    stand.answers["b"] = True
    later(100)


def test_silence_says_nothing(stand, later):
    stand.answers = {}
    later(100)
    assert stand.asked > 10


@pytest.mark.parametrize(("given", "expected_s"), [({}, 30.0), (500, 10.0), ("60000", 60.0)])
def test_a_topic_is_gone_when_librdkafka_would_give_up_waiting_for_it(given, expected_s):
    settings = {"topic.metadata.propagation.max.ms": given} if given else {}
    assert TopicLookup(settings, is_transactional=True).gone_after_s == expected_s


@pytest.mark.parametrize("more", [{}, {"ssl.ca.location": "/no/such/file", "security.protocol": "ssl"}])
def test_no_broker_and_no_client_are_no_answer(more):
    lookup = TopicLookup({"bootstrap.servers": "127.0.0.1:1", **more}, is_transactional=False)
    assert lookup.is_there(["a"]) == {}
