"""A batch's partitions are grouped to fewer slots, the same ones whenever the batch is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from conformance import folder_sink
from conformance.folder_sink import FolderSink
from spark.in_process import MARKS, travelling
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner
from sparkonce.spark.grouping import grouped
from sparkonce.spark.views import shares, views_of
from sparkonce.spark.work import SparkWork

pytestmark = MARKS

PARTITIONS, SLOTS, ROWS = 12, 3, 1200


@pytest.fixture(autouse=True, scope="module")
def _folder_sink_travels() -> Iterator[None]:
    with travelling(folder_sink):
        yield


def by_slot(rows: DataFrame) -> list[list[tuple[int, int]]]:
    """The rows of each slot as (partition, number), in the order in which the slot is given them."""

    def collect(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [[row["partition"], row["number"]] for batch in batches for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pydict({"rows": [found]})

    return [
        [tuple(row) for row in one["rows"]] for one in rows.mapInArrow(collect, "rows array<array<bigint>>").collect()
    ]


@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_partition_goes_whole_and_in_order_to_one_slot(spark: SparkSession, *, adaptive: str, shuffled: bool) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", adaptive)
    numbers = session.range(ROWS, numPartitions=PARTITIONS).withColumnRenamed("id", "number")
    if shuffled:
        numbers = numbers.repartition(PARTITIONS, "number").sortWithinPartitions("number")
    rows = numbers.withColumn("partition", F.spark_partition_id())
    slots = by_slot(grouped(rows, SLOTS))
    assert len(slots) == SLOTS
    assert sorted(number for slot in slots for _, number in slot) == list(range(ROWS))
    owners = {partition: place for place, slot in enumerate(slots) for partition, _ in slot}
    assert len(owners) == PARTITIONS
    for place, slot in enumerate(slots):
        for mine in {partition for partition, _ in slot}:
            assert owners[mine] == place
            numbers_of = [number for partition, number in slot if partition == mine]
            assert numbers_of == sorted(numbers_of)
    assert [set(slot) for slot in by_slot(grouped(rows, SLOTS))] == [set(slot) for slot in slots]


def test_a_batch_has_so_many_slots_or_as_many_as_it_has_partitions(spark: SparkSession, tmp_path: Path) -> None:
    sink = FolderSink(tmp_path)
    owner = Owner(query="0123456789ab", token=Token(0, "0" * 8), facts=sink.preflight("0123456789ab", None))
    rows = spark.range(ROWS, numPartitions=PARTITIONS).withColumnRenamed("id", "number")
    for wanted, slots in ((None, PARTITIONS), (SLOTS, SLOTS), (PARTITIONS, PARTITIONS), (10**6, PARTITIONS)):
        handles, _ = SparkWork(rows, 0, shares(views_of(sink)), wanted).write({sink.name: owner}, None)
        assert sorted(handle.slot for handle in handles) == list(range(slots))
        assert sum(handle.rows for handle in handles) == ROWS
