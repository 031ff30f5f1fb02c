"""Judges the guarantees of sinks by their formats, and those of their readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sparkonce.analysis.facts import Pipeline, ReaderFacts, SinkFacts, say
from sparkonce.analysis.findings import Part, Role
from sparkonce.errors import ConfigurationError
from sparkonce.findings import Finding, doubles, holds, loses, must, note
from sparkonce.guarantees import Guarantee
from sparkonce.source import FILES

Rule = Callable[[SinkFacts, Pipeline], Iterator[Finding]]

OURS = "sparkonce"

_USE_OURS = "write through sparkonce.ExactlyOnce, with KafkaSink or a TwoPhaseCommitSink for the system"


def replays_show(sink: SinkFacts) -> bool:
    """Returns True if readers see the first run's rows next to a replay's."""
    if sink.format == OURS:
        return Guarantee.AT_LEAST_ONCE in {sink.guarantee, sink.promise}
    return sink.format in {"kafka", "foreach", "foreachbatch", "console"}


def judge_sink(sink: SinkFacts, pipeline: Pipeline) -> Part:
    """Returns the sink with its level."""
    rule = _files if sink.format in FILES else RULES.get(sink.format, _unknown)
    form = {"": "not known", "foreachbatch": "foreachBatch"}.get(sink.format, sink.format)
    findings = ALWAYS.get(sink.format) or rule(sink, pipeline)
    return Part.of(Role.SINK, f"{form}: {sink.name}" if sink.name else form, findings)


def _ours(sink: SinkFacts, pipeline: Pipeline) -> Iterator[Finding]:
    if sink.guarantee is None:
        yield loses(
            "the decision log names no transactions of it, so it is not EXACTLY_ONCE, or has written nothing yet",
            "guarantee=Guarantee.EXACTLY_ONCE; or explain the query itself, which shows its guarantee",
        )
        return
    if sink.guarantee is Guarantee.AT_MOST_ONCE:
        yield loses(
            "guarantee=AT_MOST_ONCE: a batch is decided before it is written, and never written again",
            "guarantee=Guarantee.EXACTLY_ONCE",
        )
        return
    yield from map(must, sink.conditions)
    if sink.guarantee is Guarantee.AT_LEAST_ONCE:
        yield doubles(
            "guarantee=AT_LEAST_ONCE: rows are visible immediately, and a failed batch is written again",
            "guarantee=Guarantee.EXACTLY_ONCE",
        )
        return
    yield holds("two-phase commit: a batch's rows become visible once it is decided, or not at all")
    if sink.refused:
        yield note(sink.refused)
    if sink.promise is Guarantee.AT_LEAST_ONCE:
        yield doubles(
            "its system cannot tell a commit that is repeated after a failure from the first one, and may apply it "
            "twice",
            "keep the transaction's id with the rows when they are applied, or make that idempotent, and declare it",
        )
    yield from _timeouts(sink, pipeline)


def _timeouts(sink: SinkFacts, pipeline: Pipeline) -> Iterator[Finding]:
    timeout, longest = sink.transaction_timeout, sink.longest_timeout
    if sink.unasked:
        yield note(sink.unasked)
    if timeout is not None and longest is not None and timeout > longest:
        yield note(
            f"transaction.timeout.ms is {say(timeout)} and the broker's transaction.max.timeout.ms {say(longest)}: the "
            "query is refused at start"
        )
        return
    timeout = timeout or longest
    if timeout is None:
        if sink.kafka:
            yield must("every batch is done within transaction.timeout.ms; a longer one is written a second time")
        return
    yield must(
        f"every batch is done within {say(timeout)} (transaction timeout); a longer one is written a second time"
    )
    interval = pipeline.engine.interval
    if interval is not None and interval > timeout:
        yield note(
            f"the trigger's interval of {say(interval)} is longer than the transaction timeout of {say(timeout)}: a "
            "batch that takes its interval cannot be committed"
        )
    if pipeline.downtime is not None and pipeline.downtime >= timeout:
        yield note(
            f"a downtime of {say(pipeline.downtime)} is longer than the transaction timeout of {say(timeout)}: a batch "
            "that was decided and not yet committed is lost by its system, and written again from Spark's replay"
        )


def _kafka(sink: SinkFacts, _: Pipeline) -> Iterator[Finding]:
    acks = sink.options.get("kafka.acks", "all").strip().lower()
    if acks not in {"all", "-1"}:
        yield loses(f"kafka.acks={acks}: rows are lost with a broker that had not yet copied them", "kafka.acks=all")
    yield doubles(
        "Spark's Kafka sink writes without transactions: a batch that fails or is replayed is written again",
        "sparkonce.ExactlyOnce with KafkaSink",
    )


def _files(sink: SinkFacts, _: Pipeline) -> Iterator[Finding]:
    yield holds("a batch's files are entered in the folder's _spark_metadata in one step, and only once")
    yield must("_spark_metadata stays with the folder, and one query alone writes to it")
    if "retention" in sink.options:
        yield must(f"readers come within retention={sink.options['retention']}: older files leave the list")


def _foreach_batch(sink: SinkFacts, _: Pipeline) -> Iterator[Finding]:
    yield doubles(
        f"foreachBatch calls {sink.name or 'the function'} again for a batch that failed or is replayed, with what it "
        "wrote before still there",
        f"{_USE_OURS}; or make it idempotent by its batch id",
    )


def _unknown(sink: SinkFacts, _: Pipeline) -> Iterator[Finding]:
    if sink.format:
        says = "not known to sparkonce: it may lose or duplicate a batch after a failure, so nothing is promised"
        yield loses(says, f"ask its vendor; or {_USE_OURS}")
    else:
        yield loses("the sink cannot be seen from here, so nothing is promised", "name it")


RULES: Mapping[str, Rule] = {OURS: _ours, "foreachbatch": _foreach_batch, "kafka": _kafka}

_SAME_AGE = must("checkpoint and table belong together: with an older checkpoint, new batches are skipped as old ones")

ALWAYS: Mapping[str, Sequence[Finding]] = {
    "console": [doubles("a replayed batch is shown again", "write to Kafka, files or a table")],
    "delta": [
        holds(
            "a batch is one table version, with the query's id and the batch in it; a replay finds it and is skipped"
        ),
        _SAME_AGE,
    ],
    "foreach": [doubles("foreach writes row by row, and a retried task starts again from its first row", _USE_OURS)],
    "iceberg": [
        holds("a batch is one snapshot, with the query's id and the epoch in it; a replay finds it and is skipped"),
        must("the snapshot of the query's last batch is not expired while the query is down"),
        _SAME_AGE,
    ],
    "memory": [loses("rows live in the driver's memory and die with it", "write to Kafka, files or a table")],
    "noop": [loses("it writes nothing", "write to Kafka, files or a table")],
}
"""The findings about formats whose options do not matter."""

IGNORE_METADATA = "spark.sql.streaming.fileStreamSink.ignoreMetadata"

COMMITTED, UNCOMMITTED, SPARK, BARE_FILES = "read_committed", "read_uncommitted", "spark", "files"

_ISOLATION = ("isolation.level", "kafka.isolation.level", "isolation_level")

_SET_COMMITTED = "isolation.level=read_committed in every reader"


def parse_reader(reader: str | Mapping[str, object] | None) -> ReaderFacts:
    """Parses what a user specifies about the readers.

    Args:
        reader: A Kafka consumer's settings under Java's, librdkafka's or Spark's names, or one of the words
            ``read_committed``, ``read_uncommitted``, ``spark`` (Spark reads the folder or table) and ``files``
            (anything that lists the files). None for the sink's most common reader.

    Raises:
        ConfigurationError: If ``reader`` is any other word, or has an unknown isolation level.
    """
    if reader is None:
        return ReaderFacts()
    if isinstance(reader, str):
        word = reader.strip().lower()
        if word not in {COMMITTED, UNCOMMITTED, SPARK, BARE_FILES}:
            raise ConfigurationError(
                f"reader={reader!r} is not known.",
                next_step="Give read_committed, read_uncommitted, spark or files, or a Kafka consumer's settings.",
            )
        return ReaderFacts(word=word)
    settings = {str(name): str(value) for name, value in reader.items()}
    levels = {settings[name].strip().lower() for name in _ISOLATION if name in settings}
    if not levels:
        return ReaderFacts(settings=settings)
    if len(levels) > 1 or not levels <= {COMMITTED, UNCOMMITTED}:
        raise ConfigurationError(
            f"reader={settings!r}: isolation.level is {COMMITTED} or {UNCOMMITTED}.", next_step="Correct it."
        )
    return ReaderFacts(word=levels.pop(), settings=settings)


def judge_reader(sink: SinkFacts, pipeline: Pipeline) -> Part:
    """Returns the readers of one sink, with their level."""
    reader = pipeline.reader
    is_consumer = reader.word in {COMMITTED, UNCOMMITTED} or reader.settings is not None
    of_kafka, of_files = sink.kafka or sink.format == "kafka", sink.format in FILES | {"delta", "iceberg"}
    if (of_kafka and reader.word == BARE_FILES) or (of_files and is_consumer):
        return _part("not fitting", reader, _not_fitting("files" if of_kafka else "a Kafka consumer", sink))
    if sink.format == OURS and sink.kafka and sink.guarantee in {Guarantee.EXACTLY_ONCE, None}:
        return _part("kafka consumer", reader, _transactions(reader))
    if sink.format in FILES:
        return _part("folder", reader, _folder(reader, pipeline.engine.conf))
    if sink.format in {"delta", "iceberg"}:
        return _part("table", reader, _table(sink, reader))
    return _part("any", reader, _plain(sink))


def _not_fitting(what: str, sink: SinkFacts) -> Iterator[Finding]:
    yield loses(
        f"{what}: such a reader does not read what this sink ({sink.name or sink.format}) writes, so its "
        "real readers are not judged",
        "say read_committed, read_uncommitted or spark" if what == "files" else "say spark or files",
    )


def _part(what: str, reader: ReaderFacts, findings: Iterator[Finding]) -> Part:
    said = reader.word or ("as given" if reader.settings is not None else "not said")
    return Part.of(Role.READER, f"{what}: {said}" if what != "any" else "any", findings)


def _transactions(reader: ReaderFacts) -> Iterator[Finding]:
    if reader.word == COMMITTED:
        yield holds("isolation.level=read_committed: sees committed rows only")
        yield note("an open transaction blocks such a reader until it ends")
    elif reader.word is None and reader.settings is None:
        yield doubles(
            "its isolation level is not given, and Kafka's default, read_uncommitted, sees aborted rows", _SET_COMMITTED
        )
    elif reader.word is None:
        yield doubles(
            "isolation.level is not set: the default of Java clients, of Spark and of the console consumer is "
            "read_uncommitted, which sees aborted rows (librdkafka's alone is read_committed)",
            _SET_COMMITTED,
        )
    elif reader.word == SPARK:
        yield doubles(
            "Spark's Kafka source reads read_uncommitted unless it is set, and sees aborted rows",
            "kafka.isolation.level=read_committed in the reading query",
        )
    else:
        yield doubles("isolation.level=read_uncommitted: sees rows of transactions that are aborted", _SET_COMMITTED)


def _folder(reader: ReaderFacts, conf: Mapping[str, str]) -> Iterator[Finding]:
    if conf.get(IGNORE_METADATA, "").strip().lower() == "true":
        yield doubles(
            f"{IGNORE_METADATA}=true: Spark lists the files, too, with those of a batch that failed halfway",
            f"{IGNORE_METADATA}=false (the default)",
        )
    if reader.word == BARE_FILES:
        yield doubles(
            "it lists the files: those of a batch that failed halfway, along with those of its second run",
            "read the folder with Spark, by its own path (not a pattern), which follows _spark_metadata",
        )
        return
    yield holds("Spark reads the files that _spark_metadata lists")
    if reader.word is None:
        yield must("the reader is Spark, by the folder's path; other tools and path patterns list the files themselves")


def _table(sink: SinkFacts, reader: ReaderFacts) -> Iterator[Finding]:
    if reader.word == BARE_FILES:
        yield doubles(
            "it lists the files: including those that no version of the table contains, or no longer contains",
            f"read the {sink.format} table",
        )
        return
    yield holds(f"it reads a version of the {sink.format} table, which holds whole batches")


def _plain(sink: SinkFacts) -> Iterator[Finding]:
    if sink.format == OURS and not sink.kafka and sink.guarantee is Guarantee.EXACTLY_ONCE:
        yield holds("sees committed rows only, as far as the system itself hides the others")
    elif not sink.format:
        yield must("it sees committed rows only: the sink cannot be seen from here")
    else:
        yield holds("sees what the sink wrote, no more and no less")
