"""Asks a source's brokers through Java's Kafka client, with the settings of the source's own consumers.

A Python client could not always log in as the source does, since the settings are Java's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError

from sparkonce.spark.jvm import jvm

_NAME = "kafka."
_WRAPPERS = ("java.util.concurrent.ExecutionException", "org.apache.kafka.common.KafkaException")


def admin_client(options: Mapping[str, str], limit_ms: int) -> Any:
    """Makes an ``AdminClient``, which the caller closes.

    Args:
        options: The options of Spark's source, with names in lower case.
        limit_ms: The longest that a call may take.

    Raises:
        Py4JJavaError: if the settings are not usable, or no name in ``bootstrap.servers`` can be resolved.
    """
    clients = jvm().org.apache.kafka.clients
    known = set(clients.admin.AdminClientConfig.configNames())
    # A name of neither is a plugin's: a login callback's, a TLS engine's, a provider's of secrets.
    consumers_only = set(clients.consumer.ConsumerConfig.configNames()) - known
    settings = jvm().java.util.HashMap()
    for option, value in options.items():
        name = option.removeprefix(_NAME)
        if name != option and name not in consumers_only:
            settings.put(name, value)
    settings.put("default.api.timeout.ms", str(limit_ms))
    settings.put("request.timeout.ms", str(limit_ms // 2))
    return clients.admin.AdminClient.create(settings)


def close(admin: Any) -> None:
    """Ends the client at once."""
    admin.close(jvm().java.time.Duration.ZERO)


def milliseconds() -> Any:
    """Returns Java's unit. Finding it takes some milliseconds."""
    return jvm().java.util.concurrent.TimeUnit.MILLISECONDS


def answer(future: Any, limit_ms: int, unit: Any = None) -> Any:
    """Waits for the result of a call.

    Args:
        future: Of the call.
        limit_ms: The longest wait.
        unit: `milliseconds`, where a caller keeps it.

    Raises:
        Py4JJavaError: if the call failed.
    """
    return future.get(limit_ms, unit or milliseconds())


def java_list(values: Iterable[Any]) -> Any:
    """Makes a ``java.util.List``."""
    made = jvm().java.util.ArrayList()
    for value in values:
        made.add(value)
    return made


def reason(error: Exception) -> tuple[str, str]:
    """Returns the short class name and the message of a call's error, without Java's wrappers."""
    if not isinstance(error, Py4JJavaError):
        return type(error).__name__, str(error)
    cause = error.java_exception
    while cause.getCause() is not None and cause.getClass().getName() in _WRAPPERS:
        cause = cause.getCause()
    return str(cause.getClass().getSimpleName()), str(cause.getMessage() or "")
