"""Encodes rows as stream messages, and packs messages into frames, processing whole columns at a time.

Executors encode rows right after computing them, and stage the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.errors import PrepareError, SchemaError
from sparkonce.sink import spark_type
from sparkonce.write_ahead import Apply, WriteAheadFolder, WriteAheadWriter
from sparkonce_rabbitmq.sinks.routing import ROUTE, counts_text, routes

if TYPE_CHECKING:
    from sparkonce.sink import WriterContext


Body = Literal["amqp", "raw"]

VALUE = "value"
PROPERTIES = ("message_id", None, "to", "subject", "reply_to", "correlation_id", "content_type")
"""The columns that become AMQP 1.0's properties, in the protocol's order. None stands for user-id, which is not set."""

SHORT_PROPERTIES = ("message_id", "reply_to", "correlation_id", "content_type")
"""The properties that AMQP 0-9-1 also has, with a limit of `SHORT_BYTES`.

For longer values, RabbitMQ closes the connections of AMQP 0-9-1 readers. RabbitMQ does the same for an application
property whose key is missing or longer. Readers can read a longer `to` or `subject`.
"""

SHORT_BYTES = 255
APPLICATION_PROPERTIES = "application_properties"
MESSAGE = "message"
"""The column in which encoded messages are staged."""

FRAME_OVERHEAD_BYTES = 64
"""An upper bound for the bytes of a frame beyond a message's own: header, publishing id and length together take 25."""

_CLOSES = "RabbitMQ would close the connections of AMQP 0-9-1 readers at this message, and at each attempt to read on"
_NULL = b"\x40"
_TEXT = b"\xb1"
_DATA = b"\x00\x53\x75\xb0"
_PROPERTIES = b"\x00\x53\x73\xd0"
_APPLICATION_PROPERTIES = b"\x00\x53\x74\xd1"
_COUNT_BYTES = 4


def columns_of(schema: pa.Schema, body: Body, route_by: str = "") -> list[str]:
    """Returns the columns that make up a message, in order, followed by the key's column if it is another one.

    Raises:
        SchemaError: If a column is missing, unknown, or of the wrong type. The message names it.
    """
    known = {VALUE: "string or binary"}
    if body == "amqp":
        known |= {name: "string" for name in PROPERTIES if name} | {
            APPLICATION_PROPERTIES: "array<struct<key: string, value: string>>"
        }
    if route_by and route_by not in known:
        known[route_by] = "string"
    for column in schema:
        if column.name not in known:
            raise SchemaError(
                f"Column {column.name!r} is not a column of a message: {', '.join(known)}.",
                next_step="Drop it, or rename it." if body == "amqp" else "Drop it, or give body='amqp'.",
            )
        kind = column.type
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if column.name == VALUE:
            fits = text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        elif column.name == APPLICATION_PROPERTIES:
            fits = _is_pairs(kind)
        else:
            fits = text
        if not fits:
            raise SchemaError(
                f"Column {column.name!r} is {spark_type(kind)}, and a message needs {known[column.name]}.",
                next_step="Cast it, for example with to_json, or map_entries for a map.",
            )
    if VALUE not in schema.names:
        raise SchemaError(
            f"There is no column {VALUE!r}, which holds a message's body.",
            next_step="Make one: df.select(to_json(struct('*')).alias('value')).",
        )
    return [name for name in known if name in schema.names]


def _is_pairs(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    return [(field.name, str(field.type)) for field in kind.value_type] == [("key", "string"), ("value", "string")]


def encode(rows: pa.RecordBatch, body: Body, most_bytes: int) -> pa.RecordBatch:
    """Returns the rows as messages, in the single column `MESSAGE`, for the columns returned by `columns_of`.

    The body is ``amqp`` for AMQP 1.0 messages, or ``raw`` for the bare values.

    Raises:
        PrepareError: If the stream cannot accept a row. The message names it.
    """
    value = _binary(rows.column(VALUE))
    _refuse(pc.is_null(value), rows, lambda at: f"The {VALUE} of row {at} is null, but a message needs a body.")
    message = value
    if body == "amqp":
        _check_short(rows)
        message = _joined(_constant(_DATA, rows), _length(value), value)
        if APPLICATION_PROPERTIES in rows.schema.names:
            message = _joined(_application_properties(rows.column(APPLICATION_PROPERTIES)), message)
        if any(name in rows.schema.names for name in PROPERTIES if name):
            message = _joined(_properties(rows), message)
    sizes = pc.binary_length(message)
    _refuse(
        pc.greater(sizes, most_bytes),
        rows,
        lambda at: f"Row {at} makes a message of {sizes[at].as_py()} bytes, and this server takes {most_bytes} at most",
    )
    return pa.record_batch({MESSAGE: message.cast(pa.binary())})


def _check_short(rows: pa.RecordBatch) -> None:
    """Rejects rows that RabbitMQ would accept into the stream, but could not deliver to AMQP 0-9-1 readers."""
    for name in SHORT_PROPERTIES:
        if name in rows.schema.names:
            sizes = pc.binary_length(_binary(rows.column(name)))
            _refuse(pc.greater(sizes, SHORT_BYTES), rows, partial(_too_long, name, sizes))
    if APPLICATION_PROPERTIES in rows.schema.names:
        lists = rows.column(APPLICATION_PROPERTIES)
        keys, parents = pc.struct_field(pc.list_flatten(lists), "key"), pc.list_parent_indices(lists)
        wrong = pc.or_(pc.is_null(keys), pc.fill_null(pc.greater(pc.binary_length(_binary(keys)), SHORT_BYTES), False))
        _refuse(
            pa.array(np.isin(np.arange(rows.num_rows), parents.filter(wrong))),
            rows,
            lambda at: (
                f"{APPLICATION_PROPERTIES} of row {at} has a key that is null, or longer than {SHORT_BYTES} "
                f"bytes: {_CLOSES}"
            ),
        )


def _too_long(name: str, sizes: pa.Array, at: int) -> str:
    return f"{name} of row {at} has {sizes[at].as_py()} bytes, of {SHORT_BYTES} at most: {_CLOSES}"


def _refuse(wrong: pa.Array, rows: pa.RecordBatch, why: Callable[[int], str]) -> None:
    at = pc.index(wrong, True).as_py()
    if at >= 0:
        raise PrepareError(
            f"{why(at).rstrip('.')}. It is row {at} of the {rows.num_rows} that arrived together.",
            next_step="Filter such rows out, or make them smaller; stream.frame_max of the server limits their size.",
        )


def _binary(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_binary())


def _constant(value: bytes, rows: pa.RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.large_binary()), rows.num_rows)


def _length(column: pa.Array) -> pa.Array:
    """Returns the length of each value as four bytes; null for null."""
    return _big_endian(pc.binary_length(column))


def _big_endian(numbers: pa.Array) -> pa.Array:
    raw = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).astype(">u4")
    made = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_COUNT_BYTES), len(raw), [None, pa.py_buffer(raw.tobytes())])
    made = made.cast(pa.binary()).cast(pa.large_binary())
    return pc.if_else(pc.is_null(numbers), pa.scalar(None, pa.large_binary()), made) if numbers.null_count else made


def _joined(*parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _text(column: pa.Array, prefix: pa.Array) -> pa.Array:
    value = _binary(column)
    return pc.fill_null(_joined(prefix, _length(value), value), pa.scalar(_NULL, pa.large_binary()))


def _properties(rows: pa.RecordBatch) -> pa.Array:
    last = max(at for at, name in enumerate(PROPERTIES) if name in rows.schema.names)
    prefix, null = _constant(_TEXT, rows), _constant(_NULL, rows)
    fields = [
        _text(rows.column(name), prefix) if name in rows.schema.names else null for name in PROPERTIES[: last + 1]
    ]
    content = _joined(_constant((last + 1).to_bytes(_COUNT_BYTES, "big"), rows), *fields)
    return _joined(_constant(_PROPERTIES, rows), _length(content), content)


def _application_properties(column: pa.Array) -> pa.Array:
    """Returns the encoded application properties of each row; empty for null."""
    column = pc.fill_null(column, pa.scalar([], column.type)) if column.null_count else column
    offsets = column.offsets.to_numpy()
    pairs = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    prefix = pa.repeat(pa.scalar(_TEXT, pa.large_binary()), len(pairs))
    entries = _joined(_text(pairs.field("key"), prefix), _text(pairs.field("value"), prefix))
    grouped = pa.LargeListArray.from_arrays(pa.array((offsets - offsets[0]).astype(np.int64)), entries)
    joined = pc.binary_join(grouped, pa.scalar(b"", pa.large_binary()))
    counts = _big_endian(pa.array(np.diff(offsets) * 2))
    content = _joined(counts, joined)
    head = pa.repeat(pa.scalar(_APPLICATION_PROPERTIES, pa.large_binary()), len(column))
    return _joined(head, _length(content), content)


@dataclass(frozen=True, slots=True)
class Frame:
    """Messages that are published in one frame, each with its id and length in `payload`.

    Their publishing ids begin with `first_id`, without a gap.
    """

    first_id: int
    count: int
    payload: memoryview


def frames(messages: pa.Array, first_id: int, most_bytes: int) -> Iterator[Frame]:
    """Groups messages into frames, in order. No message may be larger than a frame's payload."""
    count = len(messages)
    if not count:
        return
    heads = np.empty(count, dtype=[("id", ">u8"), ("length", ">u4")])
    heads["id"] = np.arange(first_id, first_id + count, dtype=np.uint64)
    offsets = messages.cast(pa.large_binary())
    lengths = np.diff(np.frombuffer(offsets.buffers()[1], dtype=np.int64)[offsets.offset : offsets.offset + count + 1])
    heads["length"] = lengths
    head = pa.FixedSizeBinaryArray.from_buffers(pa.binary(heads.itemsize), count, [None, pa.py_buffer(heads.tobytes())])
    joined = _joined(head.cast(pa.binary()).cast(pa.large_binary()), offsets)
    ends = np.concatenate(([0], np.cumsum(lengths + heads.itemsize)))
    data = memoryview(joined.buffers()[2])
    at = 0
    while at < count:
        end = max(int(np.searchsorted(ends, ends[at] + most_bytes, side="right")) - 1, at + 1)
        yield Frame(first_id + at, end - at, data[ends[at] : ends[end]])
        at = end


class MessageWriter(WriteAheadWriter):
    """Writes one task attempt's rows as messages; see `WriteAheadWriter` and `encode`.

    The column ``route_by`` has the key that determines a row's partition; empty for a single stream.
    """

    def __init__(
        self,
        folder: WriteAheadFolder,
        prefix: str,
        context: WriterContext,
        *,
        body: Body,
        most_bytes: int,
        route_by: str = "",
        partitions: Sequence[str] = (),
        apply_now: Apply | None = None,
    ) -> None:
        super().__init__(folder, prefix, context, apply_now)
        self._body = body
        self._most_bytes = most_bytes
        self._route_by = route_by
        self._partitions = partitions
        self._counts = np.zeros(len(partitions), np.int64)

    def write(self, rows: pa.RecordBatch) -> None:
        messages = encode(rows, self._body, self._most_bytes)
        if self._route_by:
            numbers = routes(rows.column(self._route_by), len(self._partitions))
            messages = messages.from_arrays([*messages.columns, numbers], [*messages.schema.names, ROUTE])
            self._counts += np.bincount(numbers.to_numpy(), minlength=len(self._counts))
        super().write(messages)

    def parts(self) -> str:
        return counts_text(self._partitions, self._counts) if self._route_by else ""
