"""Turns the argument ``sink=`` into facts, and finds what a Python function uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import CodeType
from typing import Any

from sparkonce.analysis.facts import PythonFunction, SinkFacts, lower_names
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
        return (SinkFacts(format="foreach", name=type(sink).__name__, function=function_facts(sink.process)),)
    elif callable(sink):
        function = function_facts(sink)
        return (SinkFacts(format="foreachbatch", name=function.name, function=function),)
    raise ConfigurationError(
        f"sink={sink!r} is not known.",
        next_step="Give a sink of sparkonce or several, an ExactlyOnce, the name of a Spark format, or a function.",
    )


def function_facts(function: Any) -> PythonFunction:
    """Returns a Python function's name."""
    named = function.func if isinstance(function, partial) else function
    name = getattr(named, "__qualname__", "") or type(named).__name__
    return PythonFunction(name=name.rpartition("<locals>.")[2])


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


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def used_by(function: Any) -> list[Any]:
    """Returns the objects that a function uses: from its closure, a partial's arguments, and its globals."""
    if isinstance(function, partial):
        return [function.func, *function.args, *function.keywords.values(), *used_by(function.func)]
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return []
    held = getattr(function, "__globals__", {})
    values = [_content(cell) for cell in getattr(function, "__closure__", None) or ()]
    return values + [held[name] for each in _nested(code) for name in each.co_names if name in held]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None
