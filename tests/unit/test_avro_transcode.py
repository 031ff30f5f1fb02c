from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from sparkonce.avro.transcode import MalformedError, Transcoder
from sparkonce.errors import ConfigurationError


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, **_field(one)} for name, one in fields.items()]}


def _field(one: Any) -> dict[str, Any]:
    return one if isinstance(one, dict) and "default" in one else {"type": one}


def written(schema: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def transcode(writer: Any, reader: Any, value: Any) -> Any:
    bytes_ = Transcoder(json.dumps(writer), json.dumps(reader))(written(writer, value))
    return fastavro.schemaless_reader(io.BytesIO(bytes_), fastavro.parse_schema(reader), None)


def test_fields_come_go_and_grow() -> None:
    writer = record(gone="string", number="int", maybe=["null", "int"])
    reader = record(number="double", maybe=["null", "long"], new={"type": "string", "default": "x"})
    assert transcode(writer, reader, {"gone": "g", "number": 3, "maybe": 4}) == {"number": 3.0, "maybe": 4, "new": "x"}
    assert transcode(writer, reader, {"gone": "g", "number": 3, "maybe": None})["maybe"] is None


def test_a_day_beyond_what_python_can_say_passes() -> None:
    far = {"type": "long", "logicalType": "timestamp-millis"}
    writer, reader = record(at=far, more="int"), record(at=far)
    bytes_ = Transcoder(json.dumps(writer), json.dumps(reader))(
        written(record(at="long", more="int"), {"at": 1 << 60, "more": 1})
    )
    assert fastavro.schemaless_reader(io.BytesIO(bytes_), fastavro.parse_schema(record(at="long")), None) == {
        "at": 1 << 60
    }


def test_a_schema_that_differs_in_words_only_leaves_the_bytes_alone() -> None:
    union = ["string", "bytes"]  # which Python would not choose in
    writer, reader = record(u=union), {**record(u=union), "doc": "said"}
    value = written(writer, {"u": b"x"})
    assert Transcoder(json.dumps(writer), json.dumps(reader))(value) is value


@pytest.mark.parametrize("side", ["writer", "reader"])
def test_a_union_of_several_types_is_refused(side: str) -> None:
    several, one = record(u=["null", "float", "double"], x="int"), record(x="int")
    with pytest.raises(ConfigurationError, match=r"\[\"null\", \"float\", \"double\"\].*start the query again"):
        Transcoder(*map(json.dumps, (several, one) if side == "writer" else (one, several)))


def test_what_cannot_be_resolved_is_loud_and_no_bad_record() -> None:
    with pytest.raises(ConfigurationError, match="start the query again"):
        transcode(record(x="int"), record(x="int", y="int"), {"x": 1})


def test_bytes_that_are_no_record_are_malformed() -> None:
    transcoder = Transcoder(json.dumps(record(x="long", s="string")), json.dumps(record(x="long")))
    for value in (b"", b"\xff", written(record(x="long", s="string"), {"x": 1, "s": "long enough"})[:-1]):
        with pytest.raises(MalformedError):
            transcoder(value)
