"""Actions and checks for the tests of the Kafka committer that do not use the code under test."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from eventually import LIMIT_S, eventually
from kafka_transactions import await_markers
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce_lab.kafka import create_topic, describe_transactions, read_committed


def until_final(finish: Callable[[Sequence[Handle]], Sequence[Finished]], handles: Sequence[Handle]) -> list[Outcome]:
    def is_final(finished: Sequence[Finished]) -> bool:
        return all(one.outcome is not Outcome.RETRY for one in finished)

    finished = eventually(lambda: finish(handles), until=is_final)
    return [one.outcome for one in finished]


def new_name(start: str = "t") -> str:
    return f"{start}-{secrets.token_hex(6)}"


class Prepared:
    """A writer that has prepared one transaction, and could continue to write."""

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
        eventually(self._statistics, until=lambda eos: eos.get("producer_id", -1) >= 0)
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
        """Does what a paused task does when it wakes up, ignoring any errors."""
        try:
            self.write(value, partition)
            self.producer.flush(LIMIT_S)
        except (KafkaException, KafkaError, SystemError) as error:
            # If the producer is fenced during a flush, confluent-kafka may also raise KafkaError or SystemError.
            self.failed.append(error)


class Witness:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create_topic(self, partitions: int = 2, replicas: int = 1, name: str = "", **config: str) -> str:
        name = name or new_name()
        settings = {key.replace("_", "."): value for key, value in config.items()}
        create_topic(self.bootstrap, name, partitions, settings, replicas=replicas, timeout_s=LIMIT_S)
        return name

    def delete_topic(self, name: str) -> None:
        for done in self.admin.delete_topics([name]).values():
            done.result(LIMIT_S)
        eventually(lambda: name in self.admin.list_topics(timeout=LIMIT_S).topics, until=lambda there: not there)

    def prepare(
        self, topic: str, *values: str, transactional_id: str | None = None, timeout_ms: int = 60_000
    ) -> Prepared:
        return Prepared(self.bootstrap, topic, transactional_id or new_name("id"), values or ("row",), timeout_ms)

    def prepare_all(self, topic: str, values: Sequence[str]) -> list[Prepared]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda value: self.prepare(topic, value), values))

    def state(self, *handles: Handle) -> set[str]:
        names = [str(handle["transactional_id"]) for handle in handles]
        return {one.state for one in describe_transactions(self.bootstrap, names, timeout_s=LIMIT_S).values()}

    def await_state(self, state: str, *handles: Handle) -> None:
        eventually(lambda: self.state(*handles), until=lambda states: states == {state})

    def committed(self, topic: str) -> list[str]:
        """The values that a read_committed reader sees once the markers of acknowledged commits are written."""
        await_markers(self.bootstrap)
        return sorted((one.value or b"").decode() for one in read_committed(self.bootstrap, topic, timeout_s=LIMIT_S))
