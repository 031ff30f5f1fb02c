"""Queries Kafka for what a query's settings alone do not show: topics' retention and writers, and broker limits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sparkonce.analysis.facts import KafkaSourceFacts, SinkFacts, TopicFacts
from sparkonce.source import SourceFacts

TIMEOUT_S = 10.0
"""The timeout of one request."""

_QUIET = {"log_level": 0}


def ask_about_source(source: SourceFacts, settings: Mapping[str, Any] | None) -> SourceFacts:
    """Returns the source with its brokers' information on its topics. A source that is not Kafka is returned unchanged.

    Args:
        source: The facts read from the query.
        settings: The connection settings, under librdkafka's names. None: the source's own, if it needs no security
            settings. They are also used for a source that has other servers and needs no security settings.
    """
    if not isinstance(source, KafkaSourceFacts) or (source.options is None and settings is None):
        return source
    options = source.options or {}
    own = options.get("kafka.bootstrap.servers", "")
    secured = options.get("kafka.security.protocol", "PLAINTEXT").upper() != "PLAINTEXT"
    if (
        settings is not None
        and own
        and not secured
        and _servers(own) != _servers(settings.get("bootstrap.servers", ""))
    ):
        settings = None
    if settings is None and secured:
        return replace(source, unasked="not queried: its security settings are for Java; give librdkafka's as ask=")
    connect = dict(settings or {"bootstrap.servers": own})
    try:
        topics = _describe(connect, options, source.names)
    except Exception as error:  # noqa: BLE001 - whatever the error is, it is reported, and nothing is concluded
        return replace(source, unasked=f"not queried: {_short(error)}")
    return replace(source, topics=topics)


def _servers(text: object) -> set[str]:
    return {each.strip() for each in str(text).split(",")}


def ask_about_sink(sink: SinkFacts, settings: Mapping[str, Any]) -> SinkFacts:
    """Returns a Kafka sink with the longest transaction timeout that its brokers allow, if they report it."""
    from confluent_kafka.admin import AdminClient, ConfigResource

    try:
        admin = AdminClient({**settings, **_QUIET})
        broker = next(iter(admin.list_topics(timeout=TIMEOUT_S).brokers))
        found = _configs(admin, [ConfigResource(ConfigResource.Type.BROKER, str(broker))])
        longest = found[str(broker)]["transaction.max.timeout.ms"]
    except Exception as error:  # noqa: BLE001 - whatever the error is, it is reported, and nothing is concluded
        return replace(sink, unasked=f"its brokers do not report their transaction.max.timeout.ms: {_short(error)}")
    return replace(sink, longest_timeout=timedelta(milliseconds=int(longest)))


def _describe(connect: Mapping[str, Any], options: Mapping[str, str], names: Sequence[str]) -> dict[str, TopicFacts]:
    from confluent_kafka.admin import AdminClient, ConfigResource

    admin = AdminClient({**connect, **_QUIET})
    cluster = admin.list_topics(timeout=TIMEOUT_S).topics
    topics = list(names) or _topics(options, cluster)
    missing = sorted(set(topics) - set(cluster))
    if missing or not topics:
        raise LookupError(f"there is no topic {', '.join(missing) or 'that matches'}")
    found = _configs(admin, [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics])
    transactional = _transactional(connect, {topic: list(cluster[topic].partitions) for topic in topics})
    return {
        topic: TopicFacts(
            retention_ms=int(found[topic]["retention.ms"]),
            retention_bytes=int(found[topic]["retention.bytes"]),
            cleanup_policy=found[topic]["cleanup.policy"],
            transactional=transactional.get(topic),
        )
        for topic in topics
    }


def _topics(options: Mapping[str, str], known: Mapping[str, Any]) -> list[str]:
    """Returns the topics selected by the options ``subscribe``, ``subscribePattern`` or ``assign``."""
    if "subscribe" in options:
        return [topic.strip() for topic in options["subscribe"].split(",") if topic.strip()]
    if "assign" in options:
        return list(json.loads(options["assign"]))
    pattern = options.get("subscribepattern", "")
    return [topic for topic in known if pattern and re.fullmatch(pattern, topic)]


def _configs(admin: Any, resources: Sequence[Any]) -> dict[str, dict[str, str]]:
    answers = admin.describe_configs(list(resources), request_timeout=TIMEOUT_S)
    return {
        resource.name: {name: entry.value for name, entry in answer.result(TIMEOUT_S).items()}
        for resource, answer in answers.items()
    }


def _transactional(connect: Mapping[str, Any], partitions: Mapping[str, Sequence[int]]) -> dict[str, bool]:
    """Maps each topic to True if its leaders remember a producer that ended a transaction (for a day by default)."""
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    from sparkonce.sinks.kafka.settings import admin_settings

    asked = [TopicPartition(topic, each) for topic, numbers in partitions.items() for each in numbers]
    limit_ms = int(TIMEOUT_S * 1000)
    try:
        with closing(
            KafkaAdminClient(
                **{**admin_settings(connect), "bootstrap_timeout_ms": limit_ms, "request_timeout_ms": limit_ms}
            )
        ) as admin:
            found = admin.describe_producers(asked)
    except Exception:  # noqa: BLE001 - it needs READ on the topic; without an answer, the rules treat it as unknown
        return {}
    answer = dict.fromkeys(partitions, False)
    for partition, state in found.items():
        if any(
            one.coordinator_epoch >= 0 or one.current_transaction_start_offset >= 0 for one in state.active_producers
        ):
            answer[partition.topic] = True
    return answer


def _short(error: Exception) -> str:
    text = error.args[0].str() if error.args and hasattr(error.args[0], "str") else str(error)
    return " ".join(str(text).split())[:120]
