"""Converts a stream's chunks to Arrow columns, and splits AMQP 1.0 messages into their sections.

A chunk contains entries. An entry is a message preceded by its length in 4 bytes, or a sub-entry batch, which is a
compressed sequence of messages with an offset each (https://github.com/rabbitmq/osiris, ``osiris_log.erl``).
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from rstream import amqp_decoder

from sparkonce.errors import PrepareError

_LENGTH = struct.Struct(">I")

_SUB_ENTRY = struct.Struct(">BHII")
"""The header of a sub-entry batch: its type, and the number of messages, bytes and compressed bytes."""

_NONE, _GZIP, _SNAPPY, _LZ4, _ZSTD = range(5)

_CODECS = {_GZIP: "gzip", _LZ4: "lz4", _ZSTD: "zstd"}

_SNAPPY_COMPRESSED, _SNAPPY_PLAIN = 0, 1
_SNAPPY_CHECKSUM = 4


class StreamChunk(Protocol):
    """A chunk in the form of rstream's ``Deliver``."""

    num_entries: int
    num_records: int
    timestamp: int
    chunk_first_offset: int
    data: bytes


def next_offset(chunk: StreamChunk) -> int:
    """Returns the offset after a chunk's last message."""
    return chunk.chunk_first_offset + chunk.num_records


def messages_of(chunk: StreamChunk) -> pa.Array:
    """Returns the chunk's messages as a binary array; raises PrepareError if they cannot be read."""
    found = _of_one_size(chunk.data, chunk.num_entries)
    if found is None:
        found = pa.array(_cut(chunk.data, chunk.num_entries), pa.binary())
    if len(found) != chunk.num_records:
        raise _unreadable(f"has {len(found)} messages, and its head says {chunk.num_records}")
    return found


def columns_of(chunk: StreamChunk, stream: str) -> dict[str, pa.Array]:
    """Returns the columns ``stream``, ``offset``, ``timestamp`` and ``value`` of a chunk.

    Raises:
        PrepareError: If the chunk's messages cannot be read. The error names their offset.
    """
    count = chunk.num_records
    try:
        values = messages_of(chunk)
    except PrepareError as error:
        raise PrepareError(
            f"The chunk at offset {chunk.chunk_first_offset} of the stream {stream!r} {error.message}",
            next_step=error.next_step,
        ) from None
    return {
        "stream": pa.repeat(pa.scalar(stream), count),
        "offset": pa.array(np.arange(chunk.chunk_first_offset, next_offset(chunk), dtype=np.int64)),
        "timestamp": pa.repeat(pa.scalar(chunk.timestamp * 1000, pa.timestamp("us", tz="UTC")), count),
        "value": values,
    }


def _of_one_size(data: bytes, count: int) -> pa.Array | None:
    """Returns the messages of a chunk that contains only messages of the same size; None for any other chunk."""
    if not count or len(data) % count:
        return None
    width = len(data) // count
    cells = np.frombuffer(data, np.uint8).reshape(count, width)
    lengths = cells[:, :4].copy().view(">u4").ravel() if width >= 4 else None
    if lengths is None or not bool((lengths == width - 4).all()):
        return None
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(width - 4)
    return pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(cells[:, 4:].tobytes())]
    )


def _cut(data: bytes, entries: int) -> list[bytes]:
    """Returns the messages of this many entries. The position of each entry depends on the previous one."""
    found: list[bytes] = []
    add, length_at = found.append, _LENGTH.unpack_from
    at = 0
    try:
        for _ in range(entries):
            length = length_at(data, at)[0]
            if length < 1 << 31:
                at += 4 + length
                add(data[at - length : at])
                continue
            kind, messages, size, packed = _SUB_ENTRY.unpack_from(data, at)
            at += _SUB_ENTRY.size + packed
            found += _cut(_unpacked(kind >> 4 & 7, data[at - packed : at], size), messages)
    except (ValueError, IndexError, OSError, struct.error, pa.ArrowException) as error:
        raise _unreadable(f"cannot be read: {error}") from None
    if at != len(data):
        raise _unreadable(f"has {len(data)} bytes, and its entries {at}")
    return found


def _unpacked(codec: int, data: bytes, size: int) -> bytes:
    if codec == _NONE:
        return data
    if codec == _SNAPPY:
        return _unpacked_frames(data)
    if codec not in _CODECS:
        raise ValueError(f"compression {codec} is not known")
    return bytes(pa.Codec(_CODECS[codec]).decompress(data, size, asbytes=True))


def _unpacked_frames(data: bytes) -> bytes:
    """Decompresses Snappy's framing format, which the Java client uses."""
    found, at = [], 0
    while at < len(data):
        kind, length = data[at], int.from_bytes(data[at + 1 : at + 4], "little")
        body = data[at + 4 : at + 4 + length]
        at += 4 + length
        if kind == _SNAPPY_COMPRESSED:
            block = body[_SNAPPY_CHECKSUM:]
            found.append(pa.Codec("snappy").decompress(block, _varint(block), asbytes=True))
        elif kind == _SNAPPY_PLAIN:
            found.append(body[_SNAPPY_CHECKSUM:])
    return b"".join(found)


def _varint(data: bytes) -> int:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    raise ValueError("a length does not end")


def _unreadable(why: str) -> PrepareError:
    return PrepareError(f"{why}.", next_step="Report it, with the program that published there.")


_TEXTS = pa.map_(pa.string(), pa.string())

_DATA = b"\x00\x53\x75"
"""The beginning of a section of bytes. The length follows: one byte after 0xa0, or four bytes after 0xb0."""

_SHORT, _LONG = 0xA0, 0xB0
_PROPERTIES, _APPLICATION, _BODY, _VALUE = 0x73, 0x74, 0x75, 0x77
_SKIPPED = {0x70, 0x71, 0x72, 0x78}
"""The sections of a message that only matter to brokers: header, two kinds of annotations, and footer."""

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
    """Returns the bodies if each message is a single section of bytes; otherwise None."""
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
    except Exception as error:  # noqa: BLE001 - rstream's decoder may raise any error
        stream, offset = rows.column("stream")[number].as_py(), rows.column("offset")[number].as_py()
        raise PrepareError(
            f"Message {offset} of the stream {stream!r} is not AMQP 1.0: {type(error).__name__}: {error}.",
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
    """Yields the code, the whole bytes and the content of each section.

    The constructor of a value determines the value's length (AMQP 1.0, part 1, figure 1.2).
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
