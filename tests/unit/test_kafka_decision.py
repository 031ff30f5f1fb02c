"""Whether a batch may be decided, given the brokers' answers about its topic, which a new broker may not know yet."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from sparkonce.sinks.kafka import committer as committer_module
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.kafka.outcomes import BrokerAnswer

FACTS = {"topic": "out", "topic_id": str(UUID(int=1))}


def says(error_code: int = 0, number: int = 1) -> Any:
    return SimpleNamespace(topics=[SimpleNamespace(name="out", error_code=error_code, topic_id=UUID(int=number))])


KNOWN, MISSING, OTHER, SILENT = says(), says(error_code=3), says(number=2), BrokerAnswer(None, "reset")


class Brokers:
    """Gives prepared answers. The last answer repeats."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked = 0

    def request(self, request: Any, *, deadline_s: float) -> Any:
        assert [topic.name for topic in request.topics] == ["out"]
        assert deadline_s > 0
        self.asked += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def close(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(committer_module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


def objection(monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> str:
    monkeypatch.setattr(committer_module, "TransactionClient", lambda *_: brokers)
    return KafkaCommitter({"bootstrap.servers": "h:1"}, "kafka").before_decision(FACTS)


@pytest.mark.parametrize(
    "answers", [[KNOWN], [MISSING, KNOWN], [OTHER, MISSING, KNOWN], [SILENT, KNOWN], [MISSING, SILENT, MISSING, KNOWN]]
)
def test_a_topic_that_is_there_after_all_is_decided(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], caplog: pytest.LogCaptureFixture, answers: Sequence[Any]
) -> None:
    brokers = Brokers(*answers)
    assert objection(monkeypatch, brokers) == ""
    assert brokers.asked == len(answers)
    assert clock[0] < 2
    assert caplog.text == ""


@pytest.mark.parametrize(("answer", "words"), [(MISSING, "was deleted while"), (OTHER, "recreated while")])
@pytest.mark.usefixtures("clock")
def test_what_brokers_keep_saying_is_believed(monkeypatch: pytest.MonkeyPatch, answer: Any, words: str) -> None:
    assert words in objection(monkeypatch, Brokers(SILENT, answer))


def test_where_nobody_answers_it_is_decided_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    assert objection(monkeypatch, Brokers(SILENT)) == ""
    assert clock[0] == pytest.approx(10, abs=0.5)
    assert "topic='out': No broker can say" in caplog.text
