"""Commits while brokers crash, hang and move partitions. Every answer is either RETRY or correct."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from integration.kafka_witness import Witness, eventually, until_final
from shared_servers import KILLS_BROKER, broker_to_kill
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.ownership import Token, TransactionalId
from sparkonce.sink import Owner
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.kafka.outcomes import INVALID_PRODUCER_ID_MAPPING, BrokerAnswer, KafkaTransaction
from sparkonce_lab.rig.kafka import Cluster

pytestmark = [pytest.mark.kafka, KILLS_BROKER]


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return broker_to_kill()


@pytest.fixture
def witness(cluster: Cluster) -> Witness:
    return Witness(cluster.bootstrap)


@pytest.fixture
def cluster_settings(cluster: Cluster) -> dict[str, str]:
    return {"bootstrap.servers": cluster.bootstrap}


@pytest.fixture
def committer(cluster_settings: dict[str, str]) -> Iterator[KafkaCommitter]:
    with closing(KafkaCommitter(cluster_settings, "kafka", attempt_timeout_s=2.0)) as opened:
        yield opened


def settled(witness: Witness, topic: str, state: str, *handles: Handle) -> list[str]:
    witness.await_state(state, *handles)
    return witness.committed(topic)


@pytest.mark.slow
def test_an_abort_and_a_sweep_after_an_orderly_restart(
    cluster: Cluster, witness: Witness, committer: KafkaCommitter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kafka")
    topic = witness.create_topic()
    name = TransactionalId(prefix="swept", query="0" * 12, token=Token(0, "0" * 8), worker="0" * 12, lane=0)
    prepared = witness.prepare(topic, "a", transactional_id=str(name))
    owner = Owner(query=name.query, token=name.token, facts={"prefix": "swept"})
    before = committer.list_lingering([owner])
    cluster.brokers[0].restart()
    eventually(lambda: "socket disconnected" in caplog.text, bool)
    # A closed connection is not worth a warning: whoever sends the next request reports the consequences.
    assert [one for one in caplog.records if one.name.startswith("kafka.") and one.levelno >= logging.WARNING] == []
    assert [handle.transaction for handle in before] == [prepared.handle.transaction]
    assert until_final(committer.abort, before) == [Outcome.ABORTED]
    assert committer.list_lingering([owner]) == []
    assert until_final(committer.commit, [prepared.handle]) == [Outcome.LOST]
    assert settled(witness, topic, "CompleteAbort", prepared.handle) == []


def test_a_broker_that_hangs_is_no_answer(cluster: Cluster, witness: Witness, cluster_settings: dict[str, str]) -> None:
    topic = witness.create_topic()
    prepared = witness.prepare_all(topic, ["a", "b"])
    handles = [one.handle for one in prepared]
    with (
        closing(KafkaCommitter(cluster_settings, "kafka")) as patient,
        closing(KafkaCommitter(cluster_settings, "kafka", attempt_timeout_s=0.3)) as hasty,
    ):
        assert until_final(hasty.commit, handles[:1]) == [Outcome.COMMITTED]
        cluster.brokers[0].pause()
        try:
            # Once over open connections, and once without any.
            for _ in range(2):
                assert {one.outcome for one in hasty.commit(handles)} == {Outcome.RETRY}
        finally:
            cluster.brokers[0].resume()
        assert until_final(patient.commit, handles) == [Outcome.COMMITTED] * 2
    assert settled(witness, topic, "CompleteCommit", *handles) == ["a", "b"]


@pytest.mark.slow
def test_only_what_has_left_may_arrive_late(cluster: Cluster, committer: KafkaCommitter) -> None:
    """An abort that was sent but not answered may arrive late. One whose connection was refused cannot."""
    client = committer._client
    nobodys = KafkaTransaction("nobody's", 0, 0)

    def end(within_s: float) -> BrokerAnswer:
        return client.end_transactions([nobodys], commit=False, deadline_s=time.monotonic() + within_s)[0]

    eventually(lambda: end(60.0).code, lambda code: code == INVALID_PRODUCER_ID_MAPPING)
    cluster.brokers[0].pause()
    try:
        hung = end(0.5)
    finally:
        cluster.brokers[0].resume()
    assert (hung.code, hung.never_sent) == (None, False)
    eventually(lambda: end(60.0).code, lambda code: code == INVALID_PRODUCER_ID_MAPPING)
    cluster.brokers[0].kill()
    client.close()  # a connection that was closed unnoticed still accepts writes
    try:
        refused = end(0.5)
    finally:
        cluster.brokers[0].start()
    assert (refused.code, refused.never_sent) == (None, True)
    eventually(lambda: end(60.0).code, lambda code: code == INVALID_PRODUCER_ID_MAPPING)
