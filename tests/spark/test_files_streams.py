from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkonce import ExactlyOnce, FilesSink
from sparkonce.files import read_manifests, whole_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    # PySpark leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

ROWS = 1_000
COLUMNS = (
    "id",
    "cast(id % 100 AS tinyint) AS byte",
    "cast(id % 100 AS smallint) AS short",
    "cast(id AS int) AS int",
    "cast(id / 7 AS float) AS float",
    "id / 7 AS double",
    "cast(id / 8 AS decimal(20, 3)) AS decimal",
    "id % 2 = 0 AS boolean",
    "if(id % 5 = 0, NULL, concat('é \"', id, '\n')) AS string",
    "cast(cast(id AS string) AS binary) AS binary",
    "date_add(date'2024-02-28', cast(id % 9 AS int)) AS date",
    "timestamp_micros(1700000000123456 + id) AS timestamp",
    "cast(timestamp_micros(1700000000123456 + id) AS timestamp_ntz) AS timestamp_ntz",
)
NESTED = ("array(id, NULL) AS array", "named_struct('a', id, 'b', array(string(id), NULL)) AS struct")
BY = "if(id % 3 = 0, NULL, concat('a/b=', id % 3)) AS p"


def streamed(spark: SparkSession, folder: Path, columns: tuple[str, ...], format: str, **settings: object) -> DataFrame:  # noqa: A002
    """Two batches through a real query; returns what went in."""
    rows = spark.range(ROWS, numPartitions=2).selectExpr(*columns)
    rows.write.parquet(str(folder / "source"))
    source = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "source"))
    sink = FilesSink(folder / "out", format=format, **settings)  # type: ignore[arg-type]
    query = ExactlyOnce(sink, checkpoint=str(folder / "checkpoint"), display=False).start(
        source, trigger={"availableNow": True}
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    return spark.read.parquet(str(folder / "source"))


def same(left: DataFrame, right: DataFrame) -> bool:
    return left.exceptAll(right).isEmpty() and right.exceptAll(left).isEmpty()


@pytest.mark.slow
def test_spark_reads_parquet_of_all_types_and_partitions(spark: SparkSession, tmp_path: Path) -> None:
    rows = streamed(spark, tmp_path, (*COLUMNS, *NESTED, BY), "parquet", partition_by="p")
    found = spark.read.parquet(str(tmp_path / "out"))
    assert {field.name: field.dataType for field in found.schema} == {
        field.name: field.dataType for field in rows.schema
    }
    assert same(found.select(rows.columns), rows)
    assert {one.batch: one.rows for one in read_manifests(tmp_path / "out")} == {0: ROWS // 2, 1: ROWS // 2}
    whole = spark.read.option("basePath", str(tmp_path / "out")).parquet(*whole_batches(tmp_path / "out"))
    assert same(whole.select(rows.columns), rows)


@pytest.mark.slow
def test_spark_reads_json_and_csv_of_all_types(spark: SparkSession, tmp_path: Path) -> None:
    for format, columns in (("json", (*COLUMNS, *NESTED)), ("csv", COLUMNS)):  # noqa: A001
        rows = streamed(spark, tmp_path / format, columns, format)
        reader = spark.read.schema(rows.drop("binary").withColumn("binary", rows["string"]).schema)
        if format == "csv":
            reader = spark.read.schema(
                ", ".join(f"`{name}` {'string' if name == 'binary' else kind}" for name, kind in rows.dtypes)
            ).options(header=True, multiLine=True, escape='"')
        found = reader.format(format).load(str(tmp_path / format / "out"))
        assert same(found.selectExpr(*_unbased(rows.columns)), rows), format


def _unbased(columns: list[str]) -> list[str]:
    return [f"unbase64({name}) AS {name}" if name == "binary" else f"`{name}`" for name in columns]
