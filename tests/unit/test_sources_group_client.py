"""Offset commits of a batch that may still arrive when its transaction is about to be decided.

The brokers are fakes.
"""

import pytest

from sparkonce.sinks.kafka import connection as waiting_module
from sparkonce.sinks.kafka import transaction_client as client_module
from sparkonce.sinks.kafka.outcomes import BrokerAnswer, KafkaTransaction
from sparkonce.sinks.kafka.transaction_client import TransactionClient
from sparkonce.sources.groups import Reply, commit_offsets_in
from unit.driver_world import Clock
from unit.kafka_world import SILENT, UNSENT


@pytest.mark.parametrize("kind", ["AddOffsetsToTxn", "TxnOffsetCommit"])
@pytest.mark.parametrize(
    ("refusals", "times", "reply"),
    [
        pytest.param([UNSENT, UNSENT], 3, Reply(), id="what was never sent is sent"),
        pytest.param([BrokerAnswer(16)], 2, Reply(), id="an answer is final"),
        pytest.param([SILENT], 1, Reply("no answer (reset by peer)", may_arrive=True), id="silence may arrive late"),
    ],
)
def test_only_what_has_left_gives_a_batch_up(brokers, monkeypatch, kind, refusals, times, reply):
    for module in (client_module, waiting_module):
        monkeypatch.setattr(module, "time", Clock())
    if kind == "TxnOffsetCommit":
        refusals = [one for one in refusals if one.code is None]
        times = len(refusals) + (not reply.reason)
    brokers.refuse[kind] = list(refusals)
    transaction = KafkaTransaction("id", 7, 3)
    assert commit_offsets_in(TransactionClient({}), transaction, "group", {"in": {0: 5}}, deadline_s=10.0) == reply
    assert len(brokers.count(kind)) == times


def test_coordinators_are_remembered_of_a_bounded_number_of_ids(brokers, monkeypatch):
    monkeypatch.setattr(client_module, "REMEMBERED", 10)
    client = TransactionClient({})
    for batch in range(50):
        transaction = KafkaTransaction(f"id-{batch}", 7, 3)
        assert commit_offsets_in(client, transaction, "group", {"in": {0: 5}}, deadline_s=10.0) == Reply()
    assert len(client._coordinators) <= 10 + 2
