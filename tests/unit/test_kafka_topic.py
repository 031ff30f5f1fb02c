"""How a cluster's answer about a topic is interpreted before a decision. `integration` tests real answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from sparkonce.sinks.kafka.outcomes import BrokerAnswer
from sparkonce.sinks.kafka.preflight import topic_facts, why_not_decide

OLD, NEW = UUID(int=1), UUID(int=2)
FACTS = {"topic": "t", "topic_id": str(OLD)}


def answer(topic_id: UUID | None, error_code: int = 0) -> Any:
    return SimpleNamespace(topics=[SimpleNamespace(name="t", topic_id=topic_id, error_code=error_code)])


@pytest.mark.parametrize("topic_id", [None, UUID(int=0)])
def test_a_topic_without_an_id_is_not_remembered(topic_id: UUID | None) -> None:
    assert topic_facts(answer(topic_id)) == {}
    assert topic_facts(SimpleNamespace(topics=[])) == {}
    assert topic_facts(answer(OLD)) == FACTS


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (answer(OLD), ""),
        (answer(NEW), "was deleted and recreated"),
        (answer(UUID(int=0), error_code=3), "was deleted while"),
        # Inconclusive answers do not stop the query, and the next batch asks again.
        (answer(UUID(int=0), error_code=29), ""),
        (answer(UUID(int=0), error_code=5), ""),
        (answer(None), ""),
        (BrokerAnswer(None, "no route"), ""),
    ],
)
def test_what_speaks_against_a_decision(found: Any, words: str) -> None:
    assert bool(why_not_decide(FACTS, found)) is bool(words)
    assert words in why_not_decide(FACTS, found)
    assert why_not_decide({"cluster_id": "c"}, found) == ""
