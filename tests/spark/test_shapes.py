"""Batches and rows of every shape, through a real Spark: empty ones, null ones, more or fewer slots than before."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.harness import new_name
from spark.in_process import IDS, MARKS, CrashError, crash_at
from sparkonce.protocol.state import Phase
from sparkonce.spark.work import row_hash
from sparkonce_lab.kafka import create_topic, read_committed

pytestmark = MARKS

HEADERS = "array<struct<key:string,value:binary>>"


def test_nulls_headers_timestamps_and_topics_arrive_as_they_are(stream):
    def as_sent(number: int, even: str, odd: str, partitions: int) -> tuple[object, ...]:
        """Computes in plain Python what `rich` returns for a number."""
        text = IDS[number].encode()
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if number % 4 == 1:
            headers = (("id", text), ("empty", None))
        if number % 4 == 2:
            headers = (("id", text),)
        return (
            odd if number % 2 else even,
            number % partitions,
            text if number % 3 else None,
            text if number % 5 else None,
            headers,
            number + 1_000_000,
        )

    other = new_name("other")
    create_topic(stream.bootstrap, other, stream.partitions)

    def rich(rows: DataFrame) -> DataFrame:
        number = F.col("value").cast("int")
        one = F.struct(F.lit("id").alias("key"), F.col("value").cast("binary").alias("value"))
        empty = F.struct(F.lit("empty").alias("key"), F.lit(None).cast("binary").alias("value"))
        return rows.select(
            F.when(number % 3 != 0, F.col("key")).cast("binary").alias("key"),
            F.when(number % 5 != 0, F.col("value")).cast("binary").alias("value"),
            F.when(number % 2 == 0, other).otherwise(stream.target).alias("topic"),
            F.when(number % 4 == 1, F.array(one, empty))
            .when(number % 4 == 2, F.array(one))
            .cast(HEADERS)
            .alias("headers"),
            (number % stream.partitions).alias("partition"),
            F.timestamp_millis(number.cast("long") + 1_000_000).alias("timestamp"),
        )

    with pytest.raises(CrashError):
        stream.run(rich, sink={"topic": None}, listener=crash_at(Phase.FINISHING, 1))
    stream.run(rich, sink={"topic": None})

    expected = Counter(as_sent(number, other, stream.target, stream.partitions) for number in range(len(IDS)))
    found = Counter(
        (topic, record.partition, record.key, record.value, record.headers, record.timestamp_ms)
        for topic in (stream.target, other)
        for record in read_committed(stream.bootstrap, topic)
    )
    assert found == expected


@pytest.mark.parametrize("columns", [["key"], ["key", "value"]])
def test_rows_that_differ_in_where_a_null_stands_have_other_hashes(spark, columns):
    rows = spark.createDataFrame([(None, "a"), ("a", None), (None, None), ("a", "a")], "key string, value string")
    distinct = rows.select(*columns).distinct().count()
    assert rows.select(row_hash(columns, rows.schema)).distinct().count() == distinct


def test_maps_have_a_hash_that_does_not_depend_on_the_order_of_their_entries(spark):
    values = ["map('a', 1, 'b', null)", "map('b', null, 'a', 1)", "map('a', null, 'b', 1)", "map('a', 1)", "null"]

    def hashes(shape: str) -> list[int]:
        typed = [f"cast({value} as map<string, int>)" for value in values]
        rows = spark.sql(
            " union all ".join(f"select {at} as at, {shape.format(one)} as v" for at, one in enumerate(typed))
        )
        return [row[0] for row in rows.orderBy("at").select(row_hash(["v"], rows.schema)).collect()]

    for shape in ("{}", "array({}, null)", "named_struct('x', {})", "map(1, array({}))"):
        first, swapped, *others = hashes(shape)
        assert first == swapped, shape
        assert len({first, *others}) == len(values) - 1, shape
