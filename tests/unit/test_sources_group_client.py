"""What may still arrive of a batch's offsets when its transaction is to be decided. The brokers are made up."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.sinks.kafka.outcomes import BrokerAnswer, KafkaTransaction
from sparkonce.sources import group_client
from sparkonce.sources.group_client import GroupClient
from unit.driver_world import Clock

UNSENT = BrokerAnswer(None, "connection refused", never_sent=True)


class Brokers:
    """Stands in for the connection: answers as told first, and then that all is well."""

    def __init__(self) -> None:
        self.refuse: dict[str, list[BrokerAnswer]] = {}
        self.asked: list[str] = []

    def call(self, ask: Callable[[], Coroutine[Any, Any, Any]], deadline_s: float) -> Any:
        try:
            ask().send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("nothing here is waited for")

    async def gather(self, requests: Sequence[tuple[Any, Any]], deadline_s: float) -> list[Any]:
        return [self._answer(type(request).__name__.removesuffix("Request")) for request, _ in requests]

    def _answer(self, kind: str) -> Any:
        self.asked.append(kind)
        left = self.refuse.get(kind, [])
        code = 0
        if left:
            refusal = left.pop(0)
            if refusal.code is None:
                return refusal
            code = refusal.code
        found = SimpleNamespace(error_code=0, node_id=1)
        group = SimpleNamespace(error_code=0, group_state="Empty")
        return SimpleNamespace(error_code=code, coordinators=[found], groups=[group], topics=[])


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(group_client, "KafkaConnection", lambda _: made)
    monkeypatch.setattr(group_client, "time", Clock())
    return made


def commit_in(client: GroupClient, name: str = "id") -> group_client.Reply:
    return client.commit_in(KafkaTransaction(name, 7, 3), "group", {"in": {0: 5}}, deadline_s=10.0)


@pytest.mark.parametrize("kind", ["AddOffsetsToTxn", "TxnOffsetCommit"])
@pytest.mark.parametrize(
    ("refusals", "times", "reply"),
    [
        pytest.param([UNSENT, UNSENT], 3, group_client.Reply(), id="what was never sent is sent"),
        pytest.param([BrokerAnswer(16)], 2, group_client.Reply(), id="an answer is final"),
        pytest.param(
            [BrokerAnswer(None, "reset by peer")],
            1,
            group_client.Reply("no answer (reset by peer)", may_arrive=True),
            id="silence may arrive late",
        ),
    ],
)
def test_only_what_has_left_gives_a_batch_up(
    brokers: Brokers, kind: str, refusals: list[BrokerAnswer], times: int, reply: group_client.Reply
) -> None:
    if kind == "TxnOffsetCommit":
        refusals = [one for one in refusals if one.code is None]
        times = len(refusals) + (not reply.reason)
    brokers.refuse[kind] = list(refusals)
    assert commit_in(GroupClient({})) == reply
    assert brokers.asked.count(kind) == times


def test_coordinators_are_remembered_of_a_bounded_number_of_ids(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_client, "REMEMBERED", 10)
    client = GroupClient({})
    for batch in range(50):
        assert commit_in(client, f"id-{batch}") == group_client.Reply()
    assert len(client._coordinators) <= 10 + 2
