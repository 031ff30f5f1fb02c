"""The facts read off a query, as values. Nothing here judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from sparkonce.guarantees import Guarantee


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic's settings, as its broker tells them.

    Attributes:
        retention_ms: ``retention.ms``; -1 keeps records for ever.
        retention_bytes: ``retention.bytes`` of a partition; -1 has no limit.
        cleanup_policy: ``cleanup.policy``: delete, compact, or both.
        transactional: Whether a transactional producer has lately written to it; None if nobody could say.
    """

    retention_ms: int
    retention_bytes: int
    cleanup_policy: str
    transactional: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """A streaming source.

    Attributes:
        format: Spark's short name, lower case; ``kafka`` for example.
        options: With names in lower case. None: it could not be seen which are set.
        where: Its topics, folder or table, for people.
        names: Its topics, where no option says them.
        topics: Kafka's answer for each topic; None if it was not asked.
        unasked: Why it was not, for people.
        by_shape: Whether only the shape of its offsets says which source it is.
    """

    format: str
    options: Mapping[str, str] | None = field(default_factory=dict)
    where: str = ""
    names: tuple[str, ...] = ()
    topics: Mapping[str, TopicFacts] | None = None
    unasked: str = ""
    by_shape: bool = False

    def is_true(self, option: str) -> bool:
        """Tells if an option, named in lower case, is set to true."""
        return (self.options or {}).get(option, "").strip().lower() == "true"

    def is_false(self, option: str) -> bool:
        """Tells if an option, named in lower case, is set to false."""
        return (self.options or {}).get(option, "").strip().lower() == "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFunction:
    """A Python function in a plan, or given to ``foreachBatch``.

    Attributes:
        name: As Spark shows it.
        deterministic: What is declared: False by ``asNondeterministic()``; None if nobody has said.
        suspects: Names used in its code that read a clock or draw randomness; empty if none, or if nobody could look.
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
        functions: Python functions in it.
        unnamed: Whether Spark calls the plan not deterministic for another reason than these.
        shuffles: Whether rows are sent to other tasks by their values.
        merges: Whether partitions are merged by where they lie at the moment (``coalesce``).
        stateful: Stateful operators, by name.
        watermarks: How many it has.
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
        checkpoint: The checkpoint's location; None if there is none, or if it is not known.
        temporary: Whether the checkpoint is one that Spark deletes, because none was set; None if not known.
        continuous: Whether the trigger is continuous.
        interval: The trigger's interval, where it has one.
        async_progress: Whether ``asyncProgressTrackingEnabled`` is set.
        plan: What the plan holds; None if it could not be seen.
        conf: Settings of the session that the rules ask for.
    """

    checkpoint: str | None = None
    temporary: bool | None = None
    continuous: bool = False
    interval: timedelta | None = None
    async_progress: bool = False
    plan: PlanFacts | None = field(default_factory=PlanFacts)
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFacts:
    """The facts about a sink.

    Attributes:
        format: Spark's short name in lower case, or ``sparkonce`` for a sink in an `ExactlyOnce`; empty if not known.
        name: For people.
        options: With names in lower case.
        guarantee: Of a sink of ours; None if it could not be seen.
        promise: What a sink of ours promises readers, if that is less than its guarantee.
        conditions: What a sink of ours says must be true of its system and readers, a sentence each.
        kafka: Whether a sink of ours writes to Kafka.
        checkpoint: Where the `ExactlyOnce` of a sink of ours takes the query's checkpoint to be; None if not known.
        function: What was given to ``foreachBatch`` or ``foreach``; for a sink of ours, what calls its `ExactlyOnce`.
        transaction_timeout: Of a sink of ours: what is set, or what it found out in its last run.
        longest_timeout: ``transaction.max.timeout.ms`` of the broker, if it was asked.
        unasked: Why it was not, for people.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderFacts:
    """The facts about the readers of a sink's rows.

    Attributes:
        word: ``read_committed``, ``read_uncommitted``, ``spark`` or ``files``; None if nobody has said.
        settings: A Kafka consumer's, if they were given.
    """

    word: str | None = None
    settings: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A query from its sources to its readers.

    Attributes:
        query: Its name, id or file, for people.
        sources: At least one.
        engine: See `EngineFacts`.
        sinks: At least one; several are one unit.
        reader: See `ReaderFacts`.
        downtime: The longest that the query may be away; None if nobody has said.
    """

    query: str
    sources: tuple[SourceFacts, ...]
    engine: EngineFacts
    sinks: tuple[SinkFacts, ...]
    reader: ReaderFacts = ReaderFacts()
    downtime: timedelta | None = None
