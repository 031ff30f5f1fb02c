"""Judges the guarantee of each source by its format.

The facts about Spark are from its Structured Streaming guide and its source code (4.0), and those about Kafka from
Kafka's documentation. docs/explain.md lists the facts that tests cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from sparkonce.analysis.facts import KafkaSourceFacts, Pipeline, TopicFacts, parse_duration, say
from sparkonce.analysis.findings import Part, Role
from sparkonce.errors import ConfigurationError
from sparkonce.findings import Finding, doubles, holds, loses, must, note
from sparkonce.source import FILES, SourceFacts, registered

Rule = Callable[[SourceFacts, Pipeline], Iterator[Finding]]

_A_WEEK = timedelta(days=7)


def judge_source(source: SourceFacts, pipeline: Pipeline) -> Part:
    """Returns the source with its level."""
    name = f"{source.format or 'not known'}: {source.where}" if source.where else source.format or "not known"
    return Part.of(Role.SOURCE, name, _judged(source, pipeline))


def _judged(source: SourceFacts, pipeline: Pipeline) -> Iterable[Finding]:
    if isinstance(source, KafkaSourceFacts):
        return _kafka(source, pipeline)
    if (other := registered(source.format)) is not None:
        return other.judge(source, _away(pipeline))
    rule = _files if source.format in FILES else RULES.get(source.format)
    return ALWAYS.get(source.format, _UNKNOWN) if rule is None else rule(source, pipeline)


def _away(pipeline: Pipeline) -> str:
    return "the longest downtime" if pipeline.downtime is None else say(pipeline.downtime)


def _kafka(source: KafkaSourceFacts, pipeline: Pipeline) -> Iterator[Finding]:
    yield holds("offsets are stored before a batch runs, and a replay reads the same records again")
    if source.by_shape and source.topics is None:
        yield must("the source is Kafka: its offsets look like Kafka's, which another source may imitate")
    if source.options is None:
        yield must("failOnDataLoss is not false")
    elif source.is_false("failondataloss"):
        yield loses(
            "failOnDataLoss=false: records that Kafka deleted before they were read are silently skipped",
            "failOnDataLoss=true (the default)",
        )
    yield from _isolation(source)
    yield from _retention(source, pipeline)
    if (source.options or {}).get("startingoffsets", "").strip().lower() in {"", "latest"} and source.options:
        yield note("startingOffsets=latest: records that are in the topic before the first start are not read")


def _isolation(source: KafkaSourceFacts) -> Iterator[Finding]:
    change = "kafka.isolation.level=read_committed"
    known = source.topics or {}
    transactional = ", ".join(topic for topic, facts in known.items() if facts.transactional)
    if source.options is not None and source.options.get("kafka.isolation.level", "").lower() == "read_committed":
        return
    if transactional and source.options is not None:
        yield doubles(
            f"{transactional} is written in transactions, and kafka.isolation.level=read_uncommitted (the default) "
            "also reads rows of those that are aborted and written again",
            change,
        )
    elif transactional:
        yield must(f"{change} (not the default): {transactional} is written in transactions")
    elif not known or any(facts.transactional is None for facts in known.values()):
        yield must(f"its writers use no transactions, or {change} (not the default)")
    else:
        yield must(
            f"its writers use no transactions, or {change} (not the default): its brokers know of none now, and "
            "remember a producer for a day only"
        )


def _retention(source: KafkaSourceFacts, pipeline: Pipeline) -> Iterator[Finding]:
    if source.topics is None:
        asked = f" ({source.unasked})" if source.unasked else ""
        yield must(f"the topic keeps records longer than {_away(pipeline)}{asked}")
        return
    for topic, facts in source.topics.items():
        yield from _retention_of(topic, facts, pipeline.downtime)


def _retention_of(topic: str, facts: TopicFacts, downtime: timedelta | None) -> Iterator[Finding]:
    if "compact" in facts.cleanup_policy:
        yield loses(
            f"{topic} has cleanup.policy={facts.cleanup_policy}: a row that a newer one of its key replaces before it "
            "is read is never seen",
            f"cleanup.policy=delete for {topic}, or accept that the query reads the newest row of each key",
        )
    if "delete" not in facts.cleanup_policy:
        return
    if facts.retention_bytes >= 0:
        yield must(f"{topic} takes longer than the longest downtime to fill retention.bytes={facts.retention_bytes:,}")
    if facts.retention_ms < 0:
        yield holds(f"{topic} keeps records forever (retention.ms={facts.retention_ms})")
        return
    retention = timedelta(milliseconds=facts.retention_ms)
    if downtime is None:
        yield must(f"the query's downtime is never longer than {say(retention)} (retention.ms of {topic})")
    elif retention <= downtime:
        yield loses(
            f"{topic} keeps records for {say(retention)} (retention.ms), and the downtime may be {say(downtime)}: "
            "records deleted meanwhile are never read",
            f"retention.ms of {topic} above {say(downtime)}",
        )
    else:
        yield holds(f"{topic} keeps records for {say(retention)}, longer than the downtime of {say(downtime)}")


def _files(source: SourceFacts, pipeline: Pipeline) -> Iterator[Finding]:
    yield holds("each file that was read is listed in the checkpoint, and a replay reads the same files again")
    yield must("files appear complete, by a rename, and are neither changed nor deleted before they are read")
    if source.options is None:
        yield must("none of ignoreMissingFiles, ignoreCorruptFiles, fileNameOnly, mode=DROPMALFORMED is set")
        return
    for option, what in (("ignoreMissingFiles", "deleted"), ("ignoreCorruptFiles", "damaged")):
        conf = pipeline.engine.conf.get(f"spark.sql.files.{option}", "").lower() == "true"
        if source.is_true(option.lower()) or (conf and not source.is_false(option.lower())):
            yield loses(f"{option}=true: a {what} file is silently skipped", f"{option}=false")
    if source.options.get("mode", "").strip().upper() == "DROPMALFORMED":
        yield loses("mode=DROPMALFORMED: rows that cannot be read are dropped", "mode=PERMISSIVE or FAILFAST")
    if source.is_true("filenameonly"):
        yield loses(
            "fileNameOnly=true: of files of one name in different folders only the first is read", "fileNameOnly=false"
        )
    yield from _file_age(source, pipeline)
    if source.options.get("cleansource", "off").strip().lower() not in {"", "off"}:
        yield note(f"cleanSource={source.options['cleansource']}: files are moved or deleted once they are read")


def _file_age(source: SourceFacts, pipeline: Pipeline) -> Iterator[Finding]:
    options = source.options or {}
    limited = "maxfilespertrigger" in options or "maxbytespertrigger" in options
    plan = pipeline.engine.plan
    if source.is_true("latestfirst"):
        if plan is not None and plan.watermarks and plan.stateful:
            yield loses(
                "latestFirst=true with a watermark: the newest files push it forward, and rows of the older ones are "
                "dropped as late",
                "latestFirst=false",
            )
        if limited:  # Spark ignores maxFileAge in this case
            return
    try:
        age = parse_duration(options.get("maxfileage", "7d"), "maxFileAge")
    except ConfigurationError:  # Spark rejects it when the query starts
        age = _A_WEEK
    late = f"a file whose modification time is {say(age)} or more before the newest one's is never read"
    if age < _A_WEEK:
        yield loses(f"maxFileAge={options['maxfileage']}: {late}", "maxFileAge=7d (the default) or more")
    else:
        yield must(f"no file arrives late: {late} (maxFileAge)")


def _delta(source: SourceFacts, pipeline: Pipeline) -> Iterator[Finding]:
    yield holds("table version and file are stored before a batch runs, and a replay reads the same files again")
    if source.options is None:
        yield must(
            "none of failOnDataLoss=false, skipChangeCommits, ignoreChanges, ignoreFileDeletion, excludeRegex is set"
        )
    if source.is_false("failondataloss"):
        yield loses(
            "failOnDataLoss=false: versions whose log entries were cleaned up before they were read are skipped",
            "failOnDataLoss=true (the default)",
        )
    if source.is_true("skipchangecommits"):
        yield loses(
            "skipChangeCommits=true: a commit that updates or deletes is skipped with all the rows that it adds",
            "readChangeFeed=true, or a table that is only appended to",
        )
    for option in ("ignoreChanges", "ignoreFileDeletion"):  # the second name is an alias of the first
        if source.is_true(option.lower()):
            yield doubles(
                f"{option}=true: an update rewrites files, and rows in them that did not change are delivered again",
                "readChangeFeed=true, or skipChangeCommits=true for a table that is only appended to",
            )
    if excluded := (source.options or {}).get("excluderegex"):
        yield loses(f"excludeRegex={excluded}: rows of files whose path matches are skipped", "no excludeRegex")
    yield must(
        "delta.logRetentionDuration (30 days) and VACUUM's delta.deletedFileRetentionDuration (7 days) are longer "
        f"than {_away(pipeline)}"
    )


def _iceberg(source: SourceFacts, pipeline: Pipeline) -> Iterator[Finding]:
    yield holds("snapshot and position are stored before a batch runs, and a replay reads the same files again")
    if source.options is None:
        yield must("streaming-skip-overwrite-snapshots and streaming-skip-delete-snapshots are not set")
    if source.is_true("streaming-skip-overwrite-snapshots"):
        yield loses(
            "streaming-skip-overwrite-snapshots=true: an overwrite is skipped with all the rows that it adds",
            "streaming-skip-overwrite-snapshots=false, and a table that is only appended to",
        )
    if source.is_true("streaming-skip-delete-snapshots"):
        yield note("streaming-skip-delete-snapshots=true: rows that are deleted later stay in the output")
    yield must(f"snapshots are expired no sooner than after {_away(pipeline)}")


RULES: Mapping[str, Rule] = {"delta": _delta, "iceberg": _iceberg}

_RATE = [
    holds("it computes its rows from the offsets, so a replay gives the same"),
    note("it generates its rows: for tests only"),
]
_SOCKET = [
    loses(
        "a socket cannot be read again: rows received before a restart are gone",
        "put Kafka or files between the sender and the query",
    )
]
_UNKNOWN = [
    loses(
        "an unknown source: it may not read the same rows again after a failure, so nothing is promised",
        "ask its vendor whether it replays from stored offsets",
    )
]
ALWAYS: Mapping[str, Sequence[Finding]] = {
    "memory": [loses("its rows live in the driver's memory and die with it", "read Kafka or files")],
    **dict.fromkeys(("rate", "rate-micro-batch", "ratestream"), _RATE),
    **dict.fromkeys(("socket", "textsocket"), _SOCKET),
}
"""The findings about formats whose options do not matter."""
