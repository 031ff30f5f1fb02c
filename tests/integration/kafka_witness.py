"""What the tests of the driver half do and ask for without the code under test."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import KafkaAdminClient
from kafka.errors import RetriableError

from kafka_transactions import await_markers
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Finished, Outcome

LIMIT_S = 60.0

T = TypeVar("T")


def eventually(ask: Callable[[], T], good: Callable[[T], bool]) -> T:
    """The first good answer."""
    deadline_s = time.monotonic() + LIMIT_S
    while not good(answer := ask()):
        assert time.monotonic() < deadline_s, f"still {answer!r}"
        time.sleep(0.02)
    return answer


def until_final(finish: Callable[[Sequence[Handle]], Sequence[Finished]], handles: Sequence[Handle]) -> list[Outcome]:
    """Asks again as long as anything is RETRY."""
    finished = eventually(lambda: finish(handles), lambda all_: all(one.outcome is not Outcome.RETRY for one in all_))
    return [one.outcome for one in finished]


def new_name(start: str = "t") -> str:
    return f"{start}-{secrets.token_hex(6)}"


class Prepared:
    """A writer that has prepared one transaction, and could write on."""

    def __init__(self, bootstrap: str, topic: str, transactional_id: str, values: Sequence[str], timeout_ms: int):
        self._eos: dict[str, Any] = {}
        self._topic = topic
        self.failed: list[object] = []
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, 30_000),
                "statistics.interval.ms": 20,
                "error_cb": lambda _: None,
                "stats_cb": lambda text: self._eos.update(json.loads(text)["eos"]),
                "log_level": 0,
            }
        )
        self.producer.init_transactions(LIMIT_S)
        self.producer.begin_transaction()
        for value in values:
            self.write(value, partition=0)
        assert self.producer.flush(LIMIT_S) == 0
        self._eos.clear()
        eventually(self._statistics, lambda eos: eos.get("producer_id", -1) >= 0)
        fields = {
            "transactional_id": transactional_id,
            "producer_id": self._eos["producer_id"],
            "epoch": self._eos["producer_epoch"],
        }
        self.handle = Handle(sink="kafka", slot=0, rows=len(values), transaction=transaction_fields(fields))

    def _statistics(self) -> dict[str, Any]:
        self.producer.poll(0)
        return self._eos

    def write(self, value: str, partition: int) -> None:
        self.producer.produce(
            self._topic, value, partition=partition, on_delivery=lambda error, _: error and self.failed.append(error)
        )

    def write_on(self, value: str, partition: int) -> None:
        """What a paused task does when it wakes up, whatever comes of it."""
        try:
            self.write(value, partition)
            self.producer.flush(LIMIT_S)
        except (KafkaException, KafkaError, SystemError) as error:
            # confluent-kafka's flush raises one of the others, too, when the producer is fenced while it waits.
            self.failed.append(error)


class Witness:
    """A second client of the same cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._transactions: KafkaAdminClient | None = None

    def close(self) -> None:
        if self._transactions is not None:
            self._transactions.close()
        self._transactions = None

    def create_topic(self, partitions: int = 2, replicas: int = 1, name: str = "", **config: str) -> str:
        """Waits until clients are told of it."""
        name = name or new_name()
        settings = {key.replace("_", "."): value for key, value in config.items()}
        for done in self.admin.create_topics([NewTopic(name, partitions, replicas, config=settings)]).values():
            done.result(LIMIT_S)
        eventually(lambda: name in self.admin.list_topics(timeout=LIMIT_S).topics, bool)
        return name

    def delete_topic(self, name: str) -> None:
        """Waits until clients are told so, too."""
        for done in self.admin.delete_topics([name]).values():
            done.result(LIMIT_S)
        eventually(lambda: name in self.admin.list_topics(timeout=LIMIT_S).topics, lambda there: not there)

    def prepare(
        self, topic: str, *values: str, transactional_id: str | None = None, timeout_ms: int = 60_000
    ) -> Prepared:
        return Prepared(self.bootstrap, topic, transactional_id or new_name("id"), values or ("row",), timeout_ms)

    def prepare_all(self, topic: str, values: Sequence[str]) -> list[Prepared]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda value: self.prepare(topic, value), values))

    def state(self, *handles: Handle) -> set[str]:
        """The states that these transactions are in; a broker that has just started may not say yet, and why."""
        if self._transactions is None:
            self._transactions = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            found = self._transactions.describe_transactions([str(handle["transactional_id"]) for handle in handles])
        except RetriableError as error:
            return {type(error).__name__}
        return {str(one.state.value) for one in found.values()}

    def await_state(self, state: str, *handles: Handle) -> None:
        eventually(lambda: self.state(*handles), lambda states: states == {state})

    def committed(self, topic: str) -> list[str]:
        """Reads what a read_committed reader sees once the broker has written the markers of what it answered."""
        await_markers(self.bootstrap)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": new_name("g"),
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        with closing(consumer):
            partitions = [
                TopicPartition(topic, number, 0)
                for number in consumer.list_topics(topic, LIMIT_S).topics[topic].partitions
            ]
            consumer.assign(partitions)
            values: list[str] = []
            ends: set[int] = set()
            deadline_s = time.monotonic() + LIMIT_S
            while len(ends) < len(partitions):
                assert time.monotonic() < deadline_s, "the topic has no end"
                message = consumer.poll(0.2)
                if message is None:
                    continue
                if message.error() is None:
                    values.append(message.value().decode())
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    ends.add(message.partition())
            return sorted(values)
