"""What a broker receives if rows go to librdkafka in batches, and what the producer reports."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from eventually import eventually
from integration.producer_scene import WAIT_S, Kafka, code, deliver, new_name, values, with_broker_to_kill
from shared_servers import KILLS_BROKER
from sparkonce.sinks.kafka.settings import DEFAULTS
from sparkonce_lab.kafka import describe_transactions, read_committed, read_uncommitted
from sparkonce_lab.rig.kafka import Cluster

pytestmark = pytest.mark.kafka

TEXTS = ["out of the slice", "a", None, "", "é", "x" * 300, None, "", "z", "also out"]


@pytest.fixture
def kafka(broker: Cluster) -> Iterator[Kafka]:
    scene = Kafka(broker.bootstrap)
    yield scene
    scene.close()


@pytest.fixture
def fragile() -> Iterator[tuple[Kafka, Cluster]]:
    with with_broker_to_kill() as made:
        yield made


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("keys", [TEXTS[::-1], [None] * len(TEXTS), [""] * len(TEXTS)], ids=["some", "null", "empty"])
def test_keys_and_values_arrive_as_they_are(kafka: Kafka, kind: pa.DataType, keys: list[str | None]) -> None:
    topic, producer = kafka.topic(), kafka.producer()
    raw = {
        name: [None if text is None else text.encode() for text in given]
        for name, given in (("key", keys), ("value", TEXTS))
    }
    rows = pa.record_batch({name: pa.array(given, pa.large_binary()).cast(kind) for name, given in raw.items()})
    assert producer.produce(topic, rows.slice(1, 8)) == 8
    deliver(producer)
    found = [(record.key, record.value) for record in read_committed(kafka.bootstrap, topic)]
    assert found == list(zip(raw["key"][1:9], raw["value"][1:9], strict=True))
    assert kafka.told.acknowledged == 8


def test_rows_without_a_key_go_to_one_partition_for_about_a_megabyte(kafka: Kafka) -> None:
    topic, producer = kafka.topic(partitions=3), kafka.producer()
    piece = values(*["x" * 1000] * 300)
    for _ in range(12):
        assert producer.produce(topic, piece) == 300
    deliver(producer)
    partitions: dict[int, int] = defaultdict(int)
    for record in read_committed(kafka.bootstrap, topic):
        partitions[record.partition] += 1
    assert sorted(partitions.values()) == [900, 900, 1800]


def test_the_first_rows_without_a_key_are_one_batch_of_one_partition(kafka: Kafka) -> None:
    topics = [kafka.topic(partitions=8) for _ in range(5)]
    for topic in topics:
        assert kafka.producer().produce(topic, values(*map(str, range(100)))) == 100
    for producer in kafka.producers:
        deliver(producer)
    assert [len({record.partition for record in read_committed(kafka.bootstrap, topic)}) for topic in topics] == [1] * 5


@pytest.mark.parametrize(
    "settings", [{"partitioner": "random"}, {"partitioner": "murmur2_random"}], ids=["random", "by key"]
)
def test_a_setting_that_spreads_rows_is_followed(kafka: Kafka, settings: Mapping[str, Any]) -> None:
    """Otherwise librdkafka also sends all keyless rows of 10 ms to a single partition."""
    topic, producer = kafka.topic(partitions=4), kafka.producer(sticky_partitioning_linger_ms=0, **settings)
    assert producer.produce(topic, values(*map(str, range(1000)))) == 1000
    deliver(producer)
    assert {record.partition for record in read_committed(kafka.bootstrap, topic)} == set(range(4))


def test_rows_go_to_the_partitions_that_they_name_in_their_order(kafka: Kafka) -> None:
    topic, producer = kafka.topic(partitions=3), kafka.producer()
    given = [(None, 2, 0, 1, None)[number % 5] for number in range(500)]
    rows = pa.record_batch(
        {
            "key": [f"k{number % 7}" for number in range(502)],
            "value": [str(number - 1) for number in range(502)],
            "partition": pa.array([9, *given, 9], pa.int32()),
        }
    )
    assert producer.produce(topic, rows.slice(1, 500)) == 500
    deliver(producer)
    found = defaultdict(list)
    for record in read_committed(kafka.bootstrap, topic):
        found[record.partition].append(int(record.value or b""))
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(500))
    for partition, numbers in found.items():
        assert numbers == sorted(numbers)
        assert {given[number] for number in numbers} == {None, partition}


@pytest.mark.parametrize("partitioner", ["murmur2_random", "consistent", "fnv1a"])
def test_keys_go_where_confluent_kafkas_producer_puts_them(kafka: Kafka, partitioner: str) -> None:
    topics = [kafka.topic(partitions=11) for _ in range(2)]
    keys = [secrets.token_bytes(n % 40 + 1) for n in range(200)]
    mine = kafka.producer(partitioner=partitioner)
    other = Producer({**DEFAULTS, "bootstrap.servers": kafka.bootstrap, "partitioner": partitioner})
    mine.produce(topics[0], pa.record_batch({"key": pa.array(keys, pa.binary()), "value": ["v"] * 200}))
    deliver(mine)
    for key in keys:
        other.produce(topics[1], b"v", key)
    assert other.flush(WAIT_S) == 0
    found, expected = [{one.key: one.partition for one in read_committed(kafka.bootstrap, topic)} for topic in topics]
    assert found == expected
    assert len(set(found.values())) > 5


def test_a_partition_that_is_not_there_is_refused_at_once_where_the_topic_is_known(kafka: Kafka) -> None:
    topic, producer = kafka.topic(partitions=2), kafka.producer()
    producer.list_topics(topic, WAIT_S)
    with pytest.raises(KafkaException) as raised:
        producer.produce(topic, values("there", "nowhere", partition=[1, 7]))
    assert code(raised) == KafkaError._UNKNOWN_PARTITION
    deliver(producer)
    assert (kafka.told.acknowledged, kafka.told.refused) == (1, [])


@KILLS_BROKER
def test_a_partition_that_is_not_there_is_told_once_the_topic_is_known(fragile: tuple[Kafka, Cluster]) -> None:
    """The broker is silent while the rows are produced: librdkafka cannot know the topic yet."""
    kafka, cluster = fragile
    topic, producer = kafka.topic(partitions=2), kafka.producer()
    cluster.brokers[0].pause()
    producer.produce(topic, values("there", "nowhere", partition=[1, 7]))
    producer.flush(0.2)
    assert (len(producer), kafka.told.acknowledged) == (2, 0)
    cluster.brokers[0].resume()
    deliver(producer)
    assert kafka.told.acknowledged == 1
    assert kafka.told.refused == [(KafkaError._UNKNOWN_PARTITION, topic, 7, len("nowhere"))]


def test_a_topic_that_is_not_there_is_told(kafka: Kafka) -> None:
    topic, producer = new_name(), kafka.producer(topic_metadata_propagation_max_ms=200)
    producer.produce(topic, values("a", "bc"))
    deliver(producer)
    assert kafka.told.acknowledged == 0
    assert [size for _, name, _, size in kafka.told.refused if name == topic] == [1, 2]


def test_a_row_too_large_for_the_client_is_refused_and_others_arrive(kafka: Kafka) -> None:
    topic, producer = kafka.topic(), kafka.producer(message_max_bytes=2_000)
    with pytest.raises(KafkaException) as raised:
        producer.produce(topic, values("fits", "x" * 3_000, "fits too"))
    assert code(raised) == KafkaError.MSG_SIZE_TOO_LARGE
    deliver(producer)
    assert (kafka.told.acknowledged, kafka.told.refused) == (2, [])


def test_a_row_too_large_for_the_broker_is_told_with_its_topic_partition_and_size(kafka: Kafka) -> None:
    small, large = kafka.topic(partitions=2, config={"max.message.bytes": "5000"}), kafka.topic()
    producer = kafka.producer()
    producer.produce(large, values("taken", "x" * 10_000))
    refused = {"key": ["key"], "value": ["x" * 10_000], "partition": pa.array([1], pa.int32())}
    producer.produce(small, pa.record_batch(refused))
    deliver(producer)
    assert kafka.told.acknowledged == 2
    assert kafka.told.refused == [(KafkaError.MSG_SIZE_TOO_LARGE, small, 1, 10_003)]


def test_a_full_queue_raises_what_confluent_kafka_raises(kafka: Kafka) -> None:
    topic, producer = kafka.topic(), kafka.producer(queue_buffering_max_messages=10)
    with pytest.raises(BufferError):
        producer.produce(topic, values(*"abcdefghijkl"))
    deliver(producer)
    assert kafka.told.acknowledged == 10


def test_a_fenced_producer_raises_its_fatal_error(kafka: Kafka) -> None:
    topic, name = kafka.topic(), new_name()
    producer = kafka.begun(name)
    producer.produce(topic, values("before"))
    deliver(producer)
    kafka.begun(name)
    producer.produce(topic, values("after"))
    with pytest.raises(KafkaException) as raised:
        eventually(lambda: producer.poll(0.1), "it is fenced", limit_s=WAIT_S)
    assert code(raised) == KafkaError._FENCED
    assert raised.value.args[0].fatal()
    assert kafka.told.acknowledged == 1
    with pytest.raises(KafkaException):
        producer.begin_transaction()


def test_an_abort_drops_the_queued_rows_and_tells_of_them(kafka: Kafka) -> None:
    topic, name = kafka.topic(), new_name()
    producer = kafka.begun(name, linger_ms=30_000)
    producer.produce(topic, values("sent"))
    deliver(producer)
    producer.produce(topic, values("queued", "too"))
    producer.abort_transaction(WAIT_S)
    eventually(lambda: kafka.state(name) == "CompleteAbort", "it is aborted", limit_s=WAIT_S)
    deliver(producer)
    assert kafka.told.acknowledged == 1
    assert sorted(kafka.told.refused) == [(KafkaError._PURGE_QUEUE, topic, 0, size) for size in (3, 6)]
    assert read_committed(kafka.bootstrap, topic) == []
    assert [record.value for record in read_uncommitted(kafka.bootstrap, topic)] == [b"sent"]


def test_purged_rows_are_told(kafka: Kafka) -> None:
    topic, producer = kafka.topic(), kafka.producer(linger_ms=30_000)
    producer.produce(topic, values("queued", "too"))
    producer.purge()
    deliver(producer)
    assert kafka.told.acknowledged == 0
    assert sorted(size for *_, size in kafka.told.refused) == [3, 6]
    assert read_uncommitted(kafka.bootstrap, topic) == []


def test_the_end_of_a_producer_leaves_its_transaction_open(kafka: Kafka) -> None:
    topic, name = kafka.topic(), new_name()
    producer = kafka.begun(name)
    producer.produce(topic, values("a"))
    deliver(producer)
    producer.destroy()
    assert kafka.state(name) == "Ongoing"
    assert [record.value for record in read_uncommitted(kafka.bootstrap, topic)] == [b"a"]


def test_an_abort_without_a_transaction_raises(kafka: Kafka) -> None:
    with pytest.raises(KafkaException) as raised:
        kafka.producer(transactional_id=new_name()).abort_transaction(WAIT_S)
    assert code(raised) == KafkaError._STATE


def test_the_broker_knows_the_producer_id_and_epoch_that_are_told(kafka: Kafka) -> None:
    name = new_name()
    for _ in range(2):
        kafka.begun(name).poll(0)
    found = describe_transactions(kafka.bootstrap, [name])[name]
    assert kafka.told.identities == [
        (found.producer_id, found.producer_epoch - 1),
        (found.producer_id, found.producer_epoch),
    ]


@KILLS_BROKER
def test_an_abort_gives_up_where_the_broker_does_not_answer_and_can_be_resumed(fragile: tuple[Kafka, Cluster]) -> None:
    kafka, cluster = fragile
    topic, name = kafka.topic(), new_name()
    producer = kafka.begun(name)
    producer.produce(topic, values("sent"))
    deliver(producer)
    cluster.brokers[0].pause()
    producer.produce(topic, values("queued"))
    with pytest.raises(KafkaException) as raised:
        producer.abort_transaction(0.2)
    assert code(raised) == KafkaError._TIMED_OUT
    cluster.brokers[0].resume()
    producer.abort_transaction(WAIT_S)
    eventually(lambda: kafka.state(name) == "CompleteAbort", "it is aborted", limit_s=WAIT_S)
    assert read_committed(kafka.bootstrap, topic) == []
