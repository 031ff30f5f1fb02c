"""When librdkafka reads rows from Arrow's memory, and how long that memory is kept."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from integration.producer_scene import WAIT_S, Kafka, deliver, values, with_broker_to_kill
from shared_servers import KILLS_BROKER
from sparkonce.sinks.kafka.batch_producer import BatchProducer
from sparkonce_lab.kafka import read_committed
from sparkonce_lab.rig.kafka import Cluster

pytestmark = pytest.mark.kafka


@pytest.fixture
def kafka(broker: Cluster) -> Iterator[Kafka]:
    scene = Kafka(broker.bootstrap)
    yield scene
    scene.close()


@pytest.fixture
def fragile() -> Iterator[tuple[Kafka, Cluster]]:
    with with_broker_to_kill() as made:
        yield made


def lent(producer: BatchProducer, topic: str, letter: str) -> int:
    """Produces a thousand rows of 1,000 bytes and drops its references.

    Returns the number of Arrow bytes still kept.
    """
    gc.collect()
    before = pa.total_allocated_bytes()
    producer.produce(topic, values(*[letter * 1_000] * 1_000, partition=[0] * 1_000))
    gc.collect()
    return pa.total_allocated_bytes() - before


def test_rows_are_read_from_arrow_s_memory_which_is_kept_until_they_have_arrived(kafka: Kafka) -> None:
    topic, producer = kafka.topic(), kafka.producer(linger_ms=30_000)
    assert (kept := lent(producer, topic, "a")) >= 1_000_000
    others = [values(*["z" * 1_000] * 1_000) for _ in range(5)]  # would reuse freed memory
    before = pa.total_allocated_bytes()
    deliver(producer)
    assert before - pa.total_allocated_bytes() == kept
    assert {record.value for record in read_committed(kafka.bootstrap, topic)} == {b"a" * 1_000}
    assert len(others) == 5


def test_rows_whose_partition_librdkafka_chooses_are_copied(kafka: Kafka) -> None:
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
def test_a_producer_that_is_not_idempotent_copies_its_rows(kafka: Kafka, value: object) -> None:
    topic, producer = kafka.topic(), kafka.producer(linger_ms=30_000, enable_idempotence=value)
    assert lent(producer, topic, "a") == 0
    deliver(producer)


@pytest.mark.slow
def test_another_task_lends_again_after_rows_that_librdkafka_chose_for(kafka: Kafka) -> None:
    topic, producer = kafka.topic(), kafka.producer(linger_ms=30_000, partitioner="consistent")
    producer.produce(topic, values("a"))
    assert lent(producer, topic, "b") == 0
    producer.begin_anew()
    assert lent(producer, topic, "c") == 0, "rows are in flight, of which nothing is known"
    deliver(producer)
    producer.begin_anew()
    assert lent(producer, topic, "d") >= 1_000_000


def test_borrowed_buffers_are_used_by_one_thread_at_a_time(kafka: Kafka) -> None:
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

    buffers, producer._borrowed = producer._borrowed, Watched(producer._borrowed)  # type: ignore[assignment]
    producer.produce(topic, values("a"))
    deliver(producer)
    producer.begin_anew()
    producer._borrowed = buffers
    assert seen == {"room_for": True, "borrow": True, "give_back": True, "renew": True}


def test_memory_of_a_row_that_fails_is_kept_until_the_producer_has_ended(kafka: Kafka) -> None:
    topic, producer = kafka.topic(), kafka.producer(linger_ms=30_000)
    assert (kept := lent(producer, topic, "a")) >= 1_000_000
    producer.purge()
    deliver(producer)
    before = pa.total_allocated_bytes()
    producer.destroy()
    assert before - pa.total_allocated_bytes() == kept


def test_memory_outlives_a_producer_that_nobody_ends() -> None:
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert int(done.stdout) >= 1_000_000


@pytest.mark.slow
@KILLS_BROKER
def test_rows_whose_request_gets_no_answer_are_sent_again_from_the_same_memory(fragile: tuple[Kafka, Cluster]) -> None:
    """This includes rows above 64 KB, which librdkafka does not copy into its requests."""
    kafka, cluster = fragile
    topic, producer = kafka.topic(), kafka.producer(socket_timeout_ms=1_000)
    producer.produce(topic, values("before"))
    deliver(producer)
    cluster.brokers[0].pause()
    sizes = [10, 100_000, 10, 70_000] * 5
    producer.produce(topic, values(*["a" * size for size in sizes], partition=[0] * len(sizes)))
    others = []
    while len(others) < 60:  # longer than the request timeout, while freed memory is overwritten with other letters
        producer.flush(0.05)
        others.append(values(*["z" * size for size in sizes]))
    cluster.brokers[0].resume()
    deliver(producer)
    found = [record.value for record in read_committed(kafka.bootstrap, topic)]
    assert found == [b"before", *(b"a" * size for size in sizes)]
