"""Messages of a stream: AMQP 1.0 sections, chunks with every kind of entry, and positions."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rstream import AMQPMessage, Properties

from sparkonce.errors import CheckpointMismatchError, PrepareError
from sparkonce_rabbitmq.stream import chunks
from sparkonce_rabbitmq.stream.chunks import columns_of, messages_of, next_offset, with_sections
from sparkonce_rabbitmq.stream.positions import (
    Positions,
    StreamRange,
    beginning,
    behind,
    ranges_of,
    rows_between,
)


def rows(*values: bytes) -> pa.RecordBatch:
    """Returns messages as the source reads them, as a slice that starts after another message."""
    count = len(values) + 1
    columns = {"stream": ["s"] * count, "offset": list(range(9, 9 + count)), "value": [b"other", *values]}
    return pa.RecordBatch.from_pydict(columns).slice(1)


def data(body: bytes, *, is_long: bool = False) -> bytes:
    """Returns a data section."""
    length = b"\xb0" + struct.pack(">I", len(body)) if is_long else b"\xa0" + bytes([len(body)])
    return b"\x00\x53\x75" + length + body


def apart(*values: bytes) -> list[tuple[bytes, Any, Any]]:
    found = with_sections(rows(*values))
    assert found.schema.names == ["stream", "offset", "value", "properties", "application_properties"]
    assert found.column("offset").to_pylist() == list(range(10, 10 + len(values)))
    maps = [
        [None if one is None else dict(one) for one in found.column(name).to_pylist()]
        for name in ("properties", "application_properties")
    ]
    return list(zip(found.column("value").to_pylist(), *maps, strict=True))


def test_rstreams_messages_come_with_their_names_and_values():
    message = AMQPMessage(
        body=b"body" * 100,
        properties=Properties(message_id="id-1", subject="s", creation_time=1_700_000_000_000),
        application_properties={"text": "t", "number": 7, "is": True, "bytes": b"\xff\xfe"},
    )
    expected = {"text": "t", "number": "7", "is": "true", "bytes": "//4="}
    known = {"message_id": "id-1", "subject": "s", "creation_time": "1700000000000"}
    assert apart(bytes(message), data(b"plain")) == [(b"body" * 100, known, expected), (b"plain", None, None)]


def test_bodies_of_bytes_are_taken_out_at_once(monkeypatch):
    assert apart(data(b"one ") + data(b"two", is_long=True)) == [(b"one two", None, None)]

    text = b"\x00\x53\x77\xa1\x05hello"
    number = b"\x00\x53\x77\x54\x07"
    assert [body for body, _, _ in apart(text, number)] == [b"hello", b"7"]
    assert json.loads(apart(number)[0][0]) == 7

    monkeypatch.setattr(chunks, "_taken_apart", None)
    bodies = [b"", b"a", b"bc" * 100, b"\xa0\xb0", b"x" * 300]
    values = [data(one, is_long=len(one) > 255 or number % 2 == 1) for number, one in enumerate(bodies)]
    assert apart(*values) == [(one, None, None) for one in bodies]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"plain text", "no section begins at byte 0"),
        (b"", "it has no body"),
        (data(b"cut off")[:-1], "is cut off"),
        (data(b"x") + b"more", "no section begins at byte 6"),
        (b"\x00\x53\x76\x45", "it has a section 0x76"),
    ],
)
def test_what_is_not_of_amqp_is_named_with_its_place(value, why):
    with pytest.raises(PrepareError) as refused:
        with_sections(rows(data(b"good"), value))
    assert refused.value.message.startswith("Message 11 of the stream 's' is not AMQP 1.0: ")
    assert why in refused.value.message


NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)


@dataclass
class Chunk:
    """A chunk as the server sends it."""

    data: bytes
    num_entries: int
    num_records: int
    chunk_first_offset: int = 40
    timestamp: int = 1_700_000_000_123


def simple(messages: Sequence[bytes]) -> bytes:
    """Returns entries of one message each."""
    return b"".join(struct.pack(">I", len(one)) + one for one in messages)


def packed(messages: Sequence[bytes], codec: int) -> bytes:
    """Returns a sub-entry batch."""
    plain = simple(messages)
    body = {NONE: lambda: plain, GZIP: lambda: gzip.compress(plain), SNAPPY: lambda: framed(plain)}.get(
        codec, lambda: pa.Codec({LZ4: "lz4", ZSTD: "zstd"}.get(codec, "zstd")).compress(plain, asbytes=True)
    )()
    return struct.pack(">BHII", 0x80 | codec << 4, len(messages), len(plain), len(body)) + body


def framed(plain: bytes) -> bytes:
    """Returns bytes in Snappy's framing format: two compressed blocks, one that is not, and one to be skipped."""
    third = len(plain) // 3
    blocks = [(0xFF, b"sNaPpY"), (0xFE, b"padding")]
    parts = (plain[:third], plain[third : 2 * third])
    blocks += [(0, b"\0\0\0\0" + pa.Codec("snappy").compress(part, asbytes=True)) for part in parts]
    blocks.append((1, b"\0\0\0\0" + plain[2 * third :]))
    return b"".join(bytes([kind]) + len(body).to_bytes(3, "little") + body for kind, body in blocks)


@given(st.lists(st.binary(max_size=30), max_size=50))
def test_messages_come_as_they_were_published(messages):
    chunk = Chunk(simple(messages), len(messages), len(messages))
    assert messages_of(chunk).to_pylist() == messages


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_sub_entry_batch_takes_an_offset_for_each_of_its_messages(codec):
    inside = [b"in %d" % number * (number + 1) for number in range(100)]
    data = simple([b"before"]) + packed(inside, codec) + simple([b"after"])
    chunk = Chunk(data, 3, 102)
    assert messages_of(chunk).to_pylist() == [b"before", *inside, b"after"]
    assert columns_of(chunk, "s")["offset"].to_pylist() == list(range(40, 142))
    assert next_offset(chunk) == 142


@pytest.mark.parametrize(
    ("data", "entries", "records", "why"),
    [
        (simple([b"a", b"bc"]), 2, 3, "has 2 messages, and its head says 3"),
        (simple([b"a", b"bcd"])[:-1], 2, 2, "has 11 bytes, and its entries 12"),
        (simple([b"a", b"bcd"]) + b"\0", 2, 2, "has 13 bytes, and its entries 12"),
        (packed([b"abc"], 5), 1, 1, "compression 5 is not known"),
        (packed([b"abc"], GZIP)[:-9], 1, 1, "cannot be read"),
        (b"\0\0", 1, 1, "cannot be read"),
    ],
    ids=["count", "short", "long", "codec", "packed", "cut"],
)
def test_what_cannot_be_read_is_named_with_its_place(data, entries, records, why):
    with pytest.raises(PrepareError) as refused:
        columns_of(Chunk(data, entries, records), "orders")
    assert refused.value.message.startswith("The chunk at offset 40 of the stream 'orders' ")
    assert why in refused.value.message


def test_what_is_read_lies_between_two_positions():
    start: Positions = {"a": behind(10, (5, 1000), beginning(0)), "b": beginning(3)}
    end: Positions = {"a": behind(30, (25, 2000), start["a"]), "b": beginning(3)}
    assert ranges_of(start, end) == [StreamRange(stream="a", start=10, end=30, before=(5, 1000), last=(25, 2000))]
    assert ranges_of(end, end) == []

    end: Positions = {"a": behind(30, (25, 2000), beginning(7))}
    wanted = [StreamRange(stream="a", start=7, end=30, before=None, last=(25, 2000))]
    for asked_again in (beginning(7), beginning(12), beginning(0)):
        assert ranges_of({"a": asked_again}, end) == wanted
    assert ranges_of({}, end) == wanted, "a stream that was added"

    start: Positions = {"a": behind(30, (25, 2000), beginning(0))}
    with pytest.raises(CheckpointMismatchError, match="ends at offset 10 of the stream 'a', before its start at 30"):
        ranges_of(start, {"a": behind(10, (5, 1000), beginning(0))})


@pytest.mark.parametrize(
    ("before", "now", "rows"),
    [
        ({"a": beginning(5)}, {"a": beginning(5)}, 0),
        ({"a": beginning(5)}, {"a": behind(30, (25, 2000), beginning(5))}, 25),
        (
            {"a": behind(30, (25, 2000), beginning(0))},
            {"a": behind(41, (40, 3000), beginning(0)), "b": beginning(7)},
            18,
        ),
        ({}, {"a": beginning(7)}, 7),
        ({"a": {"0": 17}}, {"a": {"0": 18}}, None),
        ({"a": beginning(0)}, {"a": {"offset": 1, "timestamp": 2}}, None),
        ({"a": 17}, {"a": 18}, None),
        (17, 18, None),
        ({}, {}, None),
    ],
)
def test_messages_are_counted_between_positions_only(before, now, rows):
    assert rows_between(before, now) == rows
