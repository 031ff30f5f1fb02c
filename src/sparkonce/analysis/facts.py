"""The facts about a query as values, and durations as people write them, such as ``90s`` or ``1 day 12 hours``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.source import SourceFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic's settings, as reported by its broker.

    Attributes:
        retention_ms: ``retention.ms``; -1 for unlimited.
        retention_bytes: ``retention.bytes`` of a partition; -1 for unlimited.
        cleanup_policy: ``cleanup.policy``: delete, compact, or both.
        transactional: True if a transactional producer has written to it recently; None if unknown.
    """

    retention_ms: int
    retention_bytes: int
    cleanup_policy: str
    transactional: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSourceFacts(SourceFacts):
    """A source that reads Kafka.

    Attributes:
        names: The source's topics, if no option names them.
        topics: The broker's information on each topic; None if the brokers were not queried.
        unasked: Why the brokers were not queried, as a message.
        by_shape: True if only the shape of the offsets suggests that the source reads Kafka.
    """

    format: str = "kafka"
    names: tuple[str, ...] = ()
    topics: Mapping[str, TopicFacts] | None = None
    unasked: str = ""
    by_shape: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFunction:
    """A Python function in a plan.

    Attributes:
        name: The function's name, as Spark shows it.
        deterministic: True or False if declared (False with ``asNondeterministic()``); None if not declared.
    """

    name: str
    deterministic: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """The parts of a plan that may return different rows when it reruns.

    Attributes:
        random: Expressions that generate random values, by name.
        layout: Expressions that depend on how rows are distributed over tasks.
        order: Operators and aggregates that depend on the order in which rows arrive.
        clock: Expressions that read the clock each time a batch runs.
        batch_clock: Expressions that Spark fixes for a batch and stores in the offset log.
        static: Tables and files that are joined as they are when a batch runs.
        functions: The plan's Python functions.
        unnamed: True if Spark considers the plan nondeterministic for any other reason.
        shuffles: True if rows are sent to other tasks by their values.
        merges: True if partitions are merged by their current location (``coalesce``).
        stateful: Stateful operators, by name.
        watermarks: The number of watermarks.
    """

    random: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    clock: tuple[str, ...] = ()
    batch_clock: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    functions: tuple[PythonFunction, ...] = ()
    unnamed: bool = False
    shuffles: bool = False
    merges: bool = False
    stateful: tuple[str, ...] = ()
    watermarks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The facts about Spark's execution of a query.

    Attributes:
        checkpoint: The checkpoint's location; None if there is none, or it is unknown.
        temporary: True if Spark deletes the checkpoint because none was set; None if unknown.
        interval: The trigger's interval, if it has one.
        plan: The facts about the plan; None if unknown.
        conf: The session settings that the rules need.
    """

    checkpoint: str | None = None
    temporary: bool | None = None
    continuous: bool = False
    real_time: bool = False
    interval: timedelta | None = None
    async_progress: bool = False
    plan: PlanFacts | None = field(default_factory=PlanFacts)
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFacts:
    """The facts about a sink.

    Attributes:
        format: Spark's short name in lower case, or ``sparkonce`` for a sink in an `ExactlyOnce`; empty if unknown.
        name: The display name.
        options: The options, with lower-case names.
        guarantee: For our sinks, the guarantee; None if unknown.
        promise: For our sinks, the promise to readers, if it is weaker than the guarantee.
        conditions: For our sinks, the requirements for the system and its readers, one sentence each.
        kafka: For our sinks, True if the sink writes to Kafka.
        checkpoint: For our sinks, the checkpoint passed to `ExactlyOnce`; None if unknown.
        transaction_timeout: For our sinks, the timeout, as set or as found in the last run.
        longest_timeout: The broker's ``transaction.max.timeout.ms``, if the broker was queried.
        unasked: Why the broker was not queried, as a message.
        refused: For our sinks, a message about the fate of a row that the system rejects; empty if unknown.
    """

    format: str
    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    guarantee: Guarantee | None = None
    promise: Guarantee | None = None
    conditions: tuple[str, ...] = ()
    kafka: bool = False
    checkpoint: str | None = None
    transaction_timeout: timedelta | None = None
    longest_timeout: timedelta | None = None
    unasked: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderFacts:
    """The facts about the readers of a sink's rows.

    Attributes:
        word: ``read_committed``, ``read_uncommitted``, ``spark`` or ``files``; None if not specified.
        settings: The settings of a Kafka consumer, if specified.
    """

    word: str | None = None
    settings: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A query from its sources to its readers.

    Attributes:
        query: The query's name, id or file, for display.
        sources: The sources, at least one.
        sinks: The sinks, at least one. Several sinks are committed as one unit.
        downtime: The longest downtime of the query; None if not specified.
    """

    query: str
    sources: tuple[SourceFacts, ...]
    engine: EngineFacts
    sinks: tuple[SinkFacts, ...]
    reader: ReaderFacts = ReaderFacts()
    downtime: timedelta | None = None


def lower_names(options: Mapping[str, Any] | None) -> dict[str, str]:
    """Normalizes options as Spark does: lower-case names, values as strings."""
    return {str(name).lower(): str(value) for name, value in (options or {}).items()}


_UNITS = {"ms": 0.001, "s": 1, "second": 1, "m": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}

_UNITS |= {"sec": 1, "min": 60, "w": 604800, "week": 604800, "millisecond": 0.001}

_ONE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


def parse_duration(text: str, what: str) -> timedelta:
    """Parses a duration such as ``10 minutes``. A number without a unit is in milliseconds, as in Spark and Kafka."""
    said = text.strip().lower()
    if said.isdecimal():
        return timedelta(milliseconds=int(said))
    seconds = 0.0
    for number, unit in _ONE.findall(said):
        if (each := _UNITS.get(unit, _UNITS.get(unit.removesuffix("s")))) is None:
            break
        seconds += float(number) * each
    else:
        if said and not _ONE.sub("", said).strip():
            return timedelta(seconds=seconds)
    raise ConfigurationError(f"{what}={text!r} is not a duration.", next_step="Write it like 90s, 15m, 2h or 7d.")


def say(duration: timedelta) -> str:
    """Formats the duration in its largest units, two at most."""
    left = round(duration.total_seconds() * 1000)
    parts = []
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}{'s' if count > 1 and unit != 'ms' else ''}")
    return " ".join(parts[:2]) or "0 s"
