"""Protocol rule 9: a transaction that a sweep has aborted remains aborted, no matter what its writer does later."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pyarrow as pa
import pytest
from kafka.admin import KafkaAdminClient
from kafka.protocol.producer.transaction import InitProducerIdRequest, InitProducerIdResponse

from eventually import LIMIT_S, eventually
from integration.kafka_witness import Prepared, Witness, new_name, until_final
from small_job import SmallJob
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.protocol.state import Phase
from sparkonce.sinks.kafka.committer import KafkaCommitter, transaction_of
from sparkonce.sinks.kafka.outcomes import LAST_EPOCH
from sparkonce.sinks.kafka.pooled_producer import PooledProducer
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.sinks.kafka.transaction_client import TransactionClient
from sparkonce_lab.kafka import list_transactions
from sparkonce_lab.rig.kafka import Cluster

pytestmark = pytest.mark.kafka

SAFE_DOWNGRADE = 2
VERSIONS = ["transaction.version 1", "transaction.version 2"]


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.slow), 2], ids=VERSIONS)
def cluster(request, broker) -> Iterator[Cluster]:
    if request.param == 2:
        yield broker
        return
    with Cluster() as older:
        with closing(KafkaAdminClient(bootstrap_servers=older.bootstrap)) as admin:
            admin.update_features({"transaction.version": (SAFE_DOWNGRADE, 1)})
        with closing(TransactionClient({"bootstrap_servers": [older.bootstrap]})) as client:
            eventually(lambda: client.transaction_version(deadline_s=until()), until=lambda level: level == 1)
        yield older


@pytest.fixture
def witness(cluster) -> Witness:
    return Witness(cluster.bootstrap)


@pytest.fixture
def committer(cluster) -> Iterator[KafkaCommitter]:
    with closing(KafkaCommitter({"bootstrap.servers": cluster.bootstrap}, "kafka")) as opened:
        yield opened


@pytest.fixture
def client(cluster) -> Iterator[TransactionClient]:
    with closing(TransactionClient({"bootstrap_servers": [cluster.bootstrap]})) as opened:
        yield opened


def until() -> float:
    return time.monotonic() + LIMIT_S


@pytest.mark.parametrize("partition", [0, 1], ids=["a partition it wrote to", "a new partition"])
def test_a_zombie_cannot_publish_after_the_sweep(witness, committer, partition):
    topic = witness.create_topic()
    zombie = witness.prepare(topic, "half")
    assert until_final(committer.abort, [zombie.handle]) == [Outcome.ABORTED]
    witness.await_state("CompleteAbort", zombie.handle)
    zombie.write_on("zombie", partition)
    assert zombie.failed
    # The record does not become visible, even if a late driver tries to commit.
    assert until_final(committer.commit, [zombie.handle]) == [Outcome.LOST]
    assert witness.committed(topic) == []


def test_a_zombie_in_the_midst_of_a_sweep_is_aborted_with_it(witness, committer):
    topic = witness.create_topic()
    zombie = witness.prepare(topic, "half")
    assert committer.abort([zombie.handle])[0].outcome in {Outcome.ABORTED, Outcome.RETRY}
    zombie.write_on("zombie", 0)
    assert until_final(committer.abort, [zombie.handle]) == [Outcome.ABORTED]
    assert until_final(committer.commit, [zombie.handle]) == [Outcome.LOST]
    assert witness.committed(topic) == []


def test_an_abort_that_keeps_the_epoch_would_let_it_publish(witness, committer, client):
    topic = witness.create_topic()
    zombie = witness.prepare(topic, "half")
    zombies = transaction_of(zombie.handle)
    eventually(lambda: client.probe(zombies, deadline_s=until()).code, until=lambda code: code in (0, 48))
    witness.await_state("CompleteAbort", zombie.handle)
    zombie.write_on("zombie", 1)
    assert not zombie.failed
    assert until_final(committer.commit, [zombie.handle]) == [Outcome.COMMITTED]
    witness.await_state("CompleteCommit", zombie.handle)
    assert witness.committed(topic) == ["zombie"]


def test_what_its_writer_has_aborted_is_fenced_all_the_same(witness, committer, client):
    topic = witness.create_topic()
    prepared = witness.prepare(topic, "half")
    prepared.producer.abort_transaction(LIMIT_S)
    witness.await_state("CompleteAbort", prepared.handle)
    before = transaction_of(prepared.handle)
    assert until_final(committer.abort, [prepared.handle]) == [Outcome.ABORTED]
    (after,) = client.describe_transactions([before], deadline_s=until())
    assert after.transaction.epoch > before.epoch


# --- the last epoch of a producer id: the next one is 0, of a new producer id ----------------------------------------


@pytest.mark.slow
def test_commits_and_timeouts_at_the_last_epoch(cluster, witness, committer):
    topic = witness.create_topic()
    committed, timed_out = at_the_last_epoch(cluster, witness, topic, {"first": 60_000, "late": 1_000})
    witness.await_state("CompleteAbort", timed_out.handle)
    (lost,) = committer.commit([timed_out.handle])
    assert lost.outcome is Outcome.LOST, "the broker has moved the id on; it has not forgotten it"
    assert "CompleteAbort" in lost.reason
    assert until_final(committer.abort, [timed_out.handle]) == [Outcome.ABORTED]

    for _ in range(2):
        assert until_final(committer.commit, [committed.handle]) == [Outcome.COMMITTED]
        witness.await_state("CompleteCommit", committed.handle)
    newer = witness.prepare(topic, "second", transactional_id=str(committed.handle["transactional_id"]))
    assert newer.handle["producer_id"] != committed.handle["producer_id"]
    assert newer.handle["epoch"] == 0
    assert until_final(committer.commit, [committed.handle]) == [Outcome.UNKNOWN], "as it would be if it were lost"
    assert until_final(committer.abort, [committed.handle]) == [Outcome.ABORTED]
    assert until_final(committer.commit, [newer.handle]) == [Outcome.COMMITTED]
    witness.await_state("CompleteCommit", newer.handle)
    assert witness.committed(topic) == ["first", "second"]


@pytest.mark.slow
def test_what_is_swept_at_the_last_epoch_stays_aborted(cluster, witness, committer):
    topic = witness.create_topic()
    (swept,) = at_the_last_epoch(cluster, witness, topic, {"swept": 60_000})
    for _ in range(2):
        assert until_final(committer.abort, [swept.handle]) == [Outcome.ABORTED]
    witness.await_state("CompleteAbort", swept.handle)
    swept.write_on("zombie", 1)
    assert swept.failed
    assert until_final(committer.commit, [swept.handle]) == [Outcome.LOST]
    assert witness.committed(topic) == []


@pytest.fixture
def worn_at_first(cluster, monkeypatch) -> None:
    """The producers of a query's first run have the last epoch that there is."""
    initialise = PooledProducer.initialise

    def initialise_worn(pooled: PooledProducer, timeout_s: float) -> None:
        owned = TransactionalId.parse(pooled.transactional_id)
        if owned.token.position == 0:
            wear_out(cluster.bootstrap, pooled.transactional_id, LAST_EPOCH)
        initialise(pooled, timeout_s)

    monkeypatch.setattr(PooledProducer, "initialise", initialise_worn)


@pytest.mark.slow
@pytest.mark.usefixtures("worn_at_first")
def test_a_decided_batch_that_timed_out_at_the_last_epoch_is_written_again(cluster, witness, tmp_path):
    topic = witness.create_topic()
    settings = {"bootstrap.servers": cluster.bootstrap, "transaction.timeout.ms": 45_000}
    job = SmallJob(
        tmp_path, lambda: [KafkaSink(settings, topic=topic)], lambda *_: pa.record_batch({"value": ["row"]}), slots=1
    )
    witness.prepare(topic).producer.abort_transaction(LIMIT_S)  # makes sure that the coordinators are available
    job.kill(0, Phase.FINISHING)
    decision = job.decision(0)
    assert [handle["epoch"] for handle in decision.handles] == [LAST_EPOCH]
    prefix = f"sparkonce-{job.short_query}."
    eventually(lambda: list_transactions(cluster.bootstrap, states=["CompleteAbort"], prefix=prefix))
    (done,) = job.run(0)
    assert done.healed == 1
    assert witness.committed(topic) == ["row"]


def at_the_last_epoch(cluster: Cluster, witness: Witness, topic: str, timeouts_ms: Mapping[str, int]) -> list[Prepared]:
    """Returns transactions of one row each, prepared with the last epoch that a producer id allows."""
    names = {value: new_name("worn") for value in timeouts_ms}
    for name in names.values():
        first = witness.prepare(topic, transactional_id=name)
        first.producer.abort_transaction(LIMIT_S)
        witness.await_state("CompleteAbort", first.handle)
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: wear_out(cluster.brokers[0].address, name, LAST_EPOCH - 1), names.values()))
    prepared = [
        witness.prepare(topic, value, transactional_id=name, timeout_ms=timeouts_ms[value])
        for value, name in names.items()
    ]
    assert {one.handle["epoch"] for one in prepared} == {LAST_EPOCH}
    return prepared


def wear_out(address: str, transactional_id: str, times: int) -> None:
    """Initializes an id many times, each of which increments its epoch.

    Pipelines the requests, since there are many.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    request.with_header(correlation_id=0, client_id="wearing out")
    version = 4
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection, ThreadPoolExecutor(1) as sender:
        sender.submit(connection.sendall, times * request.encode(version=version, header=True, framed=True))
        with connection.makefile("rb") as answers:
            for _ in range(times):
                (size,) = struct.unpack(">i", answers.read(4))
                answer = InitProducerIdResponse.decode(answers.read(size), version=version, header=True)
                assert answer.error_code == 0, answer
