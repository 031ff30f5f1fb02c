"""Tests of parsing chunks: every kind of entry, and unreadable ones."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.errors import PrepareError
from sparkonce_rabbitmq.stream.chunks import columns_of, messages_of, next_offset

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
def test_messages_come_as_they_were_published(messages: list[bytes]) -> None:
    chunk = Chunk(simple(messages), len(messages), len(messages))
    assert messages_of(chunk).to_pylist() == messages


@given(st.integers(0, 20), st.integers(1, 50))
def test_messages_of_one_size_come_as_they_were_published(size: int, count: int) -> None:
    messages = [bytes([number % 256]) * size for number in range(count)]
    assert messages_of(Chunk(simple(messages), count, count)).to_pylist() == messages


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_sub_entry_batch_takes_an_offset_for_each_of_its_messages(codec: int) -> None:
    inside = [b"in %d" % number * (number + 1) for number in range(100)]
    data = simple([b"before"]) + packed(inside, codec) + simple([b"after"])
    chunk = Chunk(data, 3, 102)
    assert messages_of(chunk).to_pylist() == [b"before", *inside, b"after"]
    assert columns_of(chunk, "s")["offset"].to_pylist() == list(range(40, 142))
    assert next_offset(chunk) == 142


def test_columns_have_the_types_that_spark_expects() -> None:
    columns = columns_of(Chunk(simple([b"a", b"bc"]), 2, 2), "orders")
    assert {name: str(one.type) for name, one in columns.items()} == {
        "stream": "string",
        "offset": "int64",
        "timestamp": "timestamp[us, tz=UTC]",
        "value": "binary",
    }
    assert columns["stream"].to_pylist() == ["orders", "orders"]
    assert columns["timestamp"].to_pylist() == [datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=timezone.utc)] * 2


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
def test_what_cannot_be_read_is_named_with_its_place(data: bytes, entries: int, records: int, why: str) -> None:
    with pytest.raises(PrepareError) as refused:
        columns_of(Chunk(data, entries, records), "orders")
    assert refused.value.message.startswith("The chunk at offset 40 of the stream 'orders' ")
    assert why in refused.value.message
