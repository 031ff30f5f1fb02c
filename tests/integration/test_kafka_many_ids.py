"""A cluster that remembers more transactional ids than anyone can ask for: a start takes its own."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
from confluent_kafka import Producer

from integration.kafka_witness import LIMIT_S, new_name
from shared_servers import KILLS_BROKER, broker_to_kill
from sparkonce.protocol.ownership import Token, TransactionalId
from sparkonce.sinks.kafka import transaction_client
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce_lab.rig.kafka import Cluster

pytestmark = [pytest.mark.kafka, KILLS_BROKER]

QUERY = "0123456789ab"
_LOG, _PARTITIONS = "__transaction_state", 4
_COMPLETE_COMMIT = 4
_ID_NOT_FOUND = 105


def remember(cluster: Cluster, prefix: str, count: int) -> None:
    """Writes so many commits into the coordinator's log, as it would itself, for it to read at its next start.

    The broker lets nobody write to internal topics but the client whose id this is.
    """
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "client.id": "__admin_client",
            "compression.type": "lz4",
            "queue.buffering.max.messages": 200_000,
            "linger.ms": 100,
        }
    )
    failed: list[object] = []
    now_ms = time.time_ns() // 1_000_000
    for number in range(count):
        name = str(
            TransactionalId(prefix=prefix, query=QUERY, token=Token(3, "0badcafe"), worker=f"{number:012x}", lane=0)
        )
        key = struct.pack(">hh", 0, len(name)) + name.encode()
        value = struct.pack(">hqhibiqq", 0, number, 1, 60_000, _COMPLETE_COMMIT, 0, now_ms, now_ms)
        while True:
            try:
                producer.produce(
                    _LOG, value, key, _partition(name), on_delivery=lambda error, _: error and failed.append(error)
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(LIMIT_S) == 0
    assert failed == []


def _partition(name: str) -> int:
    """Returns where the coordinator looks for an id: Java's hash of it, without its sign."""
    code = 0
    for character in name:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return abs(code - (1 << 32) if code >> 31 else code) % _PARTITIONS


@pytest.fixture(params=[2_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def crowded(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, str]]:
    """A cluster with so many ids, and a prefix of which there are a thousand."""
    own = new_name("own")
    if request.param == 2_000:
        yield _crowd(broker_to_kill(), request.param, own), own
    else:
        with Cluster(heap="3g") as cluster:
            yield _crowd(cluster, request.param, own), own


def _crowd(cluster: Cluster, others: int, own: str) -> Cluster:
    # A coordinator makes its log when the first one asks for it.
    with closing(KafkaCommitter({"bootstrap.servers": cluster.bootstrap}, "kafka")) as committer:
        probe = transaction_client.Transaction("nobody's", 0, 0)
        committer._client.probe(probe, deadline_s=committer._deadline_s() + LIMIT_S)
    remember(cluster, new_name("others"), others)
    remember(cluster, own, 1_000)
    cluster.brokers[0].restart()
    _await_loaded(cluster)
    return cluster


def _await_loaded(cluster: Cluster) -> None:
    """Waits until the broker coordinates each partition of its log again: before, it lists what it has so far."""
    names = {_partition(name): name for name in map("nobody's-{}".format, range(100))}
    assert len(names) == _PARTITIONS
    with closing(KafkaCommitter({"bootstrap.servers": cluster.bootstrap}, "kafka")) as committer:
        probes = [transaction_client.Transaction(name, 0, 0) for name in names.values()]
        views = committer._client.describe_transactions(probes, deadline_s=committer._deadline_s() + LIMIT_S)
    assert [view.code for view in views if isinstance(view, transaction_client.BrokerAnswer)] == [
        _ID_NOT_FOUND
    ] * _PARTITIONS


@pytest.mark.slow
def test_a_start_takes_its_own_of_many_ids(
    crowded: tuple[Cluster, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a pattern, and also of brokers before Kafka 4.1, which list all that they have."""
    cluster, prefix = crowded
    with caplog.at_level(logging.WARNING, "sparkonce.sinks.kafka.committer"):
        for newest in (2, 1):
            request = partial(transaction_client.ListTransactionsRequest, max_version=newest)
            with (
                monkeypatch.context() as patched,
                closing(KafkaCommitter({"bootstrap.servers": cluster.bootstrap}, "kafka")) as committer,
            ):
                patched.setattr(transaction_client, "ListTransactionsRequest", request)
                traces = committer.list_traces(QUERY, {"prefix": prefix})
            assert len({trace.committed for trace in traces}) == len(traces) == 1_000
            assert {trace.token for trace in traces} == {Token(3, "0badcafe")}
    assert [one for one in caplog.records if one.name == "sparkonce.sinks.kafka.committer"] == []
