"""End-to-end exactly-once for Spark Structured Streaming.

Names are imported when they are first used, so ``import sparkonce`` needs neither Spark nor a client library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkonce.guarantees import Guarantee as Guarantee
    from sparkonce.sinks.base import TwoPhaseCommitSink as TwoPhaseCommitSink
    from sparkonce.sinks.kafka.sink import KafkaSink as KafkaSink
    from sparkonce.spark.exactly_once import ExactlyOnce as ExactlyOnce
    from sparkonce.spark.explain import explain as explain

__version__ = "0.1.0"

_HOMES = {
    "ExactlyOnce": "sparkonce.spark.exactly_once",
    "Guarantee": "sparkonce.guarantees",
    "KafkaSink": "sparkonce.sinks.kafka.sink",
    "TwoPhaseCommitSink": "sparkonce.sinks.base",
    "explain": "sparkonce.spark.explain",
}

__all__ = ["ExactlyOnce", "Guarantee", "KafkaSink", "TwoPhaseCommitSink", "__version__", "explain"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparkonce' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
