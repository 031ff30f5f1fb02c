from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import sparkonce
import sparkonce.avro
import sparkonce.checks
import sparkonce.files
import sparkonce.session
import sparkonce.sink
import sparkonce.source
import sparkonce.write_ahead
import sparkonce_pravega
import sparkonce_rabbitmq

LAZY = [sparkonce, sparkonce.avro, sparkonce_pravega, sparkonce_rabbitmq]
"""Packages that import a public name when it is first used."""
FOR_AUTHORS = [sparkonce.checks, sparkonce.session, sparkonce.sink, sparkonce.source, sparkonce.write_ahead]

HEAVY = [
    *("pyspark", "pyarrow", "confluent_kafka", "kafka", "pymysql", "numpy", "pandas", "fastavro"),
    *("typer", "rich", "jinja2"),
]
"""Clients and engines, each of which is only imported where it is used."""


def imported(statement: str) -> list[str]:
    """Returns the heavy packages that a new interpreter has loaded after the statement."""
    code = f"import sys, json; {statement}; print(json.dumps([n for n in {HEAVY} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    found: list[str] = json.loads(done.stdout)
    return found


def test_importing_needs_nothing_heavy() -> None:
    assert imported("import numpy") == ["numpy"]

    # Each of them runs in its own interpreter.
    light = [
        "sparkonce",
        "sparkonce.avro",
        "sparkonce.errors",
        "sparkonce.guarantees",
        "sparkonce.protocol.coordinator",
        "sparkonce.protocol.codec",
        "sparkonce.log",
        "sparkonce.analysis.checkpoint",
        "sparkonce.analysis.explanation",
        "sparkonce.sink",
        "sparkonce.sinks.kafka",
        "sparkonce.sinks.sql.mysql",
        "sparkonce.testing.conformance",
        "sparkonce.avro.registry",
        "sparkonce.avro.transcode",
        "sparkonce_lab.registry",
        "sparkonce_pravega",
        "sparkonce_rabbitmq",
    ]
    found = {module: imported(f"import {module}") for module in light}
    assert {module: heavy for module, heavy in found.items() if heavy} == {}

    settings = "{'bootstrap.servers': 'nowhere:9092'}"
    assert "pyspark" not in imported(f"import sparkonce; sparkonce.KafkaSink({settings}, topic='t')")

    with pytest.raises(AttributeError, match="no attribute 'KafkaSource2'"):
        sparkonce.KafkaSource2  # noqa: B018 - asking is the test


@pytest.mark.parametrize("module", ["sparkonce.testing.conformance", "sparkonce_lab.kafka", "sparkonce_lab.registry"])
def test_what_is_for_tests_needs_no_pytest(module: str) -> None:
    code = f"import sys, {module}; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("module", [*LAZY, *FOR_AUTHORS, sparkonce.files], ids=lambda module: module.__name__)
def test_every_public_name_is_there(module: ModuleType) -> None:
    absent = [one for one in module.__all__ if getattr(module, one, None) is None or one not in dir(module)]
    assert absent == []
    assert module.__all__


@pytest.mark.parametrize("module", LAZY, ids=lambda module: module.__name__)
def test_public_names_come_from_where_they_live(module: ModuleType) -> None:
    for name, home in module.HOMES.items():
        assert getattr(import_module(home), name) is getattr(module, name)


@pytest.mark.parametrize("module", LAZY, ids=lambda module: module.__name__)
def test_type_checkers_and_the_table_see_the_same_names(module: ModuleType) -> None:
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    (typed,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    assert {name.name: node.module for node in imports for name in node.names} == module.HOMES
