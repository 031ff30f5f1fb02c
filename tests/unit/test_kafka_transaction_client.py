"""Which broker the driver's requests go to, and which request aborts a transaction. The brokers are fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce.protocol.handles import Handle, Outcome, transaction_fields
from sparkonce.sinks.kafka import committer as committer_module
from sparkonce.sinks.kafka import transaction_client as client_module
from sparkonce.sinks.kafka.committer import KafkaCommitter, fields_of
from sparkonce.sinks.kafka.connection import Waiting
from sparkonce.sinks.kafka.outcomes import MOVED, BrokerAnswer, Description, KafkaTransaction
from sparkonce.sinks.kafka.transaction_client import TransactionClient
from unit.kafka_world import Brokers

ONE, OTHER = KafkaTransaction("one", 7, 3), KafkaTransaction("other", 8, 0)
SOON = 0.0


@pytest.fixture
def brokers(brokers) -> Brokers:
    brokers.holds = {1: ["one"], 2: ["other"]}
    return brokers


def commit(client: TransactionClient) -> list[int | None]:
    return [one.code for one in client.end_transactions([ONE, OTHER], commit=True, deadline_s=SOON)]


def fence(client: TransactionClient) -> list[int | None]:
    return [one.code for one in client.fence({ONE: 60_000, OTHER: 60_000}, deadline_s=SOON)]


def describe(client: TransactionClient) -> list[int | None]:
    views = client.describe_transactions([ONE, OTHER], deadline_s=SOON)
    return [0 if isinstance(view, Description) else view.code for view in views]


REQUESTS = pytest.mark.parametrize("request_", [commit, fence, describe])
Ask = Callable[[TransactionClient], list[Any]]


@REQUESTS
@pytest.mark.parametrize("code", sorted(MOVED))
def test_a_coordinator_that_has_moved_is_looked_up_again_and_no_other(brokers, request_, code):
    client = TransactionClient({})
    request_(client)
    brokers.holds, brokers.not_here = {2: ["other"], 3: ["one"]}, code
    assert request_(client) == [code, 0]
    assert request_(client) == [0, 0]
    assert brokers.looked_up == [["one", "other"], ["one"]]
    assert brokers.asked_about[-2:] == [(3, "one"), (2, "other")]


def test_another_refusal_says_nothing_of_where_the_coordinator_is(brokers):
    invalid_txn_state = 48
    client = TransactionClient({})
    brokers.refuse["EndTxn"] = [invalid_txn_state] * 2
    assert [commit(client), commit(client)] == [[invalid_txn_state] * 2, [0, 0]]
    assert len(brokers.looked_up) == 1

    # New connections look up the coordinator again.
    client, brokers.looked_up = TransactionClient({}), []
    commit(client)
    brokers.holds = {2: ["other"], 3: ["one"]}
    brokers.manager = SimpleNamespace(cluster=brokers.manager.cluster)
    assert commit(client) == [0, 0]
    assert brokers.looked_up == [["one", "other"]] * 2


def test_what_a_broker_says_of_another_id_is_no_answer(brokers):
    brokers.changes_ids = True
    spaced = KafkaTransaction(" one", 7, 3)
    mistaken, right = TransactionClient({}).describe_transactions([spaced, OTHER], deadline_s=SOON)
    assert isinstance(mistaken, BrokerAnswer)
    assert mistaken.code is None
    assert mistaken.reason == "asked for the transactional id ' one', and the broker describes 'one'"
    assert isinstance(right, Description)


FENCE = "fence at [60000] ms"


@pytest.mark.parametrize(
    ("level", "asked", "outcome"),
    [
        (0, [FENCE], Outcome.ABORTED),
        (1, [FENCE], Outcome.ABORTED),
        (2, ["abort"], Outcome.ABORTED),
        (3, ["abort"], Outcome.ABORTED),
        (BrokerAnswer(None, "no route"), [], Outcome.RETRY),
    ],
)
def test_an_abort_compares_the_epoch_wherever_the_cluster_can(monkeypatch, level, asked, outcome):
    """EndTxn v5 is exact. InitProducerId ends whatever is open under the id, and is used for older clusters only."""

    class Cluster:
        """Stands in for the client. It has an open transaction, and records the requests to end it."""

        def __init__(self, level: int | BrokerAnswer) -> None:
            self._level = level
            self.waiting = Waiting()
            self.asked: list[str] = []

        def describe_transactions(
            self, transactions: Sequence[KafkaTransaction], *, deadline_s: float
        ) -> list[Description]:
            return [Description(one, "Ongoing", 60_000, 5) for one in transactions]

        def transaction_version(self, *, deadline_s: float) -> int | BrokerAnswer:
            return self._level

        def end_transactions(
            self, transactions: Sequence[KafkaTransaction], *, commit: bool, deadline_s: float
        ) -> list[BrokerAnswer]:
            self.asked.append("commit" if commit else "abort")
            return [BrokerAnswer(0) for _ in transactions]

        def fence(self, transactions: dict[KafkaTransaction, int], *, deadline_s: float) -> list[BrokerAnswer]:
            self.asked.append(f"fence at {sorted(set(transactions.values()))} ms")
            return [BrokerAnswer(0) for _ in transactions]

    cluster = Cluster(level)
    monkeypatch.setattr(committer_module, "TransactionClient", lambda *_: cluster)
    handle = Handle(sink="kafka", slot=0, rows=1, transaction=transaction_fields(fields_of(ONE)))
    (finished,) = KafkaCommitter({"bootstrap.servers": "h:1"}, "kafka").abort([handle])
    assert cluster.asked == asked
    assert finished.outcome is outcome


@pytest.mark.parametrize(("commits", "versions"), [(True, (None, 4)), (False, (5, 5))])
def test_a_commit_leaves_the_epoch_and_an_abort_raises_it(monkeypatch, brokers, versions, *, commits):
    asked: list[dict[str, Any]] = []

    def end_txn(**fields: Any) -> Any:
        asked.append(fields)
        return SimpleNamespace(**fields)

    monkeypatch.setattr(client_module, "EndTxnRequest", end_txn)
    TransactionClient({}).end_transactions([ONE], commit=commits, deadline_s=SOON)
    assert [(one["committed"], one.get("min_version"), one["max_version"]) for one in asked] == [(commits, *versions)]
