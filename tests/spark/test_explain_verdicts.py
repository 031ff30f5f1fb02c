"""The analyzer's verdicts on real plans, writers and topics, and replays that prove the most surprising of them.

The rules themselves are in unit/test_analysis_rules.py: this file checks that Spark's objects reach them.
"""

from __future__ import annotations

import random
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import IntegerType, StringType

from spark.harness import new_name
from spark.in_process import MARKS, ROWS, Batches, forget, forget_commit, read_lines, run, write_lines
from sparkonce import ExactlyOnce, Guarantee, KafkaSink, explain
from sparkonce.analysis.checkpoint import checkpoint_facts
from sparkonce.analysis.explanation import Explanation
from sparkonce.analysis.findings import Role
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.kafka import create_topic, produce, read_committed
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

# Workers do not have the tests on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

DAY_MS = 86_400_000


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
def lines(spark: SparkSession, tmp_path: Path) -> DataFrame:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    return read_lines(spark, tmp_path / "in")


@pytest.mark.parametrize(
    ("options", "reader", "level", "says"),
    [
        ({}, None, "exactly-once", "the reader is Spark"),
        ({}, "spark", "exactly-once", "only once"),
        ({}, "files", "at-least-once (reader)", "lists the files"),
        ({"maxFileAge": "1h"}, None, "at-most-once (source)", "maxFileAge=1h"),
        ({"ignoreMissingFiles": "true"}, None, "at-most-once (source)", "ignoreMissingFiles=true"),
        ({"ignoreCorruptFiles": "true"}, None, "at-most-once (source)", "ignoreCorruptFiles=true"),
        ({"fileNameOnly": "true"}, None, "at-most-once (source)", "fileNameOnly=true"),
    ],
)
def test_files(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], reader: str | None, level: str, says: str
) -> None:
    write_lines(tmp_path / "in", "a.txt", ROWS)
    writer = read_lines(spark, tmp_path / "in", **options).writeStream.format("text")
    writer = writer.option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "checkpoint"))
    check(explain(writer, reader=reader), level, says)


def test_files_that_are_parsed_or_read_newest_first(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "in", "a.json", ["{}"])
    reader = spark.readStream.schema("at timestamp")
    check(
        explain(reader.option("mode", "DROPMALFORMED").json(str(tmp_path / "in")), "delta"),
        "at-most-once (source)",
        "mode=DROPMALFORMED",
    )
    newest = spark.readStream.schema("at timestamp").option("latestFirst", "true").json(str(tmp_path / "in"))
    counts = newest.withWatermark("at", "1 minute").groupBy(F.window("at", "1 hour")).count()
    check(explain(counts, "delta"), "at-most-once (source)", "latestFirst=true with a watermark")


def length(text: str) -> int:
    return len(text)


def hidden() -> str:
    return str(uuid.UUID(bytes=random.randbytes(16)))


# This module's import defines the function. Without useArrow, PySpark would then ask the last JVM used, which may be
# gone.
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


@pytest.mark.parametrize("says", CHANGING)
def test_values_that_a_replay_changes(lines: DataFrame, says: str) -> None:
    explanation = explain(lines.select("value", CHANGING[says]()), Batches(), ask=False)
    check(explanation, "at-least-once (engine, sink)", says)


@pytest.mark.parametrize("says", STABLE)
def test_values_that_a_replay_repeats(lines: DataFrame, says: str) -> None:
    explanation = explain(lines.select("value", STABLE[says]()), Batches(), ask=False)
    check(explanation, "at-least-once (sink)", "foreachBatch")
    engine = explanation.part(Role.ENGINE)
    assert any(says.partition(",")[0] in text for text in (*engine.conditions, *engine.notes))


def test_which_values_a_replay_changes(lines: DataFrame, tmp_path: Path) -> None:
    """Confirms the two tests above: the driver dies after the function has written, and before Spark's commit."""
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


@pytest.mark.parametrize(
    ("plan", "level", "says"),
    [
        (lambda rows: rows.withColumn("id", F.spark_partition_id()), "at-least-once (engine, sink)", "spread over"),
        (lambda rows: rows.groupBy(F.substring("value", 1, 6)).count(), "at-least-once (sink)", "again for a batch"),
    ],
)
def test_plans(lines: DataFrame, plan: Callable[[DataFrame], DataFrame], level: str, says: str) -> None:
    check(explain(plan(lines), Batches(), ask=False), level, says)


def test_a_static_table(spark: SparkSession, lines: DataFrame, tmp_path: Path) -> None:
    write_lines(tmp_path / "names", "a.csv", ["row-000,old"])
    names = spark.read.schema("value string, name string").csv(str(tmp_path / "names"))
    check(explain(lines.join(names, "value"), Batches()), "at-least-once (engine, sink)", "joined as it is")


def test_sinks_of_spark(lines: DataFrame, tmp_path: Path) -> None:
    check(explain(lines.writeStream.foreachBatch(Batches())), "at-least-once (engine, sink)", "no checkpointLocation")
    folder = {"checkpointLocation": str(tmp_path / "checkpoint")}
    memory = lines.writeStream.format("memory").queryName("held").options(**folder)
    check(explain(memory), "at-most-once (sink)", "driver's memory")
    check(explain(lines.writeStream.foreach(print).options(**folder)), "at-least-once (sink)", "row by row")


def test_sources_for_tests(spark: SparkSession) -> None:
    rate = explain(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load(), "delta", ask=False)
    assert "tests only" in rate.part(Role.SOURCE).notes[0]
    socket = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 1).load()
    check(explain(socket, "delta"), "at-most-once (source)", "cannot be read again")


def test_a_delta_table(tables: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    tables.createDataFrame([("row",)], "value string").write.format("delta").save(source)

    def writer(**options: str) -> Any:
        plan = tables.readStream.format("delta").options(**options).load(source)
        made = plan.writeStream.format("delta").option("path", str(tmp_path / "table"))
        return made.option("checkpointLocation", str(tmp_path / "checkpoint"))

    check(explain(writer()), "exactly-once", "one table version")
    check(explain(writer(), reader="files"), "at-least-once (reader)", "no version")
    check(explain(writer(ignoreChanges="true")), "at-least-once (source)", "ignoreChanges=true")
    check(explain(writer(skipChangeCommits="true")), "at-most-once (source)", "skipChangeCommits=true")


def test_an_iceberg_table(tables: SparkSession, lines: DataFrame, tmp_path: Path) -> None:
    table = f"ice.db.{new_name('t').replace('-', '_')}"
    tables.sql(f"create table {table} (value string) using iceberg")
    skipping = tables.readStream.option("streaming-skip-overwrite-snapshots", "true").table(table)
    check(explain(skipping, "delta"), "at-most-once (source)", "streaming-skip-overwrite-snapshots=true")
    writer = lines.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    check(explain(writer, "iceberg"), "exactly-once", "one snapshot")


@pytest.mark.slow
def test_an_iceberg_table_forgets_a_batch_whose_snapshot_has_expired(tables: SparkSession, tmp_path: Path) -> None:
    source, table = tmp_path / "source", f"ice.db.{new_name('t').replace('-', '_')}"
    tables.createDataFrame([(row,) for row in ROWS], "value string").write.format("delta").save(str(source))
    tables.sql(f"create table {table} (value string) using iceberg")
    writer = tables.readStream.format("delta").load(str(source)).writeStream
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    check(explain(writer, "iceberg"), "exactly-once", "is not expired")
    check(explain(run(writer, table=table)), "exactly-once", "one snapshot")
    assert checkpoint_facts(LocalFiles(tmp_path / "checkpoint")).sources[0].format == "delta"

    forget_commit(tmp_path / "checkpoint")
    run(writer, table=table)
    assert Counter(row[0] for row in tables.table(table).collect()) == Counter(ROWS)

    tables.createDataFrame([("other",)], "value string").writeTo(table).append()
    name = table.removeprefix("ice.")
    tables.sql(f"call ice.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")
    forget_commit(tmp_path / "checkpoint")
    run(writer, table=table)
    assert Counter(row[0] for row in tables.table(table).collect()) == Counter([*ROWS, *ROWS, "other"])


def topic(kafka: Cluster, **config: str) -> str:
    name = new_name("topic")
    create_topic(kafka.bootstrap, name, 1, config)
    return name


def read(spark: SparkSession, kafka: Cluster, name: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    reader = reader.option("subscribe", name).option("startingOffsets", "earliest").options(**options)
    return reader.load().selectExpr("cast(value as string) as value")


@pytest.mark.parametrize(
    ("config", "options", "downtime", "level", "says"),
    [
        ({}, {}, None, "exactly-once", "downtime is never longer than 7 days"),
        ({}, {}, "1 day", "exactly-once", "keeps records for 7 days, longer than the downtime"),
        ({}, {"failOnDataLoss": "false"}, None, "at-most-once (source)", "failOnDataLoss=false"),
        ({"retention.ms": "3600000"}, {}, "2h", "at-most-once (source)", "keeps records for 1 hour (retention.ms)"),
        ({"retention.ms": "3600000"}, {}, "30 minutes", "exactly-once", "keeps records for 1 hour"),
        ({"cleanup.policy": "compact"}, {}, None, "at-most-once (source)", "cleanup.policy=compact"),
    ],
)
def test_a_kafka_source(
    spark: SparkSession,
    kafka: Cluster,
    config: dict[str, str],
    options: dict[str, str],
    downtime: str | None,
    level: str,
    says: str,
) -> None:
    name = topic(kafka, **{"retention.ms": str(7 * DAY_MS), **config})
    check(explain(read(spark, kafka, name, **options), "delta", downtime=downtime), level, says)


def test_a_topic_that_is_written_in_transactions(spark: SparkSession, kafka: Cluster) -> None:
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


def test_sparks_kafka_sink_writes_a_batch_again(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> None:
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


def test_a_folder_of_files_has_a_batch_twice_for_who_lists_it(
    spark: SparkSession, lines: DataFrame, tmp_path: Path
) -> None:
    """The driver dies when the files are written, before they are entered in ``_spark_metadata``."""
    out = tmp_path / "out"
    writer = lines.writeStream.format("text").option("path", str(out))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    run(writer)
    forget_commit(tmp_path / "checkpoint")
    forget(out / "_spark_metadata")
    run(writer)
    listed = Counter(line for file in out.glob("*.txt") for line in file.read_text().splitlines())
    assert listed == Counter(ROWS * 2)
    assert Counter(row[0] for row in spark.read.text(str(out)).collect()) == Counter(ROWS)


@pytest.mark.parametrize(
    ("settings", "sink", "more", "level", "says"),
    [
        ({}, {}, {"reader": {"isolation.level": "read_committed"}}, "exactly-once", "two-phase commit"),
        ({}, {}, {}, "at-least-once (reader)", "its isolation level is not given"),
        ({}, {}, {"reader": {"group.id": "mine"}}, "at-least-once (reader)", "isolation.level is not set"),
        ({}, {}, {"reader": "spark"}, "at-least-once (reader)", "Spark's Kafka source"),
        ({}, {"guarantee": Guarantee.AT_LEAST_ONCE}, {}, "at-least-once (sink)", "AT_LEAST_ONCE"),
        ({}, {"guarantee": Guarantee.AT_MOST_ONCE}, {}, "at-most-once (sink)", "AT_MOST_ONCE"),
        (
            {"transaction.timeout.ms": "10000"},
            {},
            {"reader": "read_committed"},
            "exactly-once",
            "every batch is done within 10 seconds",
        ),
        (
            {"transaction.timeout.ms": "10000"},
            {},
            {"reader": "read_committed", "downtime": "1h"},
            "exactly-once",
            "written again from Spark's replay",
        ),
        (
            {"transaction.timeout.ms": str(DAY_MS)},
            {},
            {"reader": "read_committed"},
            "exactly-once",
            "refused at start",
        ),
    ],
)
def test_our_kafka_sink(
    lines: DataFrame,
    kafka: Cluster,
    settings: dict[str, str],
    sink: dict[str, Any],
    more: dict[str, Any],
    level: str,
    says: str,
) -> None:
    ours = KafkaSink({"bootstrap.servers": kafka.bootstrap, **settings}, topic="orders", **sink)
    check(explain(lines, ExactlyOnce(ours, checkpoint="/data/checkpoint"), **more), level, says)


def test_our_sinks_of_random_values_and_of_two_guarantees(lines: DataFrame, kafka: Cluster) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap}
    strong = KafkaSink(settings, topic="orders")
    weak = KafkaSink(settings, topic="others", name="weak", guarantee=Guarantee.AT_LEAST_ONCE)
    drawn = lines.select(F.expr("uuid()").alias("value"))
    check(explain(drawn, strong, reader="read_committed"), "exactly-once", "Each row still appears once")
    check(explain(drawn, weak), "at-least-once (engine, sink)", "cannot be recognized")
    check(explain(lines, [strong, weak], reader="read_committed"), "at-least-once (sink)", "AT_LEAST_ONCE")
    sums = lines.groupBy(F.rand().cast("string").alias("key")).agg(F.count("*").cast("string").alias("value"))
    check(explain(sums, strong, reader="read_committed"), "at-least-once (engine)", "recomputed after a kill")
