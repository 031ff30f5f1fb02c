"""A query logs a line when it does something its user probably did not intend, and nothing otherwise."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sparkonce import KafkaSink
from sparkonce.errors import ConfigurationError
from sparkonce.sinks.kafka.batch_producer import client_log
from sparkonce.sinks.memory.server import MemoryServer
from sparkonce.sinks.memory.sink import MemorySink
from sparkonce.sources.topics import KafkaSource
from sparkonce.spark import query_end
from sparkonce.spark.start.arguments import _options
from sparkonce.spark.start.first_batch import warn_of_loops, warn_of_repeats
from sparkonce.spark.views import Share
from sparkonce.watch import display  # noqa: F401 - imported because it sets the format


@pytest.mark.parametrize(
    ("is_active", "is_interactive", "says"),
    [(True, False, "Next: End the program with await_end(query)."), (False, False, ""), (True, True, "")],
)
def test_a_program_that_leaves_its_query_alone_says_so(
    monkeypatch: pytest.MonkeyPatch, is_active: bool, is_interactive: bool, says: str
) -> None:
    monkeypatch.setattr("sys.stderr", said := io.StringIO())
    monkeypatch.setattr(query_end, "is_interactive", lambda: is_interactive)
    monkeypatch.setattr(query_end, "_started", [SimpleNamespace(isActive=is_active, name="totals", id="1")])
    query_end._say()
    assert said.getvalue().strip().endswith(says) if says else said.getvalue() == ""


@pytest.mark.parametrize(
    ("reads", "servers", "warns"),
    [
        ("totals", "other:1, Broker:9092", True),
        ("orders", "broker:9092", False),
        ("totals", "elsewhere:9092", False),
    ],
)
def test_a_query_that_reads_what_it_writes_is_warned_of(
    caplog: pytest.LogCaptureFixture, reads: str, servers: str, warns: bool
) -> None:
    source = KafkaSource(options={"kafka.bootstrap.servers": servers}, partitions={reads: 3})
    warn_of_loops([source], [KafkaSink({"bootstrap.servers": "broker:9092"}, topic="totals")])
    assert [record.message for record in caplog.records if "without end" in record.message] == (
        [caplog.records[0].message] if warns else []
    )


def test_two_sinks_that_write_the_same_rows_to_one_topic_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def shares(*views: Callable[[Any], Any] | None) -> list[Share]:
        found: dict[object, dict[str, MemorySink]] = {}
        for number, view in enumerate(views):
            name = f"s{number}"
            found.setdefault(view, {})[name] = MemorySink(MemoryServer(), name=name)
        return [Share(view=view, sinks=sinks) for view, sinks in found.items()]  # type: ignore[arg-type]

    facts = {f"s{number}": {"prefix": f"p{number}", "cluster_id": "c", "topic": "t"} for number in range(2)}
    warn_of_repeats(shares(None, None), facts)
    (warning,) = caplog.records
    assert "Sinks ['s0', 's1'] write the same rows to cluster_id='c', topic='t'" in warning.message
    caplog.clear()
    warn_of_repeats(shares(None, lambda df: df), facts)
    warn_of_repeats(shares(None, None), {**facts, "s1": {**facts["s1"], "topic": "u"}})
    warn_of_repeats(shares(None, None), {"s0": {"prefix": "a"}, "s1": {"prefix": "b"}})
    assert caplog.records == []


def test_options_of_sparks_own_sinks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"options\['kafka.acks'\]='all' is an option of one of Spark's own"):
        _options({"kafka.acks": "all"}, "/cp")
    assert _options({"checkpointLocation": "/cp", "other": "1"}, "/cp") == {"other": "1"}


def test_a_broker_that_is_starting_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    line = "GETPID [rdkafka#producer-1] [thrd:main]: Failed to acquire: Coordinator load in progress: retrying"
    client_log.warning("%s", line)
    client_log.warning("FAIL [rdkafka#producer-1] [thrd:1.2.3.4:1/0]: Connection refused")
    assert [record.message.split()[0] for record in caplog.records] == ["FAIL"]


def test_a_warning_says_when_and_whose_it_is_where_logging_is_not_set_up() -> None:
    assert logging.lastResort is not None
    record = logging.makeLogRecord({"name": "sparkonce", "levelname": "WARNING", "msg": "Something."})
    shown = logging.lastResort.format(record)
    assert shown.endswith(" WARNING sparkonce: Something.")
    record.name = "another.library"
    assert logging.lastResort.format(record) == "Something."
