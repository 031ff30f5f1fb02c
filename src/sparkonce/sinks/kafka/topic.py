"""Checks the sink's own topic, at the start of a run and before each decision."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest

from sparkonce.errors import PreflightError
from sparkonce.sink import Facts
from sparkonce.sinks.kafka.outcomes import NONE, BrokerAnswer
from sparkonce.sinks.kafka.settings import NEVER_MS, lasting

log = logging.getLogger(__name__)

_MISSING = 3
_INVALID = 17
_NOT_ALLOWED = 29
_WRITE = 4
_NAME, _ID = "topic", "topic_id"

_MIN_IN_SYNC, _AGE, _SIZE, _POLICY = "min.insync.replicas", "retention.ms", "retention.bytes", "cleanup.policy"
TOPIC_SETTINGS = (_MIN_IN_SYNC, _AGE, _SIZE, _POLICY, "max.message.bytes")
"""The settings of a topic that are asked for."""

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4

_LITTLE_BYTES = 1 << 30

SURE_AFTER_S = 3.0
"""The time for which a topic must be missing: brokers that have just started, and new topics, take a moment."""


def configs_request(resource: int, name: str, *keys: str) -> Any:
    """Asks for these settings of a topic, or of the broker that receives the request."""
    return DescribeConfigsRequest(resources=[(resource, name, list(keys))])


def topic_facts(metadata: Any) -> dict[str, str]:
    """Returns the facts of the topic for the log: its name, and its id, which no later topic has (KIP-516)."""
    return {_NAME: found.name, _ID: str(found.topic_id)} if (found := _with_id(metadata)) is not None else {}


def warn_if_made_again(facts: Facts, recorded: Facts | None) -> None:
    """Warns at the start of a run that rows of earlier runs are gone with a deleted topic."""
    before = recorded or {}
    if _ID in facts and before.get(_NAME) == facts[_NAME] and before.get(_ID) != facts[_ID]:
        log.warning(
            "topic=%r was deleted and made again since this query's last run: it has the id %s, and had %s. Rows of "
            "earlier batches are gone with the old topic, and those of the last decided batch may be gone too. Nothing "
            "writes them again. Next: If they are needed, start a new query with a new checkpoint.",
            *(facts[_NAME], facts[_ID], before.get(_ID)),
        )


def why_not_decide(facts: Facts, metadata: Any) -> str:
    """Tells why a prepared batch must not be decided: its topic is gone or another one. Empty if it may be decided.

    A producer does not notice that its topic is deleted and made again. Rows that it sent before are gone, rows that
    it sent afterwards are in the new topic, and all were acknowledged.

    Args:
        facts: The facts of the run that wrote the batch.
        metadata: The response to a `sparkonce.sinks.kafka.partitions.metadata_request` that was sent after all rows
            were acknowledged. Without a response the batch is decided, and the next batch asks again.
    """
    if _ID not in facts or isinstance(metadata, BrokerAnswer):
        return ""
    if is_missing(metadata):
        return f"topic {facts[_NAME]!r} was deleted while this query ran: create it, and start the query again"
    found = _with_id(metadata)
    if found is None or str(found.topic_id) == facts[_ID]:
        return ""
    return (
        f"topic {facts[_NAME]!r} was deleted and made again while this query ran: it has the id {found.topic_id}, "
        f"and had {facts[_ID]}. Rows of earlier batches are gone with the old topic; this batch is not decided"
    )


def is_missing(metadata: Any) -> bool:
    """Returns whether the asked broker knows no such topic."""
    return any(found.error_code == _MISSING for found in metadata.topics)


def _with_id(metadata: Any) -> Any:
    """Returns the topic, if it exists and has an id, which topics of an old cluster may lack."""
    return next(
        (found for found in metadata.topics if found.error_code == NONE and found.topic_id and found.topic_id.int), None
    )


def told_settings(configs: Any) -> dict[str, str]:
    """Reads the settings from the response to a `configs_request`; none without the permission to describe them."""
    (result,) = configs.results
    return {found.name: found.value for found in result.configs} if result.error_code == NONE else {}


def check_topic(topic: str, metadata: Any, told: Mapping[str, str]) -> None:
    """Checks that the topic exists, that this user may write to it, and that its writes are durable.

    Args:
        topic: Its name.
        metadata: The response to a MetadataRequest for it, with its authorized operations (KIP-430).
        told: Its `told_settings`.

    Raises:
        PreflightError: naming the topic.
    """
    (found,) = metadata.topics
    _check_readable(topic, found.error_code)
    if found.authorized_operations is not None and _WRITE not in found.authorized_operations:
        raise _refused(topic, "may not be written to by this user", "Grant WRITE on it.")
    replicas = min((len(partition.replica_nodes) for partition in found.partitions), default=0)
    _check_durable(topic, replicas, len(metadata.brokers), int(told[_MIN_IN_SYNC]) if _MIN_IN_SYNC in told else None)


def check_retention(topic: str, told: Mapping[str, str], timeout_ms: int) -> None:
    """Checks that rows are kept until their transaction ends, since brokers delete those of open transactions too.

    A transaction whose rows are deleted commits without an error, and readers see nothing of it.

    Args:
        topic: Its name.
        told: Its `told_settings`.
        timeout_ms: The transaction timeout.

    Raises:
        PreflightError: if the topic keeps nothing.
    """
    if "delete" not in told.get(_POLICY, ""):
        return
    for name in (_AGE, _SIZE):
        if told.get(name) == "0":
            raise _refused(topic, f"has {name}=0: its rows may be gone before they are committed", f"Raise {name}.")
    age_ms, size = int(told.get(_AGE, -1)), int(told.get(_SIZE, -1))
    if 0 < age_ms < timeout_ms or (age_ms > 0 and timeout_ms == NEVER_MS):
        log.warning(
            "topic=%r has retention.ms=%d, and transaction.timeout.ms=%d (%s): the rows of a transaction that stays "
            "open for longer than the retention are deleted, and its commit succeeds without rows. Next: Raise "
            "retention.ms, or lower transaction.timeout.ms.",
            *(topic, age_ms, timeout_ms, lasting(timeout_ms)),
        )
    if 0 < size < _LITTLE_BYTES:
        log.warning(
            "topic=%r has retention.bytes=%d: if a partition receives more than that while a transaction is open, the "
            "transaction's first rows are deleted, and its commit still succeeds. Next: Raise retention.bytes.",
            *(topic, size),
        )


def _check_readable(topic: str, error_code: int) -> None:
    if error_code == _MISSING:
        raise _refused(topic, "does not exist", "Create it: the sink creates no topics.")
    if error_code == _NOT_ALLOWED:
        raise _refused(topic, "may not be seen by this user", "Grant WRITE on it, or check its name.")
    if error_code == _INVALID:
        raise _refused(topic, "is no valid name", "Use letters, digits, '.', '_' and '-', at most 249.")
    # Other errors, such as a missing leader, pass: writers wait for it.


def _check_durable(topic: str, replicas: int, brokers: int, min_in_sync: int | None) -> None:
    if min_in_sync is not None and min_in_sync > replicas > 0:
        raise _refused(
            topic,
            f"has {replicas} replicas but min.insync.replicas={min_in_sync}, so no row can ever be acknowledged",
            "Lower min.insync.replicas or add replicas.",
        )
    if brokers > 1 and replicas == 1:
        log.warning("topic=%r has one replica: committed rows are lost with its broker's disk.", topic)
    elif replicas > 1 and min_in_sync == 1:
        log.warning(
            "topic=%r has min.insync.replicas=1: a row counts as acknowledged, and can be committed, while only one "
            "broker has it.",
            topic,
        )


def _refused(topic: str, what: str, next_step: str) -> PreflightError:
    return PreflightError(f"topic={topic!r} {what}.", next_step=next_step, setting="topic")
