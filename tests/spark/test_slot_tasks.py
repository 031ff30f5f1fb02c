"""The function that tasks run is made once for many batches, and still writes each under its own number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from spark.in_process import MARKS
from sparkonce import FilesSink
from sparkonce.errors import PrepareError
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner
from sparkonce.spark import slot_tasks, work
from sparkonce.spark.kept import _MOST, Kept
from sparkonce.spark.views import shares, views_of
from sparkonce.spark.work import SparkWork

pytestmark = MARKS


class Query:
    """Batches of one query, without Spark's streaming. Counts the functions that are made for their tasks."""

    def __init__(self, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.kept, self.functions = spark, Kept(), 0
        self.sink = FilesSink(str(folder))
        made = slot_tasks.pandas_udf

        def counted(*given: Any) -> Any:
            self.functions += 1
            return made(*given)

        monkeypatch.setattr(slot_tasks, "pandas_udf", counted)

    def write(self, batch: int, rows: DataFrame | None = None, claim: int = 0) -> list[str]:
        """Writes two slots, and returns their files' names."""
        facts = self.sink.preflight("0123456789ab", None)
        owner = Owner(query="0123456789ab", token=Token(claim, "0" * 8), facts=facts)
        rows = self.spark.range(10, numPartitions=2) if rows is None else rows
        task = SparkWork(rows, batch, shares(views_of(self.sink)), kept=self.kept)
        handles, _ = task.write({self.sink.name: owner}, None)
        assert sum(handle.rows for handle in handles) == rows.count()
        return [json.dumps(dict(handle.transaction or {}), default=str) for handle in handles]


def test_later_batches_run_the_first_ones_function_under_their_own_numbers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(spark, tmp_path, monkeypatch)
    found = [query.write(batch) for batch in (7, 8, 9)]
    assert query.functions == 1
    assert len({name for names in found for name in names}) == 6, found


def test_another_owner_or_a_changed_sink_makes_another_function(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(spark, tmp_path, monkeypatch)
    query.write(7)
    query.write(7, claim=1)
    assert query.functions == 2
    vars(query.sink)["changed"] = True
    query.write(8, claim=1)
    query.write(9, claim=1)
    assert query.functions == 3


def test_a_batch_that_its_tasks_took_for_another_is_not_prepared(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_another(*given: Any) -> DataFrame:
        answers = slot_tasks.answers_of(*given)
        spark.sparkContext.setLocalProperty(slot_tasks._BATCH, "6")
        return answers

    query = Query(spark, tmp_path, monkeypatch)
    monkeypatch.setattr(work, "answers_of", told_another)
    with pytest.raises(PrepareError, match="wrote batch 7 as another one"):
        query.write(7)


def test_a_task_that_is_not_told_its_batch_writes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(spark, tmp_path, monkeypatch)
    spark.sparkContext.setLocalProperty(slot_tasks._BATCH, None)  # type: ignore[arg-type]
    monkeypatch.setattr(SparkContext, "setLocalProperty", lambda *_: None)
    with pytest.raises(PrepareError, match="Rows are written inside a Spark task of a batch only"):
        query.write(7)


def test_what_is_kept_is_bounded() -> None:
    kept = Kept()
    made: list[int] = []
    for number in (*range(_MOST), *range(_MOST), *range(_MOST + 1)):
        kept.get(number, lambda number=number: made.append(number))  # type: ignore[misc]
    assert made == list(range(_MOST + 1))
    assert len(kept._made) == 1
