"""Tells that a topic is gone to which rows are on their way.

librdkafka sends the rows of an idempotent producer again for as long as it remembers the topic's leaders, and gives
them up only when they are as old as a transaction may be. So a writer asks by itself, with a client of its own: what
the producer is told of a topic would change what it does with the rows.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import cached_property
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from sparkonce.errors import PrepareError
from sparkonce.sinks.kafka.client_log import client_log
from sparkonce.sinks.kafka.pooled_producer import PooledProducer

_ASK_AFTER_S = 5.0
"""The time without a row that arrives, before the topics are asked for, and again. A leader moves in less."""
_SURELY_GONE_AFTER_S = 10.0
_PROPAGATION = "topic.metadata.propagation.max.ms"
_PROPAGATION_MS = 30_000
_ANSWER_LIMIT_S, _SPARE_S = 2.0, 1.0
_MOST_TOPICS = 100
"""The number of topics that are asked for at once."""
_SURELY_THERE = "__transaction_state"


class TopicLookup:
    """Asks brokers which topics there are.

    Args:
        settings: The settings of a producer, in librdkafka's names.
        is_transactional: Whether the producer is, so that the brokers have a topic of transactions.

    Attributes:
        gone_after_s: The time for which all answers must say that a topic is not there: a broker may lag behind, and
            a topic may be about to appear, for which librdkafka itself waits as long.
    """

    def __init__(self, settings: Mapping[str, Any], *, is_transactional: bool) -> None:
        self._settings = settings
        self._is_transactional = is_transactional
        self.gone_after_s = max(_SURELY_GONE_AFTER_S, int(settings.get(_PROPAGATION, _PROPAGATION_MS)) / 1000)

    def is_there(self, topics: Collection[str]) -> dict[str, bool]:
        """Returns for each topic if it is there, without those of which no broker tells it.

        Nothing is said by a broker that does not know Kafka's own topic of transactions either: it has just started.
        """
        guard = [_SURELY_THERE] if self._is_transactional else []
        asked = TopicCollection([*sorted(topics)[:_MOST_TOPICS], *guard])
        try:
            answers = self._client.describe_topics(asked, request_timeout=_ANSWER_LIMIT_S)
        except KafkaException:  # a client cannot be made now, for example without a token
            return {}
        give_up_at_s = time.monotonic() + _ANSWER_LIMIT_S + _SPARE_S
        told = {topic: _is_there(answer, give_up_at_s) for topic, answer in answers.items()}
        if told.pop(_SURELY_THERE, None) is False:
            return {}
        return {topic: is_there for topic, is_there in told.items() if is_there is not None}

    @cached_property
    def _client(self) -> AdminClient:
        return AdminClient({**self._settings, "logger": client_log})


class StalledRows:
    """Watches a producer while somebody waits for its rows.

    Args:
        pooled: The producer.
        topics: The topics of its rows.
        lookup: Asked for them; None to ask nobody.
    """

    def __init__(self, pooled: PooledProducer, topics: Collection[str], lookup: TopicLookup | None) -> None:
        self._pooled = pooled
        self._topics = topics
        self._lookup = lookup
        self._waiting = len(pooled.producer)
        self._ask_at_s = time.monotonic() + _ASK_AFTER_S
        self._missing_since: dict[str, float] = {}

    def look(self) -> None:
        """Asks for the topics if no row has arrived for some time.

        Raises:
            PrepareError: if brokers have said for long that one is not there, and never that it is.
        """
        if self._lookup is None:
            return
        if (waiting := len(self._pooled.producer)) < self._waiting:  # more may wait, such as statistics
            self._waiting, self._missing_since = waiting, {}
        elif time.monotonic() < self._ask_at_s:
            return
        else:
            for topic, is_there in self._lookup.is_there(self._topics).items():
                if is_there:
                    self._missing_since.pop(topic, None)
                elif time.monotonic() - self._missing_since.setdefault(topic, time.monotonic()) >= (
                    self._lookup.gone_after_s
                ):
                    raise no_such_topic(topic)
        self._ask_at_s = time.monotonic() + _ASK_AFTER_S


def _is_there(answer: Future[Any], give_up_at_s: float) -> bool | None:
    try:
        answer.result(max(0.0, give_up_at_s - time.monotonic()))
    except FutureTimeoutError:
        return None
    except KafkaException as error:
        return False if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART else None
    return True


def no_such_topic(topic: str) -> PrepareError:
    """Returns the error for rows whose topic is not there."""
    return PrepareError(
        f"Kafka did not take a row: topic {topic!r} is not there. If it was, it was deleted, or made again while "
        "this query ran.",
        next_step="Create the topic if it is gone.",
    )
