"""Tables of each kind that batches are merged into, with another writer next to them."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from one_run import prepare
from spark.harness import new_name
from spark.table_job import TableJob
from sparkonce import DeltaSink, IcebergSink
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.sinks.tables.delta import _DeltaTable
from sparkonce.sinks.tables.iceberg import _IcebergTable
from sparkonce.sinks.tables.sink import TableSink

COLUMNS = "id bigint, n bigint, word string"
ARROW = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("word", pa.string())])
ADD = {"n": "target.n + source.n", "word": "source.word"}


Row = tuple[int, int, str]


class MergeJob(TableJob):
    """One table with a few rows, a run that merges into it, and another writer.

    Args:
        spark: A session with the tables' catalogs.
        folder: A new one.
        columns: The table's columns.
        properties: Its properties.
    """

    started = ((1, 10, "a"), (2, 20, "b"), (3, 30, "c"))
    settings: Mapping[str, Any] = {"merge_on": ["id"], "when_matched": ADD}

    def __init__(self, spark: SparkSession, folder: Path, columns: str = COLUMNS, **properties: str) -> None:
        self.columns, self.properties = columns, properties
        self.make(spark, folder)
        super().__init__(spark, folder)

    @abc.abstractmethod
    def make(self, spark: SparkSession, folder: Path) -> None:
        """Creates the table."""

    @abc.abstractmethod
    def sink(self, **settings: Any) -> TableSink:
        """Returns a sink with these settings instead of the job's own."""

    @abc.abstractmethod
    def rows(self) -> list[Row]:
        """Returns the rows that a reader finds, sorted."""

    @abc.abstractmethod
    def another_adds(self, id_: int, n: int) -> None:
        """Another writer adds to an existing row. Fails if somebody else committed first."""

    @abc.abstractmethod
    def another_inserts(self, *rows: Row) -> None: ...

    @abc.abstractmethod
    def versions(self) -> int:
        """Returns the number of table versions that belong to batches."""

    def numbers(self) -> list[int]:
        return [row[0] for row in self.rows()]

    def prepared(
        self, rows: Sequence[tuple[Any, ...]], batch: int = 0, slot: int = 0, schema: pa.Schema = ARROW
    ) -> Handle:
        columns = {name: [row[place] for row in rows] for place, name in enumerate(schema.names)}
        given = pa.record_batch(columns, schema=schema)
        return prepare(self.sink(), given, run=self.owner(), batch=batch, slot=slot)

    def merge(
        self, rows: Sequence[tuple[Any, ...]], *, batch: int = 0, schema: pa.Schema = ARROW, **settings: Any
    ) -> None:
        """Runs one batch with other settings."""
        (answer,) = (
            self.sink(**{"merge_on": ["id"], **settings}).committer().commit([self.prepared(rows, batch, 0, schema)])
        )
        assert answer.outcome is Outcome.COMMITTED, answer.reason


class DeltaMerge(MergeJob):
    table = _DeltaTable
    points = ("merge",)

    def make(self, spark: SparkSession, folder: Path) -> None:
        self.path = str(folder / "table")
        properties = ", ".join(f"'{name}'='{value}'" for name, value in {"made.by": "tests", **self.properties}.items())
        spark.sql(f"create table delta.`{self.path}` ({self.columns}) using delta tblproperties ({properties})")
        rows = spark.createDataFrame(self.started, self.columns).coalesce(1)
        rows.write.format("delta").mode("append").save(self.path)

    def sink(self, **settings: Any) -> DeltaSink:
        return DeltaSink(self.path, folder=self.folder / "rows", **(settings or self.settings))

    def rows(self) -> list[Row]:
        return sorted(tuple(row) for row in self.spark.read.format("delta").load(self.path).collect())

    def another_adds(self, id_: int, n: int) -> None:
        """Uses MERGE, since UPDATE needs Delta's SQL extension."""
        changes = self.spark._jvm.java.util.HashMap()
        changes["n"] = f"it.n + {n}"
        one = self.spark.range(1)._jdf.alias("one")
        self._handle().alias("it").merge(one, f"it.id = {id_}").whenMatched().updateExpr(changes).execute()

    def another_inserts(self, *rows: Row) -> None:
        self.spark.createDataFrame(rows, COLUMNS).write.format("delta").mode("append").save(self.path)

    def versions(self) -> int:
        return len(_DeltaTable(self.spark, self.path, None).labels())

    def _handle(self) -> Any:
        return self.spark._jvm.io.delta.tables.DeltaTable.forPath(self.spark._jsparkSession, self.path)


class IcebergMerge(MergeJob):
    table = _IcebergTable
    points = ("merge", "_publish")
    mode = "copy-on-write"

    def make(self, spark: SparkSession, folder: Path) -> None:
        self.name = f"ice.db.{new_name('t').replace('-', '_')}"
        modes = ", ".join(f"'write.{each}.mode'='{self.mode}'" for each in ("merge", "update", "delete"))
        spark.sql(f"create table {self.name} ({self.columns}) using iceberg tblproperties ({modes})")
        spark.createDataFrame(self.started, self.columns).writeTo(self.name).append()

    def sink(self, **settings: Any) -> IcebergSink:
        return IcebergSink(self.name, folder=self.folder / "rows", **(settings or self.settings))

    def rows(self) -> list[Row]:
        return sorted(tuple(row) for row in self.spark.table(self.name).collect())

    def another_adds(self, id_: int, n: int) -> None:
        self.spark.catalog.refreshTable(self.name)
        self.spark.sql(f"update {self.name} set n = n + {n} where id = {id_}")  # noqa: S608 - the test's own

    def another_inserts(self, *rows: Row) -> None:
        self.spark.catalog.refreshTable(self.name)
        self.spark.createDataFrame(rows, COLUMNS).writeTo(self.name).append()

    def versions(self) -> int:
        return len(_IcebergTable(self.spark, self.name).labels())


class IcebergMergeOnRead(IcebergMerge):
    mode = "merge-on-read"


KINDS = {"delta": DeltaMerge, "iceberg": IcebergMerge, "iceberg on read": IcebergMergeOnRead}
POINTS = [(kind, point) for kind, each in KINDS.items() for point in (*each.points, "note_done")]
FIRST_DELTA = ["delta", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "delta")]
"""The kinds of tables, for code that treats all of them the same. The first tier only uses Delta."""
