"""``explain`` and ``sparkonce explain`` on real plans, writers, queries, checkpoints and topics.

The rules themselves are in unit/test_analysis_rules.py: this file checks that Spark's objects reach them. Replays prove
the most surprising verdicts.
"""

from __future__ import annotations

import json
import random
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import IntegerType, StringType
from typer.testing import CliRunner, Result

from spark.harness import new_name
from spark.in_process import MARKS, Stream, ended
from sparkonce import ExactlyOnce, Guarantee, KafkaSink, explain
from sparkonce.analysis.explanation import Explanation
from sparkonce.analysis.facts import PlanFacts
from sparkonce.analysis.findings import Role
from sparkonce.cli.main import app
from sparkonce.errors import ConfigurationError
from sparkonce.spark.explain.queries import of_query, of_writer, plan_facts
from sparkonce.spark.plans import format_of, source_facts
from sparkonce_lab.kafka import create_topic, produce, read_committed
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

# Workers do not have the tests on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = [f"row-{number:03d}" for number in range(60)]


def run(writer: Any) -> StreamingQuery:
    """Starts the writer on everything that its source has now, and waits for the end."""
    return ended(writer.trigger(availableNow=True).start())


def forget_commit(checkpoint: Path) -> None:
    """Simulates a driver that died after its sink committed the last batch, and before Spark recorded that."""
    commits = checkpoint / "commits"
    newest = max((entry for entry in commits.iterdir() if entry.name.isdigit()), key=lambda entry: int(entry.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)


def write_lines(folder: Path, name: str, lines: Iterable[str]) -> Path:
    """Writes a text file for a streaming source. It is created elsewhere and renamed into place."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder.parent / f".{folder.name}-{name}"
    made.write_text("".join(f"{line}\n" for line in lines))
    return made.rename(folder / name)


def read_lines(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    return spark.readStream.format("text").options(**options).load(str(folder))


class Batches:
    """A function for ``foreachBatch`` that keeps its rows, like a system without transactions.

    Attributes:
        taken: The batch and the rows of each call.
    """

    def __init__(self) -> None:
        self.taken: list[tuple[int, list[Any]]] = []

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self.taken.append((batch, sorted(tuple(row) for row in rows.collect())))


# --- verdicts ---------------------------------------------------------------------------------------------------------


def check(explanation: Explanation, level: str, says: str) -> None:
    """Checks the level and the roles of the weakest parts, and that one of these parts contains the given text."""
    roles = ", ".join(dict.fromkeys(part.role.value for part in explanation.weakest))
    found = f"{explanation.level.value} ({roles})" if roles else explanation.level.value
    assert found == level, f"\n{explanation}"
    parts = explanation.weakest or explanation.parts
    texts = [text for part in parts for text in (*part.reasons, *part.conditions, *part.notes)]
    assert any(says in text for text in texts), f"{says!r} is missing:\n{explanation}"
    assert all(part.changes for part in explanation.weakest), f"no change is named:\n{explanation}"


@pytest.fixture
def lines(spark, tmp_path) -> DataFrame:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    return read_lines(spark, tmp_path / "in")


def test_files(spark, lines, tmp_path):
    def writer(rows: DataFrame) -> Any:
        made = rows.writeStream.format("text").option("path", str(tmp_path / "out"))
        return made.option("checkpointLocation", str(tmp_path / "checkpoint"))

    check(explain(writer(lines)), "exactly-once", "the reader is Spark")
    check(explain(writer(lines), reader="files"), "at-least-once (reader)", "lists the files")
    young = read_lines(spark, tmp_path / "in", maxFileAge="1h")
    check(explain(writer(young)), "at-most-once (source)", "maxFileAge=1h")


def length(text: str) -> int:
    return len(text)


def hidden() -> str:
    return str(uuid.UUID(bytes=random.randbytes(16)))


# This function is defined at import time. Without useArrow, PySpark would then query the JVM that was used last, which
# may be gone.
measured = F.udf(length, IntegerType(), useArrow=False)
declared = F.udf(lambda _: hidden(), StringType(), useArrow=False).asNondeterministic()

CHANGING: dict[str, Callable[[], Column]] = {
    "rand": lambda: F.rand(42),  # a fixed seed does not help, since Spark uses another one for each batch
    "uuid": lambda: F.expr("uuid()"),
    "shuffle": lambda: F.shuffle(F.array(*[F.lit(each) for each in range(30)])),
    "now": lambda: F.expr("now()"),
    "is declared not deterministic": lambda: declared("value"),
}
STABLE: dict[str, Callable[[], Column]] = {
    "in the right place": lambda: F.current_timestamp(),
    "in the right place, localtimestamp": lambda: F.localtimestamp(),
    "length gives the same rows": lambda: measured("value"),
    "": lambda: F.input_file_name(),
}


def test_which_values_a_replay_changes_and_that_it_is_said(lines, tmp_path):
    """The driver dies after the function has written, and before Spark's commit."""
    values = [*CHANGING.values(), *STABLE.values()]
    plan = lines.select("value", *[make().alias(f"c{number}") for number, make in enumerate(values)])
    batches = Batches()
    writer = plan.writeStream.foreachBatch(batches).option("checkpointLocation", str(tmp_path / "checkpoint"))
    run(writer)
    forget_commit(tmp_path / "checkpoint")
    run(writer)
    (_, first), (_, second) = batches.taken
    assert [row[0] for row in first] == [row[0] for row in second] == ROWS
    repeated = [
        [row[1 + number] for row in first] == [row[1 + number] for row in second] for number in range(len(values))
    ]
    assert repeated == [False] * len(CHANGING) + [True] * len(STABLE)

    for says, make in CHANGING.items():
        explanation = explain(lines.select("value", make()), Batches(), ask=False)
        check(explanation, "at-least-once (engine, sink)", says)
    for says, make in STABLE.items():
        explanation = explain(lines.select("value", make()), Batches(), ask=False)
        check(explanation, "at-least-once (sink)", "foreachBatch")
        engine = explanation.part(Role.ENGINE)
        assert any(says.partition(",")[0] in text for text in (*engine.conditions, *engine.notes))


def test_a_delta_table(tables, tmp_path):
    source = str(tmp_path / "source")
    tables.createDataFrame([("row",)], "value string").write.format("delta").save(source)

    def writer(**options: str) -> Any:
        plan = tables.readStream.format("delta").options(**options).load(source)
        made = plan.writeStream.format("delta").option("path", str(tmp_path / "table"))
        return made.option("checkpointLocation", str(tmp_path / "checkpoint"))

    check(explain(writer()), "exactly-once", "one table version")
    check(explain(writer(), reader="files"), "at-least-once (reader)", "no version")
    check(explain(writer(skipChangeCommits="true")), "at-most-once (source)", "skipChangeCommits=true")


def test_an_iceberg_table(tables, lines, tmp_path):
    table = f"ice.db.{new_name('t').replace('-', '_')}"
    tables.sql(f"create table {table} (value string) using iceberg")
    skipping = tables.readStream.option("streaming-skip-overwrite-snapshots", "true").table(table)
    check(explain(skipping, "delta"), "at-most-once (source)", "streaming-skip-overwrite-snapshots=true")
    writer = lines.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    check(explain(writer, "iceberg"), "exactly-once", "one snapshot")


def topic(kafka: Cluster, **config: str) -> str:
    name = new_name("topic")
    create_topic(kafka.bootstrap, name, 1, config)
    return name


def read(spark: SparkSession, kafka: Cluster, name: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    reader = reader.option("subscribe", name).option("startingOffsets", "earliest").options(**options)
    return reader.load().selectExpr("cast(value as string) as value")


def test_a_kafka_source(spark, kafka):
    rows = read(spark, kafka, topic(kafka, **{"retention.ms": "3600000"}))
    check(explain(rows, "delta", downtime="30 minutes"), "exactly-once", "keeps records for 1 hour")
    check(explain(rows, "delta", downtime="2h"), "at-most-once (source)", "keeps records for 1 hour (retention.ms)")
    compacted = read(spark, kafka, topic(kafka, **{"cleanup.policy": "compact"}), failOnDataLoss="false")
    for says in ("cleanup.policy=compact", "failOnDataLoss=false"):
        check(explain(compacted, "delta"), "at-most-once (source)", says)


def test_a_topic_that_is_written_in_transactions(spark, kafka):
    from confluent_kafka import Producer

    name = topic(kafka)
    check(explain(read(spark, kafka, name), "delta"), "exactly-once", "")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": new_name("id")})
    producer.init_transactions(60)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(name, b"row")
        assert producer.flush(60) == 0
        end(60)
    check(explain(read(spark, kafka, name), "delta"), "at-least-once (source)", f"{name} is written in transactions")
    committed = read(spark, kafka, name, **{"kafka.isolation.level": "read_committed"})
    check(explain(committed, "delta"), "exactly-once", "")
    values = {"read_uncommitted": 2, "read_committed": 1}
    for isolation, count in values.items():
        batch = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap).option("subscribe", name)
        assert batch.option("kafka.isolation.level", isolation).load().count() == count


def test_sparks_kafka_sink_writes_a_batch_again(spark, kafka, tmp_path):
    source, target = topic(kafka), topic(kafka)
    produce(kafka.bootstrap, source, [{"value": row.encode()} for row in ROWS])

    def writer(**options: str) -> Any:
        made = read(spark, kafka, source).writeStream.format("kafka").option("topic", target).options(**options)
        made = made.option("kafka.bootstrap.servers", kafka.bootstrap)
        return made.option("checkpointLocation", str(tmp_path / "checkpoint"))

    check(explain(writer(), reader="read_committed"), "at-least-once (sink)", "without transactions")
    later = writer(asyncProgressTrackingEnabled="true")
    check(explain(later), "at-least-once (engine, sink)", "asyncProgressTrackingEnabled=true")
    check(explain(writer().trigger(continuous="1 hour")), "at-least-once (engine, sink)", "continuous trigger")
    latest = read(spark, kafka, source, startingOffsets="latest").writeStream.foreachBatch(Batches())
    check(explain(latest), "at-most-once (engine)", "starts at the end")

    run(writer())
    forget_commit(tmp_path / "checkpoint")
    run(writer())
    found = Counter((record.value or b"").decode() for record in read_committed(kafka.bootstrap, target))
    assert found == Counter(ROWS * 2)


def test_our_kafka_sink(lines, kafka):
    settings = {"bootstrap.servers": kafka.bootstrap, "transaction.timeout.ms": "10000"}
    once = ExactlyOnce(KafkaSink(settings, topic="orders"), checkpoint="/data/checkpoint")
    check(explain(lines, once), "at-least-once (reader)", "its isolation level is not given")
    told = explain(lines, once, reader="read_committed", downtime="1h")
    check(told, "exactly-once", "every batch is done within 10 seconds")
    check(told, "exactly-once", "written again from Spark's replay")
    weaker = KafkaSink(settings, topic="orders", guarantee=Guarantee.AT_MOST_ONCE)
    check(explain(lines, weaker), "at-most-once (sink)", "AT_MOST_ONCE")
    longer = KafkaSink({**settings, "transaction.timeout.ms": str(86_400_000)}, topic="orders")
    check(explain(lines, longer, reader="read_committed"), "exactly-once", "refused at start")


# --- reading, before anything is judged -------------------------------------------------------------------------------


@pytest.fixture
def rates(spark) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", 3).load()


def facts(df: DataFrame, stable: Any = False) -> PlanFacts:
    return plan_facts(df._jdf.queryExecution().analyzed(), stable)


def test_sources_and_their_options(spark, rates, tmp_path):
    write_lines(tmp_path / "in", "a.txt", ROWS)
    lines = read_lines(spark, tmp_path / "in", latestFirst="true")
    kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "nowhere:9092")
    topic = kafka.option("subscribe", "orders").option("failOnDataLoss", "false").load()
    union = lines.union(topic.selectExpr("cast(value as string)")).union(rates.selectExpr("cast(value as string)"))
    found = source_facts(union._jdf.queryExecution().analyzed())
    assert [(source.format, source.where) for source in found] == [
        ("text", str(tmp_path / "in")),
        ("kafka", "orders"),
        ("rate", ""),
    ]
    assert found[0].is_true("latestfirst")
    assert found[1].is_false("failondataloss")
    assert found[2].options == {"rowspersecond": "3"}


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (lambda rows: rows.where("value > 1"), {}),
        (lambda rows: rows.select(F.rand(), F.expr("uuid()")), {"random": ("rand", "uuid")}),
        (lambda rows: rows.sample(0.5), {"random": ("sample",)}),
        (lambda rows: rows.select(F.expr("now()")), {"clock": ("now",)}),
        (lambda rows: rows.select(F.current_date()), {"batch_clock": ("current_date",)}),
        (lambda rows: rows.select(F.expr("unix_timestamp()")), {"batch_clock": ("current_timestamp",)}),
        (lambda rows: rows.select(F.spark_partition_id()), {"layout": ("spark_partition_id",)}),
        (lambda rows: rows.select(F.input_file_name()), {}),
        (lambda rows: rows.coalesce(2), {"merges": True}),
        (lambda rows: rows.repartition(2), {}),
        (lambda rows: rows.select(F.expr("reflect('java.util.UUID', 'randomUUID')")), {"random": ("reflect",)}),
        (lambda rows: rows.limit(3), {"order": ("limit",), "shuffles": True, "stateful": ("GlobalLimit",)}),
        (lambda rows: rows.select("value").dropDuplicates(), {"shuffles": True, "stateful": ("Deduplicate",)}),
        (
            lambda rows: rows.dropDuplicates(["value"]),
            {"order": ("dropDuplicates",), "shuffles": True, "stateful": ("Deduplicate",)},
        ),
        (
            lambda rows: rows.withWatermark("timestamp", "1 minute").groupBy("value").agg(F.collect_list("timestamp")),
            {"order": ("collect_list",), "shuffles": True, "stateful": ("Aggregate",), "watermarks": 1},
        ),
        (lambda rows: rows.repartition(3, "value"), {"shuffles": True}),
    ],
)
def test_plans(rates, plan, expected):
    assert facts(plan(rates)) == PlanFacts(**expected)


def test_static_sides_of_joins(spark, rates, tmp_path):
    write_lines(tmp_path / "names", "a.csv", ["1,one"])
    names = spark.read.schema("value long, name string").csv(str(tmp_path / "names"))
    assert len(facts(rates.join(names, "value")).static) == 1
    assert facts(rates.join(spark.range(5).withColumnRenamed("id", "value"), "value")).static == ()


def test_a_cte_is_no_source_of_its_own(spark, rates):
    rates.createOrReplaceTempView("rates")
    plan = spark.sql("with big as (select * from rates where value > 3) select value from big union select 1L")
    assert [source.format for source in source_facts(plan._jdf.queryExecution().analyzed())] == ["rate"]
    assert facts(plan).static == ()
    assert explain(plan, "delta", ask=False).level.value == "exactly-once"


def test_static_tables_in_subqueries(spark, rates, tmp_path):
    write_lines(tmp_path / "names", "a.csv", ["1,one"])
    spark.read.schema("value long, name string").csv(str(tmp_path / "names")).createOrReplaceTempView("names")
    rates.createOrReplaceTempView("rates")
    plan = spark.sql("select * from rates where value < (select max(value) from names)")
    assert len(facts(plan).static) == 1
    assert [source.format for source in source_facts(plan._jdf.queryExecution().analyzed())] == ["rate"]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("org.apache.spark.sql.execution.datasources.v2.json.JsonTable", "json"),
        ("org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat", "parquet"),
        ("org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaTable", "kafka"),
        ("org.apache.spark.sql.delta.sources.DeltaDataSource", "delta"),
        ("org.apache.iceberg.spark.source.SparkTable", "iceberg"),
        ("com.acme.datasources.JsonApiProvider", ""),
        ("com.acme.kafka010.Fake", ""),
        ("com.acme.sql.delta.Fake", ""),
        ("com.acme.org.apache.iceberg.Fake", ""),
        ("org.apache.spark.sql.execution.datasources.jdbc.JdbcRelationProvider", ""),
    ],
)
def test_classes_of_formats(name, form):
    assert format_of(name) == form


def test_python_functions_are_named(rates):
    def fixed(value: int) -> int:
        return value + 1

    def lucky(value: int) -> int:
        return -value

    def each(batches: Any) -> Any:
        yield from batches

    plan = rates.select(F.udf(fixed, "int")("value"), F.udf(lucky, "int")("value"))
    found = {function.name: function for function in facts(plan).functions}
    assert (found["fixed"].deterministic, found["lucky"].deterministic) == (None, None)
    declared = rates.select(F.udf(fixed, "int").asNondeterministic()("value"))
    assert [function.deterministic for function in facts(declared).functions] == [False]
    assert facts(declared).unnamed is False
    assert [function.name for function in facts(rates.mapInPandas(each, rates.schema)).functions] == ["each"]
    trusted = {function.name: function.deterministic for function in facts(plan, ["lucky"]).functions}
    assert trusted == {"fixed": None, "lucky": True}
    assert {function.deterministic for function in facts(plan, True).functions} == {True}


@pytest.mark.parametrize("form", ["console", "memory", "noop", "parquet", "foreach"])
def test_sinks_of_writers_and_of_queries(rates, tmp_path, form):
    writer = rates.where("false").writeStream.queryName(f"reads_{form}").trigger(processingTime="7 seconds")
    writer = writer.foreach(print) if form == "foreach" else writer.format(form)
    if form == "parquet":
        writer = writer.option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "c"))
    before, _ = of_writer(writer)
    assert before.sinks[0].format == form
    query = writer.start()
    try:
        running, _ = of_query(query)
    finally:
        query.stop()
    assert running.sinks[0].format == ("file" if form == "parquet" else form)
    for found in (before, running):
        assert found.engine.temporary is (form != "parquet")
        assert found.engine.interval == timedelta(seconds=7)
        assert found.sources[0].format == "rate"
    assert running.query == f"reads_{form}"


def test_settings_of_the_session(spark, rates):
    left = rates.withWatermark("timestamp", "1 minute")
    right = rates.withWatermark("timestamp", "2 minutes").withColumnRenamed("timestamp", "then")
    joined = left.join(right, "value").where("timestamp = then")
    assert explain(joined, "delta").level.value == "exactly-once"
    for name, value in (
        ("spark.sql.streaming.multipleWatermarkPolicy", "max"),
        ("spark.sql.streaming.stateStore.skipNullsForStreamStreamJoins.enabled", "true"),
    ):
        spark.conf.set(name, value)
        try:
            assert any(name in reason for reason in explain(joined, "delta").part(Role.ENGINE).reasons)
        finally:
            spark.conf.unset(name)


def test_a_default_place_for_checkpoints(spark, rates, tmp_path):
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        named, _ = of_writer(rates.writeStream.format("console").queryName("named"))
        assert (named.engine.checkpoint, named.engine.temporary) == (f"{tmp_path}/named", False)
        nameless, _ = of_writer(rates.writeStream.format("noop"))
        assert nameless.engine.temporary is True
        query = rates.writeStream.format("noop").start()
        try:
            assert of_query(query)[0].engine.temporary is True, "its folder is a new one at each start"
        finally:
            query.stop()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_writer_of_ours(rates, tmp_path):
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, topic="t")
    ours = ExactlyOnce(sink, checkpoint=str(tmp_path / "checkpoint"), display=False)
    writer = rates.writeStream.foreachBatch(ours)
    right = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for given in ((rates, ours), (right, None)):
        found = explain(*given, reader="read_committed", ask=False)
        assert found.level.value == "exactly-once", str(found)
    wrong = explain(writer.option("checkpointLocation", "/data/other"), reader="read_committed", ask=False)
    assert any("ExactlyOnce was given" in reason for reason in wrong.part(Role.ENGINE).reasons)


def test_what_is_said_of_a_frame(spark, rates):
    with pytest.raises(ConfigurationError, match="does not stream"):
        explain(spark.range(3), "delta")
    assert explain(rates, "delta").part(Role.ENGINE).conditions == ("the query has its own checkpointLocation",)
    writer = rates.writeStream.format("delta")
    assert "no checkpointLocation" in explain(writer).part(Role.ENGINE).reasons[0]
    writer = writer.option("checkpointLocation", "/data/c").trigger(continuous="1 second")
    assert explain(writer).part(Role.ENGINE).level.value == "at-least-once"


def test_brokers_that_do_not_answer_are_named(rates, monkeypatch):
    monkeypatch.setattr("sparkonce.analysis.servers.TIMEOUT_S", 0.5)
    kafka = rates.sparkSession.readStream.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, topic="t")
    found = explain(kafka.option("subscribe", "t").load(), sink)
    assert any("not queried" in condition for condition in found.part(Role.SOURCE).conditions)
    assert any("do not report" in text for text in found.part(Role.SINK).notes)
    secure = kafka.option("kafka.security.protocol", "SSL").option("kafka.ssl.truststore.location", "/there.jks")
    conditions = explain(secure.option("subscribe", "t").load(), "delta").part(Role.SOURCE).conditions
    assert any("ssl.truststore.type is JKS" in text for text in conditions)


# --- the command ------------------------------------------------------------------------------------------------------


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def told(*arguments: object) -> dict[str, Any]:
    done = command(*arguments, "--format=json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def parts(told: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(part["role"], part["name"], part["level"]) for part in told["parts"]]


def test_a_checkpoint_with_a_log_of_ours(spark, kafka, tmp_path):
    stream = Stream(spark, kafka, tmp_path, map(str, range(20)), partitions=1)
    stream.run()
    found = told(stream.checkpoint, "--reader", "read_committed")
    assert parts(found) == [
        ("source", f"kafka: {stream.source}", "exactly-once"),
        ("engine", "spark", "exactly-once"),
        ("sink", "sparkonce: kafka", "exactly-once"),
        ("reader", "kafka consumer: read_committed", "exactly-once"),
    ]
    assert "failOnDataLoss is not false" in found["parts"][0]["conditions"]
    asked = told(stream.checkpoint, "--bootstrap", kafka.bootstrap, "--downtime", "1d")
    assert f"{stream.source} keeps records forever (retention.ms=-1)" in asked["parts"][0]["reasons"]
    assert asked["level"] == "at-least-once"


def test_the_source_of_a_checkpoint(spark, tmp_path):
    write_lines(tmp_path / "in", "a.txt", ROWS)
    sources = {
        "file: file:": read_lines(spark, tmp_path / "in"),
        "rate": spark.readStream.format("rate").load(),
        "rate-micro-batch": spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load(),
    }
    for number, (name, rows) in enumerate(sources.items()):
        checkpoint = tmp_path / f"{number}"
        run(rows.writeStream.foreachBatch(Batches()).option("checkpointLocation", str(checkpoint)))
        (role, found, _), _, sink, *_ = parts(told(checkpoint))
        assert role == "source"
        assert found.startswith(name)
        assert sink == ("sink", "not known", "at-most-once")
    assert parts(told(checkpoint, "--sink", "delta"))[2] == ("sink", "delta", "exactly-once")
