from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from sparkonce.avro.transcode import MalformedError, Transcoder, UnresolvableError


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


def test_fields_come_go_and_grow():
    writer = record(gone="string", number="int", maybe=["null", "int"])
    reader = record(number="double", maybe=["null", "long"], new={"type": "string", "default": "x"})
    assert transcode(writer, reader, {"gone": "g", "number": 3, "maybe": 4}) == {"number": 3.0, "maybe": 4, "new": "x"}
    assert transcode(writer, reader, {"gone": "g", "number": 3, "maybe": None})["maybe"] is None

    union = ["string", "bytes"]  # which Python would not choose in
    writer, reader = record(u=union), {**record(u=union), "doc": "said"}
    value = written(writer, {"u": b"x"})
    assert Transcoder(json.dumps(writer), json.dumps(reader))(value) is value

    reader = record(f=["null", FIXED], x="int", d={"type": "F", "default": "ab"})
    assert transcode(record(f=["null", FIXED], x="int"), reader, {"f": None, "x": 1})["d"] == b"ab"


def test_a_day_beyond_what_python_can_say_passes():
    far = {"type": "long", "logicalType": "timestamp-millis"}
    writer, reader = record(at=far, more="int"), record(at=far)
    bytes_ = Transcoder(json.dumps(writer), json.dumps(reader))(
        written(record(at="long", more="int"), {"at": 1 << 60, "more": 1})
    )
    assert fastavro.schemaless_reader(io.BytesIO(bytes_), fastavro.parse_schema(record(at="long")), None) == {
        "at": 1 << 60
    }


def test_what_cannot_be_resolved_is_no_bad_record():
    with pytest.raises(UnresolvableError, match=r"Python cannot read it as Java does: .*No default value for field y"):
        transcode(record(x="int"), record(x="int", y="int"), {"x": 1})

    wide = record(x="int", **{f"a_long_name_of_a_field_{number}": "string" for number in range(1000)})
    with pytest.raises(UnresolvableError) as told:
        transcode(record(x="int"), record(x={**wide, "name": "Wide"}), {"x": 1})
    assert len(str(told.value)) < 400

    inner = record(x="int")  # of the outer one's name
    with pytest.raises(UnresolvableError, match="Python cannot parse it"):
        Transcoder(json.dumps(record(x="int", r=inner)), json.dumps(record(x="int")))

    # Java writes a question mark.
    with pytest.raises(UnresolvableError, match="Python cannot write it as Java does: UnicodeEncodeError"):
        transcode(record(x="int"), record(x="int", d={"type": "string", "default": "\ud800"}), {"x": 1})


FIXED = {"type": "fixed", "name": "F", "size": 2}


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        ("bytes", "\u00ff\0", b"\xff\0"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        (["null", "bytes"], None, None),
        (FIXED, "a\u0080", b"a\x80"),
        ({"type": "array", "items": FIXED}, ["ab"], [b"ab"]),
        ({"type": "map", "values": "bytes"}, {"k": "\u00ff"}, {"k": b"\xff"}),
        (
            {**record(b="bytes", c={"name": "c", "type": "bytes", "default": "\u00fe"}), "name": "I"},
            {"b": "\u00ff"},
            {"b": b"\xff", "c": b"\xfe"},
        ),
    ],
)
def test_a_default_of_bytes_is_a_character_for_each(kind, default, expected):
    assert transcode(record(x="int"), record(x="int", d={"type": kind, "default": default}), {"x": 1})["d"] == expected


def test_bytes_that_are_no_record_are_malformed():
    transcoder = Transcoder(json.dumps(record(x="long", s="string")), json.dumps(record(x="long")))
    for value in (b"", b"\xff", written(record(x="long", s="string"), {"x": 1, "s": "long enough"})[:-1]):
        with pytest.raises(MalformedError):
            transcoder(value)
