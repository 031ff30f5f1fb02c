from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from integration.files_scene import Life
from sparkonce import FilesSink
from sparkonce.errors import CorruptRecordError
from sparkonce.files import compact, whole_batches
from sparkonce.protocol.ownership import Token
from sparkonce.sinks.files import manifests
from sparkonce.sinks.files.formats import FORMATS
from sparkonce.sinks.files.local import LocalStore
from sparkonce.sinks.files.names import extension_in

WIDE = pa.table(
    {
        "text": ['a "quote", a comma\nand a line', "", None],
        "number": pa.array([1, None, -3], pa.int64()),
        "price": pa.array([Decimal("1.50"), None, Decimal("-2.00")], pa.decimal128(9, 2)),
        "ratio": [0.1, float("nan"), None],
        "day": [date(2024, 2, 29), None, date(1969, 1, 1)],
        "at": pa.array([datetime(2024, 2, 29, 12, tzinfo=timezone.utc), None, None], pa.timestamp("us", "UTC")),
        "raw": [b"\x00\n", b"", None],
        "yes": [True, False, None],
    }
)
TEXT = pa.table({"text": ["one", "", "three"]})


def folder_of(folder: Path, tables: list[pa.Table], **settings: Any) -> Path:
    life = Life(FilesSink(str(folder), **settings))
    for batch, table in enumerate([*tables, tables[0], tables[0]]):
        life.run_batch(table, batch=batch)
    return folder


def contents(folder: Path) -> list[bytes]:
    """Returns the decompressed bytes of all files except the newest two."""
    found = []
    for path in whole_batches(folder)[:-2]:
        with pa.input_stream(path, compression="detect") as stream:
            found.append(stream.read())
    return found


@pytest.mark.parametrize(
    ("format", "codec"), [(one, codec) for one in ("csv", "json", "text") for codec in FORMATS[one].codecs]
)
def test_lines_are_copied(format, codec, tmp_path):  # noqa: A002
    table = TEXT if format == "text" else WIDE
    folder = folder_of(tmp_path, [table, table.slice(1), table.slice(2)], format=format, compression=codec)
    before = contents(folder)
    (done,) = compact(folder, keep_batches=2)
    assert (done.rows, done.files_after) == (6, 1)
    (after,) = contents(folder)
    header = before[0].splitlines(keepends=True)[0] if format == "csv" else b""
    assert after == header + b"".join(one.removeprefix(header) for one in before)
    assert {extension_in(path) for path in whole_batches(folder)} == {extension_in(whole_batches(folder)[-1])}


@pytest.mark.parametrize("header", [True, False])
def test_a_first_row_that_looks_like_the_header_stays(header, tmp_path):
    tables = [pa.table({"name": ["name", "x"]}), pa.table({"name": ["name"]})]
    folder = folder_of(tmp_path, tables, format="csv", options={"header": header})
    compact(folder, keep_batches=2)
    assert contents(folder) == [b'"name"\n' * header + b'"name"\n"x"\n"name"\n']


def test_files_without_a_header_are_joined_with_those_of_their_run(tmp_path):
    """The next run may have other columns, and nothing in a file shows it."""
    settings: dict[str, Any] = {"format": "csv", "options": {"header": False}}
    first, second = Life(FilesSink(str(tmp_path), **settings)), Life(FilesSink(str(tmp_path), **settings))
    second.owner = replace(second.owner, token=Token(8, "deadbeef"))
    for batch in range(4):
        first.run_batch(pa.table({"a": [1], "b": [2]}), batch=batch)
    for batch in range(4, 8):
        second.run_batch(pa.table({"a": [1], "b": [2], "c": [3]}), batch=batch)
    compact(tmp_path, keep_batches=2)
    assert sorted(contents(tmp_path)) == [b"1,2\n" * 4, b"1,2,3\n" * 2]


@pytest.mark.parametrize(
    ("format", "codec"), [(one, codec) for one in ("parquet", "arrow") for codec in FORMATS[one].codecs]
)
def test_tables_keep_types_and_compression(format, codec, tmp_path):  # noqa: A002
    wide = pa.concat_tables([WIDE.append_column("many", pa.array([[1, None], [], None]))] * 50)
    folder = folder_of(tmp_path, [wide, wide], format=format, compression=codec)
    first = whole_batches(folder)[0]
    compact(folder, keep_batches=2)
    after = whole_batches(folder)[0]
    if format == "parquet":
        found = [pq.ParquetFile(one).metadata.row_group(0).column(0).compression for one in (first, after)]
        assert found[0] == found[1]
        assert pq.ParquetFile(after).schema_arrow.equals(pq.ParquetFile(first).schema_arrow, check_metadata=True)
    read = pq.read_table if format == "parquet" else lambda path: pa.ipc.open_file(path).read_all()
    assert str(read(after).to_pylist()) == str(wide.to_pylist() * 2)  # NaN is not equal to itself
    if format == "arrow":
        assert read(after).schema.equals(read(first).schema, check_metadata=True)
        assert Path(after).stat().st_size < 2 * Path(first).stat().st_size


def test_files_of_other_columns_are_not_mixed(tmp_path):
    other = pa.table({"text": ["new"], "more": [1]})
    folder = folder_of(tmp_path, [TEXT, other, TEXT, other, pa.table({"alone": [1]})])
    before = set(whole_batches(folder))
    (done,) = compact(folder, keep_batches=2)
    assert (done.files_before, done.files_after) == (5, 3)
    assert len(before & set(whole_batches(folder))) == 3  # the batch with different columns, and the newest two
    assert compact(folder, keep_batches=2)[0].files_after == 3


def test_new_files_are_of_about_the_wanted_size_and_stay(tmp_path):
    table = pa.table({"text": ["x" * 100] * 10})
    folder = folder_of(tmp_path, [table] * 40, format="json")
    (done,) = compact(folder, keep_batches=2, target_bytes=11_200, delete_after_s=0)
    assert (done.rows, done.files_before, done.files_after) == (400, 40, 4)
    before = whole_batches(folder)
    assert compact(folder, keep_batches=2, target_bytes=11_200)[0].files_after == 4
    assert whole_batches(folder) == before


def test_rows_that_are_not_as_many_as_the_manifest_says_stop_it(tmp_path):
    folder = folder_of(tmp_path, [TEXT, TEXT], format="text")
    store = LocalStore(folder)
    for name in manifests.list_manifests(store):
        path = f"{manifests.FOLDER}/{name.text}"
        store.put(path, (store.get(path) or b"").replace(b'"rows":3', b'"rows":4'))
    before = whole_batches(folder)
    with pytest.raises(CorruptRecordError, match="has 3 rows, and its manifest says 4"):
        compact(folder, keep_batches=2)
    assert whole_batches(folder) == before
    assert not list((folder / ".sparkonce" / "held").iterdir())
