"""What a release promises: notices and the page of tested versions are those of the lock, and its check can refuse."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from golden.kept import RELEASES
from releasing.check import Candidate, faults
from releasing.locked import PLAIN, coordinates, extras, pins, project
from sparkonce.rig.kafka.jars import KAFKA_VERSION, SCALA
from sparkonce.rig.servers import hdfs, pravega
from sparkonce.version import __version__
from tidy.sources import ROOT
from versions.table import BROKERS, ENGINES

NOTICES = (ROOT / "THIRD_PARTY.md").read_text()
TESTED = (ROOT / "docs" / "tested-with.md").read_text()


# --- notices ---------------------------------------------------------------------------------------------------------


def sections() -> dict[str, str]:
    """The page's parts about packages, by extra."""
    parts = re.split(r"^## (?:The extra `(\w+)`|A plain installation)$", NOTICES.partition("\n## Jars")[0], flags=re.M)
    return {extra or PLAIN: text for extra, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_notices_name_every_package_with_the_versions_of_the_lock() -> None:
    noted = {
        extra: dict(re.findall(r"^\| ([\w.-]+) \| (\d[^|]*?) \|", text, re.M)) for extra, text in sections().items()
    }
    wanted = {extra: {name: ", ".join(pins()[name]) for name in names} for extra, names in extras().items()}
    assert noted == wanted, "run python3 dev.py notices"


def test_notices_say_each_licence_and_where_its_text_is() -> None:
    rows = re.findall(r"^\| [\w.-]+ \| \d[^|]* \| ([^|]*) \| ([^|]*) \|$", NOTICES, re.M)
    assert len(rows) == sum(map(len, extras().values()))
    assert all(licence.strip() and re.search(r"dist-info/|https://", text) for licence, text in rows)


def test_notices_name_every_extra_and_all_jars_of_the_code() -> None:
    assert {extra for extra in project()["optional-dependencies"] if f"`{extra}`" not in NOTICES} == {"all"}
    broker = f"org.apache.kafka:kafka_{SCALA}:{KAFKA_VERSION}"
    named = [*coordinates(), broker, *hdfs._JARS, *pravega._JARS]
    assert [one for one in named if f"`{one}`" not in NOTICES] == [], "run python3 dev.py notices"


# --- tested with -----------------------------------------------------------------------------------------------------


def test_the_page_of_tested_versions_has_the_clients_of_the_lock() -> None:
    rows = dict(re.findall(r"^\| (`\w+`|none) \| ([^|]+) \|", TESTED, re.M))
    named = [one.rpartition(" ") for clients in rows.values() for one in clients.split(", ") if " " in one]
    assert len(named) > 12
    stale = {name: version for name, _, version in named if version not in pins()[name]}
    assert stale == {}, "run python3 dev.py tested"
    with_clients = {extra for extra, names in extras().items() if extra and names}
    assert {extra for extra in with_clients if rows.get(f"`{extra}`", "none") == "none"} == set()


def test_the_page_of_tested_versions_names_what_is_tried() -> None:
    assert [one for one in coordinates() if f"`{one}`" not in TESTED] == [], "run python3 dev.py tested"
    assert f"Kafka {KAFKA_VERSION}," in TESTED
    assert f"Spark {next(iter(pins()['pyspark']))}," in TESTED
    assert [str(one) for one in ENGINES if f"{one.spark} ({one.python})" not in TESTED] == []
    assert [str(one) for one in BROKERS if not re.search(rf"\b{re.escape(one.kafka)}\b", TESTED)] == []


# --- the check of a release ------------------------------------------------------------------------------------------

GOOD = Candidate(
    version="0.1.2",
    tags=("v0.1.2",),
    changes=(),
    changelog="# Changelog\n\n## 0.1.2 (2026-12-01)\n\n- More.\n\n## 0.1.1 (2026-11-30)\n",
    security="| 0.1 | yes |",
    golden=RELEASES,
)


def test_a_commit_that_agrees_with_itself_can_be_released() -> None:
    assert list(faults(GOOD)) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"version": "0.1.2.dev1"}, "three numbers"),
        ({"version": "0.1.3"}, "has not the tag v0.1.3"),
        ({"tags": ()}, "its tags: none"),
        ({"tags": ("0.1.2",)}, "has not the tag v0.1.2"),
        ({"changes": ("?? left.txt",)}, "left.txt"),
        ({"changelog": "# Changelog\n\n## 0.1.2 (unreleased)\n"}, "calls 0.1.2 unreleased"),
        ({"changelog": "# Changelog\n\n## 0.1.1 (2026-11-30)\n"}, "is not of 0.1.2"),
        ({"changelog": "# Changelog\n"}, "is not of 0.1.2"),
        ({"security": "| 0.0 | yes |"}, "SECURITY.md"),
        ({"golden": {"0.2": ("v1",)}}, "names no golden files for 0.1"),
        ({"golden": {"0.1": ("v1", "nowhere")}}, "golden files nowhere are gone"),
    ],
)
def test_a_commit_that_does_not_is_refused(wrong: dict[str, object], said: str) -> None:
    found = list(faults(replace(GOOD, **wrong)))  # type: ignore[arg-type]
    assert said in "\n".join(found)


def test_the_version_has_golden_files_and_a_part_of_the_changelog() -> None:
    assert ".".join(__version__.split(".")[:2]) in RELEASES
    assert f"\n## {__version__} (" in (ROOT / "CHANGELOG.md").read_text()
