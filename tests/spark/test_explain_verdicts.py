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


def test_files(spark: SparkSession, lines: DataFrame, tmp_path: Path) -> None:
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


def test_which_values_a_replay_changes_and_that_it_is_said(lines: DataFrame, tmp_path: Path) -> None:
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


def test_a_delta_table(tables: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    tables.createDataFrame([("row",)], "value string").write.format("delta").save(source)

    def writer(**options: str) -> Any:
        plan = tables.readStream.format("delta").options(**options).load(source)
        made = plan.writeStream.format("delta").option("path", str(tmp_path / "table"))
        return made.option("checkpointLocation", str(tmp_path / "checkpoint"))

    check(explain(writer()), "exactly-once", "one table version")
    check(explain(writer(), reader="files"), "at-least-once (reader)", "no version")
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


def test_a_kafka_source(spark: SparkSession, kafka: Cluster) -> None:
    rows = read(spark, kafka, topic(kafka, **{"retention.ms": "3600000"}))
    check(explain(rows, "delta", downtime="30 minutes"), "exactly-once", "keeps records for 1 hour")
    check(explain(rows, "delta", downtime="2h"), "at-most-once (source)", "keeps records for 1 hour (retention.ms)")
    compacted = read(spark, kafka, topic(kafka, **{"cleanup.policy": "compact"}), failOnDataLoss="false")
    for says in ("cleanup.policy=compact", "failOnDataLoss=false"):
        check(explain(compacted, "delta"), "at-most-once (source)", says)


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


def test_our_kafka_sink(lines: DataFrame, kafka: Cluster) -> None:
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
