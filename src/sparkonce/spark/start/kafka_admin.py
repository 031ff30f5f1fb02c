"""Java's Kafka client for what a source's brokers are asked, with the settings of the source's own consumers.

The driver's Python may not be able to log in as the source does: its settings are Java's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError

from sparkonce.spark.jvm import jvm

_NAME = "kafka."
_WRAPPERS = ("java.util.concurrent.ExecutionException", "org.apache.kafka.common.KafkaException")


def admin_client(options: Mapping[str, str], limit_ms: int) -> Any:
    """Makes an ``AdminClient``. Close it.

    Args:
        options: Of Spark's source, with names in lower case.
        limit_ms: How long a call may take.

    Raises:
        Py4JJavaError: if the settings are not usable, or no name in ``bootstrap.servers`` can be resolved.
    """
    clients = jvm().org.apache.kafka.clients
    known = set(clients.admin.AdminClientConfig.configNames())
    # What is neither's is a setting of a plugin: of a login callback, an engine for TLS, a provider of secrets.
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


def answer(future: Any, limit_ms: int) -> Any:
    """Waits for what a call gives.

    Raises:
        Py4JJavaError: what it ended with.
    """
    return future.get(limit_ms, jvm().java.util.concurrent.TimeUnit.MILLISECONDS)


def java_list(values: Iterable[Any]) -> Any:
    """Makes a ``java.util.List``."""
    made = jvm().java.util.ArrayList()
    for value in values:
        made.add(value)
    return made


def reason(error: Exception) -> tuple[str, str]:
    """Returns the short class name of what a call ended with, without what Java wraps around it, and its message."""
    if not isinstance(error, Py4JJavaError):
        return type(error).__name__, str(error)
    cause = error.java_exception
    while cause.getCause() is not None and cause.getClass().getName() in _WRAPPERS:
        cause = cause.getCause()
    return str(cause.getClass().getSimpleName()), str(cause.getMessage() or "")
