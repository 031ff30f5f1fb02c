"""Records with a registry's header, read and written by Spark, and checked with confluent-kafka's serializers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

from eventually import LIMIT_S
from spark.harness import new_name, path_of_tests
from sparkonce.avro import (
    SchemaRegistry,
    decode_registry_avro,
    from_avro_file,
    from_registry_avro,
    to_avro_file,
    to_registry_avro,
)
from sparkonce.avro.schemas import wire_header
from sparkonce.errors import ConfigurationError, RegistryError, SchemaError
from sparkonce_lab.registry import RegistryServer
from sparkonce_lab.rig.kafka import spark_avro_jars
from startup import jvm_flags

pytestmark = [
    pytest.mark.spark,
    # PySpark does not close the sockets over which it brings results.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as server:
        yield server


class Orders:
    """A topic, the subject of its values in a registry, and Spark, which reads them."""

    def __init__(self, spark: SparkSession, server: RegistryServer) -> None:
        self.spark, self.server, self.topic = spark, server, new_name("orders")
        self.subject = f"{self.topic}-value"
        self.registry = SchemaRegistry({"url": server.url, "max.retries": 0})
        self.given: dict[str, Any] = {"subject": self.subject, "registry": self.registry}

    def register(self, schema: Any, **more: Any) -> int:
        return self.server.register(self.subject, schema, **more)

    def rows(self, *values: bytes | None) -> DataFrame:
        """Returns rows in one task.

        If one of two tasks fails, Spark also kills the other's Python, which may affect the next query.
        """
        records = [("orders", 3, 70 + number, one) for number, one in enumerate(values)]
        return self.spark.createDataFrame(records, "topic string, partition int, offset long, value binary").coalesce(1)

    def decoded(self, df: DataFrame, **more: Any) -> list[Any]:
        column = from_registry_avro("value", **self.given, **more)
        return [plain(row["it"]) for row in df.select(column.alias("it")).collect()]


@pytest.fixture
def orders(spark, server) -> Orders:
    return Orders(spark, server)


def record(*fields: tuple[Any, ...], name: str = "Order") -> dict[str, Any]:
    """Returns a record schema. Each field has a name, a type and optionally a default."""
    listed = [dict(zip(("name", "type", "default"), one, strict=False)) for one in fields]
    return {"type": "record", "name": name, "namespace": "com.example", "fields": listed}


V1 = record(("id", "int"), ("note", "string"))
V2 = record(("id", "long"), ("price", ["null", "double"], None), ("note", "string", "none"))


def written(schema: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    return wire_header(schema_id) + written(schema, value)


def plain(value: Any) -> Any:
    return value.asDict(recursive=True) if hasattr(value, "asDict") else value


@pytest.mark.slow
def test_every_version_is_read_as_the_latest(orders):
    first, second = orders.register(V1), orders.register(V2)
    df = orders.rows(
        framed(first, V1, {"id": 1, "note": "a"}),
        framed(second, V2, {"id": 1 << 40, "price": 2.5, "note": "b"}),
        None,
    )
    expected = [{"id": 1, "price": None, "note": "a"}, {"id": 1 << 40, "price": 2.5, "note": "b"}, None]
    for later_ids in ("stop", "refuse"):
        assert orders.decoded(df, later_ids=later_ids) == expected
    # A tombstone is never treated as a bad record.
    dead_letters = orders.decoded(df, on_error="dead-letter")
    assert [one["record"] for one in dead_letters] == expected
    assert [one["dead_letter"] for one in dead_letters] == [None] * 3


@pytest.mark.slow
def test_the_reader_can_be_pinned(orders, tmp_path):
    first = orders.register(V1)
    orders.register(V2)
    df = orders.rows(framed(first, V1, {"id": 1, "note": "a"}))
    own = record(("note", "string"), ("added", "int", 7))
    file = tmp_path / "own.avsc"
    file.write_text(json.dumps(own))
    assert orders.decoded(df, reader=1) == [{"id": 1, "note": "a"}]
    for reader in (file, str(file), json.dumps(own), own):
        assert orders.decoded(df, reader=reader) == [{"note": "a", "added": 7}]


LINE = record(("sku", "string"), ("n", "int"), name="Line")
SUIT = {"type": "enum", "name": "Suit", "symbols": ["CLUBS", "HEARTS"]}
TIMES = [
    ("day", {"type": "int", "logicalType": "date"}),
    ("ms", {"type": "long", "logicalType": "timestamp-millis"}),
    ("us", {"type": "long", "logicalType": "timestamp-micros"}),
]
TIME_VALUES = {
    "day": date(2020, 2, 29),
    "ms": datetime(2020, 2, 29, 1, 2, 3, 4000, timezone.utc),
    "us": datetime(1960, 1, 1, 0, 0, 0, 7, timezone.utc),
}


def test_values_of_every_type_are_what_bare_from_avro_makes_of_them(orders):
    every_value = {
        "union": "text",
        "enum": "HEARTS",
        "fixed": b"abc",
        "decimal": Decimal("-12.34"),
        "lines": [{"sku": "a", "n": 1}],
        "by_name": {"k": {"sku": "b", "n": 2}},
        **TIME_VALUES,
    }
    everything = record(
        ("union", ["null", "int", "string"]),
        ("enum", SUIT),
        ("fixed", {"type": "fixed", "name": "F", "size": 3}),
        ("decimal", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("lines", {"type": "array", "items": LINE}),
        ("by_name", {"type": "map", "values": "com.example.Line"}),
        *TIMES,
    )
    schema_id = orders.register(everything)
    df = orders.rows(framed(schema_id, everything, every_value))
    bare = df.select(from_avro(F.expr("substring(value, 6)"), json.dumps(everything)).alias("it")).first()
    assert orders.decoded(df) == [plain(bare["it"])]
    assert plain(bare["it"])["decimal"] == Decimal("-12.34")


NOT_RECORDS: dict[str, tuple[Any, Any]] = {
    # Plain from_avro returns 0 for the first one, and cannot read the next two at all.
    "no number": (["null", "long"], None),
    "no record": (["null", LINE], None),
    "perhaps a record": (["null", LINE], {"sku": "a", "n": 1}),
    "a number": ("long", 5),
    "a list": ({"type": "array", "items": "string"}, ["a", "b"]),
    "a record of nulls": (record(("a", ["null", "int"], None)), {"a": None}),
}


ALWAYS = ("no number", "perhaps a record")


@pytest.mark.parametrize(
    "shape", [*ALWAYS, *(pytest.param(one, marks=pytest.mark.slow) for one in sorted({*NOT_RECORDS} - {*ALWAYS}))]
)
def test_a_null_is_told_from_a_record_that_cannot_be_read(orders, shape):
    schema, value = NOT_RECORDS[shape]
    schema_id = orders.register(json.dumps(schema))
    good = framed(schema_id, schema, value)
    dead_letters = orders.decoded(orders.rows(good, good[:-1]), on_error="dead-letter")
    assert dead_letters[0] == {"record": value, "dead_letter": None}
    assert dead_letters[1]["record"] is None
    assert f"not a record of schema id {schema_id}" in dead_letters[1]["dead_letter"]["reason"]


def test_bytes_behind_a_record_are_not_noticed(orders):
    value = framed(orders.register(V1), V1, {"id": 1, "note": "a"}) + b"more"
    assert orders.decoded(orders.rows(value)) == [{"id": 1, "note": "a"}]


BAD = {
    "not in the registry's wire format (3 bytes, the first 0x616263)": b"abc",
    "not in the registry's wire format (0 bytes, the first 0x)": b"",
    "not in the registry's wire format (4 bytes, the first 0x00000001)": b"\0\0\0\1",
    "not a record of schema id": b"cut",
    "schema id 99999 was not one of": wire_header(99999) + b"\0",
}


def test_what_cannot_be_decoded_goes_where_the_user_says(orders):
    schema_id = orders.register(V1)
    good = framed(schema_id, V1, {"id": 1, "note": "a"})
    values = [good[:-1] if bad == b"cut" else bad for bad in BAD.values()]
    dead_letters = orders.decoded(orders.rows(*values, good), on_error="dead-letter", later_ids="refuse")
    assert dead_letters.pop() == {"record": {"id": 1, "note": "a"}, "dead_letter": None}
    for reason, value, dead_letter in zip(BAD, values, dead_letters, strict=True):
        assert dead_letter["record"] is None
        told = dead_letter["dead_letter"]
        assert reason in told["reason"]
        assert bytes(told["value"]) == value
        assert told["schema_id"] == (None if "wire format" in reason else int.from_bytes(value[1:5], "big"))
    df = orders.rows(good, *values)
    (kept,) = decode_registry_avro(df, **orders.given, on_error="drop", later_ids="refuse").collect()
    assert kept["record"]["id"] == 1
    assert set(kept.asDict()) == {"topic", "partition", "offset", "value", "record"}
    first, *_, last = zip(BAD, values, strict=True)
    for (reason, value), later in ((first, "stop"), (last, "stop"), (last, "refuse")):
        with pytest.raises(PySparkException) as stopped:
            orders.decoded(orders.rows(good, value), later_ids=later)
        assert "topic=orders partition=3 offset=71" in str(stopped.value)
        assert reason in str(stopped.value)


@pytest.mark.parametrize("on_error", ["fail", "dead-letter"])
def test_an_id_that_the_plan_does_not_know_is_never_a_bad_record_unasked(orders, on_error):
    orders.register(V1)
    column = from_registry_avro("value", **orders.given, on_error=on_error)
    later = orders.register(V2)
    df = orders.rows(framed(later, V2, {"id": 1, "price": None, "note": "a"}))
    with pytest.raises(
        PySparkException, match=rf"offset=70 .*schema id {later} was not one of .*start the query again"
    ):
        df.select(column).collect()


def test_an_id_of_another_subject_is_refused_if_the_user_says_so(orders):
    good = framed(orders.register(V1), V1, {"id": 1, "note": "a"})
    foreign = orders.server.register(f"{orders.subject}-other", record(("other", "string"), name="Other"))
    df = orders.rows(good, wire_header(foreign) + b"\2x", good)
    told = f"schema id {foreign} was not one of {orders.subject} when the query started"
    dead_letters = orders.decoded(df, on_error="dead-letter", later_ids="refuse")
    assert [one["record"] is None for one in dead_letters] == [False, True, False]
    assert dead_letters[1]["dead_letter"]["reason"] == told
    assert decode_registry_avro(df, **orders.given, on_error="drop", later_ids="refuse").count() == 2
    with pytest.raises(PySparkException, match=rf"offset=71 .*{told}.*to another subject, add"):
        orders.decoded(df, on_error="dead-letter")


@pytest.mark.slow
def test_each_record_is_decoded_once(orders):
    """Spark computes an expression once for each place it appears in, unless it recognizes the duplicates."""
    orders.register(V1)
    df = orders.rows(None)
    settings = {**orders.given, "later_ids": "refuse"}
    for plan in (
        df.select(from_registry_avro("value", **settings)),
        df.select(from_registry_avro("value", on_error="dead-letter", **settings)),
        decode_registry_avro(df, on_error="dead-letter", **settings),
        decode_registry_avro(df, on_error="drop", **settings),
    ):
        with contextlib.redirect_stdout(io.StringIO()) as code:
            plan.explain("codegen")
        assert code.getvalue().count(".nullSafeEval(") == 1


@pytest.mark.slow
def test_recursive_types_need_a_depth(orders):
    tree = record(("n", "int"), ("next", ["null", "com.example.Order"], None))
    schema_id = orders.register(tree)
    df = orders.rows(framed(schema_id, tree, {"n": 1, "next": {"n": 2, "next": None}}))
    with pytest.raises(ConfigurationError, match=r"is recursive.*recursiveFieldMaxDepth"):
        orders.decoded(df)
    assert orders.decoded(df, options={"recursiveFieldMaxDepth": "2"}) == [{"n": 1, "next": {"n": 2}}]


def test_what_confluents_serialiser_writes_is_read_and_the_other_way_round(orders):
    client = SchemaRegistryClient({"url": orders.server.url})
    context = SerializationContext(orders.topic, MessageField.VALUE)
    value = {"id": 1 << 40, "price": 2.5, "note": "é"}
    theirs = AvroSerializer(client, json.dumps(V2))(value, context)
    df = orders.rows(theirs)
    assert orders.decoded(df) == [value]

    again = from_registry_avro("value", **orders.given)
    for schema in (None, V2):
        encode = to_registry_avro("r", topic=orders.topic, schema=schema, registry=orders.registry)
        (ours,) = df.select(again.alias("r")).select(encode.alias("value")).collect()
        assert bytes(ours["value"]) == theirs
        assert AvroDeserializer(client)(bytes(ours["value"]), context) == value


def test_encoding_refuses_what_the_registry_refuses(orders):
    with pytest.raises(RegistryError, match=r"40401|40403"):
        to_registry_avro("r", schema=V1, **orders.given, auto_register=False)
    assert orders.server.count(f"POST /subjects/{orders.subject}/versions") == 0
    orders.register(V1)
    with pytest.raises(RegistryError, match=f"{orders.subject}.*409"):
        to_registry_avro("r", schema=record(("new", "int")), **orders.given)
    nulls = orders.spark.sql("select cast(null as struct<id:int,note:string>) as r")
    encode = to_registry_avro("r", schema=V1, **orders.given, auto_register=False)
    assert nulls.select(encode.alias("v")).collect() == [(None,)]


def test_plain_files(orders, tmp_path):
    one, two = tmp_path / "one.avsc", tmp_path / "two.avsc"
    one.write_text(json.dumps(V1))
    two.write_text(json.dumps(V2))
    df = orders.rows(written(V1, {"id": 1, "note": "a"}), None)
    values = [plain(row[0]) for row in df.select(from_avro_file("value", one, reader=str(two))).collect()]
    assert values == [{"id": 1, "price": None, "note": "a"}, None]
    again = df.select(from_avro_file("value", one).alias("r")).select(to_avro_file("r", one).alias("v")).collect()
    assert [row["v"] for row in again] == [row["value"] for row in df.collect()]
    with pytest.raises(Py4JJavaError, match="Malformed records are detected"):
        orders.rows(b"").select(from_avro_file("value", one)).collect()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"on_error": "drop"}, "decode_registry_avro"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"later_ids": "drop"}, "later_ids='drop'"),
        ({"options": {"MODE": "FAILFAST"}}, "MODE"),
        ({"subject": ["a", "b"]}, "several"),
        ({"reader": '"nonsense"'}, "reader=.*no type in Spark"),
    ],
)
def test_settings_that_are_wrong_are_named(orders, settings, told):
    for subject in ("a", "b"):
        orders.server.register(subject, V1)
    with pytest.raises(ConfigurationError, match=told):
        from_registry_avro("value", **{"subject": "a", "registry": orders.registry, **settings})


def test_a_column_that_is_not_there_or_not_binary_is_named(orders):
    for column, told in (("nothing", "missing"), ("topic", "string")):
        with pytest.raises(SchemaError, match=f"column='{column}' is {told}"):
            decode_registry_avro(orders.rows(None), column, subject="a", registry=orders.registry)


def test_columns_that_do_not_say_where_a_record_is_are_named(orders):
    good = framed(orders.register(V1), V1, {"id": 1, "note": "a"})
    bare = orders.rows(good).select("value", F.struct("offset").alias("at"))
    refused: list[dict[str, Any]] = [
        {}, {"on_error": "drop"}, {"located_by": ("at.offset", "partition")}
    ]  # fmt: skip
    for more in refused:
        with pytest.raises(
            SchemaError, match=r"located_by=.*no column (topic, partition, offset|partition);.*located_by=\(\)"
        ):
            decode_registry_avro(bare, **orders.given, **more)
    taken: list[dict[str, Any]] = [
        {"located_by": ()}, {"on_error": "drop", "later_ids": "refuse"}, {"located_by": ("at.offset", "VALUE")}
    ]  # fmt: skip
    for more in taken:
        assert decode_registry_avro(bare, **orders.given, **more).count() == 1


@pytest.mark.parametrize("field", ["`a-b` int", "v variant"])
def test_a_type_that_avro_lacks_is_refused(orders, field):
    schema = StructType.fromDDL(field)
    with pytest.raises(ConfigurationError, match=r"has no schema in Avro: .*(a-b|[Vv]ariant)"):
        to_registry_avro("r", schema=schema, **orders.given)


def test_a_session_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda _: None))
    with pytest.raises(ConfigurationError, match="no Spark session"):
        from_avro_file("value", V1)


def test_a_missing_module_is_told(spark, monkeypatch):
    nothing = JavaPackage("", None)
    bare = SimpleNamespace(_jvm=SimpleNamespace(org=nothing), version="4.0.0", conf={})
    nothing_there = SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(sql=SimpleNamespace(
        avro=SimpleNamespace(AvroDataToCatalyst=nothing)))))  # fmt: skip
    bare._jvm.org = nothing_there
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: bare)
    with pytest.raises(
        ConfigurationError,
        match=r"does not have spark-avro(.|\n)*--packages org\.apache\.spark:spark-avro_2\.13:4\.0\.0",
    ):
        to_avro_file("r", V1)


@pytest.mark.slow
def test_with_avros_limits_a_length_that_no_record_has_is_a_dead_letter(tmp_path):
    """The length could crash a Spark session, so this one is in a separate process."""
    program = """
import json, logging, sys
from pyspark.sql import SparkSession
from sparkonce.avro import SchemaRegistry, decode_registry_avro
from sparkonce.avro.schemas import wire_header
from sparkonce.avro import limits
from sparkonce_lab.registry import RegistryServer
from sparkonce_lab.rig.kafka import spark_avro_jars
from startup import jvm_flags

jars, flags, folder = sys.argv[1:]
logging.basicConfig(filename=f"{folder}/log", level="WARNING")
builder = SparkSession.builder.master("local[1]").config("spark.jars", jars).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.driver.memory", "512m")
spark = builder.config(limits.DRIVER, flags.replace("LIMITS", limits.java_options())).getOrCreate()
kinds = ["string", "bytes", {"type": "array", "items": "null"}, {"type": "map", "values": "null"}]
found = []
with RegistryServer() as server:
    for number, kind in enumerate(kinds):
        subject = f"orders-{number}"
        schema = {"type": "record", "name": f"R{number}", "fields": [{"name": "a", "type": kind}]}
        # A length of 1.9 GB in five bytes.
        rows = [(wire_header(server.register(subject, schema)) + bytes([0x80, 0xE0, 0xFF, 0x93, 0x0E]),)]
        df = spark.createDataFrame(rows, "value binary").repartition(1)
        decoded = decode_registry_avro(
            df, subject=subject, registry=SchemaRegistry({"url": server.url}), on_error="dead-letter",
            located_by=(),
        )
        found += [row["dead_letter"]["reason"] for row in decoded.collect()]
print(json.dumps(found))
"""
    flags = f"{jvm_flags()} -Djava.io.tmpdir={tmp_path} LIMITS"
    arguments = [",".join(map(str, spark_avro_jars())), flags, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **path_of_tests()},
    )
    assert done.returncode == 0, done.stderr
    reasons = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(reasons) == 4
    assert all("it is not a record of schema id" in one for one in reasons)
    assert "OutOfMemoryError" not in (tmp_path / "log").read_text()
