"""Converts Arrow columns to text and JSON, splits record batches, and finds the rows that a server rejects.

Conversions run in Arrow's kernels, not value by value in Python. Numbers, dates and timestamps have the format that
Spark's ``to_json`` uses. A null stays null.

Arrow's own cast to text returns "<value out of range>" for dates in the year 32768 or later, and does not check that
strings are valid UTF-8. This module writes such dates in full, and raises an error that names the column for an invalid
string.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkonce.errors import PrepareError
from sparkonce.sink import Refused

STRING = pa.large_string()
"""The type of all strings: Arrow's smaller string type is limited to 2 GiB per column."""

_TO_ESCAPE = r"[\x00-\x1f\"\\]"
_CONTROL = r"[\x00-\x1f]"
_FIRST_DAY, _LAST_DAY = -719_528, 2_932_896
"""The days of 0000-01-01 and 9999-12-31. ISO 8601 writes years outside this range with a sign."""
_DAYS_TO_2000 = 10_957
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400
"""The calendar repeats after this many days and years."""
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SHORT = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}


def json_object(columns: Sequence[pa.Array], names: Sequence[str]) -> pa.Array:
    """Returns each row as a JSON object, with its fields in column order, and null for a missing value.

    Raises:
        PrepareError: If a string is not UTF-8. The message names the column.
    """
    return _object(columns, names, "")


def _object(columns: Sequence[pa.Array], names: Sequence[str], path: str) -> pa.Array:
    parts: list[Any] = []
    for number, (column, name) in enumerate(zip(columns, names, strict=True)):
        key = ("{" if number == 0 else ",") + json.dumps(name, ensure_ascii=False) + ":"
        parts += [pa.scalar(key, STRING), _or_null(column, path + name)]
    return pc.binary_join_element_wise(*parts, pa.scalar("}", STRING), pa.scalar("", STRING))


def _or_null(column: pa.Array, name: str) -> pa.Array:
    return pc.fill_null(json_text(column, name), "null")


def json_text(column: pa.Array, name: str) -> pa.Array:
    """Returns each value as JSON. As in Spark's ``to_json``, NaN and infinities are strings, and bytes are base64.

    Raises:
        PrepareError: If a string is not UTF-8. The message names the column.
    """
    kind = column.type
    if types.is_struct(kind):
        fields = [pc.struct_field(column, [number]) for number in range(kind.num_fields)]
        if not fields:
            return _where_valid(column, pa.repeat(pa.scalar("{}", STRING), len(column)))
        text = _object(fields, [kind.field(number).name for number in range(kind.num_fields)], f"{name}.")
        return _where_valid(column, text)
    if types.is_list(kind) or types.is_large_list(kind):
        return _list(column, name)
    if types.is_string(kind) or types.is_large_string(kind):
        return in_quotes(_escaped(utf8_text(column, name)))
    if types.is_floating(kind):
        text = float_text(column)
        return pc.if_else(pc.is_finite(column), text, in_quotes(text))
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return plain_text(column, name)
    return in_quotes(plain_text(column, name))


def _list(column: pa.Array, name: str) -> pa.Array:
    if not len(column):
        # If all enclosing lists are empty, Spark's JVM sends an empty buffer of offsets, without even the first offset.
        return pa.array([], STRING)
    # Convert the elements of all lists in one call. The offsets then show which texts belong to which list.
    offsets = np.frombuffer(column.buffers()[1], np.int64 if types.is_large_list(column.type) else np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    elements = _or_null(column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])), name)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets - offsets[0]), elements)
    inside = pc.binary_join(lists, pa.scalar(",", STRING))
    text = pc.binary_join_element_wise(pa.scalar("[", STRING), inside, pa.scalar("]", STRING), pa.scalar("", STRING))
    return _where_valid(column, text)


def _escaped(text: pa.Array) -> pa.Array:
    """Escapes special characters for JSON. Most columns contain none, which a single scan shows."""
    if not pc.any(pc.match_substring_regex(text, _TO_ESCAPE)).as_py():
        return text
    text = pc.replace_substring(text, "\\", "\\\\")
    text = pc.replace_substring(text, '"', '\\"')
    if not pc.any(pc.match_substring_regex(text, _CONTROL)).as_py():
        return text
    for code in range(0x20):
        text = pc.replace_substring(text, chr(code), _SHORT.get(code, f"\\u{code:04x}"))
    return text


def all_finite(column: pa.Array) -> bool:
    """Returns True if a column holds neither NaN nor an infinity, at any depth."""
    if types.is_struct(column.type):
        return all(all_finite(field) for field in column.flatten())
    if types.is_list(column.type) or types.is_large_list(column.type):
        return all_finite(column.flatten())
    return not types.is_floating(column.type) or pc.all(pc.is_finite(column)).as_py() is not False


def plain_text(column: pa.Array, name: str) -> pa.Array:
    """Returns each value without quotes: a decimal with all its digits, a timestamp in ISO 8601, bytes in base64."""
    kind = column.type
    if types.is_decimal(kind):
        return _decimal(column)
    if types.is_timestamp(kind):
        return _timestamp(column)
    if types.is_date32(kind):
        return _date(column)
    if types.is_string(kind) or types.is_large_string(kind):
        return utf8_text(column, name)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _base64(column)
    return column.cast(STRING)


def utf8_text(column: pa.Array, name: str) -> pa.Array:
    """Returns strings unchanged, after checking that all are UTF-8: Spark's strings may hold any bytes.

    Raises:
        PrepareError: If a string is not UTF-8. The message names the column and the first invalid byte.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise PrepareError(
            f"Column {name!r} has a string that is not UTF-8{_first_wrong_byte(column)}.",
            next_step=(
                f"Use make_valid_utf8({name}) in the query, which replaces such bytes with U+FFFD, or keep them "
                f"all: base64(cast({name} AS binary))."
            ),
            column=name,
        ) from None
    return column.cast(STRING)


def _first_wrong_byte(column: pa.Array) -> str:
    try:
        for one in column.cast(pa.large_binary()):
            str(one.as_py() or b"", "utf-8")
    except UnicodeDecodeError as error:
        return f": it has the byte 0x{error.object[error.start]:02x} at position {error.start}"
    return ""


def python_value(value: pa.Scalar) -> Any:
    """Converts a value to a Python object for a message or a dead letter.

    A value that Python cannot represent, such as a date after the year 9999 or invalid UTF-8, becomes text.
    """
    try:
        return value.as_py()
    except (UnicodeDecodeError, OverflowError, ValueError):
        pass
    if isinstance(value, pa.StructScalar):
        return {name: python_value(one) for name, one in value.items()}
    if isinstance(value, pa.ListScalar | pa.LargeListScalar):
        return [python_value(one) for one in value.values]
    if types.is_string(value.type) or types.is_large_string(value.type):
        return str(value.as_buffer(), "utf-8", "backslashreplace")
    return plain_text(pa.repeat(value, 1), "").to_pylist()[0]


def float_text(column: pa.Array) -> pa.Array:
    """Returns the shortest digits that parse to the same value, with a fraction or an exponent: 1.0, not 1.

    Values that are not finite become NaN, Infinity and -Infinity.
    """
    text = column.cast(STRING)
    text = pc.if_else(
        pc.match_substring_regex(text, r"^-?[0-9]+$"),
        pc.binary_join_element_wise(text, pa.scalar(".0", STRING), pa.scalar("", STRING)),
        text,
    )
    if pc.all(pc.is_finite(column)).as_py() in (True, None):
        return text
    text = pc.replace_substring(text, "nan", "NaN")
    return pc.replace_substring_regex(text, "^(-?)inf$", "\\1Infinity")


def _decimal(column: pa.Array) -> pa.Array:
    """Returns decimals with all their digits. Arrow's own cast uses an exponent for small values."""
    text = column.cast(STRING)
    scale = column.type.scale
    if scale <= 0 or not pc.any(pc.match_substring(text, "E")).as_py():
        return text
    # The 16 bytes of a value are the integer formed by its digits, without the scale. abs would overflow on the lowest
    # value.
    whole = pa.Array.from_buffers(pa.decimal128(38, 0), len(column), column.buffers(), offset=column.offset)
    digits = whole.cast(STRING)
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "").cast(STRING)
    digits = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    return pc.binary_join_element_wise(
        sign,
        pc.utf8_slice_codeunits(digits, 0, -scale),
        pa.scalar(".", STRING),
        pc.utf8_slice_codeunits(digits, -scale),
        pa.scalar("", STRING),
    )


def _date(column: pa.Array) -> pa.Array:
    """Returns dates in ISO 8601, with a sign for years outside 0 to 9999, as in Spark and Java."""
    days = column.cast(pa.int32())
    if _within(days, _FIRST_DAY, _LAST_DAY):
        return column.cast(STRING)
    cycles, rest = np.divmod(_numbers(days) - _DAYS_TO_2000, _CYCLE_DAYS)
    near = pa.array(rest + _DAYS_TO_2000, pa.int32()).cast(pa.date32()).cast(STRING)
    years = pc.utf8_slice_codeunits(near, 0, 4).cast(pa.int64()).to_numpy() + cycles * _CYCLE_YEARS
    signs = np.select([years < 0, years > 9999], ["-", "+"], "")
    digits = pc.utf8_lpad(pa.array(np.abs(years)).cast(STRING), 4, "0")
    text = pc.binary_join_element_wise(
        pa.array(signs, STRING), digits, pc.utf8_slice_codeunits(near, 4), pa.scalar("", STRING)
    )
    return _where_valid(column, text)


def _timestamp(column: pa.Array) -> pa.Array:
    """Returns timestamps in ISO 8601, in UTC with ``Z`` or, if the type has no zone, without one."""
    unit = column.type.unit
    ticks, of_day = column.cast(pa.int64()), _UNITS[unit] * 86_400
    if _within(ticks, _FIRST_DAY * of_day, (_LAST_DAY + 1) * of_day - 1):
        text = column.cast(pa.timestamp(unit)).cast(STRING)
        text = pc.replace_substring(text, " ", "T", max_replacements=1)
    else:
        days, rest = np.divmod(_numbers(ticks), of_day)
        time = pa.time32(unit) if unit in {"s", "ms"} else pa.time64(unit)
        clock = pa.array(rest).cast(pa.int32() if unit in {"s", "ms"} else pa.int64()).cast(time).cast(STRING)
        date = _date(pa.array(days).cast(pa.int32()).cast(pa.date32()))
        text = _where_valid(column, pc.binary_join_element_wise(date, clock, pa.scalar("T", STRING)))
    if column.type.tz is None:
        return text
    return pc.binary_join_element_wise(text, pa.scalar("Z", STRING), pa.scalar("", STRING))


def _within(numbers: pa.Array, least: int, most: int) -> bool:
    found = pc.min_max(numbers).as_py()
    return found["min"] is None or (least <= found["min"] and found["max"] <= most)


def _numbers(column: pa.Array) -> Any:
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _base64(column: pa.Array) -> pa.Array:
    # Encode all values in one call. Padding each value to a multiple of three bytes changes its encoding only at the
    # end.
    given, column = column, pc.fill_null(column, b"").cast(pa.large_binary())
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(offsets)
    filled = (lengths + 2) // 3 * 3
    starts = np.concatenate(([0], np.cumsum(filled)))
    content = np.zeros(int(starts[-1]), np.uint8)
    shift = np.repeat(starts[:-1] - offsets[:-1], lengths)
    source = np.frombuffer(column.buffers()[2] or b"", np.uint8)[int(offsets[0]) : int(offsets[-1])]
    content[np.arange(int(offsets[0]), int(offsets[-1])) + shift] = source
    encoded = np.frombuffer(binascii.b2a_base64(content.tobytes(), newline=False), np.uint8).copy()
    ends = (starts[1:] // 3) * 4
    missing = filled - lengths
    encoded[ends[missing >= 1] - 1] = ord("=")
    encoded[ends[missing == 2] - 2] = ord("=")
    text_ends = pa.py_buffer(np.concatenate(([0], ends)).astype(np.int64).tobytes())
    text = pa.Array.from_buffers(STRING, len(column), [None, text_ends, pa.py_buffer(encoded.tobytes())])
    return _where_valid(given, text)


def in_quotes(text: pa.Array) -> pa.Array:
    """Returns each string in double quotes."""
    quote = pa.scalar('"', STRING)
    return pc.binary_join_element_wise(quote, text, quote, pa.scalar("", STRING))


def _where_valid(column: pa.Array, text: pa.Array) -> pa.Array:
    return text if column.null_count == 0 else pc.if_else(column.is_valid(), text, pa.scalar(None, STRING))


_LARGE = frozenset({pa.large_string(), pa.large_binary()})


def halves(rows: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows in record batches of limited size, because an Arrow string array is limited to 2 GiB.

    A single row may be larger.
    """
    if rows.nbytes <= most_bytes or rows.num_rows < 2:
        yield rows
        return
    half = rows.num_rows // 2
    yield from halves(rows.slice(0, half), most_bytes)
    yield from halves(rows.slice(half), most_bytes)


def offsets_of(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.integer]]:
    """Returns the offset of each value in the buffer of a string or binary array, and the end of the last one."""
    if values.buffers()[1] is None:
        return np.zeros(1, np.int64)
    kind = np.int64 if values.type in _LARGE else np.int32
    return np.frombuffer(values.buffers()[1], kind, len(values) + 1, values.offset * np.dtype(kind).itemsize)


def bytes_of(values: pa.Array) -> memoryview:
    """Returns the bytes of all values of a string or binary array, one after another."""
    data = values.buffers()[2]
    if data is None or not len(values):
        return memoryview(b"")
    offsets = offsets_of(values)
    return memoryview(data)[offsets[0] : offsets[-1]]


def cut(values: pa.Array, most_bytes: int, *, without_last: int = 0) -> Iterator[memoryview]:
    """Yields the bytes of an array in pieces of limited size, each without its last bytes, such as a comma.

    A single value may be larger than a piece.
    """
    if not len(values) or values.buffers()[2] is None:
        return
    data, offsets = memoryview(values.buffers()[2]), offsets_of(values)
    row = 0
    while row < len(values):
        end = max(row + 1, int(np.searchsorted(offsets, offsets[row] + most_bytes, side="right")) - 1)
        yield data[offsets[row] : offsets[end] - without_last]
        row = end


def offered(rows: pa.RecordBatch, attempt: Callable[[pa.RecordBatch], str]) -> Refused:
    """Writes the rows that the server accepts, and returns the others.

    A part that the server rejects is split in half, and each half is tried again. Among n rows, each rejected row costs
    about 2 log2(n) requests. ``attempt`` writes all rows of a part and returns an empty string, or writes none and
    returns the reason.
    """
    numbers: list[int] = []
    reasons: list[str] = []

    def offer(part: pa.RecordBatch, first: int) -> None:
        if not (reason := attempt(part)):
            return
        if part.num_rows == 1:
            numbers.append(first)
            reasons.append(reason)
            return
        half = part.num_rows // 2
        offer(part.slice(0, half), first)
        offer(part.slice(half), first + half)

    if rows.num_rows:
        offer(rows, 0)
    return Refused(rows=numbers, reasons=reasons)
