"""A batch's partitions are grouped into fewer slots, always the same ones for a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conformance.folder_sink import FolderSink
from spark.in_process import MARKS, Stream, ended, write_batch
from sparkonce import ExactlyOnce
from sparkonce.errors import ConfigurationError
from sparkonce.spark import classic
from sparkonce.spark.grouping import Grouping

pytestmark = MARKS
SLOW = pytest.mark.slow

PARTITIONS, SLOTS, ROWS = 12, 3, 1200


@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_partition_goes_whole_and_in_order_to_one_slot(own_session, *, adaptive, shuffled):
    def by_slot(rows: DataFrame) -> list[list[tuple[int, int]]]:
        """Returns the rows of each slot as (partition, number), in the order in which the slot receives them."""

        def collect(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = [[row["partition"], row["number"]] for batch in batches for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pydict({"rows": [found]})

        return [
            [tuple(row) for row in one["rows"]]
            for one in rows.mapInArrow(collect, "rows array<array<bigint>>").collect()
        ]

    own_session.conf.set("spark.sql.adaptive.enabled", adaptive)
    numbers = own_session.range(ROWS, numPartitions=PARTITIONS).withColumnRenamed("id", "number")
    if shuffled:
        numbers = numbers.repartition(PARTITIONS, "number").sortWithinPartitions("number")
    rows = numbers.withColumn("partition", F.spark_partition_id())
    slots = by_slot(Grouping(SLOTS).grouped(rows))
    assert len(slots) == SLOTS
    assert sorted(number for slot in slots for _, number in slot) == list(range(ROWS))
    owners = {partition: place for place, slot in enumerate(slots) for partition, _ in slot}
    assert len(owners) == PARTITIONS
    for place, slot in enumerate(slots):
        for mine in {partition for partition, _ in slot}:
            assert owners[mine] == place
            numbers_of = [number for partition, number in slot if partition == mine]
            assert numbers_of == sorted(numbers_of)
    assert [set(slot) for slot in by_slot(Grouping(SLOTS).grouped(rows))] == [set(slot) for slot in slots]


def test_a_batch_has_so_many_slots_or_as_many_as_it_has_partitions(spark, tmp_path):
    sink = FolderSink(tmp_path)
    rows = spark.range(ROWS, numPartitions=PARTITIONS).withColumnRenamed("id", "number")
    for wanted, slots in ((None, PARTITIONS), (SLOTS, SLOTS), (PARTITIONS, PARTITIONS), (10**6, PARTITIONS)):
        handles, _ = write_batch(sink, rows, 0, wanted and Grouping(wanted))
        assert sorted(handle.slot for handle in handles) == list(range(slots))
        assert sum(handle.rows for handle in handles) == ROWS


def test_a_query_groups_its_batches_by_the_rows_that_their_offsets_count(spark, tmp_path, monkeypatch):
    """The offsets of a file source contain no row counts, so the grouping of a Kafka source is simulated."""
    asked: list[tuple[bool, int, int | None]] = []

    def of(_: int | None, before: Sequence[str] | None, now: Sequence[str], rows_per_slot: int, *__: Any) -> Any:
        asked.append((before is None, len(now), rows_per_slot))
        return None if before is None else Grouping(SLOTS)

    monkeypatch.setattr(classic, "grouping_of", of)
    (tmp_path / "source").mkdir()
    for number in range(2):
        lines = "".join(f'{{"number": {100 * number + row}}}\n' for row in range(40))
        (tmp_path / "source" / f"{number}.json").write_text(lines)
    source = spark.readStream.schema("number bigint").option("maxFilesPerTrigger", "1").json(str(tmp_path / "source"))
    rows = source.repartition(5)
    sink, checkpoint = FolderSink(tmp_path / "sink"), str(tmp_path / "checkpoint")
    with closing(ExactlyOnce(sink, checkpoint=checkpoint, rows_per_slot=10, display=False)) as once:
        ended(once.start(rows, trigger={"availableNow": True}))
        transactions = [batch.transactions for batch in once.progress()]
    assert asked == [(True, 1, 10), (False, 1, 10)]
    assert transactions[0] > SLOTS
    assert transactions[1] <= SLOTS
    committed = (tmp_path / "sink" / "committed").iterdir()
    written = sorted(int(line) for file in committed for line in file.read_text().split())
    assert written == [*range(40), *range(100, 140)]


def test_a_number_of_rows_below_one_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"rows_per_slot=0 is not a whole number of 1 or more"):
        ExactlyOnce(FolderSink(tmp_path / "sink"), checkpoint=str(tmp_path / "checkpoint"), rows_per_slot=0)


# --- a batch of few small rows, straight from Kafka, is one slot ------------------------------------------------------

IDS = [f"{number:03d}" for number in range(120)]
EACH = 40
"""Rows of a batch, from all four partitions."""


@pytest.fixture
def stream(spark, kafka, tmp_path) -> Stream:
    return Stream(spark, kafka, tmp_path, IDS)


def transactions(stream: Stream, plan: Callable[[DataFrame], DataFrame]) -> list[int]:
    """Runs the query to its end, and returns the number of transactions of each batch."""
    found = [batch.transactions for batch in stream.run(plan, rows_per_batch=EACH)]
    assert stream.keys() == IDS
    return found


def test_the_first_batch_tells_how_large_rows_are_and_the_others_are_one_slot(stream):
    assert transactions(stream, lambda rows: rows.where("key >= '000'").withColumn("value", F.upper("value"))) == [
        4,
        1,
        1,
    ]


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(
            lambda rows: rows.withColumn("value", F.udf(str, "string")("value")), id="a function of the user's"
        ),
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
def test_rows_that_may_cost_a_task_much_keep_their_slots(stream, plan):
    assert min(transactions(stream, plan)) > 1
