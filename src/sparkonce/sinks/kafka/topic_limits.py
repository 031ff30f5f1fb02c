"""What topics take: a worker asks the brokers for it, where it may send rows elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType

from sparkonce.errors import OutageError
from sparkonce.sinks.kafka.client_log import client_log
from sparkonce.sinks.kafka.rows import TopicRules

_LIMIT, _POLICY, _CLOCK = "max.message.bytes", "cleanup.policy", "message.timestamp.type"
_AHEAD = ("message.timestamp.after.max.ms", "message.timestamp.difference.max.ms")
"""Since Kafka 3.6, and before."""
_CENTURY_MS = 100 * 365 * 86_400_000
_KNOWN_S = 60.0
"""The time for which a limit counts as known: somebody may change it."""
_ASK_S, _SPARE_S = 30.0, 10.0
"""The time that librdkafka has for a request, and by how much its answer may be late."""
_NOT_TOLD = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


class TopicLimits:
    """Asks for the rules of topics, and remembers them for a minute.

    Args:
        settings: The settings of a producer, in librdkafka's names.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._known: dict[str, tuple[TopicRules | None, float]] = {}

    def of(self, topics: Iterable[str]) -> dict[str, TopicRules]:
        """Returns the rules of these topics, without those that are missing or may not be described.

        Raises:
            OutageError: if no broker answers.
        """
        with self._lock:
            now = time.monotonic()
            wanted = sorted(set(topics))
            if unknown := [one for one in wanted if self._known.get(one, (None, 0.0))[1] <= now]:
                self._known |= {topic: (rules, now + _KNOWN_S) for topic, rules in self._ask(unknown).items()}
            return {one: rules for one in wanted if (rules := self._known[one][0]) is not None}

    def _ask(self, topics: list[str]) -> dict[str, TopicRules | None]:
        client = AdminClient({**self._settings, "logger": client_log})
        resources = {ConfigResource(ResourceType.TOPIC, one): one for one in topics}
        told = client.describe_configs([*resources], request_timeout=_ASK_S)
        return {resources[resource]: _rules(resources[resource], answer) for resource, answer in told.items()}


def _rules(topic: str, answer: Future[Mapping[str, ConfigEntry]]) -> TopicRules | None:
    try:
        told = {name: entry.value for name, entry in answer.result(_ASK_S + _SPARE_S).items()}
    except FutureTimeoutError:
        raise _not_told(topic, f"no answer in {_ASK_S:g} s") from None
    except KafkaException as error:
        if error.args[0].code() in _NOT_TOLD:
            return None
        raise _not_told(topic, error.args[0].str()) from None
    return _read(told)


def _read(told: Mapping[str, str]) -> TopicRules:
    ahead_ms = next((int(told[name]) for name in _AHEAD if name in told), _CENTURY_MS)
    return TopicRules(
        most_bytes=int(told[_LIMIT]),
        is_compacted="compact" in told.get(_POLICY, ""),
        takes_far=ahead_ms >= _CENTURY_MS or told.get(_CLOCK) == "LogAppendTime",
    )


def _not_told(topic: str, why: str) -> OutageError:
    return OutageError(
        f"The brokers do not tell {_LIMIT} of topic {topic!r}: {why}.",
        next_step="See that the brokers are up; the batch is written again.",
    )


_asked: dict[tuple[tuple[str, str], ...], TopicLimits] = {}


def limits_of_process(settings: Mapping[str, Any]) -> TopicLimits:
    """Returns what this process knows of the topics of these brokers, by this login: others may see other topics."""
    known_by = sorted((name, str(one)) for name, one in settings.items() if not callable(one))
    return _asked.setdefault(tuple(known_by), TopicLimits(settings))
