"""The size limits of topics that rows name: a worker asks the brokers for them, where it may send rows elsewhere."""

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

_LIMIT = "max.message.bytes"
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
    """Asks for the limits of topics, and remembers them for a minute.

    Args:
        settings: The settings of a producer, in librdkafka's names.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int | None, float]] = {}

    def of(self, topics: Iterable[str]) -> dict[str, int]:
        """Returns the ``max.message.bytes`` of these topics, without those that are missing or may not be described.

        Raises:
            OutageError: if no broker answers.
        """
        with self._lock:
            now = time.monotonic()
            wanted = sorted(set(topics))
            if unknown := [one for one in wanted if self._known.get(one, (None, 0.0))[1] <= now]:
                self._known |= {topic: (limit, now + _KNOWN_S) for topic, limit in self._ask(unknown).items()}
            return {one: limit for one in wanted if (limit := self._known[one][0]) is not None}

    def _ask(self, topics: list[str]) -> dict[str, int | None]:
        client = AdminClient({**self._settings, "logger": client_log})
        resources = {ConfigResource(ResourceType.TOPIC, one): one for one in topics}
        told = client.describe_configs([*resources], request_timeout=_ASK_S)
        return {resources[resource]: _limit(resources[resource], answer) for resource, answer in told.items()}


def _limit(topic: str, answer: Future[Mapping[str, ConfigEntry]]) -> int | None:
    try:
        return int(answer.result(_ASK_S + _SPARE_S)[_LIMIT].value)
    except FutureTimeoutError:
        raise _not_told(topic, f"no answer in {_ASK_S:g} s") from None
    except KafkaException as error:
        if error.args[0].code() in _NOT_TOLD:
            return None
        raise _not_told(topic, error.args[0].str()) from None


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
