"""Writes ``docs/tested-with.md``: the servers that the tests start, by what these answer, and the clients of the lock.

``python3 dev.py tested``. `tidy/test_release.py` sees that the clients' versions are those of the lock.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cache
from http.client import HTTPException
from typing import Any

import pika
import psutil

from releasing.locked import PLAIN, ROOT, coordinates
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.kafka.jars import artifact_name, find_java
from sparkonce.rig.servers.process import HOST, Server
from sparkonce.rig.servers.s3 import find_versitygw
from sparkonce.sinks.kafka.transaction_client import TransactionClient
from sparkonce.sinks.mysql.flavours import MARIADB, MYSQL
from sparkonce.sinks.postgres import preflight as postgres_preflight
from sparkonce.sinks.redis import preflight as redis_preflight
from versions.table import BROKERS, ENGINES

PAGE = ROOT / "docs" / "tested-with.md"
LIMIT_S = 30

CLIENTS: Mapping[str, tuple[str, ...]] = {
    PLAIN: ("pyspark", "confluent-kafka", "kafka-python", "pyarrow", "numpy", "pandas"),
    "avro": ("confluent-kafka", "fastavro"),
    "hdfs": ("hdfs-native",),
    "objects": ("obstore",),
    "s3": ("boto3",),
    "postgres": ("psycopg",),
    "mysql": ("pymysql",),
    "redis": ("redis",),
    "rabbitmq": ("rstream", "pika", "mmh3"),
    "metrics": ("prometheus-client",),
    "otel": ("opentelemetry-api",),
}
"""What an extra asks for, or all that talks to a system."""


def dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


# --- what servers answer ---------------------------------------------------------------------------------------------


def kafka() -> str:
    with Cluster() as cluster:
        (log,) = [broker.log for broker in cluster.brokers]
        (version,) = set(re.findall(r"Kafka version: (\S+)", log.read_text()))
        with closing(TransactionClient({"bootstrap_servers": [cluster.bootstrap]})) as client:
            level = client.transaction_version(deadline_s=time.monotonic() + LIMIT_S)
    return f"Kafka {version}, `transaction.version` {level}"


def postgres() -> str:
    import psycopg

    from shared_servers import postgres_server

    with psycopg.connect(postgres_server().conninfo()) as connection:
        return f"PostgreSQL {_row(connection.execute('SHOW server_version').fetchone())}"


def mariadb() -> str:
    from mariadb_witness import Witness, shared_server

    return f"MariaDB {_row(Witness(shared_server(), 'tested').rows('SELECT VERSION()')[0])}"


def redis() -> str:
    import redis as client

    from shared_servers import redis_server

    with client.Redis.from_url(redis_server().url) as connection:
        return f"Redis {connection.info('server')['redis_version']}"


def rabbitmq() -> str:
    from shared_servers import rabbit_server

    connection = pika.BlockingConnection(pika.URLParameters(rabbit_server().url))
    said = connection._impl.server_properties
    connection.close()
    return f"RabbitMQ {_text(said['version'])}, {_text(said['platform'])}"


def hdfs() -> str:
    from shared_servers import hdfs_server

    answers = [_name_node(port) for port in _ports(hdfs_server())]
    (version,) = {answer for answer in answers if answer}
    return f"Hadoop {version}"


def _name_node(port: int) -> str:
    """Returns the version that a name node says at its port for people; empty at any other port."""
    query = f"http://{HOST}:{port}/jmx?qry=Hadoop:service=NameNode,name=NameNodeInfo"
    try:
        with urllib.request.urlopen(query, timeout=LIMIT_S) as answer:
            return str(json.load(answer)["beans"][0]["SoftwareVersion"])
    except (OSError, ValueError, LookupError, HTTPException):
        return ""


@cache
def s3() -> str:
    """Reads the program: it answers requests without a version."""
    from shared_servers import s3_server

    s3_server()
    program = find_versitygw()
    assert program is not None
    found = re.search(rb"github\.com/versity/versitygw\t(v[\d.]+)", program.read_bytes())
    assert found is not None, program
    return f"versitygw {found[1].decode()}"


def pravega() -> str:
    """Reads the name of its jar: it answers requests without a version."""
    from shared_servers import pravega_server

    server = pravega_server()
    (jar,) = [one for one in server._jars if artifact_name(one.name) == "pravega-standalone"]
    return f"Pravega {jar.stem.rpartition('-')[2]}"


def prometheus() -> str:
    said = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"version (\S+)", said.stdout + said.stderr)
    assert found is not None, said
    return f"Prometheus {found[1]}"


def _ports(server: Server) -> Sequence[int]:
    mark = str(server.folder)
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(mark in word for word in process.info["cmdline"] or ()):
            found += [one.laddr.port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    return sorted(found)


def _row(row: Any) -> str:
    return _text(row[0])


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# --- the engine ------------------------------------------------------------------------------------------------------


def spark() -> str:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        scala = session._jvm.scala.util.Properties.versionNumberString()
        return f"Spark {session.version}, Scala {scala}"
    finally:
        session.stop()


def java() -> str:
    said = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "(\S+)"', said)
    assert found is not None, said
    return f"Java {found[1]}"


# --- the page --------------------------------------------------------------------------------------------------------

HEAD = """# Tested with

`python3 dev.py tested` has written this page. It started each server as the tests do, and asked it for its version. The
clients' versions are those of the lock, for this Python. Another machine's tests run with the servers that are
installed there. [Versions](versions.md) says what was run with other versions of Spark and Kafka.

## The engine

- Python {python} and {java}, on {system}
- {spark}, with these jars:

{jars}
"""
SERVERS_HEAD = """## Servers and clients

| extra | clients in the lock | server, as it answered | oldest that a start accepts |
| --- | --- | --- | --- |
"""
SERVERS_TAIL = """
- versitygw, which serves S3, and Pravega answer without a version. It is that of the program that was started.
- The extra `avro` is tested with Spark's Avro module, and the Schema Registry of `sparkonce.testing`.
- The tests of MySQL run on MariaDB. MySQL's own server, cloud stores and managed services are not in this table.
- The extra `otel` is tested with the SDK of OpenTelemetry, in the process of the test.
- Delta and Iceberg tables are on a local disk.
"""
OTHERS = """## Other versions

`python3 dev.py versions` runs tests with these, when somebody asks for it. The results are in [Versions](versions.md).

| | |
| --- | --- |
"""

OLDEST: Mapping[str, str] = {
    "postgres": f"PostgreSQL {postgres_preflight.OLDEST // 10_000}",
    "mysql": f"MariaDB {dotted(MARIADB.oldest)}, MySQL {dotted(MYSQL.oldest)}",
    "redis": f"Redis {dotted(redis_preflight.OLDEST)}",
}
"""From the checks of a start; the other systems are not asked for a version."""

SERVERS: Sequence[tuple[str, Callable[[], str] | None]] = (
    (PLAIN, kafka),
    ("avro", None),
    ("hdfs", hdfs),
    ("objects", s3),
    ("s3", s3),
    ("postgres", postgres),
    ("mysql", mariadb),
    ("redis", redis),
    ("rabbitmq", rabbitmq),
    ("pravega", pravega),
    ("metrics", prometheus),
    ("otel", None),
)


def main() -> None:
    """Writes the page."""
    servers = "".join(_row_of(extra, ask) for extra, ask in SERVERS)
    engine = HEAD.format(
        python=platform.python_version(),
        java=java(),
        system=_system(),
        spark=spark(),
        jars="\n".join(f"  - `{one}`" for one in coordinates()),
    )
    PAGE.write_text("\n".join([engine, SERVERS_HEAD + servers + SERVERS_TAIL, OTHERS + _others()]))


def _row_of(extra: str, ask: Callable[[], str] | None) -> str:
    clients = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in CLIENTS.get(extra, ()))
    shown = f"`{extra}`" if extra else "none"
    return f"| {shown} | {clients or 'none'} | {ask() if ask else 'none'} | {OLDEST.get(extra, 'not asked')} |\n"


def _others() -> str:
    rows = {
        "Spark, each with a Python": ", ".join(f"{one.spark} ({one.python})" for one in ENGINES),
        "Kafka": ", ".join(dict.fromkeys(one.kafka for one in BROKERS)),
    }
    return "".join(f"| {name} | {versions} |\n" for name, versions in rows.items())


def _system() -> str:
    release = platform.freedesktop_os_release() if platform.system() == "Linux" else {}
    return release.get("PRETTY_NAME", platform.system())


if __name__ == "__main__":
    main()
