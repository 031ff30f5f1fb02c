"""Rows that go to librdkafka in batches: what a broker receives, what is reported, and how long memory is kept."""

from __future__ import annotations

import gc
import secrets
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from eventually import LIMIT_S, eventually
from integration.kafka_witness import new_name
from shared_servers import KILLS_BROKER, broker_to_kill
from sparkonce.sinks.kafka.batch_producer import BatchProducer
from sparkonce.sinks.kafka.settings import DEFAULTS
from sparkonce_lab.kafka import create_topic, describe_transactions, read_committed, read_uncommitted
from sparkonce_lab.rig.kafka import Cluster
from unit.kafka_world import Told

pytestmark = pytest.mark.kafka

TEXTS = ["out of the slice", "a", None, "", "é", "x" * 300, None, "", "z", "also out"]


class Kafka:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.told = Told()
        self.producers: list[BatchProducer] = []
        self._made = ExitStack()

    def producer(self, **settings: Any) -> BatchProducer:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        producer = BatchProducer({**DEFAULTS, "bootstrap.servers": self.bootstrap, **named}, self.told)
        self._made.callback(end, producer)
        self.producers.append(producer)
        return producer

    def begun(self, name: str, **settings: Any) -> BatchProducer:
        producer = self.producer(transactional_id=name, **settings)
        producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
        return producer

    def topic(self, partitions: int = 1) -> str:
        name = new_name()
        create_topic(self.bootstrap, name, partitions)
        return name

    def state(self, name: str) -> str:
        return describe_transactions(self.bootstrap, [name])[name].state

    def close(self) -> None:
        self._made.close()


def end(producer: BatchProducer) -> None:
    with suppress(RuntimeError):
        producer.destroy()


def deliver(producer: BatchProducer) -> None:
    producer.flush(LIMIT_S)
    eventually(lambda: producer.poll(0) or not len(producer), "nothing waits")


def values(*texts: str, partition: list[int | None] | None = None) -> pa.RecordBatch:
    columns: dict[str, Any] = {"value": list(texts)}
    return pa.record_batch(columns if partition is None else {**columns, "partition": pa.array(partition, pa.int32())})


@pytest.fixture
def kafka(broker) -> Iterator[Kafka]:
    scene = Kafka(broker.bootstrap)
    yield scene
    scene.close()


@pytest.fixture
def fragile() -> Iterator[tuple[Kafka, Cluster]]:
    cluster = broker_to_kill()
    scene = Kafka(cluster.bootstrap)
    yield scene, cluster
    scene.close()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("keys", [TEXTS[::-1], [None] * len(TEXTS), [""] * len(TEXTS)], ids=["some", "null", "empty"])
def test_keys_and_values_arrive_as_they_are(kafka, kind, keys):
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


def test_rows_without_a_key_go_to_one_partition_for_about_a_megabyte(kafka):
    topic, producer = kafka.topic(partitions=3), kafka.producer()
    piece = values(*["x" * 1000] * 300)
    for _ in range(12):
        assert producer.produce(topic, piece) == 300
    deliver(producer)
    partitions: dict[int, int] = defaultdict(int)
    for record in read_committed(kafka.bootstrap, topic):
        partitions[record.partition] += 1
    assert sorted(partitions.values()) == [900, 900, 1800]


def test_the_first_rows_without_a_key_are_one_batch_of_one_partition(kafka):
    topics = [kafka.topic(partitions=8) for _ in range(5)]
    for topic in topics:
        assert kafka.producer().produce(topic, values(*map(str, range(100)))) == 100
    for producer in kafka.producers:
        deliver(producer)
    assert [len({record.partition for record in read_committed(kafka.bootstrap, topic)}) for topic in topics] == [1] * 5


@pytest.mark.parametrize(
    "settings", [{"partitioner": "random"}, {"partitioner": "murmur2_random"}], ids=["random", "by key"]
)
def test_a_setting_that_spreads_rows_is_followed(kafka, settings):
    """Otherwise librdkafka also sends all keyless rows of 10 ms to a single partition."""
    topic, producer = kafka.topic(partitions=4), kafka.producer(sticky_partitioning_linger_ms=0, **settings)
    assert producer.produce(topic, values(*map(str, range(1000)))) == 1000
    deliver(producer)
    assert {record.partition for record in read_committed(kafka.bootstrap, topic)} == set(range(4))


def test_rows_go_to_the_partitions_that_they_name_in_their_order(kafka):
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
def test_keys_go_where_confluent_kafkas_producer_puts_them(kafka, partitioner):
    topics = [kafka.topic(partitions=11) for _ in range(2)]
    keys = [secrets.token_bytes(n % 40 + 1) for n in range(200)]
    mine = kafka.producer(partitioner=partitioner)
    other = Producer({**DEFAULTS, "bootstrap.servers": kafka.bootstrap, "partitioner": partitioner})
    mine.produce(topics[0], pa.record_batch({"key": pa.array(keys, pa.binary()), "value": ["v"] * 200}))
    deliver(mine)
    for key in keys:
        other.produce(topics[1], b"v", key)
    assert other.flush(LIMIT_S) == 0
    found, expected = [{one.key: one.partition for one in read_committed(kafka.bootstrap, topic)} for topic in topics]
    assert found == expected
    assert len(set(found.values())) > 5


def test_an_abort_drops_the_queued_rows_and_tells_of_them(kafka):
    topic, name = kafka.topic(), new_name()
    producer = kafka.begun(name, linger_ms=30_000)
    producer.produce(topic, values("sent"))
    deliver(producer)
    producer.produce(topic, values("queued", "too"))
    producer.abort_transaction(LIMIT_S)
    eventually(lambda: kafka.state(name) == "CompleteAbort", "it is aborted")
    deliver(producer)
    assert kafka.told.acknowledged == 1
    assert sorted(kafka.told.refused) == [(KafkaError._PURGE_QUEUE, topic, 0, size) for size in (3, 6)]
    assert read_committed(kafka.bootstrap, topic) == []
    assert [record.value for record in read_uncommitted(kafka.bootstrap, topic)] == [b"sent"]


def test_an_abort_without_a_transaction_raises(kafka):
    with pytest.raises(KafkaException) as raised:
        kafka.producer(transactional_id=new_name()).abort_transaction(LIMIT_S)
    assert raised.value.args[0].code() == KafkaError._STATE


def test_the_broker_knows_the_producer_id_and_epoch_that_are_told(kafka):
    name = new_name()
    for _ in range(2):
        kafka.begun(name).poll(0)
    found = describe_transactions(kafka.bootstrap, [name])[name]
    assert kafka.told.identities == [
        (found.producer_id, found.producer_epoch - 1),
        (found.producer_id, found.producer_epoch),
    ]


@KILLS_BROKER
def test_an_abort_gives_up_where_the_broker_does_not_answer_and_can_be_resumed(fragile):
    kafka, cluster = fragile
    topic, name = kafka.topic(), new_name()
    producer = kafka.begun(name)
    producer.produce(topic, values("sent"))
    deliver(producer)
    with cluster.brokers[0].paused():
        producer.produce(topic, values("queued"))
        with pytest.raises(KafkaException) as raised:
            producer.abort_transaction(0.2)
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT
    producer.abort_transaction(LIMIT_S)
    eventually(lambda: kafka.state(name) == "CompleteAbort", "it is aborted")
    assert read_committed(kafka.bootstrap, topic) == []


# --- Arrow's memory, from which librdkafka reads rows -----------------------------------------------------------------


def lent(producer: BatchProducer, topic: str, letter: str) -> int:
    """Produces a thousand rows of 1,000 bytes and drops its references.

    Returns the number of Arrow bytes still kept.
    """
    gc.collect()
    before = pa.total_allocated_bytes()
    producer.produce(topic, values(*[letter * 1_000] * 1_000, partition=[0] * 1_000))
    gc.collect()
    return pa.total_allocated_bytes() - before


def test_rows_are_read_from_arrow_s_memory_which_is_kept_until_they_have_arrived(kafka):
    topic, producer = kafka.topic(), kafka.producer(linger_ms=30_000)
    assert (kept := lent(producer, topic, "a")) >= 1_000_000
    others = [values(*["z" * 1_000] * 1_000) for _ in range(5)]  # would reuse freed memory
    before = pa.total_allocated_bytes()
    deliver(producer)
    assert before - pa.total_allocated_bytes() == kept
    assert {record.value for record in read_committed(kafka.bootstrap, topic)} == {b"a" * 1_000}
    assert len(others) == 5


def test_rows_whose_partition_librdkafka_chooses_are_copied(kafka):
    topic, producer = kafka.topic(partitions=2), kafka.producer(linger_ms=30_000, partitioner="consistent")
    assert (kept := lent(producer, topic, "a")) >= 1_000_000
    producer.produce(topic, pa.record_batch({"key": ["k", "k"], "value": ["b", "c"]}))
    assert lent(producer, topic, "d") == 0, "from now on all are copied: rows of a partition may pass each other"
    before = pa.total_allocated_bytes()
    deliver(producer)
    assert pa.total_allocated_bytes() == before, "what was lent before is kept"
    producer.destroy()
    assert before - pa.total_allocated_bytes() == kept
    assert len(read_committed(kafka.bootstrap, topic)) == 2_002


@pytest.mark.parametrize("value", ["f", False])
def test_a_producer_that_is_not_idempotent_copies_its_rows(kafka, value):
    topic, producer = kafka.topic(), kafka.producer(linger_ms=30_000, enable_idempotence=value)
    assert lent(producer, topic, "a") == 0
    deliver(producer)


@pytest.mark.slow
def test_another_task_lends_again_after_rows_that_librdkafka_chose_for(kafka):
    topic, producer = kafka.topic(), kafka.producer(linger_ms=30_000, partitioner="consistent")
    producer.produce(topic, values("a"))
    assert lent(producer, topic, "b") == 0
    producer.begin_anew()
    assert lent(producer, topic, "c") == 0, "rows are in flight, of which nothing is known"
    deliver(producer)
    producer.begin_anew()
    assert lent(producer, topic, "d") >= 1_000_000


def test_borrowed_buffers_are_used_by_one_thread_at_a_time(kafka):
    """The worker's background thread polls while a task produces."""
    topic, producer = kafka.topic(), kafka.producer()
    seen: dict[str, bool] = {}

    class Watched:
        def __init__(self, buffers: Any) -> None:
            self._borrowed = buffers

        def __getattr__(self, name: str) -> Any:
            if name in {"room_for", "borrow", "give_back", "renew"}:
                seen[name] = seen.get(name, True) and producer._polling.locked()
            return getattr(self._borrowed, name)

    buffers, producer._borrowed = producer._borrowed, Watched(producer._borrowed)
    producer.produce(topic, values("a"))
    deliver(producer)
    producer.begin_anew()
    producer._borrowed = buffers
    assert seen == {"room_for": True, "borrow": True, "give_back": True, "renew": True}


def test_memory_of_a_row_that_fails_is_kept_until_the_producer_has_ended(kafka):
    topic, producer = kafka.topic(), kafka.producer(linger_ms=30_000)
    assert (kept := lent(producer, topic, "a")) >= 1_000_000
    producer.purge()
    deliver(producer)
    before = pa.total_allocated_bytes()
    producer.destroy()
    assert before - pa.total_allocated_bytes() == kept


def test_memory_outlives_a_producer_that_nobody_ends():
    """Its threads continue to read."""
    script = """
import gc, pyarrow as pa
from sparkonce.sinks.kafka.batch_producer import BatchProducer
producer = BatchProducer({"bootstrap.servers": "127.0.0.1:1", "enable.idempotence": True}, None)
producer.produce("topic", pa.record_batch({"value": ["x" * 1_000] * 1_000, "partition": pa.array([0] * 1_000)}))
del producer
gc.collect()
print(pa.total_allocated_bytes())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert int(done.stdout) >= 1_000_000


@pytest.mark.slow
@KILLS_BROKER
def test_rows_whose_request_gets_no_answer_are_sent_again_from_the_same_memory(fragile):
    """This includes rows above 64 KB, which librdkafka does not copy into its requests."""
    kafka, cluster = fragile
    topic, producer = kafka.topic(), kafka.producer(socket_timeout_ms=1_000)
    producer.produce(topic, values("before"))
    deliver(producer)
    sizes = [10, 100_000, 10, 70_000] * 5
    others = []
    with cluster.brokers[0].paused():
        producer.produce(topic, values(*["a" * size for size in sizes], partition=[0] * len(sizes)))
        while len(others) < 60:  # longer than the request timeout, while freed memory is overwritten with other letters
            producer.flush(0.05)
            others.append(values(*["z" * size for size in sizes]))
    deliver(producer)
    found = [record.value for record in read_committed(kafka.bootstrap, topic)]
    assert found == [b"before", *(b"a" * size for size in sizes)]
