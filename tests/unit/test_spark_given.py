"""The arguments of a query, as far as they can be checked without Spark. The rest is in spark/test_mistakes.py."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

from sparkonce.errors import ConfigurationError
from sparkonce.spark.exactly_once import ExactlyOnce
from sparkonce.spark.start.arguments import check_classic, never_pickled
from sparkonce.storage.local import LocalFiles


def test_folders_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    LocalFiles(tmp_path / "not" / "there").check()
    LocalFiles(tmp_path).check()
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="Not a directory"):
        LocalFiles(tmp_path / "file" / "c").check()


def test_a_disk_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(
        ConfigurationError, match=f"'{tmp_path}/c' .*no hard links: Operation not .* exists: '{tmp_path}'"
    ):
        LocalFiles(tmp_path / "c").check()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_looked_into_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shut(*_: object) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "exists", shut)
    with pytest.raises(ConfigurationError, match=r"cannot be written to, .*Permission denied"):
        LocalFiles(tmp_path / "c").check()


def test_connect_is_known_by_its_module() -> None:
    frame = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(ConfigurationError, match=r"df is of Spark Connect .*Next: Start a classic session"):
        check_classic("df", frame)
    check_classic("df", object())

    # Spark Connect pickles the function given to foreachBatch, and prints the underlying error.
    assert ExactlyOnce.__reduce__ is never_pickled
    with pytest.raises(ConfigurationError, match=r"Connect's foreachBatch.*Next: Start a classic session"):
        pickle.dumps(ExactlyOnce.__new__(ExactlyOnce))
