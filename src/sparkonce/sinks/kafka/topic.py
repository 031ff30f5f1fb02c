"""What is checked about the topic that all rows go to."""

from __future__ import annotations

import logging
from typing import Any

from sparkonce.errors import PreflightError
from sparkonce.sinks.kafka.outcomes import NONE

log = logging.getLogger(__name__)

_MISSING = 3
_INVALID = 17
_NOT_ALLOWED = 29
_WRITE = 4


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
