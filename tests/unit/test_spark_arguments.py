"""The arguments of a query that can be checked without Spark. The rest is in spark/test_mistakes.py."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.connect.expressions import ColumnReference
from pyspark.sql.connect.plan import DataSource, Join, LogicalPlan, NAFill, Unpivot

from sparkonce import DeltaSink, FilesSink
from sparkonce.errors import ConfigurationError
from sparkonce.spark import connect
from sparkonce.spark.connect import check_can_connect
from sparkonce.spark.exactly_once import ExactlyOnce
from sparkonce.spark.plans import sources_of_client
from sparkonce.spark.start.arguments import check_classic
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


def test_what_needs_the_jvm_is_refused_by_name_through_connect() -> None:
    files, table = FilesSink("/data/rows"), DeltaSink("/data/table", name="newest")
    check_can_connect([files], None)
    check_can_connect([files], 1)
    with pytest.raises(ConfigurationError, match=r"Sink 'newest' is a DeltaSink, .* classic Spark session.*Next: Use"):
        check_can_connect([files, table], None)
    with pytest.raises(ConfigurationError, match=r"rows_per_slot=500: .*Next: Leave it out"):
        check_can_connect([files], 500)


def test_a_pickled_query_keeps_its_settings_and_names_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = FilesSink("/data/one", name="one"), FilesSink("/data/other", name="other")
    once = ExactlyOnce({one: None, other: lambda df: df}, checkpoint="/data/c", outage_patience_s=7, display=True)
    pickled = cloudpickle.dumps(once)

    copy = cloudpickle.loads(pickled)
    assert copy.checkpoint == once.checkpoint
    assert [sink.name for sink in copy.sinks] == ["one", "other"]
    assert copy._settings.timing == once._settings.timing
    monkeypatch.setattr(connect, "__version__", "0.0.9")
    with pytest.raises(ConfigurationError, match=r"client has sparkonce .* and the server of Spark Connect 0\.0\.9"):
        cloudpickle.loads(pickled)


def test_a_query_whose_connect_server_is_gone_can_be_started_on_another_one() -> None:
    class Unreachable:
        __module__ = "pyspark.sql.connect.streaming.query"

        @property
        def isActive(self) -> bool:
            raise ConnectionError("no server")

    once: Any = ExactlyOnce(FilesSink("/data/rows"), checkpoint="/data/c")
    once._query = Unreachable()
    with pytest.raises(ConfigurationError, match=r"df='of another server' is not a DataFrame"):
        once.start("of another server")


def test_the_sources_of_a_connect_query_are_read_from_its_plan() -> None:
    def kafka(topic: str) -> LogicalPlan:
        return DataSource("kafka", options={"Subscribe": topic}, is_streaming=True)

    table = DataSource("parquet", options={"path": "/data/customers"})
    # Spark calls a field of each of these two `values`.
    filled = NAFill(kafka("a"), None, ["nothing"])
    turned = Unpivot(kafka("b"), [ColumnReference("key")], [ColumnReference("value")], "name", "value")
    joined = Join(Join(filled, turned, None, "inner"), table, None, "inner")
    frame: Any = SimpleNamespace(_plan=joined, sparkSession=SimpleNamespace(client=None))
    found = sources_of_client(frame)
    assert [(one.format, one.where, one.options) for one in found] == [
        ("kafka", "a", {"subscribe": "a"}),
        ("kafka", "b", {"subscribe": "b"}),
    ]
