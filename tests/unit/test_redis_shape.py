from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sparkonce.errors import ConfigurationError, SchemaError
from sparkonce.guarantees import Guarantee
from sparkonce.sinks.redis.encoding import STRUCTURES, Shape
from sparkonce.sinks.redis.sink import RedisSink


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
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], says: str) -> None:
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
def test_columns(settings: dict[str, Any], columns: list[str]) -> None:
    assert RedisSink(**settings).columns(SCHEMA) == columns


def test_a_hash_takes_all_columns_that_are_nothing_else() -> None:
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
def test_columns_that_do_not_fit_are_named(settings: dict[str, Any], column: str) -> None:
    with pytest.raises(SchemaError, match=f"Column '{column}'"):
        RedisSink(**settings).columns(SCHEMA)


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", "a\nb", "x" * 101])
def test_prefixes_that_cannot_be_part_of_a_key(prefix: str) -> None:
    for given in ({"prefix": prefix}, {"name": prefix}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(given)) if not prefix else 'prefix'}="):
            RedisSink(**given)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_structure_is_in_the_docstring(structure: str) -> None:
    assert f"``{structure}``" in (RedisSink.__doc__ or "")
    Shape(structure=structure)


def test_what_is_promised_and_on_what_conditions() -> None:
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
