"""A batch of few small rows, straight from Kafka, is one slot, even when it is written again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from spark.in_process import MARKS, CrashError, Stream, crash_at
from sparkonce.driver.start import read_log
from sparkonce.log import DecisionLog
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import Decision
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS
SLOW = pytest.mark.slow

IDS = [f"{number:03d}" for number in range(120)]
EACH = 40
"""Rows of a batch, from all four partitions."""


@pytest.fixture
def stream(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> Stream:
    return Stream(spark, kafka, tmp_path, IDS)


def touched(rows: DataFrame) -> DataFrame:
    """Writes with the user's function."""
    return rows.withColumn("value", F.udf(lambda text: text, "string")("value"))


def transactions(stream: Stream, plan: Callable[[DataFrame], DataFrame] = lambda rows: rows, **more: Any) -> list[int]:
    """Runs the query to its end, and returns the number of transactions of each batch."""
    found = [batch.transactions for batch in stream.run(plan, rows_per_batch=EACH, **more)]
    assert stream.keys() == IDS
    return found


def test_the_first_batch_tells_how_large_rows_are_and_the_others_are_one_slot(stream: Stream) -> None:
    assert transactions(stream, lambda rows: rows.where("key >= '000'").withColumn("value", F.upper("value"))) == [
        4,
        1,
        1,
    ]


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(touched, id="a function of the user's"),
        pytest.param(lambda rows: rows.withColumn("value", F.explode(F.array("value"))), id="more rows", marks=SLOW),
        pytest.param(lambda rows: rows.union(rows.where("false")), id="two sources", marks=SLOW),
        pytest.param(lambda rows: rows.dropDuplicates(["key"]), id="state", marks=SLOW),
        pytest.param(
            lambda rows: rows.where("key in (select format_string('%03d', id) from range(1000))"),
            id="a join",
            marks=SLOW,
        ),
    ],
)
def test_rows_that_may_cost_a_task_much_keep_their_slots(
    stream: Stream, plan: Callable[[DataFrame], DataFrame]
) -> None:
    assert min(transactions(stream, plan)) > 1


@pytest.mark.slow
def test_a_view_keeps_its_slots(stream: Stream) -> None:
    assert transactions(stream, sinks=lambda kafka: {kafka: lambda rows: rows.where("true")}) == [4, 4, 4]


@pytest.mark.slow
def test_a_batch_that_was_lost_has_the_slots_of_its_decision(stream: Stream) -> None:
    """This holds although the size of the rows is unknown after a restart."""

    def decided(stream: Stream, batch: int) -> Decision:
        found = read_log(DecisionLog(LocalFiles(stream.checkpoint))).decision(batch)
        assert found is not None
        return found

    soon = {"transaction.timeout.ms": 10_000}
    crash = crash_at(Phase.FINISHING, 1)
    with pytest.raises(CrashError):
        stream.run(rows_per_batch=EACH, settings=soon, listener=crash)
    first = decided(stream, 1)
    stream.await_aborted()
    (healed, *_) = stream.run(rows_per_batch=EACH)
    assert (healed.batch, healed.healed) == (1, 1)
    again = decided(stream, 1)
    assert [one.slot for one in again.handles] == [0]
    assert sorted(one.evidence for one in again.handles) == sorted(one.evidence for one in first.handles)
    assert again.handles != first.handles
    assert stream.keys() == IDS
