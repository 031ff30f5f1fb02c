from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module

import pytest

import sparkonce

HEAVY = ["pyspark", "pyarrow", "confluent_kafka", "kafka", "pymysql", "numpy", "pandas", "fastavro", "typer", "rich"]
"""Clients and engines: each is imported where it is used."""


def imported(statement: str) -> list[str]:
    """Which of the heavy packages a new interpreter has loaded after the statement."""
    code = f"import sys, json; {statement}; print(json.dumps([n for n in {HEAVY} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_heavy_packages_are_found_when_they_are_there() -> None:
    assert imported("import numpy") == ["numpy"]


LIGHT = [
    "sparkonce",
    "sparkonce.errors",
    "sparkonce.guarantees",
    "sparkonce.protocol.coordinator",
    "sparkonce.protocol.codec",
    "sparkonce.log.local",
    "sparkonce.analysis.checkpoint",
    "sparkonce.analysis.verdict",
    "sparkonce.sink",
    "sparkonce.sinks.kafka",
    "sparkonce.sinks.mysql",
    "sparkonce.testing.conformance",
    "sparkonce.avro.registry",
    "sparkonce.avro.transcode",
    "sparkonce.testing.registry",
]


def test_importing_needs_nothing_heavy() -> None:
    """Each in an interpreter of its own."""
    found = {module: imported(f"import {module}") for module in LIGHT}
    assert {module: heavy for module, heavy in found.items() if heavy} == {}


@pytest.mark.parametrize(
    "module", ["sparkonce.testing.conformance", "sparkonce.testing.kafka", "sparkonce.testing.registry"]
)
def test_what_is_for_tests_needs_no_pytest(module: str) -> None:
    code = f"import sys, {module}; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_sink_can_be_set_up_without_spark() -> None:
    settings = "{'bootstrap.servers': 'nowhere:9092'}"
    assert "pyspark" not in imported(f"import sparkonce; sparkonce.KafkaSink({settings}, topic='t')")


def test_every_public_name_is_there() -> None:
    listed = dir(sparkonce)
    absent = [one for one in sparkonce.__all__ if getattr(sparkonce, one, None) is None or one not in listed]
    assert absent == []
    assert sparkonce.__all__


def test_public_names_are_sorted() -> None:
    assert sparkonce.__all__ == sorted(sparkonce.__all__, key=lambda name: (not name.isupper(), name))
    assert len(set(sparkonce.__all__)) == len(sparkonce.__all__)


def test_public_names_come_from_where_they_live() -> None:
    for name, home in sparkonce._HOMES.items():
        assert getattr(import_module(home), name) is getattr(sparkonce, name)


def test_what_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'KafkaSource2'"):
        sparkonce.KafkaSource2  # noqa: B018 - asking is the test
