"""Judges what a sink's readers see, which is most often forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkonce.analysis.facts import Pipeline, ReaderFacts, SinkFacts
from sparkonce.analysis.findings import Part, Role
from sparkonce.analysis.sinks import OURS
from sparkonce.errors import ConfigurationError
from sparkonce.findings import Finding, doubles, holds, loses, must, note
from sparkonce.guarantees import Guarantee
from sparkonce.source import FILES

IGNORE_METADATA = "spark.sql.streaming.fileStreamSink.ignoreMetadata"
COMMITTED, UNCOMMITTED, SPARK, BARE_FILES = "read_committed", "read_uncommitted", "spark", "files"
_ISOLATION = ("isolation.level", "kafka.isolation.level", "isolation_level")
_SET_COMMITTED = "isolation.level=read_committed in every reader"


def parse_reader(reader: str | Mapping[str, object] | None) -> ReaderFacts:
    """Returns the facts in what a user says about the readers.

    Args:
        reader: A Kafka consumer's settings under Java's, librdkafka's or Spark's names, or one of the words
            ``read_committed``, ``read_uncommitted``, ``spark`` (Spark reads the folder or table) and ``files``
            (anything that lists the files). None for the most usual reader of the sink.

    Raises:
        ConfigurationError: if the word or the isolation level is another one.
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
    of_kafka, of_files = sink.kafka or sink.format == "kafka", sink.format in FILES | {"delta", "iceberg"}
    if (of_kafka and reader.word == BARE_FILES) or (of_files and _is_of_kafka(reader)):
        return _part("not fitting", reader, _not_fitting("files" if of_kafka else "a Kafka consumer", sink))
    if sink.format == OURS and sink.kafka and sink.guarantee in {Guarantee.EXACTLY_ONCE, None}:
        return _part("kafka consumer", reader, _transactions(reader))
    if sink.format in FILES:
        return _part("folder", reader, _folder(reader, pipeline.engine.conf))
    if sink.format in {"delta", "iceberg"}:
        return _part("table", reader, _table(sink, reader))
    return _part("any", reader, _plain(sink))


def _is_of_kafka(reader: ReaderFacts) -> bool:
    return reader.word in {COMMITTED, UNCOMMITTED} or reader.settings is not None


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
        yield note("an open transaction holds such a reader back until it ends")
    elif reader.word is None and reader.settings is None:
        yield doubles(
            "its isolation level is not given, and Kafka's default, read_uncommitted, sees aborted rows",
            _SET_COMMITTED,
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
            f"{IGNORE_METADATA}=true: Spark lists the files, too, with those of a batch that failed half-way",
            f"{IGNORE_METADATA}=false (the default)",
        )
    if reader.word == BARE_FILES:
        yield doubles(
            "it lists the files: those of a batch that failed half-way, beside those of its second run",
            "read the folder with Spark, by its own path (not a pattern), which follows _spark_metadata",
        )
        return
    yield holds("Spark reads the files that _spark_metadata lists")
    if reader.word is None:
        yield must("the reader is Spark, by the folder's path; other tools and path patterns list the files themselves")


def _table(sink: SinkFacts, reader: ReaderFacts) -> Iterator[Finding]:
    if reader.word == BARE_FILES:
        yield doubles(
            "it lists the files: also those that no version of the table holds, or holds no longer",
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
