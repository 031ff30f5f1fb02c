from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest

from sparkonce.avro.limits import DRIVER, EXECUTOR, PROPERTIES, java_options, warn_without_limits
from sparkonce.avro.schemas import (
    SubjectStrategy,
    full_name,
    inline,
    is_recursive,
    may_be_null,
    reader_envelope,
    schema_text,
    subject_name,
    wire_header,
    writer_envelope,
)
from sparkonce.errors import ConfigurationError

MONEY = {"type": "record", "name": "Money", "namespace": "com.example", "fields": [{"name": "cents", "type": "long"}]}
LINE = {
    "type": "record",
    "name": "Line",
    "namespace": "com.example",
    "fields": [{"name": "price", "type": "Money"}, {"name": "tax", "type": "com.example.Money"}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "org.shop",
    "fields": [
        {"name": "lines", "type": {"type": "array", "items": "com.example.Line"}},
        {"name": "total", "type": ["null", "com.example.Money"], "default": None},
        {"name": "by_day", "type": {"type": "map", "values": "com.example.Money"}},
    ],
}
TREE = {
    "type": "record",
    "name": "Node",
    "namespace": "x",
    "fields": [{"name": "children", "type": {"type": "array", "items": "Node"}}],
}


def written(schema: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def test_the_header_and_the_given_forms(tmp_path):
    assert wire_header(1) == b"\0\0\0\0\1"
    assert wire_header(0x01020304) == b"\0\1\2\3\4"

    file = tmp_path / "money.avsc"
    file.write_text(json.dumps(MONEY))
    for given in (json.dumps(MONEY), MONEY, file, str(file)):
        assert json.loads(schema_text(given, "schema")) == MONEY


def test_references_are_written_out_once_where_they_are_first_named():
    whole = inline(ORDER, {"a name of the registry's": LINE, "com.example.Money": MONEY})
    value = {"lines": [{"price": {"cents": 1}, "tax": {"cents": 2}}], "total": {"cents": 3}, "by_day": {}}
    read = fastavro.schemaless_reader(io.BytesIO(written(whole, value)), fastavro.parse_schema(whole), None)
    assert read == value
    assert json.dumps(whole).count('"cents"') == 1


def test_names_are_found_and_named():
    whole = inline(["com.example.Money", "com.example.Line"], {"a": MONEY, "b": LINE})
    assert [full_name(one) for one in whole] == ["com.example.Money", "com.example.Line"]
    assert inline("com.example.Money", {"a": MONEY}) == MONEY
    assert full_name("com.example.Money") is None

    suit = {"type": "enum", "name": "Suit", "namespace": "com.example", "symbols": ["HEARTS", "SPADES"]}
    dates = {"type": {"type": "int", "logicalType": "date"}}
    assert inline([suit, dates], {}) == [suit, dates]

    nested = {"type": "record", "name": "Outer", "namespace": "o", "fields": [{"name": "m", "type": MONEY}]}
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "one", "type": "com.example.Money"}, {"name": "two", "type": "o.Outer"}],
    }
    fastavro.parse_schema(inline(schema, {"o.Outer": nested}))

    assert is_recursive(inline("x.Node", {"t": TREE}))

    with pytest.raises(ConfigurationError, match=r"'com\.example\.Line'"):
        inline(ORDER, {"m": MONEY})


@pytest.mark.parametrize(
    ("schema", "recursive"),
    [
        (TREE, True),
        (MONEY, False),
        (inline(ORDER, {"a": LINE, "b": MONEY}), False),  # the same type twice, but not in itself
        ({"type": "array", "items": TREE}, True),
        ("int", False),
        ({"type": "int", "logicalType": "date"}, False),
    ],
)
def test_what_is_recursive(schema, recursive):
    assert is_recursive(schema) is recursive


@pytest.mark.parametrize(
    ("schema", "nullable"),
    [
        ("null", True),
        (["null", "int"], True),
        (["int", {"type": "null"}], True),
        (["int", "string"], False),
        (MONEY, False),
    ],
)
def test_what_may_be_null(schema, nullable):
    assert may_be_null(schema) is nullable


@pytest.mark.parametrize("schema", [MONEY, "int", ["null", "long"], {"type": "array", "items": MONEY}])
def test_a_record_with_its_header_is_a_record_of_the_envelope(schema):
    value = {"cents": 7} if schema is MONEY else 7
    value = [{"cents": 7}] if isinstance(schema, dict) and schema["type"] == "array" else value
    framed = wire_header(258) + written(schema, value)
    writer, reader = json.loads(writer_envelope(json.dumps(schema))), json.loads(reader_envelope(json.dumps(schema)))
    read = fastavro.schemaless_reader(io.BytesIO(framed), fastavro.parse_schema(writer), None)
    assert read == {"header": wire_header(258), "value": value}
    assert written(writer, read) == framed
    read = fastavro.schemaless_reader(io.BytesIO(framed), fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    assert read == {"value": value, **({"ok": True} if isinstance(schema, list) else {})}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{", "schema='{' is not JSON"),
        ("12", "not an Avro schema"),
        (Path("/nowhere/a.avsc"), "'/nowhere/a.avsc' cannot be read"),
    ],
)
def test_what_is_no_schema_is_named(given, told):
    with pytest.raises(ConfigurationError, match=told):
        schema_text(given, "schema")


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        (SubjectStrategy.TOPIC_NAME, "orders-key"),
        ("record-name", "com.example.Money"),
        (SubjectStrategy.TOPIC_RECORD_NAME, "orders-com.example.Money"),
    ],
)
def test_subjects_are_named_as_confluents_clients_name_them(strategy, subject):
    assert subject_name(strategy, topic="orders", field="key", record="com.example.Money") == subject


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"strategy": "topic"}, "strategy='topic' is not known"),
        ({"topic": None}, "needs topic"),
        ({"field": "header"}, "field='header'"),
        ({"strategy": "record-name", "record": None}, "needs a named type"),
    ],
)
def test_what_a_strategy_lacks_is_named(settings, told):
    with pytest.raises(ConfigurationError, match=told):
        subject_name(**{"strategy": "topic-name", "topic": "orders", "field": "value", "record": "R", **settings})


def test_the_setting_is_told_once_in_words_to_copy(caplog):
    def told(
        caplog: pytest.LogCaptureFixture, application: str, master: str, *, driver: bool, executors: str
    ) -> list[str]:
        conf = SimpleNamespace(get=lambda name, default: executors if name == EXECUTOR else default)
        session: Any = SimpleNamespace(
            sparkContext=SimpleNamespace(applicationId=application, master=master, getConf=lambda: conf)
        )
        properties = dict.fromkeys(PROPERTIES, "1") if driver else {}
        jvm = SimpleNamespace(
            java=SimpleNamespace(lang=SimpleNamespace(System=SimpleNamespace(getProperty=properties.get)))
        )
        caplog.clear()
        caplog.set_level(logging.WARNING, "sparkonce")
        warn_without_limits(session, jvm)
        warn_without_limits(session, jvm)
        return [one.getMessage() for one in caplog.records]

    (warning,) = told(caplog, "limits-1", "local[2]", driver=False, executors="")
    assert f"{DRIVER}='{java_options()}'" in warning
    assert EXECUTOR not in warning
    (warning,) = told(caplog, "limits-2", "spark://host:7077", driver=True, executors="-Xlog:gc")
    assert f"{EXECUTOR}='{java_options()}'" in warning
    assert DRIVER not in warning
    assert told(caplog, "limits-3", "yarn", driver=True, executors=java_options()) == []
    assert told(caplog, "limits-4", "local", driver=True, executors="") == []
