"""AMQP 1.0 messages: all kinds of bodies, and their properties."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from rstream import AMQPMessage, Properties

from sparkonce.errors import PrepareError
from sparkonce_rabbitmq.stream import chunks
from sparkonce_rabbitmq.stream.chunks import with_sections


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


def test_rstreams_messages_come_with_their_names_and_values() -> None:
    message = AMQPMessage(
        body=b"body" * 100,
        properties=Properties(message_id="id-1", subject="s", creation_time=1_700_000_000_000),
        application_properties={"text": "t", "number": 7, "is": True, "bytes": b"\xff\xfe"},
    )
    expected = {"text": "t", "number": "7", "is": "true", "bytes": "//4="}
    known = {"message_id": "id-1", "subject": "s", "creation_time": "1700000000000"}
    assert apart(bytes(message), data(b"plain")) == [(b"body" * 100, known, expected), (b"plain", None, None)]


def test_bodies_of_bytes_are_taken_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_is_not_of_amqp_is_named_with_its_place(value: bytes, why: str) -> None:
    with pytest.raises(PrepareError) as refused:
        with_sections(rows(data(b"good"), value))
    assert refused.value.message.startswith("Message 11 of the stream 's' is not AMQP 1.0: ")
    assert why in refused.value.message
