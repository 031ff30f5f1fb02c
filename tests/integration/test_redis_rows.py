from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from redis_servers import Query, own
from shared_servers import needs_redis
from sparkonce.errors import PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce.sinks.redis.sink import RedisSink

pytestmark = needs_redis

Write = Callable[..., None]


@pytest.fixture(params=[Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE], ids=["staged", "direct"])
def write(request, server, client) -> Iterator[Write]:
    def call(columns: dict[str, Any], **shape: Any) -> None:
        query = Query(RedisSink(server.url, guarantee=request.param, **shape))
        rows = pa.record_batch(columns)
        if request.param is Guarantee.EXACTLY_ONCE:
            query.write(columns)
        else:
            writer = query.open(rows)
            assert writer.prepare() == {}
            writer.close()
        query.close()

    return call


def data(client: Any) -> set[bytes]:
    return {key for key in client.scan_iter() if not own(key)}


def test_strings(write, client):
    write({"key": ["a", "b", "a"], "value": ["1", "2", "3"]})
    assert client.mget("a", "b") == [b"3", b"2"]


def test_any_bytes_are_a_key_and_a_value(write, client):
    odd = [b"", b"\x00\xff{", b"a b\r\n$3\r\n", "ключ {тег} 😀".encode(), b"{}", b"x" * 70_000]
    write({"key": pa.array(odd, pa.binary()), "value": pa.array(reversed(odd), pa.binary())})
    assert client.mget(odd) == [*reversed(odd)]


def test_a_null_value_deletes_in_the_order_of_the_rows(write, client):
    client.mset({"gone": "1", "back": "1"})
    write({"key": ["gone", "back", "back", "kept"], "value": [None, None, "2", "3"]})
    assert client.mget("gone", "back", "kept") == [None, b"2", b"3"]


def test_keys_of_any_type_and_from_a_template(write, client):
    write({"id": [7, 8], "kind": ["x", "y"], "value": ["1", "2"]}, key_template="{{user:{id}}}:{kind}")
    write({"key": [1.5], "value": ["3"]})
    assert data(client) == {b"{user:7}:x", b"{user:8}:y", b"1.5"}


def test_time_to_live(write, client):
    write({"key": ["a"], "value": ["1"]}, ttl_s=100)
    write({"key": ["b", "c", "d"], "value": ["1", "2", None], "live": [50, None, 60]}, ttl="live")
    write({"key": ["h"], "value": ["1"]}, structure="hash", ttl_s=70)
    write({"key": ["s", "t"], "member": ["1", "2"], "live": [80, None]}, structure="set", ttl="live")
    lives = {key: client.ttl(key) for key in data(client)}
    assert [lives[key] > 0 for key in (b"a", b"b", b"h", b"s")] == [True] * 4
    assert lives[b"a"] <= 100
    assert lives[b"b"] <= 50
    assert (lives[b"c"], lives[b"t"], b"d" in lives) == (-1, -1, False)


def test_hashes_of_columns(write, client):
    write({"key": ["a", "b"], "name": ["x", "y"], "age": [1, 2]}, structure="hash")
    assert client.hgetall("a") == {b"name": b"x", b"age": b"1"}
    write({"key": ["a", "b"], "name": [None, "z"], "age": [5, None]}, structure="hash")
    assert (client.hgetall("a"), client.hgetall("b")) == ({b"age": b"5"}, {b"name": b"z"})
    write({"key": ["a"], "name": ["only"], "age": [9]}, structure="hash", fields=["name"])
    assert client.hgetall("a") == {b"age": b"5", b"name": b"only"}


def test_hashes_of_fields(write, client):
    write({"key": ["h"] * 3, "f": ["a", "b", "a"], "value": [1, 2, 3]}, structure="hash", field="f")
    assert client.hgetall("h") == {b"a": b"3", b"b": b"2"}
    write({"key": ["h"] * 2, "f": ["a", "c"], "value": [None, 4]}, structure="hash", field="f")
    assert client.hgetall("h") == {b"b": b"2", b"c": b"4"}


def test_lists_are_replaced(write, client):
    client.rpush("a", "old", "old")
    client.rpush("b", "old")
    client.set("c", "another type")
    long = [str(number) for number in range(9_001)]
    write({"key": ["a", "b", "c", "d"], "value": [["1", "2"], [], long, None]}, structure="list")
    assert client.lrange("a", 0, -1) == [b"1", b"2"]
    assert client.exists("b", "d") == 0
    assert client.lrange("c", 0, -1) == [item.encode() for item in long]


def test_sets_and_sorted_sets(write, client):
    write({"key": ["s"] * 3, "member": ["a", "b", "a"]}, structure="set")
    assert client.smembers("s") == {b"a", b"b"}
    write({"member": ["a", "b", "c"], "score": [1.5, float("-inf"), 3.0]}, structure="sorted_set", key_template="z")
    write({"member": ["a", "c"], "score": [None, 4]}, structure="sorted_set", key_template="z")
    assert client.zrange("z", 0, -1, withscores=True) == [(b"b", float("-inf")), (b"c", 4.0)]


Z, ADD = {"structure": "sorted_set"}, {"structure": "increment"}


def test_numbers_at_the_limits_of_a_double_are_kept(write, client):
    scores = [Decimal("123456789012.345"), Decimal("-0.00000000000000100"), Decimal("90000000000000000000")]
    write({"key": ["z"] * 3, "member": ["a", "b", "c"], "score": pa.array(scores, pa.decimal128(38, 17))}, **Z)
    assert [Decimal(repr(client.zscore("z", one))) for one in "abc"] == [scores[0], scores[1], scores[2]]
    write({"key": ["z"] * 2, "member": ["d", "e"], "score": [2**53, -(2**53)]}, **Z)
    assert (client.zscore("z", "d"), client.zscore("z", "e")) == (2**53, -(2**53))
    tenths = pa.array([Decimal("0.10")] * 30 + [Decimal("0.00000000000000001")], pa.decimal128(38, 18))
    write({"key": ["f"] * 31, "amount": tenths}, **ADD)
    assert client.get("f") == b"3.00000000000000001"


def test_increments(write, client):
    write({"key": ["n", "n", "m"], "amount": [1, 2, None]}, structure="increment")
    write({"key": ["f"] * 2, "amount": [0.5, 0.25]}, structure="increment")
    write({"key": ["h"] * 2, "amount": [3, -1], "f": ["x", "x"]}, structure="increment", field="f")
    write({"key": ["g"], "amount": [Decimal("1.10")], "f": ["x"]}, structure="increment", field="f")
    write({"key": ["z"] * 2, "amount": [2, 5], "who": ["x", "x"]}, structure="increment", member="who")
    assert client.mget("n", "m", "f") == [b"3", None, b"0.75"]
    assert (client.hget("h", "x"), client.hget("g", "x"), client.zscore("z", "x")) == (b"2", b"1.1", 7.0)


@pytest.mark.parametrize(
    ("shape", "columns", "says"),
    [
        ({}, {"key": ["a", None], "value": ["1", "2"]}, "Column 'key' contains 1 nulls"),
        ({"ttl": "t"}, {"key": ["a"], "value": ["1"], "t": [0]}, "Column 't' contains 0"),
        ({"structure": "set"}, {"key": ["a"], "member": [None]}, "Column 'member' contains 1 nulls"),
        ({"structure": "list"}, {"key": ["a"], "value": [["x", None]]}, "contains a null"),
        ({"structure": "sorted_set"}, {"key": ["a"], "member": ["b"], "score": [float("nan")]}, "not a number"),
        ({"structure": "increment"}, {"key": ["a"], "amount": [float("inf")]}, "infinite"),
        (Z, {"key": ["a"], "member": ["b"], "score": [2**53 + 1]}, "Column 'score' contains 9007199254740993"),
        (Z, {"key": ["a"], "member": ["b"], "score": [Decimal("0.1234567890123456")]}, "decimals of 15 digits"),
        ({"structure": "increment", "member": "m"}, {"key": ["a"], "m": ["b"], "amount": [-(2**53) - 1]}, "'amount'"),
        (ADD, {"key": ["a"], "amount": pa.array([Decimal("1E-18")], pa.decimal128(38, 18))}, "17 digits after"),
        (ADD, {"key": ["a"], "amount": [Decimal("12345678901234567.01")]}, "contains 12345678901234567.01"),
        (ADD, {"key": ["a"], "amount": [1e-18]}, "contains 1e-18, and INCRBYFLOAT"),
        ({}, {"key": ["a", "sparkonce:id", "b"], "value": ["1", "2", "3"]}, "1 keys begin with 'sparkonce:'"),
        ({"structure": "increment"}, {"key": ["a"], "amount": pa.array([2**63], pa.uint64())}, "counts up to"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_redis_would_refuse_is_refused_before_the_decision(write, client, shape, columns, says):
    if "member" in columns:
        columns = {**columns, "member": pa.array(columns["member"], pa.string())}
    with pytest.raises(PrepareError, match=says):
        write(columns, **shape)
    assert data(client) == set()


def test_the_keys_in_which_the_sink_keeps_its_own_are_not_written(write, client):
    """The ledger and staged rows of any query, and the server's identity, are protected, however the key is built."""
    rows = {"who": ["user", "sparkonce"], "what": ["{redis.x}:ledger", "{redis.x}:ledger"], "value": ["1", "2"]}
    with pytest.raises(PrepareError, match=r"such as b'sparkonce:\{redis\.x\}:ledger'"):
        write(rows, key_template="{who}:{what}")
    assert (data(client), client.exists("sparkonce:{redis.x}:ledger")) == (set(), 0)
    write({"key": ["sparkonce", "a:sparkonce:"], "value": ["1", "2"]})
    assert data(client) == {b"sparkonce", b"a:sparkonce:"}


def test_a_batch_of_many_chunks(write, client):
    count = 9_000
    numbers = list(range(count))
    write({"key": [f"k{number}" for number in numbers], "value": ["x" * (number % 500) for number in numbers]})
    assert len(data(client)) == count
    assert all(client.strlen(f"k{number}") == number % 500 for number in range(0, count, 997))
