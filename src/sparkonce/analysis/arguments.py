"""Turns the argument ``sink=`` into facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from sparkonce.analysis.facts import SinkFacts, lower_names
from sparkonce.analysis.sinks import OURS
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import TwoPhaseCommitSink

_TIMEOUT = "transaction.timeout.ms"


def sink_facts(sink: Any, options: Mapping[str, Any] | None = None) -> tuple[SinkFacts, ...]:
    """Returns the facts about a sink.

    Args:
        sink: One or several of our sinks; a Spark format such as ``kafka``; a function for ``foreachBatch``; or an
            object with ``process`` for ``foreach``.
        options: The options of the stream writer.

    Raises:
        ConfigurationError: If ``sink`` is none of these.
    """
    if isinstance(sink, TwoPhaseCommitSink):
        return (_of_ours(sink),)
    if isinstance(sink, Sequence) and not isinstance(sink, str) and sink:
        if all(isinstance(each, TwoPhaseCommitSink) for each in sink):
            return tuple(_of_ours(each) for each in sink)
    elif isinstance(sink, str) and sink.strip():
        known = lower_names(options)
        where = known.get("topic") or known.get("path") or known.get("dbtable") or ""
        return (SinkFacts(format=sink.strip().lower().replace("_", ""), name=where, options=known),)
    elif hasattr(sink, "process"):
        return (SinkFacts(format="foreach", name=type(sink).__name__),)
    elif callable(sink):
        named = sink.func if isinstance(sink, partial) else sink
        name = getattr(named, "__qualname__", "") or type(named).__name__
        return (SinkFacts(format="foreachbatch", name=name.rpartition("<locals>.")[2]),)
    raise ConfigurationError(
        f"sink={sink!r} is not known.",
        next_step="Give a sink of sparkonce or several, an ExactlyOnce, the name of a Spark format, or a function.",
    )


def kafka_settings(sink: TwoPhaseCommitSink) -> Mapping[str, Any] | None:
    """Returns the settings to use to query a sink's brokers; None for a sink without Kafka transactions."""
    return sink.kafka_settings if sink.guarantee is Guarantee.EXACTLY_ONCE else None


def _of_ours(sink: TwoPhaseCommitSink) -> SinkFacts:
    timeout = (sink.kafka_settings or {}).get(_TIMEOUT)
    return SinkFacts(
        format=OURS,
        name=f"{type(sink).__name__} {sink.target_name or sink.name}",
        guarantee=sink.guarantee,
        promise=None if sink.promise is sink.guarantee else sink.promise,
        conditions=tuple(sink.conditions()),
        kafka=sink.kafka_settings is not None,
        transaction_timeout=None if timeout is None else timedelta(milliseconds=int(timeout)),
    )
