"""Where a files sink may write: not to a relative path, into a file, or into the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.sinks.files.locations import overlaps
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.storage.local import LocalFiles


@pytest.mark.parametrize("path", ["orders", "./orders", "file:orders"])
def test_a_relative_path_is_refused_at_once(path: str) -> None:
    """Workers have different working directories, and would write to a wrong place or fail."""
    with pytest.raises(ConfigurationError, match="is relative to this process's working folder") as told:
        FilesSink(path)
    assert str(Path.cwd() / "orders") in str(told.value)

    FilesSink("~/orders")


def test_rows_and_checkpoint_do_not_share_a_folder(tmp_path: Path) -> None:
    checkpoint = LocalFiles(tmp_path / "checkpoint")
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path / "checkpoint", tmp_path / "checkpoint" / "rows", tmp_path / "link"):
        for given in (str(path), path.as_uri()):
            with pytest.raises(ConfigurationError, match="are one folder, or one lies inside the other"):
                FilesSink(given).use_checkpoint(checkpoint)
    FilesSink(tmp_path / "checkpoint-rows").use_checkpoint(checkpoint)

    assert overlaps("s3://bucket/rows", "s3a://bucket/rows/checkpoint")
    assert overlaps("hdfs://node:8020/a/b", "hdfs://node:8020/a")
    assert not overlaps("s3://bucket/rows", "s3a://bucket/rows-2")
    assert not overlaps("s3://other/rows", "s3a://bucket/rows")
    assert not overlaps("/rows", "s3a://bucket/rows")


@pytest.mark.parametrize("inside", ["", "folder"])
def test_a_path_that_is_a_file_is_called_one(tmp_path: Path, inside: str) -> None:
    (file := tmp_path / "orders").write_text("mine")
    with pytest.raises(PreflightError, match=r"needs a folder, and .*/orders is a file. Next: Name another folder"):
        FilesSink(file / inside).preflight("0" * 12, None)
    assert file.read_text() == "mine"
