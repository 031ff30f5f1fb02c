"""Shared by the tests of all tables: handles without a query, and queries that crash."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from one_run import prepare
from spark.in_process import CrashError, Query, crash_at
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import Phase
from sparkonce.sink import Owner, SinkCommitter, TwoPhaseCommitSink
from sparkonce.sinks.tables.sink import TableSink
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.testing.conformance import SinkConformance
from tryout.bulk import make_orders

QUERY = "7f6e5d4c0000"
OLD, NEW = Token(3, "0" * 8), Token(7, "1" * 8)
ARROW = pa.schema([("number", pa.int64()), ("word", pa.string())])
SETTINGS = {
    "spark.databricks.delta.snapshotPartitions": "1",  # by default, Delta spreads a table's state over 50 tasks
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",  # with adaptive execution, each stage would be a separate job
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
}


@contextmanager
def table_session(spark: SparkSession, warehouse: Path) -> Iterator[SparkSession]:
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    sessions.clearActiveSession()
    sessions.clearDefaultSession()
    builder = sessions.builder()
    folders = dict.fromkeys(("spark.sql.catalog.ice.warehouse", "spark.sql.warehouse.dir"), str(warehouse))
    for name, value in {**SETTINGS, **folders}.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    sessions.setActiveSession(made)
    # PySpark's active session may still be the one for another module's tables, and the sinks would use that one.
    SparkSession._activeSession = SparkSession(spark.sparkContext, made)
    try:
        yield SparkSession._activeSession
    finally:
        SparkSession._activeSession = spark
        sessions.setDefaultSession(spark._jsparkSession)
        sessions.setActiveSession(spark._jsparkSession)


class WaitingRows(SinkConformance):
    """The conformance suite for a sink whose rows wait in the folder `rows` below `root`."""

    visible_within_s = 0.0
    loses_whole_batches = True
    test_another_process_commits = None  # would have to start its own Spark session
    root: Path

    def make_second_sink(self) -> TwoPhaseCommitSink:
        return self.make_sink(name="beside")

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"number": list(range(start, start + count)), "word": ["w"] * count})

    def expire(self, handle: Handle) -> bool:
        (self.root / "rows" / handle.sink / "prepared" / str(handle["name"])).unlink()
        return True


class KilledError(BaseException):
    pass


def killed(*_: object) -> None:
    raise KilledError


class TableJob(abc.ABC):
    """A table and a run that writes to it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.facts = self.sink().preflight(QUERY, None)

    @abc.abstractmethod
    def sink(self) -> TableSink:
        """Returns a sink that keeps rows in the folder's `rows`."""

    @abc.abstractmethod
    def numbers(self) -> list[int]:
        """Returns the numbers that a reader finds, sorted."""

    def owner(self, token: Token = OLD) -> Owner:
        return Owner(query=QUERY, token=token, facts=self.facts)

    def prepare(self, batch: int = 0, slot: int = 0, schema: pa.Schema = ARROW) -> Handle:
        rows = {"number": [100 * batch + slot], "word": [None]}
        given = pa.record_batch({name: rows[name] for name in schema.names}, schema=schema)
        return prepare(self.sink(), given, run=self.owner(), batch=batch, slot=slot)

    def commit(self, *handles: Handle) -> list[Outcome]:
        return [answer.outcome for answer in self.sink().committer().commit(handles)]

    def run_of_its_own(self) -> SinkCommitter:
        """Returns the committer of a run that knows its table."""
        sink = self.sink()
        assert sink.preflight(QUERY, self.facts) == self.facts
        return sink.committer()

    def commit_killed(self, kind: type, method: str, *handles: Handle) -> None:
        """Simulates a driver that is killed instead of calling a method."""
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(kind, method, killed)
            with pytest.raises(KilledError):
                pytest.fail(f"not killed: {self.sink().committer().commit(handles)}")

    def commit_unnoticed(self, *handles: Handle) -> None:
        """Simulates a driver that is killed between the commit and its own note about it."""
        self.commit_killed(WriteAheadFolder, "note_done", *handles)

    def of_orders(self, orders: DataFrame) -> DataFrame:
        """The part of the orders that is written."""
        return orders

    def query(self, listener: Callable[[Phase, int], None] | None = None) -> None:
        """Writes all current orders, in batches of two files. Raises what stopped it."""
        rows = self.spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 2)
        orders = self.of_orders(rows.json(str(self.folder / "orders")).withColumnRenamed("id", "number"))
        Query(self.sink(), checkpoint=str(self.folder / "query"), listener=listener, display=False).write(orders)

    def query_that_crashes(self, phase: Phase) -> list[int]:
        """Returns the sent numbers, after a query has crashed in its second batch and continued."""
        sent = make_orders(self.folder / "orders", files=4)
        with pytest.raises(CrashError):
            self.query(crash_at(phase, 1))
        self.query()
        return sent
