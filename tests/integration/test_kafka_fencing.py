"""Protocol rule 9: what a sweep has aborted stays aborted, whatever its writer does when it wakes up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka.admin import KafkaAdminClient

from integration.kafka_witness import Prepared, Witness, eventually, new_name, until_final
from sparkonce.embedded import Cluster
from sparkonce.protocol.outcomes import Outcome
from sparkonce.sinks.kafka.client import TransactionClient
from sparkonce.sinks.kafka.committer import KafkaCommitter, transaction_of
from sparkonce.sinks.kafka.outcomes import Answer, Description, Transaction

pytestmark = pytest.mark.kafka

LIMIT_S = 30.0
SAFE_DOWNGRADE = 2
LARGEST_EPOCH = 32_766


@pytest.fixture(scope="module", params=[1, 2], ids=["transaction.version 1", "transaction.version 2"])
def cluster(request: pytest.FixtureRequest, broker: Cluster) -> Iterator[Cluster]:
    if request.param == 2:
        yield broker
        return
    with Cluster() as older:
        with closing(KafkaAdminClient(bootstrap_servers=older.bootstrap)) as admin:
            admin.update_features({"transaction.version": (SAFE_DOWNGRADE, 1)})
        with closing(TransactionClient({"bootstrap_servers": [older.bootstrap]})) as client:
            eventually(lambda: client.transaction_version(deadline_s=until()), lambda level: level == 1)
        yield older


@pytest.fixture
def witness(cluster: Cluster) -> Iterator[Witness]:
    with closing(Witness(cluster.bootstrap)) as opened:
        yield opened


@pytest.fixture
def committer(cluster: Cluster) -> Iterator[KafkaCommitter]:
    with closing(KafkaCommitter({"bootstrap.servers": cluster.bootstrap}, "kafka")) as opened:
        yield opened


@pytest.fixture
def client(cluster: Cluster) -> Iterator[TransactionClient]:
    with closing(TransactionClient({"bootstrap_servers": [cluster.bootstrap]})) as opened:
        yield opened


def until() -> float:
    return time.monotonic() + LIMIT_S


def described(client: TransactionClient, prepared: Prepared) -> Description | Answer:
    return client.describe_transactions([transaction_of(prepared.handle)], deadline_s=until())[0]


@pytest.mark.parametrize("partition", [0, 1], ids=["a partition it wrote to", "a new partition"])
def test_a_zombie_cannot_publish_after_the_sweep(witness: Witness, committer: KafkaCommitter, partition: int) -> None:
    topic = witness.create_topic()
    zombie = witness.prepare(topic, "half")
    assert until_final(committer.abort, [zombie.handle]) == [Outcome.ABORTED]
    witness.await_state("CompleteAbort", zombie.handle)
    zombie.write_on("zombie", partition)
    assert zombie.failed
    # Not even with the help of a late driver.
    assert until_final(committer.commit, [zombie.handle]) == [Outcome.LOST]
    assert witness.committed(topic) == []


def test_a_zombie_in_the_midst_of_a_sweep_is_aborted_with_it(witness: Witness, committer: KafkaCommitter) -> None:
    topic = witness.create_topic()
    zombie = witness.prepare(topic, "half")
    assert committer.abort([zombie.handle])[0].outcome in {Outcome.ABORTED, Outcome.RETRY}
    zombie.write_on("zombie", 0)
    assert until_final(committer.abort, [zombie.handle]) == [Outcome.ABORTED]
    assert until_final(committer.commit, [zombie.handle]) == [Outcome.LOST]
    assert witness.committed(topic) == []


def test_an_abort_that_keeps_the_epoch_would_let_it_publish(
    witness: Witness, committer: KafkaCommitter, client: TransactionClient
) -> None:
    topic = witness.create_topic()
    zombie = witness.prepare(topic, "half")
    eventually(
        lambda: client.probe(transaction_of(zombie.handle), deadline_s=until()).code, lambda code: code in (0, 48)
    )
    witness.await_state("CompleteAbort", zombie.handle)
    zombie.write_on("zombie", 1)
    assert not zombie.failed
    assert until_final(committer.commit, [zombie.handle]) == [Outcome.COMMITTED]
    witness.await_state("CompleteCommit", zombie.handle)
    assert witness.committed(topic) == ["zombie"]


def test_what_its_writer_has_aborted_is_fenced_all_the_same(
    witness: Witness, committer: KafkaCommitter, client: TransactionClient
) -> None:
    topic = witness.create_topic()
    prepared = witness.prepare(topic, "half")
    prepared.producer.abort_transaction(LIMIT_S)
    witness.await_state("CompleteAbort", prepared.handle)
    before = transaction_of(prepared.handle)
    assert until_final(committer.abort, [prepared.handle]) == [Outcome.ABORTED]
    after = described(client, prepared)
    assert isinstance(after, Description)
    assert after.transaction.epoch > before.epoch


def test_an_abort_after_a_commit_changes_nothing(
    witness: Witness, committer: KafkaCommitter, client: TransactionClient
) -> None:
    topic = witness.create_topic()
    prepared = witness.prepare(topic, "row")
    assert until_final(committer.commit, [prepared.handle]) == [Outcome.COMMITTED]
    witness.await_state("CompleteCommit", prepared.handle)
    before = described(client, prepared)
    assert until_final(committer.abort, [prepared.handle]) == [Outcome.ALREADY_COMMITTED]
    assert described(client, prepared) == before


@pytest.mark.slow
def test_the_last_epoch_of_a_producer_id_can_be_committed_and_fenced(
    witness: Witness, committer: KafkaCommitter, client: TransactionClient
) -> None:
    topic = witness.create_topic()
    for finish, outcome in ((committer.commit, Outcome.COMMITTED), (committer.abort, Outcome.ABORTED)):
        name = new_name("worn")
        worn = witness.prepare(topic, "first", transactional_id=name)
        assert until_final(committer.abort, [worn.handle]) == [Outcome.ABORTED]
        last = wear_out(client, transaction_of(worn.handle))
        newest = witness.prepare(topic, outcome.value, transactional_id=name)
        assert (newest.handle["producer_id"], newest.handle["epoch"]) == (last.producer_id, LARGEST_EPOCH)
        assert until_final(finish, [newest.handle]) == [outcome]
        assert until_final(finish, [newest.handle]) == [outcome]
    newest.write_on("zombie", 1)
    assert newest.failed
    assert witness.committed(topic) == ["committed"]


def wear_out(client: TransactionClient, transaction: Transaction) -> Transaction:
    """Raises the epoch of an id to the last but one."""
    name = transaction.transactional_id
    while True:
        (now,) = client.describe_transactions([Transaction(name, -1, -1)], deadline_s=until())
        assert isinstance(now, Description)
        if now.transaction.epoch >= LARGEST_EPOCH - 1:
            return now.transaction
        for epoch in range(now.transaction.epoch, LARGEST_EPOCH - 1):
            (answer,) = client.fence(
                {Transaction(name, now.transaction.producer_id, epoch): 60_000}, deadline_s=until()
            )
            if answer.code != 0:
                break
