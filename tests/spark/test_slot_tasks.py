"""The task function is created once for many batches, and still writes each batch under its own number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.in_process import MARKS, write_batch
from sparkonce import FilesSink
from sparkonce.errors import PrepareError
from sparkonce.jvm import _MOST, JvmCache
from sparkonce.protocol.ownership import TransactionName
from sparkonce.spark import slot_tasks, work
from sparkonce.spark.shipped import acknowledge_at_once

pytestmark = MARKS


class Query:
    """Batches of a query without Spark's streaming. Counts the functions that are created for their tasks."""

    def __init__(self, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.kept, self.functions = spark, JvmCache(), 0
        self.sink = FilesSink(str(folder))
        made = slot_tasks.pandas_udf

        def counted(*given: Any) -> Any:
            self.functions += 1
            return made(*given)

        monkeypatch.setattr(slot_tasks, "pandas_udf", counted)

    def write(self, batch: int, rows: DataFrame | None = None, claim: int = 0) -> set[tuple[int, int]]:
        """Writes two slots, and returns the batches and claims that their files belong to."""
        rows = self.spark.range(10, numPartitions=2) if rows is None else rows
        handles, _ = write_batch(self.sink, rows, batch, claim=claim, cache=self.kept)
        assert sum(handle.rows for handle in handles) == rows.count()
        found = [TransactionName.parse(str(handle["name"])) for handle in handles]
        return {(name.batch, name.token.position) for name in found if name is not None}


def test_later_batches_run_the_first_ones_function_under_their_own_numbers(spark, tmp_path, monkeypatch):
    query = Query(spark, tmp_path, monkeypatch)
    assert [query.write(batch) for batch in (7, 8, 9)] == [{(7, 0)}, {(8, 0)}, {(9, 0)}]
    assert query.functions == 1


def test_another_owner_or_a_changed_sink_makes_another_function(spark, tmp_path, monkeypatch):
    query = Query(spark, tmp_path, monkeypatch)
    assert query.write(7) == {(7, 0)}
    assert query.write(7, claim=1) == {(7, 1)}
    assert query.functions == 2
    vars(query.sink)["changed"] = True
    query.write(8, claim=1)
    query.write(9, claim=1)
    assert query.functions == 3


def test_columns_that_come_later_are_written_too(spark, tmp_path, monkeypatch):
    query = Query(spark, tmp_path, monkeypatch)
    rows = spark.range(10, numPartitions=2)
    query.write(7, rows)
    query.write(8, rows.withColumn("later", F.lit("x")))
    read = [pq.read_schema(file).names for file in tmp_path.rglob("*.parquet")]
    staged = [pq.read_schema(file).names for file in tmp_path.rglob("*8.?.*") if file.is_file()]
    assert ["id", "later"] in read + staged


def test_what_the_user_adds_to_the_workers_makes_another_function(spark, tmp_path, monkeypatch):
    query = Query(spark, tmp_path, monkeypatch)
    query.write(7)
    monkeypatch.setitem(spark.sparkContext.environment, "NEW", "1")
    query.write(8)
    monkeypatch.setattr(spark.sparkContext, "_python_includes", ["added.zip"])
    query.write(9)
    assert query.functions == 3


def test_the_jvm_sends_rows_at_once_to_a_real_worker(spark):
    def tell(rows: Any) -> Any:
        told = acknowledge_at_once()
        for _ in rows:
            pass
        yield pa.RecordBatch.from_pydict({"told": [told]})

    answers = spark.range(2, numPartitions=2).mapInArrow(tell, "told boolean").collect()
    assert [answer["told"] for answer in answers] == [True, True]


def test_a_batch_that_its_tasks_took_for_another_is_not_prepared(spark, tmp_path, monkeypatch):
    def told_another(*given: Any) -> DataFrame:
        answers = slot_tasks.answers_of(*given)
        spark.sparkContext.setLocalProperty(slot_tasks._BATCH, "6")
        return answers

    query = Query(spark, tmp_path, monkeypatch)
    monkeypatch.setattr(work, "answers_of", told_another)
    with pytest.raises(PrepareError, match="wrote batch 7 as another one"):
        query.write(7)


def test_a_task_that_is_not_told_its_batch_writes_nothing(spark, tmp_path, monkeypatch):
    query = Query(spark, tmp_path, monkeypatch)
    spark.sparkContext.setLocalProperty(slot_tasks._BATCH, None)
    monkeypatch.setattr(SparkContext, "setLocalProperty", lambda *_: None)
    with pytest.raises(PrepareError, match="Rows can only be written inside a Spark task of a batch"):
        query.write(7)


def test_what_is_kept_is_bounded():
    kept = JvmCache()
    made: list[int] = []
    for number in (*range(_MOST), *range(_MOST), *range(_MOST + 1)):
        kept.get(number, lambda number=number: made.append(number))
    assert made == list(range(_MOST + 1))
    assert len(kept._made) == 1
