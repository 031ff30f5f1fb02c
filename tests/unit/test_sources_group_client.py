"""Offset commits of a batch that may still arrive when its transaction is about to be decided.

The brokers are fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.sinks.kafka import connection as waiting_module
from sparkonce.sinks.kafka import transaction_client as client_module
from sparkonce.sinks.kafka.outcomes import BrokerAnswer, KafkaTransaction
from sparkonce.sinks.kafka.transaction_client import TransactionClient
from sparkonce.sources.group_client import Reply, commit_offsets_in
from unit.driver_world import Clock

UNSENT = BrokerAnswer(None, "connection refused", never_sent=True)


class Brokers:
    """Stands in for the connection. Gives the prepared answers first, and succeeds from then on."""

    def __init__(self) -> None:
        self.refuse: dict[str, list[BrokerAnswer]] = {}
        self.asked: list[str] = []
        self.manager = SimpleNamespace(cluster=SimpleNamespace(add_coordinator=lambda *_: None))

    def call(self, ask: Callable[[], Coroutine[Any, Any, Any]], deadline_s: float) -> Any:
        try:
            ask().send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("nothing here is waited for")

    async def gather(self, requests: Sequence[tuple[Any, Any]], deadline_s: float) -> list[Any]:
        return [self._answer(type(request).__name__.removesuffix("Request"), request) for request, _ in requests]

    def _answer(self, kind: str, request: Any) -> Any:
        self.asked.append(kind)
        left = self.refuse.get(kind, [])
        code = 0
        if left:
            refusal = left.pop(0)
            if refusal.code is None:
                return refusal
            code = refusal.code
        keys = request.coordinator_keys if kind == "FindCoordinator" else ()
        found = [SimpleNamespace(error_code=0, key=key, node_id=1, host="h", port=1) for key in keys]
        group = SimpleNamespace(error_code=0, group_state="Empty")
        return SimpleNamespace(error_code=code, coordinators=found, groups=[group], topics=[])


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(client_module, "KafkaConnection", lambda _: made)
    for module in (client_module, waiting_module):
        monkeypatch.setattr(module, "time", Clock())
    return made


def commit_in(client: TransactionClient, name: str = "id") -> Reply:
    return commit_offsets_in(client, KafkaTransaction(name, 7, 3), "group", {"in": {0: 5}}, deadline_s=10.0)


@pytest.mark.parametrize("kind", ["AddOffsetsToTxn", "TxnOffsetCommit"])
@pytest.mark.parametrize(
    ("refusals", "times", "reply"),
    [
        pytest.param([UNSENT, UNSENT], 3, Reply(), id="what was never sent is sent"),
        pytest.param([BrokerAnswer(16)], 2, Reply(), id="an answer is final"),
        pytest.param(
            [BrokerAnswer(None, "reset by peer")],
            1,
            Reply("no answer (reset by peer)", may_arrive=True),
            id="silence may arrive late",
        ),
    ],
)
def test_only_what_has_left_gives_a_batch_up(
    brokers: Brokers, kind: str, refusals: list[BrokerAnswer], times: int, reply: Reply
) -> None:
    if kind == "TxnOffsetCommit":
        refusals = [one for one in refusals if one.code is None]
        times = len(refusals) + (not reply.reason)
    brokers.refuse[kind] = list(refusals)
    assert commit_in(TransactionClient({})) == reply
    assert brokers.asked.count(kind) == times


def test_coordinators_are_remembered_of_a_bounded_number_of_ids(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "REMEMBERED", 10)
    client = TransactionClient({})
    for batch in range(50):
        assert commit_in(client, f"id-{batch}") == Reply()
    assert len(client._coordinators) <= 10 + 2
