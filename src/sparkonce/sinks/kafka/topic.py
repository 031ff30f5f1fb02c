"""What is checked about the topic that all rows go to, at the start of a run and before each decision."""

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
"""What is asked of a topic's configuration."""

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4

_LITTLE_BYTES = 1 << 30

SURE_AFTER_S = 3.0
"""How long brokers have to say the same of a topic: one that has just started, or a new topic, may not be known yet."""


def configs_request(resource: int, name: str, *keys: str) -> Any:
    """Asks for these settings of a topic, or of the broker that it is sent to."""
    return DescribeConfigsRequest(resources=[(resource, name, list(keys))])


def topic_facts(metadata: Any) -> dict[str, str]:
    """What the log is to remember of the topic: its name, and the id that a topic made anew does not have (KIP-516)."""
    return {_NAME: found.name, _ID: str(found.topic_id)} if (found := _with_id(metadata)) is not None else {}


def warn_if_made_again(facts: Facts, recorded: Facts | None) -> None:
    """Tells at the start of a run that rows are gone which earlier runs have committed."""
    before = recorded or {}
    if _ID in facts and before.get(_NAME) == facts[_NAME] and before.get(_ID) != facts[_ID]:
        log.warning(
            "topic=%r was deleted and made again since this query's last run: it has the id %s, and had %s. Rows of "
            "earlier batches are gone with the old one, and so may be those of the last decided batch; nothing writes "
            "them again. Start a new query with a new checkpoint if they are to be.",
            *(facts[_NAME], facts[_ID], before.get(_ID)),
        )


def why_not_decide(facts: Facts, metadata: Any) -> str:
    """Why a batch that is prepared must not be decided: its topic is gone, or is another one. Empty if it may be.

    A producer does not notice that its topic is deleted and made again while it writes. Rows that it sent before are
    gone, those that it sent afterwards are in the new topic, and all were acknowledged.

    Args:
        facts: Of the run that wrote the batch.
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
        f"topic {facts[_NAME]!r} was deleted and made again while this query ran: it has the id {found.topic_id}, and "
        f"had {facts[_ID]}. Rows of earlier batches are gone with the old one; this batch is not decided"
    )


def is_missing(metadata: Any) -> bool:
    """Whether the broker that was asked knows of no such topic."""
    return any(found.error_code == _MISSING for found in metadata.topics)


def _with_id(metadata: Any) -> Any:
    """The topic, if there is one, and it has an id: those that an old cluster made may have none."""
    return next(
        (found for found in metadata.topics if found.error_code == NONE and found.topic_id and found.topic_id.int), None
    )


def told_settings(configs: Any) -> dict[str, str]:
    """The settings, out of the response to a `configs_request`; none without the permission to describe them."""
    (result,) = configs.results
    return {found.name: found.value for found in result.configs} if result.error_code == NONE else {}


def check_topic(topic: str, metadata: Any, told: Mapping[str, str]) -> None:
    """Checks that the topic is there, may be written to, and can be written to durably.

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
    """Sees that rows are kept until their transaction has ended: brokers delete those of an open one like any other.

    The commit of a transaction whose rows are deleted succeeds, and readers see nothing of it.

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
            "open for longer than the retention are deleted, and its commit succeeds over nothing. Raise retention.ms, "
            "or lower transaction.timeout.ms.",
            *(topic, age_ms, timeout_ms, lasting(timeout_ms)),
        )
    if 0 < size < _LITTLE_BYTES:
        log.warning(
            "topic=%r has retention.bytes=%d: where a partition is given more than that while a transaction is open, "
            "the transaction's first rows are deleted, and its commit succeeds all the same. Raise retention.bytes.",
            *(topic, size),
        )


def _check_readable(topic: str, error_code: int) -> None:
    if error_code == _MISSING:
        raise _refused(topic, "does not exist", "Create it; nothing here creates topics.")
    if error_code == _NOT_ALLOWED:
        raise _refused(topic, "may not be seen by this user", "Grant WRITE on it, or check its name.")
    if error_code == _INVALID:
        raise _refused(topic, "is no valid name", "Use letters, digits, '.', '_' and '-', at most 249.")
    # What is left, such as a missing leader, passes; writers wait for it.


def _check_durable(topic: str, replicas: int, brokers: int, min_in_sync: int | None) -> None:
    if min_in_sync is not None and min_in_sync > replicas > 0:
        raise _refused(
            topic,
            f"has {replicas} replicas but min.insync.replicas={min_in_sync}, so no row can ever be acknowledged",
            "Lower min.insync.replicas or add replicas.",
        )
    if brokers > 1 and replicas == 1:
        log.warning("topic=%r has one replica: committed rows are gone if its broker's disk is.", topic)
    elif replicas > 1 and min_in_sync == 1:
        log.warning(
            "topic=%r has min.insync.replicas=1: a row is acknowledged, and can be committed, while one broker alone "
            "has it.",
            topic,
        )


def _refused(topic: str, what: str, next_step: str) -> PreflightError:
    return PreflightError(f"topic={topic!r} {what}.", next_step=next_step, setting="topic")
