"""Arrow batches are limited by the number of rows if all rows are small, and otherwise by bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import pandas_udf

from spark.in_process import MARKS, write_batch
from sparkonce import FilesSink
from sparkonce.driver.work import LargerRowsError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Handle
from sparkonce.spark import arrow_batches
from sparkonce.spark.arrow_batches import ArrowBatches

pytestmark = MARKS

BYTES, RECORDS = arrow_batches.BYTES, arrow_batches._RECORDS
BY_BYTES, BY_ROWS = str(1 << 20), str(2**31 - 1)
ROWS = 1000


@pytest.fixture
def session(own_session, monkeypatch) -> SparkSession:
    monkeypatch.setattr(arrow_batches, "_WORTH_IT_ROWS", ROWS)
    return own_session


class Recorded(ArrowBatches):
    """Records the limits of the newest batch."""

    seen = ("", "")

    def release(self, session: SparkSession) -> None:
        self.seen = bounds(session)
        super().release(session)


class Query:
    """Batches of a query, without Spark's streaming."""

    def __init__(self, folder: Path, guarantee: Guarantee = Guarantee.EXACTLY_ONCE) -> None:
        self.sink = FilesSink(str(folder), guarantee=guarantee)
        self.arrow = Recorded()
        self.batches = 0

    def write(self, rows: DataFrame) -> tuple[Sequence[Handle], bool]:
        self.batches += 1
        handles, again = write_batch(self.sink, rows, self.batches, arrow=self.arrow)
        assert sum(handle.rows for handle in handles) == rows.count()
        return handles, again


def numbers(session: SparkSession, largest: int = 0) -> DataFrame:
    """Returns rows, one of which has this many bytes."""
    rows = session.range(ROWS, numPartitions=3).withColumnRenamed("id", "number")
    long = F.when(rows["number"] == ROWS // 2, F.repeat(F.lit("x"), largest)).otherwise("small")
    return rows.withColumn("text", long)


def bounds(session: SparkSession) -> tuple[str, str]:
    return str(session.conf.get(BYTES)), str(session.conf.get(RECORDS))


@pytest.mark.slow
def test_after_a_batch_of_small_rows_the_next_is_bound_by_their_number(session, tmp_path):
    query = Query(tmp_path)
    query.write(numbers(session))
    assert query.arrow.seen == (BY_BYTES, "10000")
    handles, again = query.write(numbers(session, largest=100))
    assert query.arrow.seen == (BY_ROWS, "10000")
    assert bounds(session) == (BY_BYTES, "10000"), "the query's own functions run before the next batch is bound"
    assert not again
    session.conf.set(RECORDS, "500")
    query.write(numbers(session))
    assert query.arrow.seen == (BY_ROWS, "500")
    assert bounds(session) == (BY_BYTES, "500")
    assert [handle.slot for handle in handles] == [0, 1, 2]


def test_a_batch_with_a_row_that_is_too_large_is_to_be_written_once_more(session, tmp_path):
    query = Query(tmp_path)
    query.write(numbers(session))
    with pytest.raises(LargerRowsError):
        query.write(numbers(session, largest=10_000))
    query.write(numbers(session, largest=10_000))
    assert query.arrow.seen == (BY_BYTES, "10000")
    query.write(numbers(session))
    assert query.arrow.seen == (BY_BYTES, "10000"), "there may be such rows again"


def test_a_checked_column_is_never_null_where_it_was_not(session):
    rows = numbers(session).withColumn("text", F.lit("small")).withColumn("raw", F.lit(b"small"))
    assert not any(field.nullable for field in rows.schema.fields)
    assert arrow_batches._checked(rows, 100).schema == rows.schema


def test_the_widest_frame_of_a_batch_counts(session):
    arrow = ArrowBatches()
    arrow.learn([(ROWS, ROWS * 20), (ROWS, ROWS * 1000), (0, 0)])
    arrow.bind([numbers(session)], may_fail=True)
    assert bounds(session) == (BY_ROWS, str((1 << 20) // 1000))


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
def test_rows_that_cannot_be_taken_back_are_bound_by_bytes(session, tmp_path, guarantee):
    query = Query(tmp_path, guarantee)
    for _ in range(2):
        query.write(numbers(session))
        assert query.arrow.seen == (BY_BYTES, "10000")


def test_a_limit_of_the_user_stays(session, tmp_path):
    session.conf.set(BYTES, "3m")
    query = Query(tmp_path)
    for _ in range(2):
        query.write(numbers(session))
        assert bounds(session) == ("3m", "10000")


def test_batches_of_the_users_own_functions_and_nested_rows_are_bound_by_bytes(session, tmp_path):
    @pandas_udf("string")
    def same(texts):
        return texts

    query = Query(tmp_path)
    query.write(numbers(session))
    query.write(numbers(session).withColumn("text", same("text")))
    assert query.arrow.seen == (BY_BYTES, "10000")
    query.write(numbers(session).withColumn("text", F.array("text")))
    assert query.arrow.seen == (BY_BYTES, "10000")
    query.write(numbers(session))
    assert query.arrow.seen == (BY_ROWS, "10000")
