from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from redis.crc import key_slot

from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks.redis.encoding import CHUNK_BYTES, CHUNK_VALUES, Shape, encode
from sparkonce.sinks.redis.names import (
    HASH_SLOTS,
    hash_slot,
    hash_slots,
    ledger_key,
    pack_slots,
    single_key,
    slot_key,
    tags,
    unpack_slots,
)
from sparkonce.sinks.redis.scripts import COMMAND_WEIGHT
from sparkonce.sinks.redis.writer import SlotGroups


def test_hash_slots_are_those_of_the_client_library() -> None:
    odd = [
        b"",
        b"{",
        b"}",
        b"{}",
        b"{}{a}",
        b"a{b}c",
        b"{{a}}",
        b"a{b",
        b"a}b{c}",
        b"x\n{y\xff}",
        b"}{a}",
        "ключ".encode(),
    ]
    assert hash_slots(pa.array(odd, pa.binary())).tolist() == [key_slot(key) for key in odd]
    plain = [f"user:{number}".encode() for number in range(1000)]
    assert hash_slots(pa.array(plain, pa.binary())).tolist() == [key_slot(key) for key in plain]

    assert [key_slot(f"sparkonce:{{{tag}}}:x".encode()) for tag in tags()] == list(range(HASH_SLOTS))

    some = np.random.default_rng(7).choice(HASH_SLOTS, HASH_SLOTS // 2, replace=False).tolist()
    assert len(pack_slots(some)) < 2_800

    name = TransactionName(prefix="p.q", query="0" * 12, token=Token(1, "0" * 8), batch=2, slot=3, copy="a" * 12)
    for key in (ledger_key("p.q", "0" * 12), single_key(name), slot_key(name, 77)):
        assert key_slot(key.name.encode()) == key.hash_slot == hash_slot(key.name.encode())
    assert slot_key(name, 77).hash_slot == 77
    assert single_key(name).hash_slot == ledger_key("p.q", "0" * 12).hash_slot


@pytest.mark.parametrize("slots", [[], [0], [HASH_SLOTS - 1], [5, 4000, 16000], list(range(HASH_SLOTS))], ids=len)
def test_sets_of_hash_slots_are_packed(slots: list[int]) -> None:
    packed = pack_slots(slots)
    assert unpack_slots(packed) == slots
    assert ":" not in packed
    assert len(packed) < 100


def chunks(shape: Shape, rows: dict[str, object]) -> list[bytes]:
    return [chunk for _, chunk in encode(shape, pa.record_batch(rows)).chunks()]


def test_the_bytes_of_a_chunk() -> None:
    (chunk,) = chunks(Shape(), {"key": ["k"], "value": ["vv"]})
    head = b"00000000" + b"\xa4MSET" + b"\xce" + (1000).to_bytes(4, "big") + b"\xdd" + (2).to_bytes(4, "big")
    assert chunk == head + b"\xdb\0\0\0\x01k" + b"\xdb\0\0\0\x02vv"

    small = chunks(Shape(), {"key": ["k"] * 2_500, "value": ["v"] * 2_500})
    assert len(small) == 2_500 * 2 // CHUNK_VALUES + 1
    whole = chunks(Shape(), {"key": ["k"] * 1_001, "value": pa.array([None] * 1_001, pa.string())})
    assert len(whole) == 1_001 * COMMAND_WEIGHT // CHUNK_VALUES + 1
    large = chunks(Shape(), {"key": ["k"] * 30, "value": ["v" * 100_000] * 30})
    assert len(large) == 15
    assert max(map(len, large)) <= CHUNK_BYTES + 100
    giant = chunks(Shape(), {"key": ["a", "b"], "value": ["v" * (2 * CHUNK_BYTES), "v"]})
    assert [len(chunk) > CHUNK_BYTES for chunk in giant] == [True, False]

    assert chunks(Shape(structure="increment"), {"key": ["k"], "amount": pa.array([None], pa.int64())}) == []


def test_groups_keep_the_order_of_their_rows() -> None:
    sent: list[Mapping[int, list[bytes]]] = []
    groups = SlotGroups(Shape(), cluster=True, send=sent.append)
    for start in (0, 1500):
        numbers = range(start, start + 1500)
        groups.add(pa.record_batch({"key": [f"k{n % 3}" for n in numbers], "value": [f"<{n}>" for n in numbers]}))
    found = {slot: re.findall(rb"<(\d+)>", b"".join(chunks)) for slot, chunks in groups.take().items()}
    assert sent == []
    assert set(found) == {key_slot(f"k{rest}".encode()) for rest in range(3)}
    for rest in range(3):
        assert list(map(int, found[key_slot(f"k{rest}".encode())])) == list(range(rest, 3000, 3))
