"""Kafka, with transactions that workers prepare and the driver commits.

``sink`` puts the parts together. On the executors: ``rows`` makes messages, ``lane`` holds one producer, ``producers``
keeps some ready, ``writer`` fills one transaction. On the driver: ``preflight`` checks the cluster, ``committer`` ends
transactions through ``client`` and ``connection``, and ``outcomes`` says what each answer means. ``settings`` and
``translation`` serve both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkonce.sinks.kafka.sink import KafkaSink as KafkaSink

__all__ = ["KafkaSink"]


def __getattr__(name: str) -> Any:
    if name != "KafkaSink":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sparkonce.sinks.kafka.sink import KafkaSink

    return KafkaSink
