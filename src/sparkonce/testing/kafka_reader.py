"""A read_committed reader that continues from where it was, and one that reads all the time in a thread of its own."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from sparkonce.rig.background import Background

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka import Message

_POLL_S = 0.1
_STOPS_WITHIN_S = 60.0
_CHUNK = 10_000


class KafkaReader:
    """Reads a topic from its beginning, with confluent-kafka's own consumer.

    Args:
        settings: librdkafka's, of how to connect, or ``bootstrap.servers`` alone.
        topic: The topic.
        partitions: How many it has.
        wait_ms: How long the broker waits for rows before it answers that there are none.
    """

    def __init__(self, settings: str | Mapping[str, Any], topic: str, partitions: int, *, wait_ms: int = 100) -> None:
        from confluent_kafka import Consumer, TopicPartition

        connecting = {"bootstrap.servers": settings} if isinstance(settings, str) else settings
        more = {
            "group.id": "sparkonce-reader",  # required, and not used: partitions are assigned by hand
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": wait_ms,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            "error_cb": lambda _: None,  # brokers that are away are asked again
        }
        self._consumer = Consumer({**connecting, **more})
        self._consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])

    def read(self, timeout_s: float) -> list[Message]:
        """Returns the new records. A broker that is away gives none."""
        return [one for one in self._consumer.consume(_CHUNK, timeout=timeout_s) if one.error() is None]

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()


class LiveReader(Background):
    """Reads a topic all the time, from its beginning. A subclass says what becomes of the records.

    Args:
        settings: See `KafkaReader`, as for the following.
        topic: The topic.
        partitions: How many it has.
    """

    def __init__(self, settings: str | Mapping[str, Any], topic: str, partitions: int) -> None:
        super().__init__(f"reader of {topic}", _STOPS_WITHIN_S)
        self._where = settings, topic, partitions
        self._taken = threading.Condition()

    def take(self, messages: Sequence[Any]) -> None:
        """Receives the new records. No `wait_for` looks meanwhile."""
        raise NotImplementedError

    def wait_for(self, holds: Callable[[], bool], limit_s: float) -> bool:
        """Waits until something holds of the records that were taken. Raises what ended the reader.

        Returns:
            Whether it held in time.
        """
        give_up_at = time.monotonic() + limit_s
        with self._taken:
            while not (held := holds()) and time.monotonic() < give_up_at:
                self.check()
                self._taken.wait(_POLL_S)
        return held

    def work(self) -> None:
        """Reads until it is stopped."""
        with closing(KafkaReader(*self._where)) as reader:
            while not self.stopping.is_set():
                messages = reader.read(_POLL_S)
                with self._taken:
                    self.take(messages)
                    self._taken.notify_all()
