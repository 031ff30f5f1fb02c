"""The test registry accepts a schema as backward compatible exactly if Avro's resolution rules allow it."""

from __future__ import annotations

from typing import Any

import pytest

from sparkonce_lab.registry import can_read


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


def enum(*symbols: str, **more: str) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(name: str, size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


ID, LONG_ID = {"name": "id", "type": "int"}, {"name": "id", "type": "long"}
NEW, NEW_WITH_DEFAULT = {"name": "new", "type": "int"}, {"name": "new", "type": "int", "default": 0}


@pytest.mark.parametrize(
    ("reader", "writer", "readable"),
    [
        ("long", "int", True),
        ("int", "long", False),
        ("bytes", "string", True),
        ({"type": "long", "logicalType": "timestamp-millis"}, "int", True),
        ({"type": {"type": "int"}}, {"type": {"type": "int"}}, True),
        (["null", "long"], "int", True),
        (["null", "string"], "int", False),
        ("int", ["null", "int"], False),
        (["null", "int"], ["null", "int"], True),
        (record(LONG_ID), record(ID), True),
        (record(ID, NEW), record(ID), False),
        (record(ID, NEW_WITH_DEFAULT), record(ID), True),
        (record({"name": "number", "type": "long", "aliases": ["id"]}), record(ID), True),
        (record(ID), record(LONG_ID), False),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, False),
        ({"type": "map", "values": "double"}, {"type": "map", "values": "float"}, True),
        ({"type": "map", "values": "float"}, {"type": "map", "values": "double"}, False),
        (enum("a", "b"), enum("a"), True),
        (enum("a"), enum("a", "b"), False),
        (enum("a", default="a"), enum("a", "b"), True),
        (fixed("F", 4), fixed("F", 4), True),
        (fixed("F", 4), fixed("F", 5), False),
        (fixed("F", 4), fixed("G", 4), False),
    ],
)
def test_a_record_can_be_read_or_not(reader: Any, writer: Any, readable: bool) -> None:
    assert can_read(reader, writer) is readable
