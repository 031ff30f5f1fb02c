"""The table of the versions that are tried agrees with what sparkonce fetches, and with what its pages promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkonce.errors import ConfigurationError
from sparkonce.rig.kafka import KAFKA_VERSION
from sparkonce.sources.packages import spark_packages
from versions.table import BROKERS, ENGINES, Engine

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "versions.md").read_text()


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_tables_are_tried_with_each_spark_for_which_there_is_a_library(engine: Engine) -> None:
    for kind, tried in (("delta", engine.delta), ("iceberg", engine.iceberg)):
        if tried:
            assert kind in spark_packages(engine.spark, **{kind: True})
        elif engine.connector:
            with pytest.raises(ConfigurationError, match="is not known here"):
                spark_packages(engine.spark, **{kind: True})


def test_all_tests_are_there() -> None:
    named = {test for one in ENGINES for test in one.tests}
    assert [test for test in named if not (ROOT / test).exists()] == []


def test_the_page_has_each_version_and_no_other() -> None:
    sparks = re.findall(r"^\| (4\.\d+\.\d+) \| (3\.\d+) ", PAGE, re.MULTILINE)
    assert sparks == [(one.spark, one.python) for one in ENGINES]
    kafkas = re.findall(r"^\| (\d\.\d\.\d) \| (none|[012]) ", PAGE, re.MULTILINE)
    levels = ["none" if one.transactions is None else str(one.transactions) for one in BROKERS]
    assert kafkas == [(one.kafka, level) for one, level in zip(BROKERS, levels, strict=True)]


def test_the_readme_promises_no_older_version() -> None:
    readme = (ROOT / "README.md").read_text()
    promised = re.search(r"PySpark (\d\.\d) or newer, Python (\d\.\d+) or newer, Kafka (\d\.\d) or newer", readme)
    assert promised is not None
    oldest = min(ENGINES, key=lambda one: one.spark)
    assert [*promised.groups()] == [oldest.spark[:3], "3.10", BROKERS[0].kafka[:3]]
    assert {one.python for one in ENGINES} == {"3.10", "3.11", "3.12", "3.13"}
    assert KAFKA_VERSION[:2] in {one.kafka[:2] for one in BROKERS}
