from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, admin

from sparkonce_lab.kafka import end_offsets


@pytest.mark.parametrize(
    "early", [KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._NOENT]
)
def test_a_broker_that_does_not_know_yet_that_it_leads_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, early: int
) -> None:
    class _Admin:
        """A broker that gives the prepared answers, one per request."""

        answers: list[int | KafkaError]

        def __init__(self, _: object) -> None: ...

        def list_topics(self, topic: str, **_: object) -> object:
            return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None})})

        def list_offsets(self, asked: Iterable[Any], **_: object) -> dict[Any, Future[Any]]:
            future: Future[Any] = Future()
            answer = self.answers.pop(0)
            if isinstance(answer, KafkaError):
                future.set_exception(KafkaException(answer))
            else:
                future.set_result(SimpleNamespace(offset=answer))
            return dict.fromkeys(asked, future)

    monkeypatch.setattr(admin, "AdminClient", _Admin)
    monkeypatch.setattr(_Admin, "answers", [KafkaError(early), KafkaError(early), 7], raising=False)
    assert end_offsets("127.0.0.1:1", "topic") == {0: 7}
    monkeypatch.setattr(_Admin, "answers", [KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), 7])
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        end_offsets("127.0.0.1:1", "topic")
