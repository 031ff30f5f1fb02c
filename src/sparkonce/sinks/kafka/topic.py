"""What is checked about the topic that all rows go to, at the start of a run and before each decision."""

from __future__ import annotations

import logging
from typing import Any

from kafka.protocol.metadata import MetadataRequest

from sparkonce.errors import PreflightError
from sparkonce.sinks.base import Facts
from sparkonce.sinks.kafka.outcomes import NONE, Answer

log = logging.getLogger(__name__)

_MISSING = 3
_INVALID = 17
_NOT_ALLOWED = 29
_WRITE = 4
_NAME, _ID = "topic", "topic_id"

SURE_AFTER_S = 3.0
"""How long brokers have to say the same of a topic: one that has just started, or a new topic, may not be known yet."""


def metadata_request(topic: str | None, *, rights: bool = True) -> Any:
    """Asks for the cluster and this topic, which is never created by that, and for what one may do with it."""
    topics = [] if topic is None else [MetadataRequest.MetadataRequestTopic(name=topic)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=rights)


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
        metadata: The response to a `metadata_request` after all was acknowledged. Where there is none, the batch goes
            on, and the next one asks again.
    """
    if _ID not in facts or isinstance(metadata, Answer):
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


def check_topic(topic: str, metadata: Any, configs: Any) -> None:
    """Checks that the topic is there, may be written to, and can be written to durably.

    Args:
        topic: Its name.
        metadata: The response to a MetadataRequest for it, with its authorized operations (KIP-430).
        configs: The response to a DescribeConfigsRequest for its ``min.insync.replicas``.

    Raises:
        PreflightError: naming the topic.
    """
    (found,) = metadata.topics
    _check_readable(topic, found.error_code)
    if found.authorized_operations is not None and _WRITE not in found.authorized_operations:
        raise _refused(topic, "may not be written to by this user", "Grant WRITE on it.")
    replicas = min((len(partition.replica_nodes) for partition in found.partitions), default=0)
    _check_durable(topic, replicas, len(metadata.brokers), _min_in_sync(configs))


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


def _min_in_sync(configs: Any) -> int | None:
    """None without the permission to describe the topic's configuration."""
    (result,) = configs.results
    return int(result.configs[0].value) if result.error_code == NONE and result.configs else None


def _refused(topic: str, what: str, next_step: str) -> PreflightError:
    return PreflightError(f"topic={topic!r} {what}.", next_step=next_step, setting="topic")
