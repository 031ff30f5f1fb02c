"""Streams of Avro through ExactlyOnce: schemas that appear on the way, bad records, a registry that is away."""

from __future__ import annotations

import gc
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery

from eventually import eventually
from spark.harness import new_name
from spark.in_process import LIMIT_S, MARKS
from sparkonce import ExactlyOnce, KafkaSink
from sparkonce.avro import SchemaRegistry, decode_registry_avro, from_registry_avro
from sparkonce.avro.schemas import wire_header
from sparkonce_lab.kafka import create_topic, produce, read_committed
from sparkonce_lab.registry import RegistryServer
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

V1 = {"type": "record", "name": "Order", "namespace": "com.example", "fields": [{"name": "id", "type": "int"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "note", "type": "string", "default": "none"}]}  # type: ignore[misc]
READER = {**V1, "fields": [*V1["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}  # type: ignore[misc]

Plan = Callable[[DataFrame], DataFrame]


class Orders:
    """A topic of orders, its subject, and where they are written to."""

    def __init__(self, spark: SparkSession, kafka: Cluster, folder: Path, server: RegistryServer) -> None:
        self.spark, self.bootstrap, self.checkpoint, self.server = spark, kafka.bootstrap, folder / "checkpoint", server
        self.registry = SchemaRegistry({"url": server.url, "max.retries": 0})
        self.source, self.target = new_name("orders"), new_name("target")
        self.subject = f"{self.source}-value"
        for topic in (self.source, self.target):
            create_topic(self.bootstrap, topic, 2)
        server.register(self.subject, V1)

    def send(self, *values: bytes | None) -> None:
        produce(self.bootstrap, self.source, [{"value": one, "partition": 1} for one in values])

    def orders(self, ids: range, schema: Any = V1) -> list[bytes]:
        """As a producer writes them, which registers its schema first."""
        header = wire_header(self.server.register(self.subject, schema))
        parsed = fastavro.parse_schema(schema)
        values = []
        for number in ids:
            target = io.BytesIO()
            fastavro.schemaless_writer(target, parsed, {"id": number, "note": f"note {number}"})
            values.append(header + target.getvalue())
        return values

    def start(self, plan: Plan, *, once: bool = True) -> StreamingQuery:
        """A query on the same checkpoint as the one before."""
        records = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.source)
            .option("startingOffsets", "earliest")
            .load()
        )
        sink = KafkaSink({"bootstrap.servers": self.bootstrap}, topic=self.target)
        exactly_once = ExactlyOnce(sink, checkpoint=str(self.checkpoint), display=False)
        trigger = {"availableNow": True} if once else {"processingTime": "0 seconds"}
        return exactly_once.start(plan(records), trigger=trigger)

    def run(self, plan: Plan) -> StreamingQuery:
        """Writes all that is there now."""
        query = self.start(plan)
        try:
            assert query.awaitTermination(int(LIMIT_S))
        finally:
            query.stop()
            gc.collect()  # as in spark.in_process
        return query

    def stops(self, plan: Plan) -> str:
        """What a query says that cannot go on."""
        with pytest.raises(StreamingQueryException) as stopped:
            self.run(plan)
        return str(stopped.value)

    def written(self) -> list[Any]:
        values = [json.loads(one.value or b"") for one in read_committed(self.bootstrap, self.target)]
        return sorted(values, key=lambda one: one["id"])

    def decode(self, **settings: Any) -> Plan:
        settings = {"subject": self.subject, "registry": self.registry, **settings}
        return lambda records: records.select(
            F.to_json(from_registry_avro("value", **settings), {"ignoreNullFields": "false"}).alias("value")
        )


@pytest.fixture
def orders(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> Iterator[Orders]:
    with RegistryServer() as server:
        yield Orders(spark, kafka, tmp_path, server)


def ids(number: range, note: Callable[[int], str | None]) -> list[Any]:
    return [{"id": one, "note": note(one)} for one in number]


@pytest.mark.slow
def test_a_schema_that_appears_while_the_query_runs_is_picked_up(orders: Orders) -> None:
    query = orders.start(orders.decode(reader=READER, later_ids="ask"), once=False)
    try:
        orders.send(*orders.orders(range(20)))
        eventually(lambda: len(orders.written()) == 20 or not query.isActive, "the first are written")
        orders.send(*orders.orders(range(20, 40), V2), *orders.orders(range(40, 50)))
        eventually(lambda: len(orders.written()) >= 50 or not query.isActive, "the later ones are written")
        assert query.isActive, query.exception()
    finally:
        query.stop()
        gc.collect()
    expected = ids(range(20), lambda _: None) + ids(range(20, 40), lambda one: f"note {one}")
    assert orders.written() == expected + ids(range(40, 50), lambda _: None)


@pytest.mark.slow
def test_a_schema_that_appears_stops_the_query_and_the_next_start_reads_on(orders: Orders) -> None:
    plan = orders.decode(reader=READER)
    orders.send(*orders.orders(range(20)))
    # Made before the schema is there.
    column = from_registry_avro(
        "value", subject=orders.subject, registry=orders.registry, reader=READER, located_by=("topic", "offset")
    )
    orders.send(*orders.orders(range(20, 40), V2))
    told = orders.stops(lambda rows: rows.select(F.to_json(column).alias("value")))
    assert f"topic={orders.source} offset=20 (subject {orders.subject}): schema id 2 was not one of" in told
    assert "start the query again" in told
    assert orders.written() == []
    orders.run(plan)
    assert orders.written() == ids(range(20), lambda _: None) + ids(range(20, 40), lambda one: f"note {one}")


@pytest.mark.slow
def test_a_registry_that_is_away_stops_the_query_and_loses_nothing(orders: Orders) -> None:
    plan = orders.decode(reader=READER, later_ids="ask", on_error="fail")
    column = from_registry_avro(
        "value", subject=orders.subject, registry=orders.registry, reader=READER, later_ids="ask"
    )
    orders.send(*orders.orders(range(20)), *orders.orders(range(20, 40), V2))
    with orders.server.down():
        told = orders.stops(lambda rows: rows.select(F.to_json(column).alias("value")))
        assert "gave no answer about schema id 2" in told
        assert orders.written() == []
    orders.run(plan)
    assert orders.written() == ids(range(20), lambda _: None) + ids(range(20, 40), lambda one: f"note {one}")


@pytest.mark.slow
def test_bad_records_stop_the_query_or_are_counted_or_kept(orders: Orders) -> None:
    good = orders.orders(range(30))
    other = new_name("others-value")
    foreign = orders.server.register(other, {**V1, "name": "Other"})
    orders.send(*good[:10], b"nonsense", *good[10:20], good[0][:-1], wire_header(777) + b"\0", None, *good[20:])
    orders.send(wire_header(foreign) + b"\2", *orders.orders(range(30, 40)))
    told = orders.stops(orders.decode())
    assert f"topic={orders.source} partition=1 offset=10 (subject {orders.subject}): it is not in the" in told
    assert orders.written() == []

    def letters(rows: DataFrame) -> DataFrame:
        both = decode_registry_avro(rows, subject=orders.subject, registry=orders.registry, on_error="dead-letter")
        line = F.struct(F.col("offset").alias("id"), F.col("dead_letter.reason").alias("reason"))
        return both.where("dead_letter is not null").select(F.to_json(line).alias("value"))

    def dropped(rows: DataFrame) -> DataFrame:
        left = decode_registry_avro(rows, subject=orders.subject, registry=orders.registry, on_error="drop")
        return left.select(F.to_json("record").alias("value"))

    query = orders.run(dropped)
    counted = [one["observedMetrics"]["sparkonce_avro"].asDict() for one in query.recentProgress if one["numInputRows"]]
    assert counted == [{"records": 45, "undecodable": 4}]
    found = [json.loads(one.value) for one in read_committed(orders.bootstrap, orders.target) if one.value is not None]
    assert Counter(one["id"] for one in found) == Counter(range(40))

    orders.checkpoint, orders.target = orders.checkpoint.with_name("letters"), new_name("letters")
    create_topic(orders.bootstrap, orders.target, 2)
    orders.run(letters)
    assert [one["id"] for one in orders.written()] == [10, 21, 22, 34]
    assert "schema id 777 is not known to the registry" in orders.written()[2]["reason"]
    assert f"schema id {foreign} belongs to subject {other}" in orders.written()[3]["reason"]
