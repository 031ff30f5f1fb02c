"""The facts of a query, as values, and durations as people write them: ``90s``, ``1 day 12 hours``. Nothing judges."""

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
    """A topic's settings, as its broker reports them.

    Attributes:
        retention_ms: ``retention.ms``; -1 keeps records for ever.
        retention_bytes: ``retention.bytes`` of a partition; -1 has no limit.
        cleanup_policy: ``cleanup.policy``: delete, compact, or both.
        transactional: True if a transactional producer has lately written to it; None if unknown.
    """

    retention_ms: int
    retention_bytes: int
    cleanup_policy: str
    transactional: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSourceFacts(SourceFacts):
    """A source that reads Kafka.

    Attributes:
        names: Its topics, if no option names them.
        topics: The brokers' answer for each topic; None if they were not asked.
        unasked: The reason why they were not, for people.
        by_shape: True if only the shape of its offsets shows that it is Kafka's.
    """

    format: str = "kafka"
    names: tuple[str, ...] = ()
    topics: Mapping[str, TopicFacts] | None = None
    unasked: str = ""
    by_shape: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFunction:
    """A Python function in a plan, or given to ``foreachBatch``.

    Attributes:
        name: Its name, as Spark shows it.
        deterministic: True or False if declared, False by ``asNondeterministic()``; None if not declared.
        suspects: Names in its code that read a clock or draw randomness; empty if none, or if its code is unknown.
    """

    name: str
    deterministic: bool | None = None
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """The parts of a plan that may give other rows when it runs again.

    Attributes:
        random: Expressions that draw anew, by name.
        layout: Expressions that depend on how rows are spread over tasks.
        order: Operators and aggregates that depend on the order in which rows arrive.
        clock: Expressions that read the clock at each run of a batch.
        batch_clock: Expressions that Spark fixes for a batch and keeps in the offset log.
        static: Tables and files that are joined as they are when a batch runs.
        functions: Its Python functions.
        unnamed: True if Spark calls the plan not deterministic for another reason than these.
        shuffles: True if rows are sent to other tasks by their values.
        merges: True if partitions are merged by their present location (``coalesce``).
        stateful: Stateful operators, by name.
        watermarks: The number of its watermarks.
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
    """The facts about how Spark runs the query.

    Attributes:
        checkpoint: The checkpoint's location; None if there is none, or if it is unknown.
        temporary: True if Spark deletes the checkpoint, because none was set; None if unknown.
        continuous: True for a continuous trigger.
        real_time: True for a real-time trigger.
        interval: The trigger's interval, if it has one.
        async_progress: True if ``asyncProgressTrackingEnabled`` is set.
        plan: The facts of the plan; None if unknown.
        conf: The session's settings that the rules need.
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
        name: Its name, for people.
        options: Its options, with names in lower case.
        guarantee: The guarantee of a sink of ours; None if unknown.
        promise: The promise of a sink of ours to readers, if that is less than its guarantee.
        conditions: What a sink of ours requires of its system and readers, a sentence each.
        kafka: True if a sink of ours writes to Kafka.
        checkpoint: The checkpoint that the `ExactlyOnce` of a sink of ours was given; None if unknown.
        function: The function given to ``foreachBatch`` or ``foreach``; for a sink of ours, the caller of its
            `ExactlyOnce`.
        transaction_timeout: The timeout of a sink of ours, as set, or as found in its last run.
        longest_timeout: ``transaction.max.timeout.ms`` of the broker, if it was asked.
        unasked: The reason why it was not, for people.
        refused: For people: what becomes of a row that the system of a sink of ours refuses; empty if unknown.
    """

    format: str
    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    guarantee: Guarantee | None = None
    promise: Guarantee | None = None
    conditions: tuple[str, ...] = ()
    kafka: bool = False
    checkpoint: str | None = None
    function: PythonFunction | None = None
    transaction_timeout: timedelta | None = None
    longest_timeout: timedelta | None = None
    unasked: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderFacts:
    """The facts about the readers of a sink's rows.

    Attributes:
        word: ``read_committed``, ``read_uncommitted``, ``spark`` or ``files``; None if not given.
        settings: A Kafka consumer's settings, if they were given.
    """

    word: str | None = None
    settings: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A query from its sources to its readers.

    Attributes:
        query: Its name, id or file, for people.
        sources: Its sources, at least one.
        engine: See `EngineFacts`.
        sinks: Its sinks, at least one; several are committed as one unit.
        reader: See `ReaderFacts`.
        downtime: The longest downtime of the query; None if not given.
    """

    query: str
    sources: tuple[SourceFacts, ...]
    engine: EngineFacts
    sinks: tuple[SinkFacts, ...]
    reader: ReaderFacts = ReaderFacts()
    downtime: timedelta | None = None


def lower_names(options: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns options in Spark's form: names in lower case, values as text."""
    return {str(name).lower(): str(value) for name, value in (options or {}).items()}


_UNITS = {"ms": 0.001, "s": 1, "second": 1, "m": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}

_UNITS |= {"sec": 1, "min": 60, "w": 604800, "week": 604800, "millisecond": 0.001}

_ONE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


def parse_duration(text: str, what: str) -> timedelta:
    """Returns the duration that a text names; a number alone is milliseconds, as for Spark and Kafka.

    Args:
        text: For example ``2h``, ``7d``, ``10 minutes``.
        what: The name of the setting, for the error.

    Raises:
        ConfigurationError: if it names none.
    """
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
    """Returns the duration in the largest units that fit, two at most."""
    left = round(duration.total_seconds() * 1000)
    parts = []
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}{'s' if count > 1 and unit != 'ms' else ''}")
    return " ".join(parts[:2]) or "0 s"
