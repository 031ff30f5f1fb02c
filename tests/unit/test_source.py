"""Sources registered by packages: found by format, loaded when a query uses them, and queried for what they know."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from own_source.lines_source import Lines
from sparkonce import source, spark_packages
from sparkonce.analysis.checkpoint import checkpoint_facts
from sparkonce.analysis.explanation import judge
from sparkonce.analysis.facts import EngineFacts, Pipeline, SinkFacts
from sparkonce.analysis.findings import Role
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.source import Source, SourceFacts, registered
from sparkonce.sources.offsets import rows_read
from sparkonce.storage.local import LocalFiles

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

LINES = "own_source.lines_source:Lines"
Register = Callable[..., None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Register]:
    """Registers exactly these sources."""

    def entries(**named: str) -> None:
        found = [EntryPoint(name, value, source.GROUP) for name, value in named.items()]
        monkeypatch.setattr(source, "entry_points", lambda group: found if group == source.GROUP else [])
        source._entries.cache_clear()
        source._loaded.cache_clear()

    yield entries
    source._entries.cache_clear()
    source._loaded.cache_clear()


def test_a_source_is_found_by_the_name_of_its_format(register: Register) -> None:
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
def test_a_source_that_cannot_be_used_is_named(register: Register, value: str, message: str) -> None:
    register(broken=value)
    with pytest.raises(ConfigurationError, match=message):
        registered("broken")


def test_one_broken_package_does_not_hide_the_other_sources(
    register: Register, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    register(broken="not.there:Source", lines=LINES)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"c4568601-81bc-4954-a0c3-3f9dd4a338f4"}')
    (tmp_path / "offsets" / "0").write_text('v1\n{"conf":{}}\n{"file": "/a", "line": 7}\n{"of": "nobody"}')

    found = checkpoint_facts(LocalFiles(tmp_path)).sources

    assert [(source.format, source.where) for source in found] == [("lines", "/a"), ("", "its offset holds of")]
    assert "The source of format broken cannot be loaded from not.there:Source: ModuleNotFoundError" in caplog.text
    assert "Correct the package's entry point in the group sparkonce.sources" in caplog.text


def test_a_batch_is_counted_by_the_source_whose_offsets_it_has() -> None:
    before, now = json.dumps({"file": "/a", "line": 7}), json.dumps({"file": "/a", "line": 10})
    kafka = ('{"t": {"0": 100}}', '{"t": {"0": 104, "1": 2}}')
    assert rows_read([before, kafka[0]], [now, kafka[1]], [Lines()]) == 9
    assert rows_read([before, kafka[0]], [now, kafka[1]]) is None
    assert rows_read([before], ["-"], [Lines()]) is None
    assert rows_read(None, [now], [Lines()]) is None


def test_explain_asks_the_source(register: Register, tmp_path: Path) -> None:
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


def test_a_source_that_only_judges_is_enough(register: Register) -> None:
    class Plain(Source):
        def judge(self, source: SourceFacts, downtime: str) -> list[source.Finding]:
            return []

    plain, facts = Plain(), SourceFacts(format="plain")
    assert not plain.starts_at_end(facts)
    assert plain.describe_offset({}) is None
    assert plain.rows_between({}, {}) is None
    assert plain.worker_needs(facts).modules == ()


@pytest.mark.parametrize("group", ["sparkonce.sources", "sparkonce.packages"])
def test_this_environment_has_the_entry_points_of_the_project(group: str) -> None:
    root = Path(__file__).parents[2]
    named: dict[str, str] = {}
    for file in (root / "pyproject.toml", *root.glob("packages/*/pyproject.toml")):
        named |= tomllib.loads(file.read_text())["project"].get("entry-points", {}).get(group, {})
    installed = {entry.name: entry.value for entry in entry_points(group=group)}
    assert named.items() <= installed.items(), "renew it: python3 dev.py run true"
    for entry in entry_points(group=group):
        entry.load()


def test_a_jar_of_a_package_is_named_by_its_entry_point() -> None:
    assert spark_packages("4.0.0", avro=False, pravega=True).split(",")[1:] == ["io.pravega:pravega-client:0.13.0"]
    assert spark_packages("4.0.0", avro=False, pravega=False) == spark_packages("4.0.0", avro=False)
    with pytest.raises(ConfigurationError, match=r"pulsar= is not a known package of jars; known are avro, delta"):
        spark_packages("4.0.0", pulsar=True)
