"""Splits AMQP 1.0 messages into body, properties and application properties."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from rstream import amqp_decoder

from sparkonce.errors import PrepareError

_TEXTS = pa.map_(pa.string(), pa.string())
_DATA = b"\x00\x53\x75"
"""The beginning of a section of bytes. Its length follows, in one byte after 0xa0, or in four after 0xb0."""
_SHORT, _LONG = 0xA0, 0xB0
_PROPERTIES, _APPLICATION, _BODY, _VALUE = 0x73, 0x74, 0x75, 0x77
_SKIPPED = {0x70, 0x71, 0x72, 0x78}
"""The sections of a message that are for brokers: header, two kinds of annotations, and footer."""
_WIDTHS = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}


def with_sections(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Returns rows whose ``value`` is the body of the message, with its ``properties`` and ``application_properties``.

    Raises:
        PrepareError: If a message is not in AMQP 1.0 format. The error names its offset.
    """
    values = rows.column("value")
    bodies = _only_data(values)
    nothing = pa.nulls(len(rows), _TEXTS)
    if bodies is not None:
        return _with(rows, bodies, nothing, nothing)
    parts = [_parts(value, rows, number) for number, value in enumerate(values.to_pylist())]
    body, properties, application = zip(*parts, strict=True)
    return _with(rows, pa.array(body, pa.binary()), pa.array(properties, _TEXTS), pa.array(application, _TEXTS))


def _with(rows: pa.RecordBatch, body: pa.Array, properties: pa.Array, application: pa.Array) -> pa.RecordBatch:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    return pa.RecordBatch.from_pydict(
        {**columns, "value": body, "properties": properties, "application_properties": application}
    )


def _only_data(values: pa.Array) -> pa.Array | None:
    """Returns the bodies if each message is a single section of bytes; None if any is not."""
    if values.null_count or not len(values):
        return None
    ends = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2], np.uint8)
    starts, lengths = ends[:-1], np.diff(ends)
    if int(lengths.min()) < 5:
        return None
    kind = data[starts + 3]
    is_long = kind == _LONG
    if not bool(((kind == _SHORT) | is_long).all()) or any(
        bool((data[starts + at] != _DATA[at]).any()) for at in range(3)
    ):
        return None
    heads = np.where(is_long, 8, 5).astype(np.int32)
    if bool((lengths < heads).any()) or bool((_said(data, starts, is_long) != lengths - heads).any()):
        return None
    kept = np.zeros(len(data), bool)
    kept[ends[0] : ends[-1]] = True
    for at in range(8):
        kept[(starts if at < 5 else starts[is_long]) + at] = False
    begins = np.concatenate([[0], np.cumsum(lengths - heads)]).astype(np.int32)
    buffers = [None, pa.py_buffer(begins), pa.py_buffer(data[kept])]
    return pa.BinaryArray.from_buffers(pa.binary(), len(values), buffers)


def _said(data: Any, starts: Any, is_long: Any) -> Any:
    """Returns the lengths in the headers of the sections."""
    said = data[starts + 4].astype(np.int64)
    long = starts[is_long]
    said[is_long] = sum(data[long + 4 + at].astype(np.int64) << (24 - 8 * at) for at in range(4))
    return said


def _parts(value: bytes, rows: pa.RecordBatch, number: int) -> tuple[bytes, Any, Any]:
    try:
        return _taken_apart(value)
    except Exception as error:  # noqa: BLE001 - whatever it is: rstream's decoder trusts what it reads
        stream, offset = rows.column("stream")[number].as_py(), rows.column("offset")[number].as_py()
        raise PrepareError(
            f"Message {offset} of the stream {stream!r} is not of AMQP 1.0: {type(error).__name__}: {error}.",
            next_step="Read the stream with body='raw', which gives the bare bytes.",
        ) from None


def _taken_apart(value: bytes) -> tuple[bytes, Any, Any]:
    body: list[bytes] = []
    properties = application = None
    for code, section, data in _sections(value):
        if code == _BODY:
            body.append(data)
        elif code == _VALUE:
            known = amqp_decoder(section).value
            body.append(known if isinstance(known, bytes) else _text(known).encode())
        elif code == _PROPERTIES:
            named = amqp_decoder(section).properties._asdict()
            properties = {name: _text(one) for name, one in named.items() if one is not None}
        elif code == _APPLICATION:
            application = {
                _text(name): _text(one) for name, one in amqp_decoder(section).application_properties.items()
            }
        elif code not in _SKIPPED:
            raise ValueError(f"it has a section {code:#x}")
    if not body:
        raise ValueError("it has no body")
    return b"".join(body), properties, application


def _sections(value: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields each section's code, the whole section, and its content.

    A value's constructor determines the length of the value: AMQP 1.0, part 1, figure 1.2.
    """
    at = 0
    while at < len(value):
        if value[at : at + 2] != _DATA[:2]:
            raise ValueError(f"no section begins at byte {at}")
        code, kind = value[at + 2], value[at + 3]
        begin = at + 4
        if kind >= _SHORT:
            width = 4 if kind >> 4 & 1 else 1
            end = begin + width + int.from_bytes(value[begin : begin + width], "big")
            begin += width
        else:
            end = begin + _WIDTHS[kind >> 4]
        if end > len(value):
            raise ValueError(f"the section at byte {at} is cut off")
        yield code, value[at:end], value[begin:end]
        at = end


def _text(value: Any) -> str:
    """Returns a value as text. Bytes that are not valid text become base64, other values JSON."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value if isinstance(value, str) else json.dumps(value, default=str)
