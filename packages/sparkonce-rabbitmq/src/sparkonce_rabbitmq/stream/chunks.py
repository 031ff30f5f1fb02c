"""Converts a stream's chunks to Arrow columns.

A chunk contains entries: a message preceded by its length in 4 bytes, or a sub-entry batch, which is a compressed
sequence of messages that takes up as many offsets (https://github.com/rabbitmq/osiris, ``osiris_log.erl``).
"""

from __future__ import annotations

import struct
from typing import Protocol

import numpy as np
import pyarrow as pa

from sparkonce.errors import PrepareError

_LENGTH = struct.Struct(">I")
_SUB_ENTRY = struct.Struct(">BHII")
"""The header of a sub-entry batch: its type, and the number of messages, bytes and compressed bytes."""
_IS_SUB_ENTRY = 0x80
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
    """Returns the chunk's messages as a binary array.

    Raises:
        PrepareError: If they cannot be read.
    """
    found = _of_one_size(chunk.data, chunk.num_entries)
    if found is None:
        found = pa.array(_cut(chunk.data, chunk.num_entries), pa.binary())
    if len(found) != chunk.num_records:
        raise _unreadable(f"has {len(found)} messages, and its head says {chunk.num_records}")
    return found


def columns_of(chunk: StreamChunk, stream: str) -> dict[str, pa.Array]:
    """Returns the columns ``stream``, ``offset``, ``timestamp`` and ``value`` of a chunk.

    Raises:
        PrepareError: If its messages cannot be read. The error names their offset.
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
    """Returns the messages of a chunk whose entries are all messages of the same size; None for any other chunk."""
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
    """Returns the messages of this many entries, one by one: each entry's position depends on the previous one."""
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
    """Decompresses Snappy's framing format, which the Java client writes."""
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
