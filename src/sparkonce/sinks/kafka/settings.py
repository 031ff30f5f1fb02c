"""Checks the Kafka sink's settings, which are given in librdkafka's names.

The names are those of librdkafka's CONFIGURATION.md. Writers use them as they are. For the driver's connection
`sparkonce.sinks.kafka.translation` translates them, or refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.ownership import PREFIX_LIMIT_BYTES
from sparkonce.sinks._shared.settings import own_prefix
from sparkonce.sinks.kafka.translation import admin_settings, is_true, plain_names

__all__ = [
    "DEFAULTS",
    "NEVER",
    "NEVER_MS",
    "admin_settings",
    "id_prefix",
    "lasting",
    "producer_settings",
    "queue_bytes",
    "size_settings",
]

NEVER, NEVER_MS = "never", 2**31 - 1
"""A transaction timeout that never ends, as a word and as Kafka's number, which holds from 4.1 on (KIP-939). Older
brokers end such a transaction after 24 days."""

DEFAULTS: Mapping[str, Any] = {
    # Java's partitioner: the same key goes where other producers of the topic put it.
    "partitioner": "murmur2_random",
    "delivery.report.only.error": True,
    "enable.idempotence": True,
    "queue.buffering.max.kbytes": 65536,
    # With 5, librdkafka's default, an idempotent producer that is faster than its broker wakes up for every row.
    "max.in.flight.requests.per.connection": 2,
    # InitProducerId is answered after 15 ms with these and 55 ms without; both back off exponentially from there.
    "reconnect.backoff.ms": 1,
    "retry.backoff.ms": 1,
    "allow.auto.create.topics": False,
    # Kafka's own default for a topic (max.message.bytes); librdkafka's is 1,000,000.
    "message.max.bytes": 1_048_588,
}
"""The settings of a writer, unless the user sets others."""

_BATCH_BYTES = 1_000_000
_LARGEST_MESSAGE_BYTES = 1_000_000_000
"""librdkafka's default of ``batch.size`` and its limit for ``message.max.bytes``."""

_RESERVED: Mapping[str, str] = {
    "transactional.id": "Each writer makes its own ids: set the sink's prefix instead.",
    "statistics.interval.ms": "The writer may read its producer id from the statistics: leave the setting out.",
    "stats_cb": "The writer may read its producer id from the statistics: leave the setting out.",
    "error_cb": "The writer reads the errors itself: leave the setting out.",
    "on_delivery": "The writer checks the deliveries itself: leave the setting out.",
}


def producer_settings(user: Mapping[str, Any], guarantee: Guarantee) -> dict[str, Any]:
    """Returns the settings of a writer's librdkafka producer, without ``transactional.id``.

    Args:
        user: The user's settings, in librdkafka's names. ``transaction.timeout.ms`` is the user's choice.
        guarantee: The sink's guarantee, which some settings contradict.

    Raises:
        ConfigurationError: naming the setting and its value, if it contradicts the guarantee or belongs to the sink.
    """
    plain = plain_names(user)
    for name, why in _RESERVED.items():
        if name in plain:
            raise _refused(name, plain[name], why)
    if not is_true(plain.get("delivery.report.only.error", True)):
        raise _refused(
            "delivery.report.only.error", False, "The writer asks for reports itself: leave the setting out."
        )
    settings = {**DEFAULTS, **plain}
    if is_true(settings["enable.idempotence"]):
        _check_acks(settings, "Idempotent producers need every replica's acknowledgement")
    else:
        _check_without_idempotence(settings, guarantee)
    return settings


def queue_bytes(settings: Mapping[str, Any]) -> int:
    """Returns how many bytes of rows may wait in librdkafka: ``queue.buffering.max.kbytes``, or its default."""
    return int(settings.get("queue.buffering.max.kbytes", 1_048_576)) * 1024


def size_settings(user: Mapping[str, Any], facts: Mapping[str, str]) -> dict[str, int]:
    """Returns librdkafka's settings that follow the topic's ``max.message.bytes``, without those of the user.

    The topic's limit is for batches as they are sent. So no batch is made larger, but a single row may be larger, since
    compression may make it small.

    Args:
        user: The user's settings.
        facts: The facts that preflight returned.
    """
    if "max_message_bytes" not in facts:
        return {}
    limit = int(facts["max_message_bytes"])
    chosen = {
        "message.max.bytes": min(max(limit, DEFAULTS["message.max.bytes"]), _LARGEST_MESSAGE_BYTES),
        "batch.size": max(1, min(limit, _BATCH_BYTES)),
    }
    return {name: size for name, size in chosen.items() if name not in user}


def lasting(timeout_ms: int) -> str:
    """Returns a transaction timeout in words."""
    if timeout_ms == NEVER_MS:
        return "never times out"
    minutes, rest = divmod(timeout_ms, 60_000)
    return f"{minutes} min" if not rest else f"{timeout_ms / 1000:g} s"


def id_prefix(prefix: Any) -> str:
    """Returns the user's prefix of transactional ids.

    Raises:
        ConfigurationError: if transactional ids cannot begin with it.
    """
    given = own_prefix(prefix, most_bytes=PREFIX_LIMIT_BYTES)
    if given != given.lstrip():
        raise ConfigurationError(
            f"prefix={given!r} begins with a space, which librdkafka leaves out: brokers would know the transactions "
            "under other ids than the log, and nobody could commit them.",
            next_step=f"Use {given.lstrip()!r}, or another prefix that does not begin with a space.",
            setting="prefix",
        )
    return given


def _check_without_idempotence(settings: dict[str, Any], guarantee: Guarantee) -> None:
    if guarantee is Guarantee.EXACTLY_ONCE:
        raise _refused(
            "enable.idempotence", settings["enable.idempotence"], f"Use True, which {guarantee.value} needs."
        )
    if guarantee is Guarantee.AT_LEAST_ONCE:
        _check_acks(settings, f"{guarantee.value} needs every replica's acknowledgement")
    elif int(settings.get("retries", -1)) != 0:
        raise _refused(
            "retries",
            settings.get("retries", "librdkafka's default"),
            f"{guarantee.value} without enable.idempotence must not send a row twice: set retries to 0.",
        )


def _check_acks(settings: dict[str, Any], why: str) -> None:
    if str(settings.setdefault("acks", "all")).lower() not in {"all", "-1"}:
        raise _refused("acks", settings["acks"], f"{why}: use all.")


def _refused(name: str, value: Any, why: str) -> ConfigurationError:
    return ConfigurationError(f"{name}={value!r} cannot be used with this sink.", next_step=why, setting=name)
