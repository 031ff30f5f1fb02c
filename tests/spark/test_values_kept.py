"""The rows of `integration/test_values.py` through Spark, and what a session's settings may not change of them.

Spark passes the same Arrow data to every sink, so a folder stands for all of them. Only tables are written by Spark.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from integration.test_values import (
    EMPTY,
    NOT_NULL,
    TABLE,
    Case,
    No,
    Parquet,
    Way,
    by_column,
    kept_by,
    read_parquet,
    refused_by,
    rows_of,
    same,
    wanted,
)
from pravega_witness import SCOPE, PravegaWitness
from shared_servers import pravega_server
from spark.harness import new_name
from spark.in_process import SPARK, ended
from sparkonce import DeltaSink, ExactlyOnce, IcebergSink, KafkaSink
from sparkonce.errors import SparkonceError
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.files.formats import choose
from sparkonce.sinks.tables import merging
from sparkonce.sinks.tables.committer import read_rows, schema_in
from sparkonce.sinks.write_ahead.rows import RowsFile
from sparkonce_lab.kafka import create_topic, read_committed
from sparkonce_lab.rig.kafka import Cluster
from sparkonce_pravega import PravegaSink

pytestmark = SPARK

# --- sinks that only accept rows from Spark, or one value per row -----------------------------------------------------


class Delta(Way):
    cell = "table"
    spark: SparkSession

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        self.spark.sql(f"CREATE TABLE delta.`{self.folder / name}` ({declared(columns)}) USING delta")
        return DeltaSink(str(self.folder / name), folder=self.folder / "rows", name=name)

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        """Reads the files that the table's log names."""
        files = self.folder / name / "_delta_log"
        actions = [json.loads(line) for one in files.glob("*.json") for line in one.read_text().splitlines()]
        added = [str(self.folder / name / one["add"]["path"]) for one in actions if "add" in one]
        return read_parquet(added, columns)


class Iceberg(Way):
    cell = "table"
    spark: SparkSession
    table = ""

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        self.table = f"ice.kept.{new_name('t').replace('-', '_')}"
        self.spark.sql(f"CREATE TABLE {self.table} ({declared(columns)}) USING iceberg")
        return IcebergSink(self.table, folder=self.folder / "rows", name=name)

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        files = self.spark.sql(f"SELECT file_path FROM {self.table}.files").collect()  # noqa: S608 - the test's own
        return read_parquet([row.file_path.removeprefix("file:") for row in files], columns)


class Kafka(Way):
    cell = "message"
    broker: Cluster
    topic = ""

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        self.topic = new_name("values")
        create_topic(self.broker.bootstrap, self.topic, 1)
        return KafkaSink({"bootstrap.servers": self.broker.bootstrap}, topic=self.topic, name=name)

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        return {one: [row.value for row in read_committed(self.broker.bootstrap, self.topic)] for one in columns}


class Events(Way):
    cell = "message"
    witness: PravegaWitness
    stream = ""

    def sink(self, name: str, columns: dict[str, Case]) -> TwoPhaseCommitSink:
        self.stream = new_name("values")
        self.witness.create(self.stream)
        return PravegaSink(self.witness.controller, scope=SCOPE, stream=self.stream, folder=self.folder / "rows")

    def read(self, name: str, columns: dict[str, Case]) -> dict[str, list[Any]]:
        segments = self.witness.segments(self.stream, "ISO_8859_1")
        events = [event.encode("iso-8859-1") for segment in segments for event in segment]
        return dict.fromkeys(columns, events)


TYPES = {
    "struct": "struct<a: array<long>, b: string>",
    "struct<int not null>": "struct<a: int>",
    "day-time interval": "interval day to second",
}


def declared(columns: dict[str, Case]) -> str:
    kept = {name: one for name, one in columns.items() if not isinstance(one.cells.get("table"), No)}
    types = {name: TYPES.get(one.name) or re.split(r", | ", one.name)[0] for name, one in kept.items()}
    return ", ".join(["id int", *(f"{name} {kind}" for name, kind in types.items())])


# --- rows that Spark holds -------------------------------------------------------------------------------------------


def parquet_of(folder: Path, columns: dict[str, Case]) -> str:
    """A file of the rows, as written by Spark. It has no intervals, voids, empty structs, or non-null fields."""
    rows = {"id": rows_of(columns)["id"]}
    for name, one in columns.items():
        values = rows_of(columns)[name]
        if pa.types.is_duration(one.arrow):
            values = values.cast(pa.int64())
        elif one.arrow == NOT_NULL:
            values = values.cast(pa.struct({"a": pa.int32()}))
        if one.arrow not in (pa.null(), EMPTY):
            rows[name] = values
    folder.mkdir(parents=True)
    table = pa.table(rows).replace_schema_metadata({"org.apache.spark.version": "4.0.0"})
    pq.write_table(table, folder / "rows.parquet")
    return str(folder)


def with_types(rows: DataFrame, columns: dict[str, Case]) -> DataFrame:
    """Adds what files cannot contain."""
    chosen = []
    for name, one in columns.items():
        value = name
        if pa.types.is_duration(one.arrow):
            value = f"timestamp_micros({name}) - timestamp_micros(0)"
        elif one.arrow == NOT_NULL:
            value = f"if({name} is null, null, named_struct('a', coalesce({name}.a, 0)))"
        elif one.arrow == EMPTY:
            value = "if(id = 0, named_struct(), null)"
        elif pa.types.is_null(one.arrow):
            value = "cast(null as void)"
        chosen.append(f"{value} as {name}")
    return rows.selectExpr("id", *chosen)


def run(spark: SparkSession, sink: TwoPhaseCommitSink, folder: Path, columns: dict[str, Case], *select: str) -> None:
    """Sends the rows through a query."""
    source = parquet_of(folder / "source", columns)
    rows = with_types(spark.readStream.schema(spark.read.parquet(source).schema).parquet(source), columns)
    once = ExactlyOnce(sink, checkpoint=str(folder / "checkpoint"), display=False)
    ended(once.start(rows.selectExpr(*select) if select else rows, trigger={"availableNow": True}))


@pytest.fixture
def way(request, tmp_path, tables) -> Way:
    made: Way = request.param(tmp_path)
    made.prepare(request)
    if isinstance(made, (Delta, Iceberg)):
        made.spark = tables
        # DuckDB and Arrow cannot read the most distant timestamps in INT96, which is Spark's default.
        tables.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    if isinstance(made, Kafka):
        made.broker = request.getfixturevalue("kafka")
    if isinstance(made, Events):
        made.witness = PravegaWitness(tables._jvm, pravega_server().url)
    return made


def form(one: Case) -> str:
    """Returns a value as a number or bytes, computed by Spark."""
    if pa.types.is_date32(one.arrow):
        return "unix_date({})"
    if pa.types.is_timestamp(one.arrow):
        return "unix_micros(cast({} as timestamp))"
    if pa.types.is_duration(one.arrow):
        return "unix_micros(timestamp_micros(0) + {})"
    return "cast({} as binary)" if pa.types.is_string(one.arrow) else "{}"


@pytest.mark.slow
def test_spark_holds_these_values(tables, tmp_path):
    columns = {f"c{at}": one for at, one in enumerate(TABLE) if not pa.types.is_nested(one.arrow)}
    rows = with_types(tables.read.parquet(parquet_of(tmp_path / "rows", columns)), columns).orderBy("id")
    found = by_column(columns, rows.selectExpr(*(form(one).format(name) for name, one in columns.items())).collect())
    for name, one in columns.items():
        assert [same(value) for value in found[name]] == wanted(one, "spark", len(found[name])), one.name


@pytest.mark.slow
@pytest.mark.parametrize("way", [Parquet, Delta, Iceberg], indirect=True)
def test_what_a_sink_keeps_is_read_as_it_was(tables, tmp_path, way):
    kept = kept_by(way)
    run(tables, way.sink("kept", kept), tmp_path / "query", kept)
    for column, values in way.read("kept", kept).items():
        assert [same(one) for one in values] == wanted(kept[column], way.cell, len(rows_of(kept))), kept[column].name


@pytest.mark.slow
@pytest.mark.parametrize("way", [Parquet, Delta, Iceberg], indirect=True)
def test_all_else_is_refused_by_column(tables, tmp_path, way):
    for column, one, words in refused_by(way):
        with pytest.raises((SparkonceError, StreamingQueryException), match=words) as refused:
            run(tables, way.sink(f"no_{column}", {column: one}), tmp_path / column, {column: one})
        assert re.search(rf"\b{column}\b", str(refused.value)), one.name


@pytest.mark.slow
@pytest.mark.parametrize("way", [Parquet], indirect=True)
def test_types_that_arrow_lacks_are_refused_by_column(tables, tmp_path, way):
    text = {"c0": Case("string", pa.string(), [b"{}"])}
    for name, value in {"variant": "parse_json(c0)", "months": "make_ym_interval(1, 2)", "nothing": "array()"}.items():
        with pytest.raises((SparkonceError, StreamingQueryException)) as refused:
            run(tables, way.sink(name, text), tmp_path / f"query {name}", text, "id", f"{value} as c0")
        assert re.search(r"\bc0\b", str(refused.value)), name


@pytest.mark.slow
@pytest.mark.parametrize("way", [Kafka, Events], indirect=True)
def test_messages_have_the_bytes_of_strings_and_binaries(tables, tmp_path, way):
    for column, one in kept_by(way).items():
        sink = way.sink(column, {column: one})
        has_null = isinstance(way, Kafka)
        rows = f"{column} as value" if has_null else f"explode(array_compact(array({column}))) as value"
        run(tables, sink, tmp_path / column, {column: one}, rows)
        found = [same(value) for value in way.read(column, {column: one})[column]]
        sent = wanted(one, way.cell, len(one.values) + has_null)
        assert sorted(found, key=str) == sorted(sent, key=str), one.name


# --- settings of sessions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["LEGACY", "EXCEPTION"])
def test_dates_before_1582_stay_whatever_the_session_reads_old_files_by(own_session, tmp_path, mode):
    modes = ("spark.sql.parquet.datetimeRebaseModeInRead", "spark.sql.parquet.int96RebaseModeInRead")
    texts = [("0001-01-01", "1653-02-10 06:13:20"), ("1970-01-01", "1970-01-01 00:00:00")]
    old = {
        "d": pa.array([-719_162, 0], pa.int32()).cast(pa.date32()),
        "t": pa.array([-(10**16), 0]).cast(pa.timestamp("us")),
    }
    rows = pa.record_batch(old)
    waiting, published = tmp_path / "waiting.parquet", tmp_path / "published.parquet"
    with waiting.open("w+b") as file:
        made = RowsFile(file)
        made.write(rows)
        made.seal()
    with published.open("wb") as file:
        encoder = choose("parquet", None, {}).open(file)
        encoder.write(pa.Table.from_batches([rows]))
        encoder.close()
    for name in modes:
        own_session.conf.set(name, mode)
    frames = [own_session.read.parquet(str(one)) for one in (published, waiting)]
    # Files written by other programs do not record their calendar, and neither do files from sparkonce 0.1.
    bare = tmp_path / "bare.parquet"
    pq.write_table(pa.Table.from_batches([rows]), bare)
    frames.append(read_rows(own_session, [bare.as_uri()], schema_in(io.BytesIO(bare.read_bytes()))))
    for frame in frames:
        assert [tuple(row) for row in frame.selectExpr("cast(d as string)", "cast(t as string)").collect()] == texts


@pytest.mark.parametrize("most", [1_000, 1], ids=["driver", "spark"])
def test_repeated_keys_that_python_lacks_are_named(spark, monkeypatch, tmp_path, most):
    monkeypatch.setattr(merging, "_MOST_IN_DRIVER", most)
    file = tmp_path / "rows.parquet"
    far = pa.array([2_932_897] * 2, pa.int32()).cast(pa.date32())
    odd = pa.array([b"a\xff"] * 2).view(pa.string())
    pq.write_table(pa.table({"day": far, "word": odd}), file)
    content = io.BytesIO(file.read_bytes())
    reason = merging.repeated(["day", "word"], [content], lambda: read_rows(spark, [file.as_uri()], schema_in(content)))
    assert "2 rows of the batch have the key day=" in reason
    assert "+10000-01-01" in reason
