"""What a query logs and rejects before it starts, without Spark. The rest is in spark/test_mistakes.py."""

from __future__ import annotations

import errno
import io
import logging
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
from sparkonce.sinks.kafka.batch_producer import client_log
from sparkonce.spark import connect, query_end
from sparkonce.spark.connect import check_can_connect
from sparkonce.spark.exactly_once import ExactlyOnce
from sparkonce.spark.plans import sources_of_client
from sparkonce.spark.start.arguments import _options, check_session
from sparkonce.storage.local import LocalFiles
from sparkonce.watch import display  # noqa: F401 - imported because it sets the format


@pytest.mark.parametrize(
    ("is_active", "is_interactive", "says"),
    [(True, False, "Next: End the program with await_end(query)."), (False, False, ""), (True, True, "")],
)
def test_a_program_that_leaves_its_query_alone_says_so(monkeypatch, is_active, is_interactive, says):
    monkeypatch.setattr("sys.stderr", said := io.StringIO())
    monkeypatch.setattr(query_end, "is_interactive", lambda: is_interactive)
    monkeypatch.setattr(query_end, "_started", [SimpleNamespace(isActive=is_active, name="totals", id="1")])
    query_end._say()
    assert said.getvalue().strip().endswith(says) if says else said.getvalue() == ""


def test_options_of_sparks_own_sinks_are_refused():
    with pytest.raises(ConfigurationError, match=r"options\['kafka.acks'\]='all' is an option of one of Spark's own"):
        _options({"kafka.acks": "all"}, "/cp")
    assert _options({"checkpointLocation": "/cp", "other": "1"}, "/cp") == {"other": "1"}


def test_a_broker_that_is_starting_is_no_news(caplog):
    line = "GETPID [rdkafka#producer-1] [thrd:main]: Failed to acquire: Coordinator load in progress: retrying"
    client_log.warning("%s", line)
    client_log.warning("FAIL [rdkafka#producer-1] [thrd:1.2.3.4:1/0]: Connection refused")
    assert [record.message.split()[0] for record in caplog.records] == ["FAIL"]


def test_a_warning_says_when_and_whose_it_is_where_logging_is_not_set_up():
    record = logging.makeLogRecord({"name": "sparkonce", "levelname": "WARNING", "msg": "Something."})
    shown = logging.lastResort.format(record)
    assert shown.endswith(" WARNING sparkonce: Something.")
    record.name = "another.library"
    assert logging.lastResort.format(record) == "Something."


def test_folders_that_cannot_be_used_are_refused(tmp_path):
    LocalFiles(tmp_path / "not" / "there").check()
    LocalFiles(tmp_path).check()
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="Not a directory"):
        LocalFiles(tmp_path / "file" / "c").check()


def test_a_disk_without_hard_links_is_refused(tmp_path, monkeypatch):
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(
        ConfigurationError, match=f"'{tmp_path}/c' .*no hard links: Operation not .* exists: '{tmp_path}'"
    ):
        LocalFiles(tmp_path / "c").check()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_looked_into_is_refused(tmp_path, monkeypatch):
    def shut(*_: object) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "exists", shut)
    with pytest.raises(ConfigurationError, match=r"cannot be written to, .*Permission denied"):
        LocalFiles(tmp_path / "c").check()


def test_connect_is_known_by_its_module():
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(ConfigurationError, match=r"spark is of Spark Connect .*Next: Start a classic session"):
        check_session(session)
    with pytest.raises(ConfigurationError, match="is not a SparkSession"):
        check_session(object())


def test_what_needs_the_jvm_is_refused_by_name_through_connect():
    files, table = FilesSink("/data/rows"), DeltaSink("/data/table", name="newest")
    check_can_connect([files], None)
    check_can_connect([files], 1)
    with pytest.raises(ConfigurationError, match=r"Sink 'newest' is a DeltaSink, .* classic Spark session.*Next: Use"):
        check_can_connect([files, table], None)
    with pytest.raises(ConfigurationError, match=r"rows_per_slot=500: .*Next: Leave it out"):
        check_can_connect([files], 500)


def test_a_pickled_query_keeps_its_settings_and_names_another_version(monkeypatch):
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


def test_a_query_whose_connect_server_is_gone_can_be_started_on_another_one():
    class Unreachable:
        __module__ = "pyspark.sql.connect.streaming.query"

        @property
        def isActive(self) -> bool:
            raise ConnectionError("no server")

    once: Any = ExactlyOnce(FilesSink("/data/rows"), checkpoint="/data/c")
    once._query = Unreachable()
    with pytest.raises(ConfigurationError, match=r"df='of another server' is not a DataFrame"):
        once.start("of another server")


def test_the_sources_of_a_connect_query_are_read_from_its_plan():
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
