from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.errors import ConfigurationError, PrepareError, SchemaError
from sparkonce.sink import spark_type
from sparkonce.sinks.kafka.rows import refused_rows, select_columns, to_arguments, to_chunks

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
INSTANT = pa.timestamp("us", "UTC")


def arguments(rows: pa.RecordBatch, topic: str | None = "t") -> dict[str, list[Any]]:
    (chunk,) = to_chunks(rows, topic)
    assert chunk.rows == rows.num_rows
    return to_arguments(chunk.columns)


def test_columns_are_those_of_sparks_kafka_sink_and_others_are_ignored():
    spark = pa.schema(
        {
            "key": pa.string(),
            "value": pa.binary(),
            "topic": pa.string(),
            "partition": pa.int32(),
            "headers": HEADERS,
            "timestamp": INSTANT,
            "offset": pa.int64(),
        }
    )
    assert select_columns(spark, None) == ["key", "value", "topic", "partition", "headers", "timestamp"]

    schema = pa.schema({"topic": pa.int64(), "value": pa.large_string()})
    assert select_columns(schema, "t") == ["value"]

    with pytest.raises(SchemaError, match=r"'value'.*missing.*\['key', 'text'\]"):
        select_columns(pa.schema({"key": pa.string(), "text": pa.string()}), "t")

    with pytest.raises(SchemaError, match=r"'value' appears more than once"):
        select_columns(pa.schema([("value", pa.string()), ("value", pa.string())]), "t")

    with pytest.raises(ConfigurationError, match="No topic is set"):
        select_columns(pa.schema({"value": pa.string()}), None)


@pytest.mark.parametrize(
    ("column", "kind", "accepted"),
    [
        ("key", pa.int64(), "string or binary"),
        ("value", pa.struct([("a", pa.int8())]), "string or binary"),
        ("topic", pa.binary(), "string"),
        ("partition", pa.int64(), "int"),
        ("partition", pa.string(), "int"),
        ("headers", pa.map_(pa.string(), pa.binary()), "array<struct"),
        ("headers", pa.list_(pa.string()), "array<struct"),
        ("headers", pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])), "array<struct"),
        ("timestamp", pa.int64(), "timestamp"),
        ("timestamp", pa.timestamp("us"), "timestamp"),
    ],
)
def test_a_wrong_type_names_the_column_its_type_and_what_is_accepted(column, kind, accepted):
    schema = pa.schema({"value": pa.string(), "topic": pa.string(), column: kind})
    with pytest.raises(SchemaError) as refused:
        select_columns(schema, None)
    for part in (repr(column), spark_type(kind), accepted):
        assert part in str(refused.value)


def test_rows_of_nulls_and_slices():
    rows = pa.record_batch({"key": pa.nulls(3, pa.string()), "value": pa.nulls(3, pa.string())})
    assert arguments(rows) == {}

    rows = pa.record_batch({"value": [str(number) for number in range(10)]})
    assert arguments(rows.slice(3, 2)) == {"value": [b"3", b"4"]}

    rows = pa.record_batch(
        {
            "value": ["a", "b"],
            "partition": pa.array([0, None], pa.int32()),
            "headers": pa.array([None, [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]], HEADERS),
            "timestamp": pa.array([None, 1_700_000_000_123_999], INSTANT),
        }
    )
    assert arguments(rows) == {
        "value": [b"a", b"b"],
        "partition": [0, -1],
        "headers": [None, [("h", b"1"), ("h", None)]],
        "timestamp": [0, 1_700_000_000_123],
    }

    rows = pa.record_batch(
        {
            "value": ["a"],
            "partition": pa.nulls(1, pa.int32()),
            "headers": pa.nulls(1, HEADERS),
            "timestamp": pa.nulls(1, INSTANT),
        }
    )
    assert arguments(rows) == {"value": [b"a"]}

    rows = pa.record_batch({"value": ["a", "b"], "topic": ["t", None]})
    with pytest.raises(PrepareError, match=r"'topic' is null"):
        arguments(rows, None)


@pytest.mark.parametrize("instant", [0, -1_000])
def test_a_timestamp_that_kafka_would_replace_or_refuse_is_named(instant):
    rows = pa.record_batch({"value": ["a", "b"], "timestamp": pa.array([1_000_000, instant], INSTANT)})
    with pytest.raises(PrepareError, match="'timestamp'"):
        arguments(rows)


@pytest.mark.parametrize("key", [None, b"a\0b", b"a\xff"])
def test_a_header_whose_key_librdkafka_cannot_send_is_named(key):
    def headers_of(keys: list[bytes | None]) -> pa.Array:
        texts = pa.array(keys, pa.binary()).view(pa.string())
        one = pa.StructArray.from_arrays([texts, pa.nulls(len(keys), pa.binary())], ["key", "value"])
        return pa.ListArray.from_arrays([0, *range(len(keys) + 1)], one)

    rows = pa.record_batch({"value": ["none", "a", "b", "c"], "headers": headers_of([b"fine", key, "\u00e9".encode()])})
    with pytest.raises(PrepareError, match="'headers'"):
        arguments(rows)
    assert refused_rows(rows, "t", 1_000_000).rows == [2]
    assert arguments(rows.take([0, 1, 3]))["headers"] == [[], [("fine", None)], [("é", None)]]


def test_a_header_that_is_null_is_named():
    rows = pa.record_batch({"value": ["a"], "headers": pa.array([[None]], HEADERS)})
    with pytest.raises(PrepareError, match="'headers'"):
        arguments(rows)


@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=40)), max_size=60),
    max_rows=st.integers(1, 20),
    max_bytes=st.integers(1, 100),
)
def test_chunks_hold_every_row_once_in_the_order_of_its_topic_and_stay_small(rows, max_rows, max_bytes):
    batch = pa.record_batch(
        {
            "topic": pa.array([row[0] for row in rows], pa.string()),
            "value": pa.array([row[1] for row in rows], pa.binary()),
        }
    )
    found: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
    for chunk in to_chunks(batch, None, max_rows=max_rows, max_bytes=max_bytes):
        values = chunk.columns.column("value").to_pylist()
        assert chunk.rows == len(values)
        found[chunk.topic] += values
        assert 0 < len(values) <= max_rows
        assert chunk.size_bytes == sum(map(len, values))
        assert chunk.size_bytes <= max_bytes or len(values) == 1
        assert chunk.largest_bytes >= max(map(len, values))
    assert found == {name: [value for topic, value in rows if topic == name] for name in found}
