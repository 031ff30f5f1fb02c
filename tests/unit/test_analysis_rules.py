from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

import pytest

from sparkonce.analysis.explanation import judge
from sparkonce.analysis.facts import (
    EngineFacts,
    KafkaSourceFacts,
    Pipeline,
    PlanFacts,
    PythonFunction,
    SinkFacts,
    TopicFacts,
)
from sparkonce.analysis.findings import Part, Role
from sparkonce.analysis.sinks import parse_reader
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.source import SourceFacts

EXACTLY, AT_LEAST, AT_MOST = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE
A_DAY_MS = 86_400_000

KAFKA = KafkaSourceFacts(options={"kafka.isolation.level": "read_committed"})
OURS = SinkFacts(format="sparkonce", name="KafkaSink", guarantee=EXACTLY, kafka=True)
BEST = Pipeline(
    query="best",
    sources=(KAFKA,),
    engine=EngineFacts(checkpoint="/data/checkpoint", temporary=False),
    sinks=(OURS,),
    reader=parse_reader("read_committed"),
)


def facts_of(form: str, options: Mapping[str, str] | None) -> SourceFacts:
    return (KafkaSourceFacts if form == "kafka" else SourceFacts)(format=form, options=options)


def source(form: str, **options: str) -> Part:
    if form == "iceberg":
        options = {name.replace("_", "-"): value for name, value in options.items()}
    found = facts_of(form, options)
    return judge(replace(BEST, sources=(found,))).part(Role.SOURCE)


def topic(downtime: timedelta | None = None, **facts: object) -> Part:
    known = {"retention_ms": -1, "retention_bytes": -1, "cleanup_policy": "delete", "transactional": False, **facts}
    found = replace(KAFKA, topics={"orders": TopicFacts(**known)})
    return judge(replace(BEST, sources=(found,), downtime=downtime)).part(Role.SOURCE)


def sink(form: str, **options: str) -> Part:
    return judge(replace(BEST, sinks=(SinkFacts(format=form, options=options),))).part(Role.SINK)


def engine(plan: PlanFacts | None = None, sinks: tuple[SinkFacts, ...] = (OURS,), **facts: object) -> Part:
    known = replace(BEST.engine, **({} if plan is None else {"plan": plan}), **facts)
    return judge(replace(BEST, engine=known, sinks=sinks)).part(Role.ENGINE)


def reader(given: object, *sinks: SinkFacts) -> Part:
    return judge(replace(BEST, sinks=sinks or (OURS,), reader=parse_reader(given))).part(Role.READER)


def text(part: Part) -> str:
    return " | ".join((*part.reasons, *part.changes, *part.conditions, *part.notes))


def test_the_best_pipeline():
    found = judge(BEST)
    assert found.level is EXACTLY
    assert found.weakest == ()
    assert [part.role.value for part in found.parts] == ["source", "engine", "sink", "reader"]

    found = judge(replace(BEST, sources=(KAFKA, SourceFacts(format="socket")), reader=parse_reader(None)))
    assert found.level is AT_MOST
    assert [part.name for part in found.weakest] == ["socket"]


@pytest.mark.parametrize("missing", ["sources", "sinks"])
def test_what_was_not_seen_is_not_judged(missing):
    with pytest.raises(ConfigurationError, match=f"no {missing[:-1]} was found"):
        judge(replace(BEST, **{missing: ()}))


@pytest.mark.parametrize(
    ("form", "options", "level", "says"),
    [
        ("kafka", {}, EXACTLY, "its writers use no transactions, or kafka.isolation.level=read_committed"),
        ("kafka", {"failondataloss": "FALSE"}, AT_MOST, "failOnDataLoss=true"),
        ("kafka", {"failondataloss": "true"}, EXACTLY, "keeps records longer than the longest downtime"),
        ("json", {}, EXACTLY, "7 days"),
        ("json", {"maxfileage": "2h"}, AT_MOST, "2 hours"),
        ("json", {"maxfileage": "30d"}, EXACTLY, "30 days"),
        ("json", {"maxfileage": "2h", "latestfirst": "true", "maxfilespertrigger": "1"}, EXACTLY, "appear complete"),
        ("text", {"ignoremissingfiles": "true"}, AT_MOST, "ignoreMissingFiles=false"),
        ("parquet", {"ignorecorruptfiles": "true"}, AT_MOST, "ignoreCorruptFiles=false"),
        ("csv", {"mode": "dropMalformed"}, AT_MOST, "mode=PERMISSIVE"),
        ("csv", {"mode": "PERMISSIVE"}, EXACTLY, ""),
        ("text", {"filenameonly": "true"}, AT_MOST, "fileNameOnly=false"),
        ("text", {"cleansource": "delete"}, EXACTLY, "cleanSource=delete"),
        ("rate", {}, EXACTLY, "for tests only"),
        ("rate-micro-batch", {}, EXACTLY, "for tests only"),
        ("socket", {}, AT_MOST, "put Kafka or files between"),
        ("memory", {}, AT_MOST, "driver's memory"),
        ("delta", {}, EXACTLY, "logRetentionDuration"),
        ("delta", {"failondataloss": "false"}, AT_MOST, "cleaned up"),
        ("delta", {"ignorechanges": "true"}, AT_LEAST, "readChangeFeed"),
        ("delta", {"skipchangecommits": "true"}, AT_MOST, "readChangeFeed"),
        ("delta", {"ignorefiledeletion": "true"}, AT_LEAST, "readChangeFeed"),
        ("delta", {"excluderegex": "part-.*"}, AT_MOST, "no excludeRegex"),
        ("iceberg", {}, EXACTLY, "snapshots are expired"),
        ("iceberg", {"streaming_skip_overwrite_snapshots": "true"}, AT_MOST, "skipped with all"),
        ("iceberg", {"streaming_skip_delete_snapshots": "true"}, EXACTLY, "stay in the output"),
        ("pravega_stream", {}, EXACTLY, "its retention policy"),
        ("pravega_stream", {"accept_lost": "H4sI"}, AT_MOST, "accept_lost is removed"),
        ("rabbitmq_queue", {"identify": "message_id"}, EXACTLY, "each message has a unique id"),
        ("rabbitmq_queue", {"identify": "digest"}, EXACTLY, "no two messages are identical"),
        ("rabbitmq_queue", {"acknowledge": "stored"}, EXACTLY, "the checkpoint is not lost"),
        ("rabbitmq_stream", {"source": "{}"}, EXACTLY, "max-age, max-length-bytes"),
        ("rabbitmq_stream", {"source": '{"accept_lost": {}}'}, EXACTLY, "does not fsync streams"),
        ("rabbitmq_stream", {"source": '{"accept_lost": {"orders": 17}}'}, AT_MOST, "accept_lost is removed"),
        ("kinesis", {}, AT_MOST, "an unknown source"),
        ("", {}, AT_MOST, "an unknown source"),
    ],
)
def test_sources(form, options, level, says):
    found = source(form, **options)
    assert found.level is level
    assert says in text(found)
    assert bool(found.changes) is (level is not EXACTLY)


@pytest.mark.parametrize("form", ["kafka", "json", "delta", "iceberg", "pravega_stream", "rabbitmq_stream"])
def test_options_that_cannot_be_seen_are_conditions(form):
    found = judge(replace(BEST, sources=(facts_of(form, None),))).part(Role.SOURCE)
    assert found.level is EXACTLY
    assert any(
        " set" in condition or "is not false" in condition or "is not given" in condition
        for condition in found.conditions
    )


@pytest.mark.parametrize(
    ("facts", "downtime", "level", "says"),
    [
        ({}, None, EXACTLY, "forever"),
        ({"retention_ms": A_DAY_MS}, None, EXACTLY, "downtime is never longer than 1 day"),
        ({"retention_ms": A_DAY_MS}, timedelta(hours=23), EXACTLY, "keeps records for 1 day, longer"),
        ({"retention_ms": A_DAY_MS}, timedelta(days=1), AT_MOST, "retention.ms of orders above 1 day"),
        ({"retention_bytes": 1000}, None, EXACTLY, "retention.bytes=1,000"),
        ({"cleanup_policy": "compact"}, timedelta(days=99), AT_MOST, "cleanup.policy=compact"),
        ({"cleanup_policy": "compact,delete", "retention_ms": A_DAY_MS}, None, AT_MOST, "compact,delete"),
    ],
)
def test_what_a_topic_keeps(facts, downtime, level, says):
    found = topic(downtime, **facts)
    assert found.level is level
    assert says in text(found)


@pytest.mark.parametrize(
    ("transactional", "level", "says"),
    [
        (True, AT_LEAST, "is written in transactions"),
        (False, EXACTLY, "remember a producer for a day only"),
        (None, EXACTLY, "or"),
    ],
)
def test_writers_of_a_topic(transactional, level, says):
    known = TopicFacts(retention_ms=-1, retention_bytes=-1, cleanup_policy="delete", transactional=transactional)
    found = KafkaSourceFacts(options={}, topics={"orders": known})
    part = judge(replace(BEST, sources=(found,))).part(Role.SOURCE)
    assert part.level is level
    assert says in text(part)
    if not transactional:
        assert any("kafka.isolation.level=read_committed" in condition for condition in part.conditions)


def test_settings_that_are_seen_elsewhere():
    known = TopicFacts(retention_ms=-1, retention_bytes=-1, cleanup_policy="delete", transactional=True)
    found = KafkaSourceFacts(options=None, topics={"orders": known})
    part = judge(replace(BEST, sources=(found,))).part(Role.SOURCE)
    assert part.level is EXACTLY
    assert "kafka.isolation.level=read_committed (not the default): orders is written in" in text(part)

    conf = {"spark.sql.files.ignoreMissingFiles": "true"}
    known = replace(BEST, sources=(SourceFacts(format="json"),), engine=replace(BEST.engine, conf=conf))
    assert judge(known).part(Role.SOURCE).level is AT_MOST
    own = SourceFacts(format="json", options={"ignoremissingfiles": "false"})
    assert judge(replace(known, sources=(own,))).part(Role.SOURCE).level is EXACTLY

    found = KafkaSourceFacts(options=MappingProxyType({"startingoffsets": "earliest"}))
    known = replace(BEST, sources=(found,), engine=EngineFacts(temporary=True))
    assert judge(known).part(Role.ENGINE).level is AT_LEAST


@pytest.mark.parametrize(
    ("facts", "level", "says"),
    [
        ({}, EXACTLY, "outlives the driver"),
        ({"checkpoint": None, "temporary": None}, EXACTLY, "its own checkpointLocation"),
        ({"checkpoint": "file:///tmp/job"}, EXACTLY, "emptied at a reboot"),
        ({"checkpoint": "/run/job"}, EXACTLY, "emptied at a reboot"),
        ({"continuous": True}, AT_LEAST, "continuous trigger"),
        ({"real_time": True}, AT_LEAST, "refuses foreachBatch"),
        ({"async_progress": True}, AT_LEAST, "asyncProgressTrackingEnabled=false"),
    ],
)
def test_the_engine(facts, level, says):
    found = engine(**facts)
    assert found.level is level
    assert says in text(found)


@pytest.mark.parametrize(
    ("query", "ours", "level"),
    [
        ("/data/checkpoint", "/data/checkpoint", EXACTLY),
        ("file:///data/checkpoint/", "/data/checkpoint", EXACTLY),
        ("/data/checkpoint", "/data/other", AT_MOST),
        ("hdfs://host/data/checkpoint", "/data/checkpoint", AT_MOST),
        (None, "/data/checkpoint", EXACTLY),
    ],
)
def test_a_checkpoint_of_another_query(query, ours, level):
    found = engine(None, (replace(OURS, checkpoint=ours),), checkpoint=query)
    assert found.level is level
    assert bool(found.changes) is (level is AT_MOST)


@pytest.mark.parametrize(
    ("form", "options", "level"),
    [
        ("kafka", {}, AT_MOST),
        ("kafka", {"startingoffsets": "latest"}, AT_MOST),
        ("kafka", {"startingoffsets": "earliest"}, AT_LEAST),
        ("kafka", {"startingoffsets": '{"orders":{"0":17,"1":-2}}'}, AT_LEAST),
        ("kafka", {"startingoffsets": '{"orders":{"0":17,"1":-1}}'}, AT_MOST),
        ("kafka", {"startingoffsets": '{"orders":{"0":-10}}'}, AT_LEAST),
        ("kafka", {"startingtimestamp": "1000"}, AT_LEAST),
        ("kafka", {"startingoffsetsbytimestamp": '{"orders":{"0":1000}}'}, AT_LEAST),
        ("delta", {}, AT_LEAST),
        ("delta", {"startingversion": "latest"}, AT_MOST),
        ("json", {}, AT_LEAST),
        ("socket", {}, AT_MOST),
    ],
)
def test_without_a_checkpoint(form, options, level):
    known = replace(BEST, sources=(facts_of(form, options),))
    found = judge(replace(known, engine=EngineFacts(temporary=True))).part(Role.ENGINE)
    assert found.level is level
    assert "checkpointLocation" in found.changes[0]


@pytest.mark.parametrize(
    ("plan", "conf", "level"),
    [
        (PlanFacts(watermarks=2), {"multipleWatermarkPolicy": "max"}, AT_MOST),
        (PlanFacts(watermarks=2), {"multipleWatermarkPolicy": "min"}, EXACTLY),
        (PlanFacts(watermarks=1), {"multipleWatermarkPolicy": "max"}, EXACTLY),
        (PlanFacts(stateful=("Join",)), {"stateStore.skipNullsForStreamStreamJoins.enabled": "true"}, AT_MOST),
        (PlanFacts(stateful=("Join",)), {"stateStore.skipNullsForStreamStreamJoins.enabled": "false"}, EXACTLY),
        (PlanFacts(stateful=("Aggregate",)), {"stateStore.skipNullsForStreamStreamJoins.enabled": "true"}, EXACTLY),
    ],
)
def test_settings_of_the_session(plan, conf, level):
    named = {f"spark.sql.streaming.{name}": value for name, value in conf.items()}
    found = engine(plan, conf=named)
    assert found.level is level
    if level is AT_MOST:
        assert next(iter(named)) in found.changes[0]


CHANGING = [
    (PlanFacts(random=("rand",)), "rand returns different values"),
    (PlanFacts(clock=("now",)), "now reads the clock"),
    (PlanFacts(layout=("spark_partition_id",)), "spread over tasks"),
    (PlanFacts(order=("first", "limit")), "first, limit depends on the order"),
    (PlanFacts(static=("the static names",)), "joined as it is"),
    (PlanFacts(unnamed=True), "according to Spark"),
    (PlanFacts(functions=(PythonFunction(name="f", deterministic=False),)), "f is declared not deterministic"),
]


@pytest.mark.parametrize(("plan", "says"), CHANGING)
def test_a_plan_that_changes(plan, says):
    ours = engine(plan)
    assert ours.level is EXACTLY
    assert says in text(ours)
    assert "TransactionLostError" in text(ours)
    for shows in (
        SinkFacts(format="kafka"),
        replace(OURS, guarantee=AT_LEAST),
        replace(OURS, promise=AT_LEAST),
        SinkFacts(format="foreachbatch"),
    ):
        weak = engine(plan, (shows,))
        assert weak.level is AT_LEAST
        assert says in weak.reasons[0]
    table = engine(plan, (SinkFacts(format="delta"),))
    assert table.level is EXACTLY
    assert "one of the two runs, never of both" in text(table)


@pytest.mark.parametrize("sink", [OURS, SinkFacts(format="delta"), SinkFacts(format="parquet")])
@pytest.mark.parametrize("plan", [plan for plan, _ in CHANGING if not plan.order])
def test_a_plan_that_changes_and_has_state(plan, sink):
    weak = engine(replace(plan, stateful=("Aggregate",)), (sink,))
    assert weak.level is AT_LEAST
    assert "the state recomputed after a kill may differ from the rows written" in weak.reasons[0]
    assert "a hash of its key" in weak.changes[0]


def test_state_and_slots():
    assert engine(PlanFacts(stateful=("Deduplicate",), order=("dropDuplicates",))).level is EXACTLY
    assert engine(PlanFacts(stateful=("Aggregate",), batch_clock=("current_timestamp",))).level is EXACTLY

    merged = engine(PlanFacts(merges=True))
    assert merged.level is EXACTLY
    assert any("coalesce" in one and "beyond repair" in one for one in merged.notes)
    assert (
        engine(PlanFacts(merges=True), (SinkFacts(format="parquet"),)).notes
        == engine(PlanFacts(), (SinkFacts(format="parquet"),)).notes
    )

    assert any("SPARK-38160" in each for each in engine(PlanFacts(random=("rand",), shuffles=True)).conditions)
    assert not any("SPARK-38160" in each for each in engine(PlanFacts(random=("rand",))).conditions)


def test_python_functions():
    nobody_said = engine(PlanFacts(functions=(PythonFunction(name="f"),)))
    assert "the Python function f gives the same rows for the same rows" in nobody_said.conditions
    said = engine(PlanFacts(functions=(PythonFunction(name="f", deterministic=True),)))
    assert "f" not in {word for line in (*said.conditions, *said.notes) for word in line.split()}


@pytest.mark.parametrize(
    ("form", "options", "level", "says"),
    [
        ("kafka", {}, AT_LEAST, "sparkonce.ExactlyOnce with KafkaSink"),
        ("kafka", {"kafka.acks": "1"}, AT_MOST, "kafka.acks=all"),
        ("parquet", {}, EXACTLY, "_spark_metadata"),
        ("parquet", {"retention": "7 days"}, EXACTLY, "retention=7 days"),
        ("delta", {}, EXACTLY, "one table version"),
        ("iceberg", {}, EXACTLY, "is not expired"),
        ("foreach", {}, AT_LEAST, "TwoPhaseCommitSink"),
        ("foreachbatch", {}, AT_LEAST, "idempotent by its batch id"),
        ("console", {}, AT_LEAST, "shown again"),
        ("memory", {}, AT_MOST, "die with it"),
        ("noop", {}, AT_MOST, "writes nothing"),
        ("bigtable", {}, AT_MOST, "not known to sparkonce"),
        ("", {}, AT_MOST, "name it"),
    ],
)
def test_sinks_of_spark(form, options, level, says):
    found = sink(form, **options)
    assert found.level is level
    assert says in text(found)


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_our_sinks_have_the_level_that_they_are_run_at(guarantee):
    found = judge(replace(BEST, sinks=(replace(OURS, guarantee=guarantee),)))
    assert found.part(Role.SINK).level is guarantee
    assert found.level is guarantee


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({}, "within transaction.timeout.ms"),
        ({"longest_timeout": timedelta(minutes=15)}, "within 15 minutes"),
        ({"transaction_timeout": timedelta(minutes=1), "longest_timeout": timedelta(minutes=15)}, "within 1 minute"),
        ({"transaction_timeout": timedelta(hours=1), "longest_timeout": timedelta(minutes=15)}, "refused at start"),
        ({"unasked": "nobody answers"}, "nobody answers"),
    ],
)
def test_timeouts(facts, says):
    found = judge(replace(BEST, sinks=(replace(OURS, **facts),))).part(Role.SINK)
    assert found.level is EXACTLY
    assert says in text(found)


def test_timeouts_are_held_against_the_trigger_and_the_downtime():
    short = replace(BEST, sinks=(replace(OURS, transaction_timeout=timedelta(minutes=1)),), downtime=timedelta(hours=1))
    found = judge(replace(short, engine=replace(BEST.engine, interval=timedelta(minutes=2)))).part(Role.SINK)
    assert "the trigger's interval of 2 minutes is longer" in found.notes[0]
    assert "a downtime of 1 hour is longer" in found.notes[1]
    long = replace(short, sinks=(replace(OURS, transaction_timeout=timedelta(hours=2)),))
    assert judge(long).part(Role.SINK).notes == ()


@pytest.mark.parametrize(
    ("given", "level", "says"),
    [
        ("read_committed", EXACTLY, "committed rows only"),
        ({"isolation.level": "READ_COMMITTED"}, EXACTLY, "committed rows only"),
        ({"kafka.isolation.level": "read_committed"}, EXACTLY, "committed rows only"),
        ({"isolation.level": "read_uncommitted"}, AT_LEAST, "that are aborted"),
        ({"group.id": "g"}, AT_LEAST, "librdkafka's alone"),
        ("spark", AT_LEAST, "in the reading query"),
        (None, AT_LEAST, "isolation level is not given"),
    ],
)
def test_readers_of_our_kafka_sink(given, level, says):
    found = reader(given)
    assert found.level is level
    assert says in text(found)


@pytest.mark.parametrize(
    ("form", "given", "level"),
    [
        ("parquet", "spark", EXACTLY),
        ("parquet", None, EXACTLY),
        ("parquet", "files", AT_LEAST),
        ("delta", "files", AT_LEAST),
        ("iceberg", "files", AT_LEAST),
        ("iceberg", None, EXACTLY),
        ("kafka", "read_uncommitted", EXACTLY),
        ("foreachbatch", None, EXACTLY),
        ("", None, EXACTLY),
    ],
)
def test_readers_of_other_sinks(form, given, level):
    assert reader(given, SinkFacts(format=form)).level is level


@pytest.mark.parametrize(
    ("form", "given"),
    [
        ("parquet", "read_committed"),
        ("delta", "read_committed"),
        ("iceberg", "read_uncommitted"),
        ("json", {"group.id": "g"}),
        ("kafka", "files"),
        ("sparkonce", "files"),
    ],
)
def test_readers_that_do_not_fit_the_sink(form, given):
    found = reader(given, OURS if form == "sparkonce" else SinkFacts(format=form))
    assert found.level is AT_MOST
    assert "does not read what this sink" in found.reasons[0]
    assert "read_uncommitted:" not in text(found)


@pytest.mark.parametrize("given", [None, "spark"])
def test_readers_of_a_folder_without_its_log(given):
    conf = {"spark.sql.streaming.fileStreamSink.ignoreMetadata": "true"}
    known = replace(BEST, sinks=(SinkFacts(format="parquet"),), engine=replace(BEST.engine, conf=conf))
    assert judge(replace(known, reader=parse_reader(given))).part(Role.READER).level is AT_LEAST


@pytest.mark.parametrize("given", ["read_everything", {"isolation.level": "serializable"}])
def test_a_reader_that_is_not_understood(given):
    with pytest.raises(ConfigurationError) as told:
        parse_reader(given)
    assert told.value.next_step
