"""What the analyzer reads from real plans, writers and queries before it judges them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from spark.in_process import ROWS, SPARK, read_lines, write_lines
from sparkonce import ExactlyOnce, KafkaSink, explain
from sparkonce.analysis.facts import PlanFacts
from sparkonce.analysis.findings import Role
from sparkonce.errors import ConfigurationError
from sparkonce.spark.explain.plan import plan_facts
from sparkonce.spark.explain.queries import of_query, of_writer
from sparkonce.spark.plans import format_of, source_facts

pytestmark = SPARK

# Workers do not have the tests on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def rates(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", 3).load()


def facts(df: DataFrame, stable: Any = False) -> PlanFacts:
    return plan_facts(df._jdf.queryExecution().analyzed(), stable)


def test_sources_and_their_options(spark: SparkSession, rates: DataFrame, tmp_path: Path) -> None:
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
def test_plans(rates: DataFrame, plan: Callable[[DataFrame], DataFrame], expected: dict[str, Any]) -> None:
    assert facts(plan(rates)) == PlanFacts(**expected)


def test_static_sides_of_joins(spark: SparkSession, rates: DataFrame, tmp_path: Path) -> None:
    write_lines(tmp_path / "names", "a.csv", ["1,one"])
    names = spark.read.schema("value long, name string").csv(str(tmp_path / "names"))
    assert len(facts(rates.join(names, "value")).static) == 1
    assert facts(rates.join(spark.range(5).withColumnRenamed("id", "value"), "value")).static == ()


def test_a_cte_is_no_source_of_its_own(spark: SparkSession, rates: DataFrame) -> None:
    rates.createOrReplaceTempView("rates")
    plan = spark.sql("with big as (select * from rates where value > 3) select value from big union select 1L")
    assert [source.format for source in source_facts(plan._jdf.queryExecution().analyzed())] == ["rate"]
    assert facts(plan).static == ()
    assert explain(plan, "delta", ask=False).level.value == "exactly-once"


def test_static_tables_in_subqueries(spark: SparkSession, rates: DataFrame, tmp_path: Path) -> None:
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
def test_classes_of_formats(name: str, form: str) -> None:
    assert format_of(name) == form


def test_python_functions_are_named(rates: DataFrame) -> None:
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
def test_sinks_of_writers_and_of_queries(rates: DataFrame, tmp_path: Path, form: str) -> None:
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


def test_settings_of_the_session(spark: SparkSession, rates: DataFrame) -> None:
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


def test_a_default_place_for_checkpoints(spark: SparkSession, rates: DataFrame, tmp_path: Path) -> None:
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


def test_a_function_that_calls_ours(rates: DataFrame, tmp_path: Path) -> None:
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, topic="t")
    ours = ExactlyOnce(sink, checkpoint=str(tmp_path / "checkpoint"), display=False)

    def write(rows: DataFrame, batch: int) -> None:
        ours(rows, batch)

    def give(to: Any, rows: DataFrame, batch: int) -> None:
        to(rows, batch)

    for function in (ours, write, partial(give, ours)):
        writer = rates.writeStream.foreachBatch(function)
        right = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        for given in ((rates, function), (right, None)):
            found = explain(*given, reader="read_committed", ask=False)
            assert found.level.value == "exactly-once", str(found)
        wrong = explain(writer.option("checkpointLocation", "/data/other"), reader="read_committed", ask=False)
        assert any("ExactlyOnce was given" in reason for reason in wrong.part(Role.ENGINE).reasons)


@pytest.mark.parametrize(
    ("table", "made_by", "form"),
    [
        ("made_up", None, "delta"),
        ("default.made_up", None, "delta"),
        ("acme.db.made_up", "com.acme.Catalog", "catalog acme"),
        ("lake.db.made_up", "org.apache.iceberg.spark.SparkCatalog", "iceberg"),
    ],
)
def test_tables_of_catalogs(
    spark: SparkSession, rates: DataFrame, monkeypatch: pytest.MonkeyPatch, table: str, made_by: str | None, form: str
) -> None:
    monkeypatch.setattr(type(spark.catalog), "tableExists", lambda *_: False)  # neither catalog is there
    name = f"spark.sql.catalog.{table.partition('.')[0]}"
    if made_by is not None:
        spark.conf.set(name, made_by)
    try:
        found, _ = of_writer(rates.writeStream.format("delta"), table=table)
    finally:
        spark.conf.unset(name)
    assert found.sinks[0].format == form


def test_what_is_said_of_a_frame(spark: SparkSession, rates: DataFrame) -> None:
    with pytest.raises(ConfigurationError, match="does not stream"):
        explain(spark.range(3), "delta")
    found = explain(rates, "delta", options={"checkpointLocation": "/data/c"}, trigger="1 minute")
    assert found.part(Role.ENGINE).conditions == ("the checkpoint outlives the driver",)
    assert explain(rates, "delta").part(Role.ENGINE).conditions == ("the query has its own checkpointLocation",)
    assert "no checkpointLocation" in explain(rates, "delta", options={}).part(Role.ENGINE).reasons[0]
    for trigger in ({"continuous": "1 second"}, {"realTime": "5 minutes"}):
        assert explain(rates, "console", trigger=trigger).part(Role.ENGINE).level.value == "at-least-once"


def test_brokers_that_do_not_answer_are_named(rates: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkonce.analysis.servers.TIMEOUT_S", 0.5)
    kafka = rates.sparkSession.readStream.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, topic="t")
    found = explain(kafka.option("subscribe", "t").load(), sink)
    assert any("not queried" in condition for condition in found.part(Role.SOURCE).conditions)
    assert any("do not report" in text for text in found.part(Role.SINK).notes)
    secure = kafka.option("kafka.security.protocol", "SSL").option("kafka.ssl.truststore.location", "/there.jks")
    conditions = explain(secure.option("subscribe", "t").load(), "delta").part(Role.SOURCE).conditions
    assert any("ssl.truststore.type is JKS" in text for text in conditions)
