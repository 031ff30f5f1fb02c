"""Arrays and structs as JSON text, column by column in Arrow's own code."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.errors import PrepareError

_ESCAPES = (
    ("\\", "\\\\"),
    ('"', '\\"'),
    *((chr(code), f"\\u{code:04x}") for code in range(0x20)),
)


def json_text(values: pa.Array) -> pa.Array:
    """Each value as JSON; null stays null.

    Raises:
        PrepareError: for a number that JSON does not have (NaN, infinity).
    """
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(values)
    if pa.types.is_struct(kind):
        return _struct(values)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(_escaped(values))
    if pa.types.is_timestamp(kind):
        return _timestamp(values)
    if pa.types.is_date(kind):
        return _quoted(pc.cast(values, pa.string()))
    if pa.types.is_floating(kind) and pc.any(pc.invert(pc.is_finite(values))).as_py():
        raise PrepareError("A NaN or an infinity stands inside an array or struct, and JSON has no such numbers.")
    return pc.cast(values, pa.string())


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _escaped(texts: pa.Array) -> pa.Array:
    texts = pc.cast(texts, pa.string())
    for plain, escape in _ESCAPES:
        if contains(texts, plain.encode()):
            texts = pc.replace_substring(texts, pattern=plain, replacement=escape)
    return texts


def _timestamp(values: pa.Array) -> pa.Array:
    text = pc.replace_substring(pc.cast(pc.cast(values, pa.timestamp("us")), pa.string()), pattern=" ", replacement="T")
    return _quoted(pc.binary_join_element_wise(text, "Z", "") if values.type.tz else text)


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.fill_null(texts, "null")


def _list(values: pa.Array) -> pa.Array:
    flat = _or_null(json_text(values.flatten()))
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    ends = pc.cumulative_sum(pc.cast(lengths, pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    inside = pc.binary_join(pa.ListArray.from_arrays(offsets, flat), ",")
    return _where_valid(values, pc.binary_join_element_wise("[", inside, "]", ""))


def _struct(values: pa.Array) -> pa.Array:
    parts: list[pa.Array | str] = []
    for place, field in enumerate(values.type):
        comma = "," if place else ""
        key = _escaped(pa.array([field.name]))[0].as_py()
        parts += [f'{comma}"{key}":', _or_null(json_text(values.field(place)))]
    inside = pc.binary_join_element_wise("{", *parts, "}", "")
    return _where_valid(values, inside)


def _where_valid(values: pa.Array, texts: pa.Array) -> pa.Array:
    if not values.null_count:
        return texts
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.string()))


def contains(texts: pa.Array, byte: bytes) -> bool:
    """Whether a byte stands anywhere in these texts. Looks at the buffer as a whole: much faster than by value."""
    start, end = span(texts)
    data = texts.buffers()[2]
    return data is not None and bytes(memoryview(data)[start:end]).find(byte) >= 0


def span(texts: pa.Array) -> tuple[int, int]:
    """Where in its buffer an array of strings or binaries begins and ends."""
    if not len(texts):
        return 0, 0
    offsets = memoryview(texts.buffers()[1]).cast("q" if texts.type in _LARGE else "i")
    return offsets[texts.offset], offsets[texts.offset + len(texts)]


_LARGE = frozenset({pa.large_string(), pa.large_binary()})
