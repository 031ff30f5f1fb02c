"""A consumer group whose offsets follow the query's progress. They are read back from the broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.protocol.producer.transaction import AddOffsetsToTxnRequest, TxnOffsetCommitRequest

from eventually import LIMIT_S, eventually
from spark.harness import new_name
from spark.in_process import IDS, MARKS, CrashError, Stream, crash_at
from sparkonce import ExactlyOnce, GroupOffsets, Guarantee, KafkaSink
from sparkonce.errors import ConfigurationError, PrepareError
from sparkonce.protocol.state import Phase
from sparkonce.sinks.kafka.connection import KafkaConnection
from sparkonce.sinks.kafka.outcomes import BrokerAnswer
from sparkonce.sinks.kafka.transaction_client import TransactionClient
from sparkonce_lab.kafka import describe_transactions
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

BATCH = 400


class Group:
    """A consumer group without members."""

    def __init__(self, stream: Stream) -> None:
        self.name = new_name("group")
        self._stream = stream
        self._admin = AdminClient({"bootstrap.servers": stream.bootstrap})
        # Waits for the group's coordinator. Without it, the admin client fails, and may even crash the process.
        reader = Consumer({"bootstrap.servers": stream.bootstrap, "group.id": self.name})

        def has_coordinator() -> bool:
            try:
                return bool(reader.committed([TopicPartition(stream.source, 0)], LIMIT_S))
            except KafkaException as error:
                if error.args[0].code() not in {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}:
                    raise
                return False

        eventually(has_coordinator, "the group has a coordinator")
        reader.close()

    def offsets(self, **more: object) -> GroupOffsets:
        return GroupOffsets(self.name, {"bootstrap.servers": self._stream.bootstrap}, **more)

    def read(self) -> int:
        """Returns how many source records are marked as read by the group's committed offsets."""
        asked = [ConsumerGroupTopicPartitions(self.name)]

        def stable() -> list[list[TopicPartition]]:
            """Returns the offsets, or nothing while the end of a transaction has not reached the group's partition."""
            (answer,) = self._admin.list_consumer_group_offsets(asked, require_stable=True).values()
            found = answer.result(LIMIT_S).topic_partitions
            errors = {partition.error.code() for partition in found if partition.error}
            assert errors <= {KafkaError.UNSTABLE_OFFSET_COMMIT}
            return [] if errors else [found]

        (found,) = eventually(stable, "the group's offsets are stable")
        assert {partition.topic for partition in found} <= {self._stream.source}
        return sum(int(partition.offset) for partition in found)


@pytest.fixture
def group(stream) -> Group:
    return Group(stream)


Told = list[tuple[str, int, int]]


def watch(group: Group, told: Told, phases: set[Phase]) -> Callable[[Phase, int], None]:
    def listen(phase: Phase, batch: int) -> None:
        if phase in phases:
            told.append((phase.name, batch, group.read()))

    return listen


def test_offsets_are_committed_when_a_batch_is_finished_and_never_before(stream, group):
    told: Told = []
    phases = {Phase.WRITING, Phase.DECIDING, Phase.FINISHING, Phase.SWEEPING_OWN, Phase.IDLE}
    stream.run(group_offsets=group.offsets(), listener=watch(group, told, phases))
    for batch, before, after in ((0, 0, 400), (1, 400, 800), (2, 800, 1000)):
        seen = {(phase, read) for phase, number, read in told if number == batch}
        earlier = {(phase.name, before) for phase in phases - {Phase.IDLE}}
        assert seen == {*earlier, ("IDLE", after)}
    assert stream.keys() == IDS


@pytest.mark.slow
def test_a_crash_leaves_them_behind_and_the_next_run_catches_up(stream, group):
    with pytest.raises(CrashError):
        stream.run(group_offsets=group.offsets(), listener=crash_at(Phase.FINISHING, 1))
    assert group.read() == 400
    told: Told = []
    stream.run(group_offsets=group.offsets(), listener=watch(group, told, {Phase.IDLE}))
    assert told[0] == ("IDLE", 1, 800), "the batch that the crashed run had begun comes first"
    assert group.read() == 1000
    assert stream.keys() == IDS


def test_in_a_transaction_they_are_seen_together_with_its_rows(stream, group):
    told: list[tuple[str, int]] = []

    def listen(phase: Phase, batch: int) -> None:
        if batch == 1 and phase in (Phase.DECIDING, Phase.FINISHING):
            # A pending offset prevents stable reads, so the transactions' coordinator is queried instead.
            states = describe_transactions(stream.bootstrap, list(stream.transactions("Ongoing"))).values()
            topics = {topic for one in states for topic, _ in one.partitions}
            told.append((phase.name, int("__consumer_offsets" in topics)))

    stream.run(group_offsets=group.offsets(in_transaction_of="kafka"), listener=listen)
    assert told == [("DECIDING", 1), ("FINISHING", 1)]
    assert group.read() == 1000
    assert stream.keys() == IDS


def test_a_decided_batch_brings_the_offsets_that_its_transaction_holds(stream, group):
    offsets = group.offsets(in_transaction_of="kafka")
    with pytest.raises(CrashError):
        stream.run(group_offsets=offsets, listener=crash_at(Phase.FINISHING, 1))
    with pytest.raises(CrashError):  # the run without a group finishes the transactions and their offsets
        stream.run(listener=crash_at(Phase.IDLE, 1))
    assert group.read() == 800


@pytest.mark.slow
def test_offsets_that_are_lost_with_their_transaction_come_back_with_the_rows(stream, group):
    arguments = {
        "group_offsets": group.offsets(in_transaction_of="kafka"),
        "settings": {"transaction.timeout.ms": 10_000},  # a first batch on a busy machine takes up to 5 s
    }
    with pytest.raises(CrashError):
        stream.run(listener=crash_at(Phase.FINISHING, 1), **arguments)
    stream.await_aborted()
    assert group.read() == 400
    healed = stream.run(**arguments)
    assert [(done.batch, done.healed > 0) for done in healed] == [(1, True), (2, False)]
    assert group.read() == 1000
    assert stream.keys() == IDS


@pytest.mark.slow
def test_a_batch_without_rows_has_no_transaction_and_commits_them_alone(stream, group):
    stream.run(lambda rows: rows.where("key < '00400'"), group_offsets=group.offsets(in_transaction_of="kafka"))
    assert group.read() == 1000
    assert stream.keys() == IDS[:400]


@pytest.mark.parametrize(("sink", "warnings"), [(None, 3), pytest.param("kafka", 6, marks=pytest.mark.slow)])
def test_a_group_that_has_members_is_left_alone_with_a_warning(stream, group, caplog, sink, warnings):
    """Kafka then rejects offsets committed from outside, but not those in a transaction."""
    settings = {"bootstrap.servers": stream.bootstrap, "group.id": group.name, "enable.auto.commit": False}
    member = Consumer({**settings, "auto.offset.reset": "earliest"})
    member.subscribe([stream.source])
    while not member.assignment():
        member.poll(0.1)
    try:
        with caplog.at_level(logging.WARNING, logger="sparkonce"):
            done = stream.run(group_offsets=group.offsets(in_transaction_of=sink))
    finally:
        member.close()
    assert [one.batch for one in done] == [0, 1, 2]
    assert stream.keys() == IDS
    told = [record.getMessage() for record in caplog.records if group.name in record.getMessage()]
    assert len(told) == warnings
    assert all("name another group" in text for text in told)
    assert group.read() == 0


@pytest.mark.slow
def test_silence_about_offsets_in_a_transaction_gives_the_batch_up(stream, group, monkeypatch):
    """A pending request would reopen the transaction after its commit, and healing would then duplicate the batch."""
    offsets = group.offsets(in_transaction_of="kafka")
    with pytest.raises(CrashError):
        stream.run(group_offsets=offsets, listener=crash_at(Phase.IDLE, 0))

    gather = KafkaConnection.gather

    async def lose_the_reply(connection: KafkaConnection, requests: Any, deadline_s: float) -> Any:
        responses = await gather(connection, requests, deadline_s)
        return (
            [BrokerAnswer(None, "the reply was lost")]
            if [one for one, _ in requests if isinstance(one, TxnOffsetCommitRequest)]
            else responses
        )

    with monkeypatch.context() as patched:
        patched.setattr(KafkaConnection, "gather", lose_the_reply)
        with pytest.raises(PrepareError, match=r"may be in its transaction or not.*the reply was lost"):
            stream.run(group_offsets=offsets)
    assert group.read() == 400
    assert stream.keys() == IDS[:400]
    assert stream.transactions("Ongoing") == {}
    stream.run(group_offsets=offsets)
    assert group.read() == 1000
    assert stream.keys() == IDS


@pytest.mark.slow
def test_offsets_that_come_after_a_batch_was_given_up_change_nothing(stream, group, monkeypatch):
    """The request itself arrives late, either when the batch was given up or when it was written again."""
    late: list[Any] = []
    gather = KafkaConnection.gather

    async def hold_back(connection: KafkaConnection, requests: Any, deadline_s: float) -> Any:
        if requests and isinstance(request := requests[0][0], AddOffsetsToTxnRequest):
            late.append(request)
            return [BrokerAnswer(None, "the request was held back")]
        return await gather(connection, requests, deadline_s)

    with monkeypatch.context() as patched:
        patched.setattr(KafkaConnection, "gather", hold_back)
        with pytest.raises(PrepareError, match="held back"):
            stream.run(group_offsets=group.offsets(in_transaction_of="kafka"))
    stream.run(group_offsets=group.offsets(in_transaction_of="kafka"))
    (request,) = late
    with closing(TransactionClient({"bootstrap_servers": [stream.bootstrap]})) as client:
        (answer,) = client.ask_coordinators([(request.transactional_id, request)], time.monotonic() + LIMIT_S)
    assert answer.code in {47, 90}, "INVALID_PRODUCER_EPOCH or PRODUCER_FENCED"
    assert stream.transactions("Ongoing") == {}
    assert stream.keys() == IDS


def test_a_transaction_of_a_sink_that_has_none_is_refused(stream, group):
    settings = {"bootstrap.servers": stream.bootstrap}
    for sink, name in (
        (KafkaSink(settings, topic="t"), "kafak"),
        (KafkaSink(settings, topic="t", guarantee=Guarantee.AT_LEAST_ONCE), "kafka"),
    ):
        with pytest.raises(ConfigurationError, match=f"in_transaction_of='{name}'"):
            ExactlyOnce(sink, checkpoint="/nowhere", group_offsets=group.offsets(in_transaction_of=name))


@pytest.mark.slow
def test_a_group_on_another_cluster_than_the_sink_is_refused_at_the_start(stream):
    with Cluster() as other:
        elsewhere = GroupOffsets("group", {"bootstrap.servers": other.bootstrap}, in_transaction_of="kafka")
        with pytest.raises(ConfigurationError, match=other.cluster_id):
            stream.run(group_offsets=elsewhere)
    assert not (stream.checkpoint / "offsets").exists()


def test_settings_are_not_shown():
    secret = "a secret"  # noqa: S105
    settings = {"bootstrap.servers": "nowhere:1", "sasl.password": secret}
    assert secret not in repr(GroupOffsets("group", settings))
