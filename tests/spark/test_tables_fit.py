"""Rows are matched to tables by field name at every depth. Rows that a table rejects are found before a decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.harness import new_name
from spark.in_process import SPARK
from spark.table_job import QUERY
from sparkonce import DeltaSink, IcebergSink
from sparkonce.errors import PreflightError, SchemaError
from sparkonce.protocol.handles import Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, WriterContext
from sparkonce.sinks.tables.sink import TableSink
from sparkonce.spark.views import arrow_schema, check_columns, shares
from sparkonce.spark.work import check_plans

pytestmark = SPARK


class Tables:
    """Makes tables of one kind, and sinks for them."""

    def __init__(self, spark: SparkSession, folder: Path, kind: str) -> None:
        self.spark, self.folder, self.kind = spark, folder, kind

    def sink(self, columns: str, properties: str = "", **settings: Any) -> TableSink:
        path = self.folder / new_name("table")
        self.name = str(path) if self.kind == "delta" else f"ice.fit.{new_name('t').replace('-', '_')}"
        given = f"TBLPROPERTIES ({properties})" if properties else ""
        name = f"delta.`{path}`" if self.kind == "delta" else self.name
        self.spark.sql(f"CREATE TABLE {name} ({columns}) USING {self.kind} {given}")
        if self.kind == "delta":
            return DeltaSink(path, folder=self.folder / "rows", **settings)
        return IcebergSink(self.name, folder=self.folder / "rows", **settings)

    def start(self, sink: TableSink, rows: str | DataFrame) -> DataFrame:
        """Checks the rows as the start of a query does."""
        frame = self.spark.sql(rows) if isinstance(rows, str) else rows
        check_plans(check_columns(frame, shares({sink: None})))
        return frame

    def write(self, sink: TableSink, rows: str | DataFrame) -> list[str]:
        """Writes rows as a batch of a query, and returns what the table then holds."""
        frame = self.start(sink, rows)
        facts = sink.preflight(QUERY, None)
        self.start(sink, rows)
        frame = sink.checked(frame)
        owner = Owner(query=QUERY, token=Token(3, "0" * 8), facts=facts)
        writer = sink.writer(WriterContext(owner=owner, batch=0, slot=0, copy="1.1.0"))
        writer.begin()
        for batch in frame.toArrow().cast(arrow_schema(frame.schema)).to_batches():
            writer.write(batch)
        handle = Handle(sink=sink.name, slot=0, rows=1, transaction=transaction_fields(writer.prepare()))
        committer = sink.committer()
        assert committer.check_prepared([handle]) == ""
        assert [(one.outcome, one.reason) for one in committer.commit([handle])] == [(Outcome.COMMITTED, "")]
        found = self.spark.read.format(self.kind).load(self.name)
        return sorted(str(tuple(row)) for row in found.collect())


@pytest.fixture(params=["delta", "iceberg"])
def some(request, tables, tmp_path) -> Tables:
    return Tables(tables, tmp_path, request.param)


@pytest.mark.parametrize(
    ("kind", "merge_on"),
    [
        ("delta", None),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in [("delta", ["id"]), ("iceberg", None), ("iceberg", ["id"])]
        ),
    ],
)
def test_fields_go_by_their_names_whatever_may_be_null(tables, tmp_path, kind, merge_on):
    """A cast between structs matches fields by position, and would swap them."""
    nested = "id bigint, s struct<a: int not null, b: string>, xs array<struct<a: int, b: bigint>>, m map<string, int>"
    some = Tables(tables, tmp_path, kind)
    sink = some.sink(nested, merge_on=merge_on)
    rows = """
        SELECT 1L AS id, named_struct('b', 'x', 'a', 7) AS s, array(named_struct('b', 2, 'a', 1)) AS xs,
            map('k', 5) AS m
    """
    assert some.write(sink, rows) == ["(1, Row(a=7, b='x'), [Row(a=1, b=2)], {'k': 5})"]

    wrong = "SELECT id, named_struct('b', 'x', 'a', if(id = 1, null, 7)) AS s FROM range(2)"
    with pytest.raises(Exception, match="must not be null"):
        sink.checked(some.spark.sql(wrong)).collect()


@pytest.mark.slow
@pytest.mark.parametrize("merge_on", [None, ["id"]])
def test_a_type_of_a_user_arrives_as_such(tables, tmp_path, merge_on):
    """Waiting rows store a Spark ML vector as its underlying struct, and Spark cannot cast anything to a vector."""
    path, jvm = tmp_path / "vectors", tables._jvm
    made = jvm.io.delta.tables.DeltaTable.create(tables._jsparkSession).location(str(path)).addColumn("id", "bigint")
    made.addColumn("v", jvm.org.apache.spark.ml.linalg.SQLDataTypes.VectorType()).execute()
    some = Tables(tables, tmp_path, "delta")
    some.name = str(path)
    rows = tables.range(1, 2).withColumn("v", array_to_vector(F.array(F.lit(0.5), F.lit(-0.0))))
    sink = DeltaSink(path, folder=tmp_path / "rows", merge_on=merge_on)
    assert some.write(sink, rows) == ["(1, DenseVector([0.5, -0.0]))"]


@pytest.mark.slow
def test_new_columns_are_added_as_columns_that_may_be_null(some):
    sink = some.sink("id bigint", evolve_schema=True)
    assert some.write(sink, "SELECT 1L AS id, array(named_struct('x', 1)) AS c") == ["(1, [Row(x=1)])"]


@pytest.mark.parametrize(
    ("columns", "rows", "said"),
    [
        ("id bigint, v string", "SELECT 1L AS id, 2L AS v", "column 'v' is bigint in the rows, and string in the"),
        ("s struct<a: int>", "SELECT named_struct('a', '1') AS s", "field 'a' of column 's' is string in the rows"),
        ("s struct<a: int>", "SELECT named_struct('a', 1, 'c', 2) AS s", "column 's' has a field 'c' of the rows only"),
        ("s struct<a: int, b: int>", "SELECT named_struct('a', 1) AS s", "has a field 'b' of the table only"),
        ("m map<string, int>", "SELECT map('k', 5L) AS m", "a value of column 'm' is bigint in the rows"),
    ],
)
def test_what_does_not_fit_is_named(some, columns, rows, said):
    with pytest.raises(SchemaError, match=said) as told:
        some.start(some.sink(columns), rows)
    assert ("Cast it" in str(told.value)) == ("struct" not in rows and "map" not in rows)


def test_columns_that_differ_in_case_only(some):
    sink = some.sink("s string")
    with pytest.raises(SchemaError, match="Column 'S' appears more than once"):
        sink.columns(pa.schema([("s", pa.string()), ("S", pa.string())]))


def test_a_merge_that_the_table_never_takes_is_refused_at_the_start(some):
    """Delta reports this when it commits, and Iceberg when it resolves the statement, both after the decision."""
    settings = {"delta": "'delta.appendOnly' = 'true'", "iceberg": "'write.spark.accept-any-schema' = 'true'"}
    sink = some.sink("id bigint, v string", settings[some.kind], merge_on=["id"])
    with pytest.raises(PreflightError, match=r"would refuse every batch: .* No batch was decided"):
        some.start(sink, "SELECT 1L AS id, 'x' AS v")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "'id' is GENERATED ALWAYS AS IDENTITY, and the rows have a value for it"),
        ({"merge_on": ["v"], "when_not_matched": None}, "'id' is an identity column, and the merge updates it"),
    ],
)
def test_values_of_an_identity_column(tables, tmp_path, settings, said):
    path = tmp_path / "identity"
    made = tables._jvm.io.delta.tables.DeltaTable.create(tables._jsparkSession).location(str(path))
    identity = tables._jvm.io.delta.tables.DeltaTable.columnBuilder("id").dataType("bigint")
    made.addColumn(identity.generatedAlwaysAsIdentity().build()).addColumn("v", "string").execute()
    with pytest.raises(PreflightError, match=said):
        Tables(tables, tmp_path, "delta").start(
            DeltaSink(path, folder=tmp_path / "rows", **settings), "SELECT 1L AS id, 'x' AS v"
        )
