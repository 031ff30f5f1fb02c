from __future__ import annotations

import datetime as dt
import io
import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from integration.files_scene import Life
from sparkonce.errors import FilesGoneError
from sparkonce.files import read_manifests, whole_batches
from sparkonce.protocol.handles import Outcome
from sparkonce.sinks.files import writer as writer_module
from sparkonce.sinks.files.sink import FilesSink

AT = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, dt.timezone.utc)
LOCAL = AT.replace(tzinfo=None)
FLAT = pa.table(
    {
        "long": pa.array([2**63 - 1, None], pa.int64()),
        "string": pa.array(['é "x",\n', None]),
        "timestamp": pa.array([AT, None], pa.timestamp("us", "Europe/Berlin")),
    }
)
NESTED = FLAT.append_column(
    "struct", pa.array([{"a": "x", "b": [0.5]}, None], pa.struct({"a": pa.string(), "b": pa.list_(pa.float64())}))
)
"""Other types are tested in test_values.py."""


def asked(sql: str, *given: object) -> list[tuple[Any, ...]]:
    """Returns DuckDB's result. Timestamps are in UTC without a zone, which would require another library."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        plain = [str(one) if isinstance(one, Path) else one for one in given]
        return list(connection.execute(sql, plain).fetchall())


def unpacked(path: Path, compression: str) -> io.BytesIO:
    with pa.input_stream(str(path), compression=None if compression == "none" else compression) as stream:
        return io.BytesIO(stream.read())


def written(folder: Path, table: pa.Table, **settings: Any) -> Path:
    Life(FilesSink(folder, **settings)).run_batch(table)
    (path,) = (one for one in folder.iterdir() if one.is_file())
    return path


def test_parquet_by_pyarrow_pandas_and_duckdb(tmp_path):
    path = written(tmp_path / "out", NESTED)
    assert path.suffix == ".parquet"
    found = pq.read_table(path)
    assert found.to_pylist() == NESTED.to_pylist()
    assert found.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert pd.read_parquet(path)["timestamp"].iloc[0] == pd.Timestamp(AT)
    (first, second) = asked('SELECT * REPLACE ("timestamp"::TIMESTAMP AS "timestamp") FROM read_parquet(?)', path)
    assert first == (2**63 - 1, 'é "x",\n', LOCAL, {"a": "x", "b": [0.5]})
    assert set(second) == {None}


@pytest.mark.parametrize("compression", ["zstd", "gzip", "lz4", "brotli", "none"])
def test_parquet_compressions(tmp_path, compression):
    path = written(tmp_path / "out", FLAT, compression=compression)
    told = pq.ParquetFile(path).metadata.row_group(0).column(0).compression
    assert told == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    assert asked("SELECT count(*) FROM read_parquet(?)", path) == [(2,)]


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_arrow_by_feather_and_pandas(tmp_path, compression):
    table = NESTED.append_column("duration", pa.array([1_000_001, None], pa.duration("us")))
    path = written(tmp_path / "out", table, format="arrow", compression=compression)
    assert path.suffix == ".arrow"
    assert feather.read_table(path).to_pylist() == table.to_pylist()
    assert pd.read_feather(path)["duration"].iloc[0] == pd.Timedelta(microseconds=1_000_001)


@pytest.mark.parametrize(("compression", "ending"), [("none", ""), ("gzip", ".gz"), ("zstd", ".zst"), ("bz2", ".bz2")])
def test_json_by_pandas_and_duckdb(tmp_path, compression, ending):
    path = written(tmp_path / "out", NESTED, format="json", compression=compression)
    assert path.name.endswith(f".json{ending}")
    if compression != "bz2":  # DuckDB does not read it
        sql = 'SELECT "long", "string", "timestamp"::TIMESTAMPTZ::TIMESTAMP, "struct".b[1] FROM read_json(?) LIMIT 1'
        assert asked(sql, path) == [(2**63 - 1, 'é "x",\n', LOCAL, 0.5)]
    read = pd.read_json(unpacked(path, compression), lines=True)
    assert read["string"].iloc[0] == 'é "x",\n'


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_csv_by_pandas_and_duckdb(tmp_path, compression):
    path = written(tmp_path / "out", FLAT, format="csv", compression=compression)
    sql = 'SELECT * REPLACE ("timestamp"::TIMESTAMP AS "timestamp") FROM read_csv(?, types = ?)'
    found = asked(sql, path, {"timestamp": "TIMESTAMPTZ", "long": "BIGINT"})
    assert found == [(2**63 - 1, 'é "x",\n', LOCAL), (None, None, None)]
    read = pd.read_csv(unpacked(path, compression))
    assert list(read.columns) == FLAT.column_names
    assert read["string"].iloc[0] == 'é "x",\n'


def test_text_by_duckdb_and_python(tmp_path):
    lines = ["one", "", "é 😀", '"quoted"']
    path = written(tmp_path / "out", pa.table({"value": lines}), format="text")
    assert path.read_text().split("\n") == [*lines, ""]
    assert asked("SELECT string_split(content, chr(10)) FROM read_text(?)", path) == [([*lines, ""],)]


# --- what no reader sees --------------------------------------------------------------------------------------------


def test_readers_see_neither_what_is_held_back_nor_manifests(tmp_path):
    for kind in ("parquet", "csv", "json"):
        folder = tmp_path / kind
        life = Life(FilesSink(folder, format=kind, partition_by="p"))
        life.run_batch(pa.table({"x": [1, 2], "p": ["a", "b"]}))
        life.prepare(pa.table({"x": [3, 4], "p": ["a", "c"]}), batch=1)
        life.open(pa.table({"x": [5, 6], "p": ["a", "d"]}), batch=1, slot=1)
        assert len(list((folder / ".sparkonce" / "held").iterdir())) >= 2, "there is something to be seen"
        for pattern in (f"**/*.{kind}", f"*/*.{kind}", f"p=*/*.{kind}"):
            sql = {
                "parquet": "SELECT x, p FROM read_parquet(?, hive_partitioning = true) ORDER BY x",
                "csv": "SELECT x, p FROM read_csv(?, hive_partitioning = true) ORDER BY x",
                "json": "SELECT x, p FROM read_json(?, hive_partitioning = true) ORDER BY x",
            }[kind]
            assert asked(sql, folder / pattern) == [(1, "a"), (2, "b")], pattern
        dataset = ds.dataset(folder, format=kind, partitioning="hive")
        assert sorted(dataset.to_table().to_pylist(), key=str) == [{"x": 1, "p": "a"}, {"x": 2, "p": "b"}]
        assert len(list(folder.rglob(f"*.{kind}"))) == 2, "nor does a walk through all folders"
    assert sorted(pd.read_parquet(tmp_path / "parquet")["x"]) == [1, 2]


def test_files_that_somebody_took_away_are_told_of_and_left_out_on_request(tmp_path):
    root = tmp_path / "out"
    life = Life(FilesSink(root, partition_by="day"))
    for batch in range(3):
        life.run_batch(pa.table({"x": [10 * batch, 10 * batch + 1], "day": ["1/2", f"{batch + 3}"]}), batch=batch)
    named = whole_batches(root)
    assert len(named) == 6
    gone = [path for path in named if "day=3" in path or path == named[-2]]
    for path in gone:
        Path(path).unlink()
    (root / "day=3").rmdir()
    with pytest.raises(FilesGoneError, match="2 of the 6 files of whole batches") as caught:
        whole_batches(root)
    assert [f"{root}/{path}" for path in caught.value.details["gone"]] == sorted(gone)
    assert "missing_ok=True" in caught.value.next_step
    left = whole_batches(root, missing_ok=True)
    assert left == [path for path in named if path not in gone]
    assert asked("SELECT count(*) FROM read_parquet(?)", left) == [(4,)]
    assert sum(one.rows for one in read_manifests(root)) == 6, "they say what was committed"


def test_columns_that_change_are_read_as_the_page_says(tmp_path):
    life = Life(FilesSink(tmp_path / "out"))
    life.run_batch(pa.table({"x": [1]}))
    life.run_batch(pa.table({"x": [3.5], "y": [2]}), batch=1)
    files = whole_batches(tmp_path / "out")
    assert sorted(asked("SELECT x FROM read_parquet(?)", files)) == [(1,), (4,)]
    assert sorted(asked("SELECT x, y FROM read_parquet(?, union_by_name = true)", files)) == [(1.0, None), (3.5, 2)]
    schema = pa.schema({"x": pa.float64(), "y": pa.int64()})
    assert sorted(ds.dataset(files, schema=schema).to_table().to_pydict()["x"]) == [1.0, 3.5]


def test_a_null_partition_is_read_by_pandas_as_the_page_says(tmp_path):
    Life(FilesSink(tmp_path / "out", partition_by="p")).run_batch(pa.table({"x": [1, 2], "p": ["a", None]}))
    with pytest.raises(pa.ArrowInvalid, match="Cannot yet unify dictionaries with nulls"):
        pd.read_parquet(tmp_path / "out")
    found = ds.dataset(tmp_path / "out", partitioning="hive").to_table().to_pandas()
    assert sorted(zip(found["x"], found["p"].fillna("null"), strict=True)) == [(1, "a"), (2, "null")]


# --- partitions and sizes -------------------------------------------------------------------------------------------


def test_partitions_with_odd_values(tmp_path):
    values = ["a/b", "c=d", "e%f", None, "é 😀"]
    table = pa.table({"x": range(10), "p": values * 2, "day": [dt.date(2024, 1, 1)] * 10})
    Life(FilesSink(tmp_path / "out", partition_by=["p", "day"])).run_batch(table)
    found = ds.dataset(tmp_path / "out", format="parquet", partitioning=ds.partitioning(flavor="hive")).to_table()
    assert (
        sorted(found.select(["x", "p"]).to_pylist(), key=lambda row: row["x"]) == table.select(["x", "p"]).to_pylist()
    )
    assert pq.ParquetFile(next((tmp_path / "out").rglob("*.parquet"))).schema_arrow.names == ["x"]
    partitions = [file.partition for file in read_manifests(tmp_path / "out")[0].files]
    assert sorted(partitions, key=str) == sorted(({"p": one, "day": "2024-01-01"} for one in values), key=str)


def test_hundreds_of_partitions_are_a_short_handle(tmp_path):
    sink = FilesSink(tmp_path / "out", partition_by="p")
    life = Life(sink)
    table = pa.table({"x": range(800), "p": [number % 400 for number in range(800)]})
    handle = life.prepare(table)
    assert len(str(handle)) < 2000
    assert life.commit(handle) == [Outcome.COMMITTED]
    assert life.commit(handle) == [Outcome.ALREADY_COMMITTED]
    life.committer.conclude(0, [handle])
    assert len(whole_batches(tmp_path / "out")) == 400
    assert asked("SELECT count(*), sum(x) FROM read_parquet(?)", tmp_path / "out/**/*.parquet") == [(800, 319600)]
    other = life.prepare(table, batch=1)
    assert [one.outcome for one in life.committer.abort([other])] == [Outcome.ABORTED]
    assert life.commit(other) == [Outcome.LOST]
    lists = tmp_path / "out" / ".sparkonce" / "lists"
    for one in lists.iterdir():
        one.write_bytes(one.read_bytes()[:-1])
    assert life.commit(handle) == [Outcome.UNKNOWN]
    for one in lists.iterdir():
        one.unlink()
    assert life.commit(handle) == [Outcome.UNKNOWN]


def test_files_are_closed_at_their_size(tmp_path):
    rng = np.random.default_rng(7)
    table = pa.table({"x": rng.integers(0, 2**62, 200_000)})
    life = Life(FilesSink(tmp_path / "out", max_file_bytes=200_000))
    handle = life.prepare(table)
    assert life.commit(handle) == [Outcome.COMMITTED]
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("*.parquet")]
    assert len(sizes) >= 4
    assert max(sizes) < 2 * 200_000 + 100_000
    assert asked("SELECT count(*) FROM read_parquet(?)", tmp_path / "out/*.parquet") == [(200_000,)]


def test_few_files_are_open_at_once_and_little_is_gathered(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "OPEN_FILES", 3)
    monkeypatch.setattr(writer_module, "GATHERED_BYTES", 20_000)
    monkeypatch.setattr(writer_module, "SPLIT_BYTES", 5_000)
    life = Life(FilesSink(tmp_path / "out", partition_by="p"))
    table = pa.table({"x": range(20_000), "p": [number % 11 for number in range(20_000)]})
    most_open, most_gathered = 0, 0
    context = life.open()
    for piece in table.to_batches(max_chunksize=500):
        context.write(piece)
        most_open = max(most_open, len(context._open))
        most_gathered = max(most_gathered, sum(pile.size for pile in context._piles.values()))
    assert most_open == 3
    assert most_gathered <= 20_000
    fields = context.prepare()
    context.close()
    assert len(json.loads(str(fields["files"]))) > 11, "partitions that come back get another file"
    held = list((tmp_path / "out" / ".sparkonce" / "held").iterdir())
    assert sum(pq.ParquetFile(path).metadata.num_rows for path in held) == 20_000


# --- manifests ------------------------------------------------------------------------------------------------------


def test_a_manifest_says_what_belongs_to_a_batch(tmp_path):
    life = Life(FilesSink(tmp_path / "out"))
    life.run_batch(pa.table({"x": [1, 2]}), pa.table({"x": [3]}), batch=4)
    half = [life.prepare(pa.table({"x": [slot]}), batch=5, slot=slot) for slot in range(2)]
    life.commit(half[0])
    (manifest,) = read_manifests(tmp_path / "out")
    assert (manifest.sink, manifest.batch, manifest.rows) == ("files", 4, 3)
    assert manifest.token == life.owner.token
    for file in manifest.files:
        assert (tmp_path / "out" / file.path).stat().st_size == file.size_bytes
        assert file.checksum.startswith("crc32:")
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 3, "half of batch 5 is there"
    names = whole_batches(tmp_path / "out")
    assert asked("SELECT x FROM read_parquet(?) ORDER BY x", names) == [(1,), (2,), (3,)]


def test_a_batch_without_rows_has_no_manifest(tmp_path):
    life = Life(FilesSink(tmp_path / "out"))
    life.committer.conclude(0, [])
    assert read_manifests(tmp_path / "out") == []
    assert whole_batches(tmp_path / "out") == []
