"""When a writer asks for the topics of rows that do not arrive, and which answers it believes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sparkonce.errors import PrepareError
from sparkonce.sinks.kafka import stalled_rows
from sparkonce.sinks.kafka.stalled_rows import StalledRows

THERE, GONE = None, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
SILENT = KafkaException(KafkaError(KafkaError._TRANSPORT))
DURATION_S = 6.0


class Stand:
    """A producer with rows in flight, brokers that answer for topics, and a clock."""

    def __init__(self) -> None:
        self.rows, self.now_s = 10, 0.0
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {"a": THERE, "b": THERE}

    def __len__(self) -> int:
        return self.rows

    def list_topics(self, topic: str, _: float) -> Any:
        self.asked.append(topic)
        if isinstance(self.answers[topic], Exception):
            raise self.answers[topic]
        return SimpleNamespace(topics={topic: SimpleNamespace(error=self.answers[topic])})


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    made = Stand()
    monkeypatch.setattr(stalled_rows, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    return made


@pytest.fixture
def later(stand: Stand) -> Callable[[], None]:
    pooled: Any = SimpleNamespace(producer=stand)
    stalled = StalledRows(pooled, {"b", "a"})

    def looks() -> None:
        stand.now_s += DURATION_S
        stalled.look()

    return looks


def test_nobody_is_asked_while_rows_arrive_or_before_it_is_time(stand: Stand) -> None:
    pooled: Any = SimpleNamespace(producer=stand)
    stalled = StalledRows(pooled, {"a"})
    for _ in range(5):
        stand.now_s += DURATION_S
        stand.rows -= 1
        stalled.look()
    assert stand.asked == []


def test_a_topic_that_is_gone_twice_is_named(stand: Stand, later: Callable[[], None]) -> None:
    stand.answers["b"] = GONE
    later()
    assert stand.asked == ["a", "b"]
    stand.rows += 1  # statistics that wait are no row that has arrived
    with pytest.raises(PrepareError, match="topic 'b' is not there"):
        later()


def test_one_answer_may_be_of_a_broker_that_lags_behind(stand: Stand, later: Callable[[], None]) -> None:
    for answer in (GONE, THERE, GONE):
        stand.answers["b"] = answer
        later()
    stand.rows -= 1
    later()
    assert len(stand.asked) == 6, "rows arrived"
    later()


def test_silence_and_other_errors_say_nothing(stand: Stand, later: Callable[[], None]) -> None:
    stand.answers = {"a": KafkaError(KafkaError.LEADER_NOT_AVAILABLE), "b": SILENT}
    later()
    later()
    stand.answers["a"] = SILENT
    later()
    assert stand.asked == ["a", "b", "a", "b", "a"], "no further one is asked where no broker answers"
