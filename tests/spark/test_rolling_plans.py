"""A query's plan is changed between two starts, and another query takes over what one has done: blue and green."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.kafka_witness import until_final
from spark.in_process import MARKS, CrashError, Stream, crash_at
from sparkonce.errors import TransactionLostError
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol.outcomes import Outcome
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import Decision, LogView
from sparkonce.rig.kafka import Cluster
from sparkonce.sinks.kafka.committer import KafkaCommitter

pytestmark = [*MARKS, pytest.mark.drawn(5, "rolling changes")]

IDS = [f"{number:05d}" for number in range(1_000)]
"""Three batches of 400 rows at most, four rows at a time from each of four partitions."""


def even(rows: DataFrame) -> DataFrame:
    return rows.where("cast(key as int) % 2 = 0")


def of_batches(ids: list[str], *numbers: int) -> list[str]:
    return [one for number in numbers for one in ids[400 * number : 400 * (number + 1)]]


EVEN = [one for one in IDS if int(one) % 2 == 0]


@pytest.fixture
def stream(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> Stream:
    return Stream(spark, kafka, tmp_path, IDS)


def whole(*numbers: int) -> list[str]:
    return of_batches(IDS, *numbers)


def halved(*numbers: int) -> list[str]:
    return [one for one in whole(*numbers) if one in EVEN]


@pytest.mark.parametrize(
    ("phase", "before", "after"),
    [
        pytest.param(Phase.DECIDING, (0,), (1, 2), id="undecided"),
        pytest.param(Phase.FINISHING, (0, 1), (2,), id="decided"),
    ],
)
def test_a_filter_is_changed_from_the_first_batch_that_is_not_decided(
    stream: Stream, phase: Phase, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    with pytest.raises(CrashError):
        stream.run(listener=crash_at(phase, 1))
    stream.run(even)
    assert stream.keys() == sorted([*whole(*before), *halved(*after)])
    assert stream.transactions("Ongoing") == {}


def test_a_decided_batch_that_is_lost_in_part_needs_the_plan_that_it_was_written_by(stream: Stream) -> None:
    with pytest.raises(CrashError):
        stream.run(rows_per_slot=1, listener=crash_at(Phase.FINISHING, 1))
    lost = decision(stream, 1).handles[0]
    with closing(KafkaCommitter({"bootstrap.servers": stream.bootstrap}, "kafka")) as committer:
        assert until_final(committer.abort, [lost]) == [Outcome.ABORTED]
    for _ in range(2):
        with pytest.raises(TransactionLostError, match="running the batch again gave other rows") as stopped:
            stream.run(even, rows_per_slot=1)
        assert stopped.value.details["lost"] == (("kafka", lost.slot, lost.rows),)
    stream.run(rows_per_slot=1)
    assert stream.keys() == IDS
    stream.send(["01000", "01001"])
    stream.run(even)
    assert stream.keys() == [*IDS, "01000"]


def decision(stream: Stream, batch: int) -> Decision:
    found = DecisionLog(LocalLogStore(stream.checkpoint)).read(LogView()).decision(batch)
    assert found is not None
    return found


def test_the_partitions_of_a_shuffle_stay_those_of_the_first_start(
    spark: SparkSession, kafka: Cluster, tmp_path: Path
) -> None:
    """Spark keeps them in the checkpoint, for queries without state, too."""
    own = spark.newSession()
    stream = Stream(own, kafka, tmp_path, IDS)
    own.conf.set("spark.sql.shuffle.partitions", "3")
    with pytest.raises(CrashError):
        stream.run(by_key, listener=crash_at(Phase.DECIDING, 1))
    own.conf.set("spark.sql.shuffle.partitions", "2")
    assert [done.transactions for done in stream.run(by_key)] == [3, 3]
    assert stream.keys() == IDS


def by_key(rows: DataFrame) -> DataFrame:
    return rows.repartition("key")


# --- blue and green --------------------------------------------------------------------------------------------------


def test_a_second_query_with_a_checkpoint_prefix_and_topic_of_its_own_takes_over(
    stream: Stream, spark: SparkSession, kafka: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Blue goes on while green, with a new plan, catches up. Readers change topics, and blue is stopped."""
    blue, green = {"prefix": "blue"}, {"prefix": "green"}
    target = Stream(spark, kafka, tmp_path / "green")
    with pytest.raises(CrashError):
        stream.run(sink=blue, listener=crash_at(Phase.FINISHING, 1))
    decided = stream.transactions("Ongoing")
    with caplog.at_level(logging.WARNING, "sparkonce"):
        stream.run(even, checkpoint=target.checkpoint, sink={**green, "topic": target.target})
    assert "This query is new" not in caplog.text
    assert target.keys() == EVEN
    assert decided.keys() == stream.transactions("Ongoing").keys() != set(), "green leaves alone what is blue's"
    stream.run(sink=blue)
    assert stream.keys() == IDS


def test_a_second_query_into_the_same_topic_is_told_that_it_writes_the_rows_again(
    stream: Stream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream.run(sink={"prefix": "same"})
    with caplog.at_level(logging.WARNING, "sparkonce"):
        stream.run(even, checkpoint=tmp_path / "green", sink={"prefix": "same"})
    assert "This query is new, and where sink 'kafka' writes there are finished batches" in caplog.text
    assert stream.keys() == sorted([*IDS, *EVEN])
