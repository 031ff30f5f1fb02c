"""Batch producers, what they report, and the topics they write to."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from eventually import eventually
from shared_servers import broker_to_kill
from sparkonce.sinks.kafka.batch_producer import BatchProducer
from sparkonce.sinks.kafka.settings import DEFAULTS
from sparkonce_lab.kafka import create_topic, describe_transactions
from sparkonce_lab.rig.kafka import Cluster

WAIT_S = 30.0


class Told:
    """Records what a producer reports."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.refused: list[tuple[int, str, int, int]] = []
        self.identities: list[tuple[int, int]] = []

    def on_acknowledged(self, rows: int) -> None:
        self.acknowledged += rows

    def on_refused(self, error: KafkaError, topic: str, partition: int, size: int) -> None:
        self.refused.append((error.code(), topic, partition, size))

    def on_error(self, error: KafkaError) -> None: ...

    def on_stats(self, text: str) -> None: ...

    def on_identity(self, producer_id: int, epoch: int) -> None:
        self.identities.append((producer_id, epoch))


class Kafka:
    """Makes producers for one broker, and closes them."""

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
        """A producer with an open transaction of this name."""
        producer = self.producer(transactional_id=name, **settings)
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        return producer

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = new_name()
        create_topic(self.bootstrap, name, partitions, config)
        return name

    def state(self, name: str) -> str:
        return describe_transactions(self.bootstrap, [name])[name].state

    def close(self) -> None:
        self._made.close()


def end(producer: BatchProducer) -> None:
    with suppress(RuntimeError):
        producer.destroy()


def new_name() -> str:
    return f"t-{secrets.token_hex(6)}"


def deliver(producer: BatchProducer) -> None:
    producer.flush(WAIT_S)
    eventually(lambda: producer.poll(0) or not len(producer), "nothing waits", limit_s=WAIT_S)


def values(*texts: str, partition: list[int | None] | None = None) -> pa.RecordBatch:
    columns: dict[str, Any] = {"value": list(texts)}
    return pa.record_batch(columns if partition is None else {**columns, "partition": pa.array(partition, pa.int32())})


def code(raised: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(raised.value.args[0].code())


@contextmanager
def with_broker_to_kill() -> Iterator[tuple[Kafka, Cluster]]:
    cluster = broker_to_kill()
    scene = Kafka(cluster.bootstrap)
    yield scene, cluster
    cluster.brokers[0].resume()
    scene.close()
