"""Runs the Python blocks in README and docs.

If a page's queries are started, they run on a broker and a database; otherwise, blocks run as far as possible without
starting queries. `tidy/test_snippets` checks that all names exist.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pytest
from pyspark.sql import SparkSession

from own_source import lines_source
from shared_servers import needs_postgres, postgres_server
from spark.harness import new_name
from spark.in_process import MARKS, travelling
from sparkonce import ExactlyOnce, KafkaSink, read_kafka
from sparkonce_lab.kafka import create_topic, produce, read_committed
from sparkonce_lab.registry import RegistryServer
from sparkonce_lab.rig.kafka import Cluster
from tidy.snippets import PAGES, Block, blocks, python_blocks
from tidy.sources import ROOT

pytestmark = MARKS

STARTED = (
    "README.md",
    *(f"docs/{name}.md" for name in ("from-spark", "files", "formats", "quickstart", "whole-job", "backfill")),
)
"""Pages whose queries and jobs are started. The quick start and the formats page have separate tests."""

ASKS = ("docs/rabbitmq.md", "docs/connect.md")
"""Pages whose sources or sessions connect to their server when they are created."""

MADE = [page for page in PAGES if python_blocks(page) and page.relative_to(ROOT).as_posix() not in STARTED + ASKS]
SLOTS, NO_DATA = "spark.sql.shuffle.partitions", "spark.sql.streaming.noDataMicroBatches.enabled"
"""The README sets the first one, and the tests' session has a non-default value for the second."""

MINUTE_MS = 60_000
NOON_MS = 1_767_268_800_000


class Reader:
    """A reader who types in a page, with their own addresses, folders and topics.

    Attributes:
        names: The names that the blocks have defined so far.
    """

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self.spark = spark
        self.topics = {name: new_name(name) for name in ("orders", "counts", "orders-seen")}
        self.names: dict[str, Any] = {"spark": spark}
        self.instead = {
            "broker:9092": bootstrap,
            "127.0.0.1:9092": bootstrap,
            '"/data': f'"{folder}',
            '"totals.avsc"': f'"{folder}/totals.avsc"',
            "await_end(query)": "query.processAllAvailable()",
            **{f'"{name}"': f'"{own}"' for name, own in self.topics.items()},
        }

    def type_in(self, block: Block) -> None:
        text = block.text
        for theirs, own in self.instead.items():
            text = text.replace(theirs, own)
        exec(compile("\n" * (block.line - 1) + text, str(block.page), "exec"), self.names)  # noqa: S102 - our own docs


@pytest.fixture
def reader(spark, kafka, tmp_path) -> Iterator[Reader]:
    before = {name: spark.conf.get(name) for name in (SLOTS, NO_DATA)}
    spark.conf.set(NO_DATA, "true")
    made = Reader(spark, kafka.bootstrap, tmp_path)
    for topic in made.topics.values():
        create_topic(kafka.bootstrap, topic, 2)
    try:
        yield made
    finally:
        for query in spark.streams.active:
            query.stop()
        for name, value in before.items():
            spark.conf.set(name, value)


def send(kafka: Cluster, topic: str, count: int, at_ms: int = NOON_MS) -> None:
    """Rows with four keys, a second apart."""
    rows = ({"key": f"k{n % 4}", "value": f"{at_ms} {n}", "timestamp": at_ms + n * 1000} for n in range(count))
    produce(kafka.bootstrap, topic, rows)


@needs_postgres
def test_the_readme(reader, kafka, tmp_path):
    def _keys(kafka: Cluster, topic: str) -> Counter[bytes | None]:
        return Counter(one.key for one in read_committed(kafka.bootstrap, topic))

    _, exactly_once, one_unit = python_blocks(ROOT / "README.md")
    orders, counts = reader.topics["orders"], reader.topics["counts"]
    rows = read_kafka(reader.spark, {"bootstrap.servers": kafka.bootstrap}, topics=orders)
    send(kafka, orders, 40)
    reader.names |= {"counts": rows.select("key", "value"), "orders": rows}
    reader.type_in(exactly_once)
    assert _keys(kafka, counts) == {b"k0": 10, b"k1": 10, b"k2": 10, b"k3": 10}
    reader.names["query"].stop()

    server, table = postgres_server(), new_name("newest").replace("-", "_")
    conninfo = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
    reader.instead |= {"host=db dbname=shop": conninfo, '"newest"': f'"{table}"'}
    with psycopg.connect(conninfo, autocommit=True) as database:
        database.execute(f"CREATE TABLE {table} (key bytea PRIMARY KEY, value bytea, timestamp timestamptz)")
        reader.type_in(one_unit)
        reader.names["query"].stop()
        found = {bytes(key): bytes(value) for key, value, _ in database.execute(f"TABLE {table}")}
        database.execute(f"DROP TABLE {table}")
    assert found == {f"k{n % 4}".encode(): f"{NOON_MS} {n}".encode() for n in range(36, 40)}
    assert reader.spark.read.parquet(str(tmp_path / "orders")).count() == 40
    assert _keys(kafka, reader.topics["orders-seen"]).total() == 40


def test_a_query_of_sparks_own_sink_is_taken_over_by_the_lines_that_the_page_changes(reader, kafka):
    def _batches(reader: Reader, folder: str) -> list[str]:
        path = Path(reader.instead['"/data'][1:]) / "checkpoints" / "counts" / folder
        return sorted(one.name for one in path.iterdir())

    before, after, several = python_blocks(ROOT / "docs" / "from-spark.md")
    orders, counts = reader.topics["orders"], reader.topics["counts"]
    read = read_kafka(reader.spark, {"bootstrap.servers": kafka.bootstrap}, topics=orders)
    reader.names["counts"] = read.select("key", "value")
    for block in (before, after):
        send(kafka, orders, 20)
        reader.type_in(block)
        reader.names["query"].processAllAvailable()
        reader.names["query"].stop()
    reader.names["once"].close()
    rows = Counter((one.key, one.value) for one in read_committed(kafka.bootstrap, counts))
    assert len(rows) == 20
    assert set(rows.values()) == {2}
    assert [int(line) for line in _batches(reader, "sparkonce/records")] == [0, 1]  # its claim and batch 1

    create_topic(kafka.bootstrap, "alerts")
    reader.names["orders"] = read
    reader.type_in(several)
    reader.names["query"].processAllAvailable()


@pytest.mark.slow
@needs_postgres
def test_the_whole_job(reader, kafka):
    def order(number: str, amount: float, minute: int) -> dict[str, str]:
        at = f"2026-01-01T12:{minute:02}:00Z"
        return {"value": json.dumps({"order_id": number, "customer": "ada", "amount": amount, "at": at})}

    orders = reader.topics["orders"]
    clean, rejected = (new_name(name) for name in ("clean", "rejected"))
    for topic in (clean, rejected):
        create_topic(kafka.bootstrap, topic, 2)
    server = postgres_server()
    conninfo = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
    reader.instead |= {"host=db dbname=shop user=etl": conninfo, "orders-clean": clean, "orders-rejected": rejected}
    page = ROOT / "docs" / "whole-job.md"
    (create,) = (one.text for one in blocks(page) if one.language == "sql")
    job, *_ = python_blocks(page)
    late = [order("a", 2, 5), order("a", 1, 1), order("b", -1, 2), {"value": "no JSON"}]
    with psycopg.connect(conninfo, autocommit=True) as database:
        database.execute(create.replace("TABLE orders", f'TABLE "{orders}"').encode())
        produce(kafka.bootstrap, orders, late)
        reader.type_in(job)
        reader.names["query"].stop()
        found = database.execute(f'TABLE "{orders}"'.encode()).fetchall()
        database.execute(f'DROP TABLE "{orders}"'.encode())
    assert [(name, float(amount)) for name, _, amount, _ in found] == [("a", 2.0)]
    assert Counter(one.key for one in read_committed(kafka.bootstrap, clean)) == {b"a": 2, b"b": 1}
    (letter,) = read_committed(kafka.bootstrap, rejected)
    assert json.loads(letter.value or b"")["row"]["order_id"] == "b"


@pytest.mark.slow
def test_a_range_is_loaded_once(reader, kafka):
    *_, job = python_blocks(ROOT / "docs" / "backfill.md")
    target = new_name("january")
    create_topic(kafka.bootstrap, target, 2)
    reader.instead["orders-january"] = target
    send(kafka, reader.topics["orders"], 20)
    for _ in range(2):
        reader.type_in(job)
    assert len(read_committed(kafka.bootstrap, target)) == 20


def test_what_the_files_page_writes_is_read_as_it_says(reader, kafka, capsys):
    settings = {"bootstrap.servers": kafka.bootstrap}
    read = read_kafka(reader.spark, settings, topics=reader.topics["orders"])
    reader.names["orders"] = read.selectExpr("value", "CAST(timestamp AS DATE) AS day")
    send(kafka, reader.topics["orders"], 20)
    write, observe, *_ = python_blocks(ROOT / "docs" / "files.md")
    reader.type_in(write)
    reader.names["query"].processAllAvailable()
    reader.type_in(observe)
    assert " 0 20 [(" in capsys.readouterr().out


@pytest.mark.parametrize("page", MADE, ids=lambda page: page.stem)
def test_a_page_comes_as_far_as_it_can(page, reader, tmp_path, monkeypatch):
    """Sinks, sources and columns are really created and check their arguments, but no query is started."""
    monkeypatch.setattr(ExactlyOnce, "start", lambda _self, frame, **_: MagicMock(frame=frame))
    settings = {"bootstrap.servers": reader.instead["broker:9092"]}
    rows = read_kafka(reader.spark, settings, topics=reader.topics["orders"])
    frames = dict.fromkeys(("counts", "df", "orders", "records", "rows", "totals"), rows)
    reader.names |= frames
    reader.names |= {name: MagicMock() for name in ("MyServer", "MySink", "ask", "create_empty_table", "post", "query")}
    reader.names |= {"password": "secret", "sink": KafkaSink(settings, topic="totals"), "target": MagicMock()}
    with RegistryServer() as registry, travelling(lines_source):
        order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
        registry.register("orders-value", order)
        (tmp_path / "totals.avsc").write_text(str(order).replace("'", '"'))
        reader.instead["https://registry:8081"] = registry.url
        for block in python_blocks(page):
            reader.type_in(block)
