"""Queries Kafka for facts that a query's settings do not show: topics' retention and writers, and broker limits."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sparkonce.analysis.facts import KafkaSourceFacts, SinkFacts, TopicFacts
from sparkonce.sinks.kafka.outcomes import NONE, BrokerAnswer
from sparkonce.sinks.kafka.preflight import BROKER_RESOURCE, TOPIC_RESOURCE, configs_request
from sparkonce.sinks.kafka.settings import admin_settings
from sparkonce.sinks.kafka.transaction_client import (
    TransactionClient,
    answered,
    ask_leaders,
    leaders_of,
    metadata_request,
    producers,
)
from sparkonce.source import SourceFacts
from sparkonce.sources.kafka import connection_settings
from sparkonce.sources.topics import java_pattern

TIMEOUT_S = 10.0
"""The time limit for the brokers of one source or sink."""

_MAX_TIMEOUT = "transaction.max.timeout.ms"
_RETENTION = ("retention.ms", "retention.bytes", "cleanup.policy")


def ask_about_source(source: SourceFacts, settings: Mapping[str, Any] | None) -> SourceFacts:
    """Returns the source with its brokers' information on its topics. A source that is not Kafka is returned unchanged.

    Args:
        source: The facts read from the query.
        settings: The connection settings, under librdkafka's names; None for the source's own
            settings. Those are also used if the source reads from other servers and needs no security settings.
    """
    if not isinstance(source, KafkaSourceFacts) or (source.options is None and settings is None):
        return source
    options = source.options or {}
    own = options.get("kafka.bootstrap.servers", "")
    is_plain = options.get("kafka.security.protocol", "PLAINTEXT").upper() == "PLAINTEXT"
    try:
        if settings is None or (own and is_plain and _servers(own) != _servers(settings.get("bootstrap.servers", ""))):
            settings = connection_settings(options)
        topics = _describe(settings, options, source.names)
    except Exception as error:  # noqa: BLE001 - any error is reported, and leads to no other finding
        return replace(source, unasked=f"not queried: {_short(error)}")
    return replace(source, topics=topics)


def _servers(text: object) -> set[str]:
    return {each.strip() for each in str(text).split(",")}


def ask_about_sink(sink: SinkFacts, settings: Mapping[str, Any]) -> SinkFacts:
    """Returns a Kafka sink with the longest transaction timeout that its brokers allow, if they report it."""
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        with closing(TransactionClient(admin_settings(settings), connections=1)) as client:
            broker = _ask(client, metadata_request(), deadline_s).brokers[0].node_id
            request = configs_request(BROKER_RESOURCE, str(broker), _MAX_TIMEOUT)
            longest = _configs(_ask(client, request, deadline_s, node_id=broker))[_MAX_TIMEOUT]
    except Exception as error:  # noqa: BLE001 - any error is reported, and leads to no other finding
        return replace(sink, unasked=f"its brokers do not report their {_MAX_TIMEOUT}: {_short(error)}")
    return replace(sink, longest_timeout=timedelta(milliseconds=int(longest)))


def _describe(settings: Mapping[str, Any], options: Mapping[str, str], names: Sequence[str]) -> dict[str, TopicFacts]:
    deadline_s = time.monotonic() + TIMEOUT_S
    with closing(TransactionClient(admin_settings(settings), connections=1)) as client:
        metadata = _ask(client, metadata_request(every=True), deadline_s)
        known = [one.name for one in metadata.topics if one.error_code == NONE]
        topics = list(names) or _topics(options, known)
        missing = sorted(set(topics) - set(known))
        if missing or not topics:
            raise LookupError(f"there is no topic {', '.join(missing) or 'that matches'}")
        leaders = {one: leader for one, leader in leaders_of(metadata).items() if one[0] in topics}
        (replies,) = ask_leaders(client, answered(leaders), producers, deadline_s=deadline_s)
        writers = {**leaders, **replies}  # a partition without a leader keeps the reason
        found = {}
        for topic in topics:
            configs = _configs(_ask(client, configs_request(TOPIC_RESOURCE, topic, *_RETENTION), deadline_s))
            found[topic] = TopicFacts(
                retention_ms=int(configs["retention.ms"]),
                retention_bytes=int(configs["retention.bytes"]),
                cleanup_policy=configs["cleanup.policy"],
                transactional=_is_transactional([one for (name, _), one in writers.items() if name == topic]),
            )
        return found


def _topics(options: Mapping[str, str], known: Sequence[str]) -> list[str]:
    """Returns the topics selected by the options ``subscribe``, ``subscribePattern`` or ``assign``."""
    if "subscribe" in options:
        return [topic.strip() for topic in options["subscribe"].split(",") if topic.strip()]
    if "assign" in options:
        return list(json.loads(options["assign"]))
    pattern = java_pattern(options.get("subscribepattern", ""))
    return [topic for topic in known if pattern is not None and pattern.fullmatch(topic)]


def _is_transactional(partitions: Sequence[Any]) -> bool | None:
    """Returns True if leaders remember a transactional producer, by default for a day; None if that is unknown."""
    if any(
        one.coordinator_epoch >= 0 or one.current_txn_start_offset >= 0
        for partition in partitions
        if not isinstance(partition, BrokerAnswer)
        for one in partition.active_producers or ()
    ):
        return True
    return None if any(isinstance(one, BrokerAnswer) for one in partitions) else False  # it needs READ on the topic


def _ask(client: TransactionClient, request: Any, deadline_s: float, node_id: int | None = None) -> Any:
    response = client.insist(request, deadline_s=deadline_s, node_id=node_id)
    if isinstance(response, BrokerAnswer):
        raise LookupError(str(response))
    return response


def _configs(response: Any) -> dict[str, str]:
    (result,) = response.results
    if result.error_code != NONE:
        raise LookupError(str(BrokerAnswer(result.error_code, result.error_message or "")))
    return {one.name: one.value for one in result.configs}


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
