from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from redis.crc import key_slot

from sparkonce.errors import ConfigurationError, SchemaError
from sparkonce.guarantees import Guarantee
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
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce.sinks.redis.writer import SlotGroups


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"structure": "stream"}, "structure='stream'"),
        ({"structure": "set", "value": "v"}, "value='v' has no effect with structure='set'"),
        ({"structure": "string", "member": "m"}, "member='m' has no effect"),
        ({"key": "k", "key_template": "{k}"}, "key='k' and key_template='{k}' exclude each other"),
        ({"ttl": "t", "ttl_s": 5}, "ttl='t' and ttl_s=5"),
        ({"ttl_s": 0}, "ttl_s=0"),
        ({"structure": "hash", "field": "f", "fields": ("a",)}, "field='f' and fields="),
        ({"structure": "hash", "value": "v"}, "value='v' of a hash needs a field"),
        ({"structure": "increment", "field": "f", "member": "m"}, "field='f' and member='m'"),
        ({"key_template": "{"}, "key_template='{' cannot be read"),
        ({"key_template": "a{}"}, "cannot be read"),
        ({"key_template": "{a:>3}"}, "cannot be read"),
        ({"key_template": "{a!r}"}, "cannot be read"),
        ({"key_template": ""}, "cannot be read"),
        ({"key_template": "sparkonce:{a}"}, "key_template='sparkonce:{a}' begins with 'sparkonce:'"),
        ({"cluster": True, "sentinels": [("h", 1)], "service": "s"}, "exclude each other"),
        ({"sentinels": [("h", 1)]}, "belong together"),
        ({"staging_ttl_s": 100, "ledger_ttl_s": 10}, "do not fit"),
        ({"wait_replicas": -1}, "wait_replicas=-1"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other_are_refused(settings, says):
    with pytest.raises(ConfigurationError) as raised:
        RedisSink(**settings)
    assert says in str(raised.value)
    assert raised.value.next_step


SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.int64()),
        ("f", pa.string()),
        ("items", pa.list_(pa.string())),
        ("at", pa.timestamp("us")),
        ("inside", pa.struct([("a", pa.int32())])),
        ("map", pa.map_(pa.string(), pa.string())),
        ("live", pa.int32()),
        ("share", pa.float64()),
    ]
)


@pytest.mark.parametrize(
    ("settings", "columns"),
    [
        ({}, ["key", "value"]),
        ({"key_template": "a:{f}:{live}:{f}"}, ["f", "live", "value"]),
        ({"ttl": "live"}, ["key", "value", "live"]),
        ({"structure": "hash", "field": "f"}, ["key", "f", "value"]),
        ({"structure": "hash", "fields": ("f", "value")}, ["key", "f", "value"]),
        ({"structure": "list", "value": "items"}, ["key", "items"]),
        ({"structure": "set", "member": "f"}, ["key", "f"]),
        ({"structure": "sorted_set", "member": "f", "score": "share"}, ["key", "f", "share"]),
        ({"structure": "increment", "amount": "value"}, ["key", "value"]),
        ({"structure": "increment", "amount": "value", "field": "f"}, ["key", "f", "value"]),
        ({"structure": "increment", "amount": "share", "member": "f", "key_template": "all"}, ["f", "share"]),
    ],
    ids=str,
)
def test_columns(settings, columns):
    assert RedisSink(**settings).columns(SCHEMA) == columns


def test_a_hash_takes_all_columns_that_are_nothing_else():
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("live", pa.int32()), ("age", pa.int8())])
    sink = RedisSink(structure="hash", key_template="user:{id}", ttl="live")
    assert sink.columns(schema) == ["id", "name", "age", "live"]

    with pytest.raises(SchemaError, match="A hash needs fields"):
        RedisSink(structure="hash").columns(pa.schema([("key", pa.string())]))


@pytest.mark.parametrize(
    ("settings", "column"),
    [
        ({"value": "nothing"}, "nothing"),
        ({"key": "items"}, "items"),
        ({"value": "at"}, "at"),
        ({"value": "inside"}, "inside"),
        ({"value": "map"}, "map"),
        ({"ttl": "share"}, "share"),
        ({"structure": "list", "value": "f"}, "f"),
        ({"structure": "sorted_set", "member": "f", "score": "f"}, "f"),
        ({"structure": "increment", "amount": "f"}, "f"),
        ({"structure": "hash"}, "items"),
    ],
    ids=str,
)
def test_columns_that_do_not_fit_are_named(settings, column):
    with pytest.raises(SchemaError, match=f"Column '{column}'"):
        RedisSink(**settings).columns(SCHEMA)


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", "a\nb", "x" * 101])
def test_prefixes_that_cannot_be_part_of_a_key(prefix):
    for given in ({"prefix": prefix}, {"name": prefix}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(given)) if not prefix else 'prefix'}="):
            RedisSink(**given)


def test_what_is_promised_and_on_what_conditions():
    exactly = RedisSink()
    assert exactly.promise is Guarantee.EXACTLY_ONCE
    assert any("appendfsync=always" in one for one in exactly.conditions())
    assert any("noeviction" in one for one in exactly.conditions())
    direct = RedisSink(structure="increment", guarantee=Guarantee.AT_LEAST_ONCE)
    (caveat,) = direct.conditions()
    assert "a replay after a failure shows older values again" in caveat
    assert "twice" in caveat
    assert direct.transaction_timeout_s({}) is None
    assert RedisSink(guarantee=Guarantee.AT_MOST_ONCE).conditions() == ()  # nothing is written twice
    assert exactly.transaction_timeout_s({}) == 7 * 24 * 3600

    assert (RedisSink(name="n").prefix, RedisSink(name="n", prefix="p").prefix) == ("n", "p")


def test_hash_slots_are_those_of_the_client_library():
    odd = [
        *(b"", b"{", b"}", b"{}", b"{}{a}", b"a{b}c", b"{{a}}", b"a{b", b"a}b{c}", b"x\n{y\xff}", b"}{a}"),
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
def test_sets_of_hash_slots_are_packed(slots):
    packed = pack_slots(slots)
    assert unpack_slots(packed) == slots
    assert ":" not in packed
    assert len(packed) < 100


def chunks(shape: Shape, rows: dict[str, object]) -> list[bytes]:
    return [chunk for _, chunk in encode(shape, pa.record_batch(rows)).chunks()]


def test_the_bytes_of_a_chunk():
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


def test_groups_keep_the_order_of_their_rows():
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
