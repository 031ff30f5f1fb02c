"""A read_committed reader that reads on from where it was: what it has been given stays given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Message


class KafkaReader:
    """Reads a topic from its beginning, with confluent-kafka's own consumer.

    Args:
        bootstrap: ``bootstrap.servers``.
        topic: The topic.
        partitions: How many it has.
        wait_ms: How long the broker waits for rows before it says that there are none.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, wait_ms: int) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "witness",  # required, and not used: partitions are assigned by hand
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": wait_ms,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            "error_cb": lambda _: None,
        }
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])

    def read(self, timeout_s: float) -> list[Message]:
        """Returns what is new. A broker that is away is no record."""
        return [one for one in self._consumer.consume(10_000, timeout=timeout_s) if one.error() is None]

    def close(self) -> None:
        self._consumer.close()
