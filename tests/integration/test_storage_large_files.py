"""Files of any size on a store: either complete or absent, and readable in parts."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from object_files import object_files
from plain_store import PlainStore
from s3_between import GO_ON, Between, Request, refusal
from s3_bucket import Bucket
from shared_servers import USES_HDFS, hdfs_server, s3_server
from sparkonce.storage import objects
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce.storage.objects import ObjectFiles

LARGE = 20 * 2**20 + 7


def in_a_bucket(folder: Path) -> CheckpointFiles:
    return object_files(Bucket(s3_server()), folder.name)


def on_hdfs(folder: Path) -> CheckpointFiles:
    return HdfsFiles(f"{hdfs_server().url}{folder}")


@pytest.mark.slow
@pytest.mark.parametrize("store", [in_a_bucket, PlainStore, pytest.param(on_hdfs, marks=USES_HDFS)])
def test_a_large_file_is_read_as_it_was_put(tmp_path: Path, store: Callable[[Path], CheckpointFiles]) -> None:
    files, data = store(tmp_path), os.urandom(LARGE)
    assert not files.exists("rows/a")
    assert files.open("rows/a") is None
    given = io.BytesIO(b"before" + data)
    given.seek(6)
    files.put_large("rows/a", given)
    assert files.exists("rows/a")
    assert list(files.names("rows")) == ["a"]
    with files.open("rows/a") as file:  # type: ignore[union-attr]
        assert file.read() == data
        assert file.seek(LARGE - 5) == LARGE - 5
        assert file.read(100) == data[-5:]
        assert file.read(1) == b""
        assert file.seek(-3, os.SEEK_END) == LARGE - 3
        assert file.read() == data[-3:]
        with pytest.raises(OSError, match="fileno"):
            file.fileno()


def test_arrow_reads_rows_from_a_store(tmp_path: Path) -> None:
    files, table = in_a_bucket(tmp_path), pa.table({"number": range(100_000)})
    written = io.BytesIO()
    pq.write_table(table, written)
    written.seek(0)
    files.put_large("rows/a", written)
    with files.open("rows/a") as file:  # type: ignore[union-attr]
        assert pq.read_table(file) == table
    files.put_large("empty", io.BytesIO())
    with files.open("empty") as file:  # type: ignore[union-attr]
        assert file.read() == b""


def test_nobody_sees_a_part_of_a_file_whose_parts_did_not_all_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "DEADLINE_S", 1.0)
    bucket = Bucket(s3_server())
    with Between(bucket.server.port).running() as between:
        seen: list[str] = []

        def refuse_the_third_part(request: Request) -> object:
            seen.append(request.path)
            return refusal(403, "AccessDenied") if "partNumber=3" in request.path else GO_ON

        between.act = refuse_the_third_part  # type: ignore[assignment]
        files = object_files(bucket, "x", url=between.url)
        with pytest.raises(OSError, match="403"):
            files.put_large("rows/a", io.BytesIO(os.urandom(LARGE)))
    assert any("partNumber=3" in one for one in seen)
    assert not object_files(bucket, "x").exists("rows/a")
    assert bucket.keys("x/") == []


def test_a_bucket_that_is_gone_is_not_taken_for_a_missing_file() -> None:
    files: ObjectFiles = object_files(Bucket(s3_server()), "x", name="never-made")
    for ask in (files.exists, files.open):
        with pytest.raises(OSError, match="404"):
            ask("rows/a")
