"""Tells that a topic is gone to which rows are on their way.

librdkafka sends the rows of an idempotent producer again for as long as it remembers the topic's leaders, and gives
them up only when they are as old as a transaction may be. So a writer asks by itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection

from confluent_kafka import KafkaError, KafkaException

from sparkonce.errors import PrepareError
from sparkonce.sinks.kafka.batch_producer import BatchProducer
from sparkonce.sinks.kafka.pooled_producer import PooledProducer

_ASK_AFTER_S = 5.0
"""The time without a row that arrives, before the topics are asked for, and again. A leader moves in less."""
_ANSWER_LIMIT_S = 2.0


class StalledRows:
    """Watches a producer while somebody waits for its rows.

    Args:
        pooled: The producer.
        topics: The topics of its rows.
    """

    def __init__(self, pooled: PooledProducer, topics: Collection[str]) -> None:
        self._pooled = pooled
        self._topics = topics
        self._waiting = len(pooled.producer)
        self._ask_at_s = time.monotonic() + _ASK_AFTER_S
        self._missing: set[str] = set()

    def look(self) -> None:
        """Asks for the topics if no row has arrived for some time. One answer may be that of a broker that lags behind.

        Raises:
            PrepareError: if brokers have said twice that one is not there.
        """
        if (waiting := len(self._pooled.producer)) < self._waiting:  # more may wait, such as statistics
            self._waiting, self._missing = waiting, set()
        elif time.monotonic() < self._ask_at_s:
            return
        else:
            missing = self._ask()
            if gone := missing & self._missing:
                raise no_such_topic(min(gone))
            self._missing = missing
        self._ask_at_s = time.monotonic() + _ASK_AFTER_S

    def _ask(self) -> set[str]:
        """Returns the topics that are not there. Asks no further once no broker answers."""
        missing = set()
        with contextlib.suppress(KafkaException):
            for topic in sorted(self._topics):
                if self._code(topic) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    missing.add(topic)
        return missing

    def _code(self, topic: str) -> int:
        """Returns the broker's error code for a topic, which is 0 if the topic is there. Raises KafkaException."""
        producer = self._pooled.producer
        if isinstance(producer, BatchProducer):
            return producer.list_topics(topic, _ANSWER_LIMIT_S).get(topic, 0)
        error: KafkaError | None = producer.list_topics(topic, _ANSWER_LIMIT_S).topics[topic].error
        return 0 if error is None else int(error.code())


def no_such_topic(topic: str) -> PrepareError:
    """Returns the error for rows whose topic is not there."""
    return PrepareError(
        f"Kafka did not take a row: topic {topic!r} is not there. If it was, it was deleted, or made again while "
        "this query ran.",
        next_step="Create the topic if it is gone.",
    )
