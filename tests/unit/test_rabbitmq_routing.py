"""Tests of the partition for a key, which must be the one that RabbitMQ's clients for Java, Go and .NET choose."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from sparkonce.errors import ConfigurationError, PrepareError, SchemaError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, WriterContext
from sparkonce.sinks.write_ahead.application import RefusedError
from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.sinks.routing import ROUTE, by_stream, counts_text, routes, total
from sparkonce_rabbitmq.sinks.sink import RabbitMQStreamSink

HASHES = {
    "": 3329588566,
    "a": 1086686554,
    "ab": 398604456,
    "abc": 3409700625,
    "abcd": 3421720556,
    "é": 2922484690,
    "日本語": 2590674018,
    "k" * 1000: 2021431846,
}
"""Murmur3 of these keys, with the seed of the other clients: 104729."""


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_a_key_leads_to_the_partition_of_the_other_clients(partitions):
    assert routes(pa.array(HASHES), partitions).to_pylist() == [one % partitions for one in HASHES.values()]


def test_rows_are_counted_and_parted_in_their_order():
    streams = ["s-0", "s-1", "s-2"]
    rows = pa.record_batch({"message": [b"0", b"1", b"2", b"3"], ROUTE: pa.array([2, 0, 2, 0], pa.int32())})
    counted = counts_text(streams, [2, 0, 2])
    assert total([counted, counted]) == {"s-0": 4, "s-1": 0, "s-2": 4}
    assert total(["", ""]) == {}
    parts = {stream: part.column("message").to_pylist() for stream, part in by_stream(rows, streams)}
    assert parts == {"s-0": [b"1", b"3"], "s-1": [], "s-2": [b"0", b"2"]}

    rows = pa.record_batch({"message": [b"0", b"1"], ROUTE: pa.array([0, 2], pa.int32())})
    with pytest.raises(RefusedError, match=r"goes to partition 2, and there are 2: s-0, s-1"):
        list(by_stream(rows, ["s-0", "s-1"]))
    assert [part.num_rows for _, part in by_stream(rows.slice(0, 0), ["s-0"])] == [0]

    rows = pa.record_batch({"message": [b"0"]})
    assert list(by_stream(rows, ["s"])) == [("s", rows)]

    with pytest.raises(PrepareError, match="1 of 2 rows that arrived together have no key"):
        routes(pa.array(["a", None]), 3)


def test_a_writer_counts_its_rows_by_stream(tmp_path):
    sink = RabbitMQStreamSink(RabbitMQ(), super_stream="t", route_by="k", folder=tmp_path)
    sink.folder().make()
    streams = ["t-0", "t-1", "t-2"]
    facts = {"identity": sink.folder().identity(), "frame_max": "1048576", "partitions": json.dumps(streams)}
    owner = Owner(query="0123456789ab", token=Token(1, "00112233"), facts=facts)
    writer: Any = sink.writer(WriterContext(owner=owner, batch=0, slot=0, copy="1.0.0"))
    keys = pa.array([f"k{number}" for number in range(20)])
    rows = pa.record_batch({"value": keys, "k": keys})
    writer.begin()
    for piece in (rows.slice(0, 13), rows.slice(13)):
        writer.write(piece)
    writer.abort()
    wanted = Counter(streams[number] for number in routes(keys, 3).to_pylist())
    assert len(wanted) == 3
    assert total([writer.parts()]) == wanted


def test_what_belongs_together():
    server = RabbitMQ()
    for given in ({}, {"stream": "s", "super_stream": "t", "route_by": "k"}):
        with pytest.raises(ConfigurationError, match="exactly one is needed"):
            RabbitMQStreamSink(server, **given)
    for given in ({"super_stream": "t"}, {"stream": "s", "route_by": "k"}):
        with pytest.raises(ConfigurationError, match="belong together"):
            RabbitMQStreamSink(server, **given)

    sink = RabbitMQStreamSink(RabbitMQ(), super_stream="t", route_by="k")
    assert sink.columns(pa.schema({"k": pa.string(), "value": pa.string()})) == ["value", "k"]
    by_id = RabbitMQStreamSink(RabbitMQ(), super_stream="t", route_by="message_id")
    assert by_id.columns(pa.schema({"message_id": pa.string(), "value": pa.string()})) == ["value", "message_id"]
    with pytest.raises(SchemaError, match="route_by='k' is no column"):
        sink.columns(pa.schema({"value": pa.string()}))
    with pytest.raises(SchemaError, match="route_by='k' is a column of bigint"):
        sink.columns(pa.schema({"value": pa.string(), "k": pa.int64()}))


@pytest.mark.parametrize(
    ("given", "facts", "streams"),
    [
        ({"super_stream": "t", "route_by": "k"}, {"partitions": '["t-0", "t-1"]'}, ("t-0", "t-1")),
        ({"stream": "s"}, {}, ("s",)),
    ],
)
def test_rows_are_published_at_once_to_the_partitions_by_which_they_are_routed(given, facts, streams, tmp_path):
    sink = RabbitMQStreamSink(RabbitMQ(), **given, folder=tmp_path, guarantee=Guarantee.AT_LEAST_ONCE)
    owner = Owner(
        query="0123456789ab", token=Token(1, "00112233"), facts={"identity": "i", "frame_max": "1048576", **facts}
    )
    writer: Any = sink.writer(WriterContext(owner=owner, batch=0, slot=0, copy="1.0.0"))
    assert writer._apply_now.streams == streams
