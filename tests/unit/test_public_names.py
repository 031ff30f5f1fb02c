from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

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
from sparkonce import DeltaSink, ExactlyOnce, IcebergSink, KafkaSink, RedisSink
from sparkonce_pravega import PravegaSink
from sparkonce_rabbitmq import RabbitMQ, RabbitMQQueueSink, RabbitMQStreamSink

LAZY = [sparkonce, sparkonce.avro, sparkonce_pravega, sparkonce_rabbitmq]
"""Packages that import a public name when it is first used."""
FOR_AUTHORS = [sparkonce.checks, sparkonce.session, sparkonce.sink, sparkonce.source, sparkonce.write_ahead]

HEAVY = [
    *("pyspark", "pyarrow", "confluent_kafka", "kafka", "pymysql", "numpy", "pandas", "fastavro"),
    *("typer", "rich", "jinja2"),
]
"""Clients and engines, each of which is only imported by the code that uses it."""


def imported(statement: str) -> list[str]:
    code = f"import sys, json; {statement}; print(json.dumps([n for n in {HEAVY} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    found: list[str] = json.loads(done.stdout)
    return found


def test_importing_needs_nothing_heavy():
    assert imported("import numpy") == ["numpy"]

    # Each of them runs in its own interpreter.
    light = [
        *("sparkonce", "sparkonce.avro", "sparkonce.errors", "sparkonce.guarantees"),
        *("sparkonce.protocol.coordinator", "sparkonce.protocol.codec", "sparkonce.decision_log"),
        *("sparkonce.analysis.checkpoint", "sparkonce.analysis.explanation", "sparkonce.sink"),
        *("sparkonce.sinks.kafka", "sparkonce.sinks.sql.mysql", "sparkonce.testing.conformance"),
        *("sparkonce.avro.registry", "sparkonce_lab.registry", "sparkonce_pravega"),
        "sparkonce_rabbitmq",
    ]
    found = {module: imported(f"import {module}") for module in light}
    assert {module: heavy for module, heavy in found.items() if heavy} == {}

    settings = "{'bootstrap.servers': 'nowhere:9092'}"
    assert "pyspark" not in imported(f"import sparkonce; sparkonce.KafkaSink({settings}, topic='t')")

    with pytest.raises(AttributeError, match="no attribute 'KafkaSource2'"):
        sparkonce.KafkaSource2  # noqa: B018 - asking is the test


@pytest.mark.parametrize("module", [*LAZY, *FOR_AUTHORS, sparkonce.files], ids=lambda module: module.__name__)
def test_every_public_name_is_there(module):
    absent = [one for one in module.__all__ if getattr(module, one, None) is None or one not in dir(module)]
    assert absent == []
    assert module.__all__


@pytest.mark.parametrize("module", LAZY, ids=lambda module: module.__name__)
def test_type_checkers_and_the_table_see_the_same_names(module):
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    (typed,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    assert {name.name: node.module for node in imports for name in node.names} == module.HOMES


KAFKA = {"bootstrap.servers": "broker:9092", "sasl.password": "s3cr3t"}
RABBIT = RabbitMQ(host="rabbit-1", password=KAFKA["sasl.password"])


@pytest.mark.parametrize(
    ("one", "shown"),
    [
        (KafkaSink(KAFKA, "totals"), "KafkaSink('broker:9092', topic='totals', name='kafka')"),
        (RedisSink("redis://me:s3cr3t@cache:6379/0"), "RedisSink('cache:6379/0', structure='string', name='redis')"),
        (DeltaSink("/data/totals"), "DeltaSink(path='/data/totals', name='delta')"),
        (IcebergSink("lake.totals"), "IcebergSink(table='lake.totals', name='iceberg')"),
        (RabbitMQStreamSink(RABBIT, "orders"), "RabbitMQStreamSink('rabbit-1', stream='orders', name='rabbitmq')"),
        (RabbitMQQueueSink(RABBIT, "orders"), "RabbitMQQueueSink('rabbit-1', queue='orders', name='rabbitmq-queue')"),
        (
            RabbitMQQueueSink(RABBIT, exchange="shop"),
            "RabbitMQQueueSink('rabbit-1', exchange='shop', name='rabbitmq-queue')",
        ),
        (
            PravegaSink("tcp://controller:9090", scope="shop", stream="orders"),
            "PravegaSink('tcp://controller:9090', stream='shop/orders', name='pravega')",
        ),
        (ExactlyOnce(KafkaSink(KAFKA, "t"), "/data/cp"), "ExactlyOnce(['kafka'], checkpoint='/data/cp')"),
    ],
)
def test_its_repr_names_its_target_without_secrets(one, shown):
    assert repr(one) == shown


JOB = """
import sys
from sparkonce import ExactlyOnce, KafkaSink, await_end, read_kafka
import sparkonce.executor
import sparkonce.sinks.kafka.committer
import sparkonce.sinks.kafka.blocking
import sparkonce.sinks.kafka.preflight
import sparkonce.sinks.kafka.writer
print("\\n".join(name for name in sys.modules if name.split(".")[0] == "sparkonce"))
"""


def test_a_job_with_kafka_imports_no_other_system():
    others = r"explain|pravega|rabbitmq|tables|write_ahead|sinks\.(files|memory|mysql|postgres|redis)"
    # Raise this only if the job really needs more modules.
    most = 108
    done = subprocess.run([sys.executable, "-c", JOB], capture_output=True, text=True, check=True, timeout=120)
    found = done.stdout.split()
    foreign = [name for name in found if re.search(others, name)]
    assert foreign == []
    print(f"{len(found)} modules of sparkonce")  # noqa: T201 - `pytest -s` shows how many
    assert len(found) <= most


WITHOUT_CLIENTS = """
import sys
for name in ("pymysql", "psycopg", "redis", "boto3", "obstore", "hdfs_native", "prometheus_client"):
    sys.modules[name] = None  # as if it were not installed
from sparkonce import *
import sparkonce.spark.formats.sources
import sparkonce_lab.systems.names
"""


def test_whoever_lacks_a_client_can_still_import_everything_else():
    subprocess.run([sys.executable, "-c", WITHOUT_CLIENTS], check=True, timeout=120)
