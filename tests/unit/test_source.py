from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from own_source.lines_source import Lines
from sparkonce import source, spark_packages
from sparkonce.analysis.arguments import kafka_settings, sink_facts
from sparkonce.analysis.checkpoint import checkpoint_facts
from sparkonce.analysis.explanation import judge
from sparkonce.analysis.facts import EngineFacts, Pipeline, SinkFacts
from sparkonce.analysis.findings import Role
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks.memory.sink import MemorySink
from sparkonce.source import Source, SourceFacts, registered
from sparkonce.sources.groups import GroupOffsets
from sparkonce.sources.offsets import rows_read
from sparkonce.spark.settings import checked_groups
from sparkonce.spark.views import dead_letter_sinks
from sparkonce.storage.local import LocalFiles

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

LINES = "own_source.lines_source:Lines"
Register = Callable[..., None]


@pytest.fixture
def register(monkeypatch) -> Iterator[Register]:
    def entries(**named: str) -> None:
        found = [EntryPoint(name, value, source.GROUP) for name, value in named.items()]
        monkeypatch.setattr(source, "entry_points", lambda group: found if group == source.GROUP else [])
        source._entries.cache_clear()
        source._loaded.cache_clear()

    yield entries
    source._entries.cache_clear()
    source._loaded.cache_clear()


def test_a_source_is_found_by_the_name_of_its_format(register):
    register(Lines=LINES, other="not.there:Other")
    assert isinstance(found := registered("lines"), Lines)
    assert registered("LINES") is found
    assert registered("unheard-of") is None
    for form in ("kafka", "parquet", "delta"):
        register(**{form: LINES})
        assert registered(form) is None, "formats that sparkonce knows cannot be replaced"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("not.there:Source", "cannot be loaded from not.there:Source: ModuleNotFoundError"),
        ("sparkonce.source:Source", "cannot be loaded from sparkonce.source:Source: TypeError"),
        ("builtins:dict", "is a dict, and not a Source"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(register, value, message):
    register(broken=value)
    with pytest.raises(ConfigurationError, match=message):
        registered("broken")


def test_one_broken_package_does_not_hide_the_other_sources(register, tmp_path, caplog):
    register(broken="not.there:Source", lines=LINES)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"c4568601-81bc-4954-a0c3-3f9dd4a338f4"}')
    (tmp_path / "offsets" / "0").write_text('v1\n{"conf":{}}\n{"file": "/a", "line": 7}\n{"of": "nobody"}')

    found = checkpoint_facts(LocalFiles(tmp_path)).sources

    assert [(source.format, source.where) for source in found] == [("lines", "/a"), ("", "its offset holds of")]
    assert "The source of format broken cannot be loaded from not.there:Source: ModuleNotFoundError" in caplog.text
    assert "Correct the package's entry point in the group sparkonce.sources" in caplog.text


def test_a_batch_is_counted_by_the_source_whose_offsets_it_has():
    before, now = json.dumps({"file": "/a", "line": 7}), json.dumps({"file": "/a", "line": 10})
    kafka = ('{"t": {"0": 100}}', '{"t": {"0": 104, "1": 2}}')
    assert rows_read([before, kafka[0]], [now, kafka[1]], [Lines()]) == 9
    assert rows_read([before, kafka[0]], [now, kafka[1]]) is None
    assert rows_read([before], ["-"], [Lines()]) is None
    assert rows_read(None, [now], [Lines()]) is None


def test_explain_asks_the_source(register, tmp_path):
    register(lines=LINES)
    pipeline = Pipeline(
        query="q",
        sources=(SourceFacts(format="lines", options={"path": "/a"}, where="/a"),),
        engine=EngineFacts(checkpoint="/data/checkpoint", temporary=False),
        sinks=(SinkFacts(format="delta"),),
    )
    part = judge(pipeline).part(Role.SOURCE)
    assert (part.name, part.level) == ("lines: /a", Guarantee.EXACTLY_ONCE)
    assert part.conditions == ("the file is only appended to, in whole lines, and never rotated",)

    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"c4568601-81bc-4954-a0c3-3f9dd4a338f4"}')
    (tmp_path / "offsets" / "0").write_text('v1\n{"conf":{}}\n{"file": "/a", "line": 7}')
    (found,) = checkpoint_facts(LocalFiles(tmp_path)).sources
    assert found == SourceFacts(format="lines", options=None, where="/a")


@pytest.mark.parametrize("group", ["sparkonce.sources", "sparkonce.packages"])
def test_this_environment_has_the_entry_points_of_the_project(group):
    root = Path(__file__).parents[2]
    named: dict[str, str] = {}
    for file in (root / "pyproject.toml", *root.glob("packages/*/pyproject.toml")):
        named |= tomllib.loads(file.read_text())["project"].get("entry-points", {}).get(group, {})
    installed = {entry.name: entry.value for entry in entry_points(group=group)}
    assert named.items() <= installed.items(), "renew it: python3 dev.py run true"
    for entry in entry_points(group=group):
        entry.load()


def test_a_jar_of_a_package_is_named_by_its_entry_point():
    assert spark_packages("4.0.0", avro=False, pravega=True).split(",")[1:] == ["io.pravega:pravega-client:0.13.0"]
    assert spark_packages("4.0.0", avro=False, pravega=False) == spark_packages("4.0.0", avro=False)
    with pytest.raises(ConfigurationError, match=r"pulsar= is not a known package of jars; known are avro, delta"):
        spark_packages("4.0.0", pulsar=True)


SETTINGS = {"bootstrap.servers": "broker:9092", "transaction.timeout.ms": "60000"}


class PlainSink(TwoPhaseCommitSink):
    def columns(self, schema: pa.Schema) -> list[str]:
        return list(schema.names)

    def writer(self, context: WriterContext) -> SinkWriter:
        raise NotImplementedError

    def committer(self) -> SinkCommitter:
        raise NotImplementedError


class OtherKafkaSink(PlainSink):
    target_name = "totals"
    kafka_settings = SETTINGS
    takes_dead_letters = False


def test_a_sink_without_hooks_is_of_no_kafka():
    sink = PlainSink("mine")
    (facts,) = sink_facts(sink)
    assert (facts.name, facts.kafka, facts.transaction_timeout, kafka_settings(sink)) == (
        "PlainSink mine",
        False,
        None,
        None,
    )
    assert sink.partitions() is None
    rows: Any = object()
    assert sink.checked(rows, "mark") is rows


def test_explain_knows_its_topic_and_its_timeout():
    sink = OtherKafkaSink("mine")
    (facts,) = sink_facts(sink)
    assert (facts.name, facts.kafka, facts.transaction_timeout) == (
        "OtherKafkaSink totals",
        True,
        timedelta(seconds=60),
    )
    assert kafka_settings(sink) == SETTINGS
    assert kafka_settings(OtherKafkaSink("mine", Guarantee.AT_LEAST_ONCE)) is None


def test_offsets_go_into_its_transactions():
    offsets = GroupOffsets("group", {"bootstrap.servers": "broker:9092"}, in_transaction_of="mine")
    assert checked_groups(offsets, {"mine": OtherKafkaSink("mine")}) == (offsets,)
    for other in (PlainSink("mine"), OtherKafkaSink("mine", Guarantee.AT_LEAST_ONCE), OtherKafkaSink("another")):
        with pytest.raises(ConfigurationError, match="names no KafkaSink"):
            checked_groups(offsets, {other.name: other})


def test_it_may_not_be_one_of_dead_letters():
    refusing, other = MemorySink("refusing"), OtherKafkaSink("other")
    with pytest.raises(ConfigurationError, match="'other' is a OtherKafkaSink, which may refuse a row after"):
        dead_letter_sinks({refusing: None}, {refusing: other})


def test_a_source_that_only_judges_is_enough(register):
    class Plain(Source):
        def judge(self, source: SourceFacts, downtime: str) -> list[source.Finding]:
            return []

    plain, facts = Plain(), SourceFacts(format="plain")
    assert not plain.starts_at_end(facts)
    assert plain.describe_offset({}) is None
    assert plain.rows_between({}, {}) is None
    assert plain.worker_needs(facts).modules == ()
