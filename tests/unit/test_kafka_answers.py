"""The meaning of brokers' answers: at the start, before a decision, for committed transactions, and for readers."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.sinks.kafka import committer as committer_module
from sparkonce.sinks.kafka import preflight
from sparkonce.sinks.kafka.blocking import KafkaMonitor, OpenPart
from sparkonce.sinks.kafka.committer import KafkaCommitter, fields_of
from sparkonce.sinks.kafka.outcomes import TRANSACTIONAL_ID_NOT_FOUND, BrokerAnswer, Description, KafkaTransaction
from unit.driver_world import Clock


def test_a_topic_that_is_not_known_to_every_broker_yet_is_asked_for_again(monkeypatch):
    def told_of_a_topic(errors: list[int], *, within_s: float) -> tuple[int, int]:
        left = list(errors)

        def ask(_: object) -> object:
            return SimpleNamespace(topics=[SimpleNamespace(error_code=left.pop(0) if len(left) > 1 else left[0])])

        look = SimpleNamespace(ask=ask, deadline_s=time.monotonic() + within_s)
        found = preflight._metadata(look, "orders")
        return len(errors) - len(left) + 1, found.topics[0].error_code

    monkeypatch.setattr(preflight, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(preflight, "SURE_AFTER_S", 600.0)
    assert told_of_a_topic([3, 3, 0], within_s=600.0) == (3, 0)
    assert told_of_a_topic([29], within_s=600.0) == (1, 29)

    monkeypatch.setattr(preflight, "SURE_AFTER_S", 0.0)
    assert told_of_a_topic([3], within_s=600.0) == (1, 3)


QUERY = "0123456789ab"
LOADING, ID_NOT_ALLOWED = 14, 53


def knows(**names: int) -> Any:
    states = [SimpleNamespace(producer_id=number, transactional_id=name) for name, number in names.items()]
    return SimpleNamespace(error_code=0, transaction_states=states)


VIEW = Description(KafkaTransaction("other", 7, 0), "Ongoing", 60_000, 1)


@pytest.mark.parametrize(
    ("responses", "view", "found"),
    [
        # The transaction may be the query's own, coordinated by the broker that does not list its transactions.
        ([knows(), BrokerAnswer(None, "silence")], BrokerAnswer(None, ""), []),
        ([knows(), SimpleNamespace(error_code=LOADING, transaction_states=[])], BrokerAnswer(None, ""), []),
        ([knows(other=7), knows()], BrokerAnswer(LOADING, ""), []),
        ([knows(other=7), knows()], BrokerAnswer(ID_NOT_ALLOWED, ""), [None]),
        ([knows(**{f"orders.{QUERY}.3-0badcafe.000000000001-0": 7}), knows()], BrokerAnswer(ID_NOT_ALLOWED, ""), []),
        ([knows(other=7), knows()], VIEW, [VIEW]),
        ([knows(), knows()], VIEW, [None]),
    ],
    ids=["silent", "loading", "not described", "not allowed", "our own", "described", "an id that may not be seen"],
)
def test_a_transaction_is_named_only_if_it_cannot_be_the_querys_own(monkeypatch, responses, view, found):
    monitor = KafkaMonitor({"bootstrap.servers": "nobody:1"}, "t", QUERY)
    monkeypatch.setattr(monitor._client, "gather", lambda *_, **__: responses)
    monkeypatch.setattr(monitor._client, "describe_transactions", lambda asked, **_: [view for _ in asked])
    assert [one.view for one in monitor._described([OpenPart(("t", 0), 5, 7, 0)], [1, 2], 0.0)] == found


IDS = "shop.0123456789ab.3-0badcafe.c0ffee123456-"
COMMITTED = [KafkaTransaction(f"{IDS}{number}", 7, number) for number in range(2)]
HANDLES = [
    Handle(sink="kafka", slot=n, transaction=transaction_fields(fields_of(one))) for n, one in enumerate(COMMITTED)
]


def missing(
    monkeypatch: pytest.MonkeyPatch, states: Sequence[str], ended: Sequence[str], handles: Sequence[Handle] = HANDLES
) -> list[int]:
    views = [
        Description(one, state, 60_000, 1) if state else BrokerAnswer(TRANSACTIONAL_ID_NOT_FOUND)
        for one, state in zip(COMMITTED, states, strict=True)
    ]

    def list_transactions(states: Sequence[str], begins: Sequence[str], *, deadline_s: float) -> list[str]:
        assert (list(states), list(begins)) == (["CompleteAbort", "CompleteCommit"], ["shop.0123456789ab."])
        return [name for name in ended if name.startswith(begins[0])]

    client: Any = SimpleNamespace(
        describe_transactions=lambda *_, **__: views, list_transactions=list_transactions, close=lambda: None
    )
    monkeypatch.setattr(committer_module, "TransactionClient", lambda *_: client)
    committer = KafkaCommitter({"bootstrap.servers": "h:1"}, "kafka")
    monkeypatch.setattr(committer, "_remembered_ms", lambda: 2 * 3_600_000)
    return [handle.slot for handle in committer.missing(handles)]


def test_a_broker_that_forgets_how_transactions_end_has_lost_nothing(monkeypatch, caplog):
    """Redpanda before 24.2 and franz-go's kfake show every ended transaction as Empty."""
    caplog.set_level(logging.WARNING)
    assert missing(monkeypatch, ["Empty", "Empty"], ended=[]) == []
    assert "do not keep how a transaction ended" in caplog.text


def test_a_broker_that_keeps_how_transactions_end_has_lost_an_empty_one(monkeypatch):
    assert missing(monkeypatch, ["Empty", "CompleteCommit"], ended=[f"{IDS}1"]) == [0]
    assert missing(monkeypatch, ["CompleteAbort", "CompleteCommit"], ended=[]) == [0]
    assert missing(monkeypatch, ["CompleteCommit", "CompleteCommit"], ended=[]) == []


def test_an_unknown_id_is_missing_up_to_half_the_time_for_which_ids_are_remembered(monkeypatch):
    """The other half allows for clock differences."""
    ages_ms = (59 * 60_000, 61 * 60_000)
    now_ms = time.time_ns() // 1_000_000
    handles = [replace(one, opened_ms=now_ms - age_ms) for one, age_ms in zip(HANDLES, ages_ms, strict=True)]
    assert missing(monkeypatch, ["", ""], ended=[], handles=handles) == [0]


FACTS = {"topic": "out", "topic_id": str(UUID(int=1))}


def says(error_code: int = 0, number: int = 1) -> Any:
    return SimpleNamespace(topics=[SimpleNamespace(name="out", error_code=error_code, topic_id=UUID(int=number))])


KNOWN, MISSING, OTHER, SILENT = says(), says(error_code=3), says(number=2), BrokerAnswer(None, "reset")
NOT_ALLOWED, RESTARTING, WITHOUT_ID = says(error_code=29), says(error_code=5), says(number=0)


class Brokers:
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
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(committer_module, "time", made)
    return made


def objection(monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> str:
    monkeypatch.setattr(committer_module, "TransactionClient", lambda *_: brokers)
    return KafkaCommitter({"bootstrap.servers": "h:1"}, "kafka").before_decision(FACTS)


@pytest.mark.parametrize(
    "answers",
    [
        [KNOWN],
        [MISSING, KNOWN],
        [OTHER, MISSING, KNOWN],
        [SILENT, KNOWN],
        [MISSING, SILENT, MISSING, KNOWN],
        # These responses prove nothing, so the next batch sends the request again.
        [NOT_ALLOWED],
        [RESTARTING],
        [WITHOUT_ID],
    ],
)
def test_a_topic_that_is_there_after_all_is_decided(monkeypatch, clock, caplog, answers):
    brokers = Brokers(*answers)
    assert objection(monkeypatch, brokers) == ""
    assert brokers.asked == len(answers)
    assert clock.monotonic() < 2
    assert caplog.text == ""


@pytest.mark.parametrize(("answer", "words"), [(MISSING, "was deleted while"), (OTHER, "recreated while")])
@pytest.mark.usefixtures("clock")
def test_what_brokers_keep_saying_is_believed(monkeypatch, answer, words):
    assert words in objection(monkeypatch, Brokers(SILENT, answer))


def test_where_nobody_answers_it_is_decided_with_a_warning(monkeypatch, clock, caplog):
    assert objection(monkeypatch, Brokers(SILENT)) == ""
    assert clock.monotonic() == pytest.approx(10, abs=0.5)
    assert "topic='out': No broker can say" in caplog.text


@pytest.mark.parametrize("topic_id", [None, UUID(int=0)])
def test_a_topic_without_an_id_is_not_remembered(topic_id):
    answer: Any = SimpleNamespace(topics=[SimpleNamespace(name="out", error_code=0, topic_id=topic_id)])
    assert preflight.topic_facts(answer) == {}
    assert preflight.topic_facts(KNOWN) == FACTS
