"""Rows as text, a column at a time: every value is turned into characters by Arrow's kernels, none by Python.

The rows' texts, each with its line's end, lie one after the other in the buffer of one Arrow array, which is what the
file gets.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkonce.errors import PrepareError
from sparkonce.sinks.files.types import is_binary

_STRING = pa.large_string()
_TO_ESCAPE = r"[\x00-\x1f\"\\]"
_CONTROL = r"[\x00-\x1f]"
_SHORT = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}


def json_lines(rows: pa.RecordBatch) -> pa.Buffer:
    """Each row as an object of one line, its fields in the order of the columns, with null where a value is missing."""
    return _joined([_object(rows.columns, rows.schema.names), pa.scalar("\n", _STRING)])


def csv_lines(rows: pa.RecordBatch, delimiter: str) -> pa.Buffer:
    """Each row as RFC 4180 says. Strings and bytes are quoted, also empty ones; a null is an empty field.

    Raises:
        PrepareError: for a null in the only column: it would be an empty line, which readers skip.
    """
    if rows.num_columns == 1 and rows.column(0).null_count:
        raise PrepareError(
            f"The only column, {rows.schema.names[0]!r}, holds a null, and CSV's readers skip an empty line.",
            next_step="Replace nulls (coalesce) or filter them out, write a second column, or use another format.",
        )
    parts: list[Any] = []
    for column in rows.columns:
        parts += [pc.fill_null(_csv_cells(column), ""), pa.scalar(delimiter, _STRING)]
    return _joined([*parts[:-1], pa.scalar("\n", _STRING)])


def csv_header(names: Sequence[str], delimiter: str) -> bytes:
    """The line with the columns' names."""
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    return (delimiter.join(quoted) + "\n").encode()


def text_lines(rows: pa.RecordBatch) -> pa.Buffer:
    """Each value as a line.

    Raises:
        PrepareError: for a null, and for a value with a line's end inside, which a reader would take for two.
    """
    column, name = rows.column(0), rows.schema.names[0]
    if column.null_count:
        raise PrepareError(
            f"The column {name!r} holds a null, and a line of text cannot say so.",
            next_step="Replace nulls (coalesce), or filter them out.",
        )
    if pc.any(pc.match_substring_regex(column, r"[\r\n]")).as_py():
        raise PrepareError(
            f"The column {name!r} holds a value with a line's end inside, which readers would take for several rows.",
            next_step="Replace it, for example by to_json, or write another format.",
        )
    return _joined([column.cast(_STRING), pa.scalar("\n", _STRING)])


def _joined(parts: list[Any]) -> pa.Buffer:
    lines = pc.binary_join_element_wise(*parts, pa.scalar("", _STRING))
    ends = np.frombuffer(lines.buffers()[1], np.int64)[lines.offset : lines.offset + len(lines) + 1]
    return lines.buffers()[2].slice(int(ends[0]), int(ends[-1] - ends[0]))


# --- JSON -----------------------------------------------------------------------------------------------------------


def _object(columns: Sequence[pa.Array], names: Sequence[str]) -> pa.Array:
    parts: list[Any] = []
    for number, (column, name) in enumerate(zip(columns, names, strict=True)):
        key = ("{" if number == 0 else ",") + json.dumps(name, ensure_ascii=False) + ":"
        parts += [pa.scalar(key, _STRING), _or_null(column)]
    return pc.binary_join_element_wise(*parts, pa.scalar("}", _STRING), pa.scalar("", _STRING))


def _or_null(column: pa.Array) -> pa.Array:
    return pc.fill_null(_json_cells(column), "null")


def _json_cells(column: pa.Array) -> pa.Array:
    """Each value as JSON; a null stays one. As Spark's ``to_json``: NaN and infinities are strings, bytes base64."""
    kind = column.type
    if types.is_struct(kind):
        fields = [pc.struct_field(column, [number]) for number in range(kind.num_fields)]
        text = _object(fields, [kind.field(number).name for number in range(kind.num_fields)])
        return _where_valid(column, text)
    if types.is_list(kind) or types.is_large_list(kind):
        return _list(column)
    if types.is_string(kind) or types.is_large_string(kind):
        return _quoted(_escaped(column.cast(_STRING)))
    if types.is_floating(kind):
        text = _float(column)
        return pc.if_else(pc.is_finite(column), text, _quoted(text))
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return _plain(column)
    return _quoted(_plain(column))


def _list(column: pa.Array) -> pa.Array:
    """The elements' texts stand in their own array; the list's offsets, unchanged, say which belong together."""
    offsets = np.frombuffer(column.buffers()[1], np.int64 if types.is_large_list(column.type) else np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    elements = _or_null(column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
    lists = pa.LargeListArray.from_arrays(pa.array(offsets - offsets[0]), elements)
    inside = pc.binary_join(lists, pa.scalar(",", _STRING))
    text = pc.binary_join_element_wise(pa.scalar("[", _STRING), inside, pa.scalar("]", _STRING), pa.scalar("", _STRING))
    return _where_valid(column, text)


def _escaped(text: pa.Array) -> pa.Array:
    """What JSON wants escaped, which most columns do not hold at all: one look finds out."""
    if not pc.any(pc.match_substring_regex(text, _TO_ESCAPE)).as_py():
        return text
    text = pc.replace_substring(text, "\\", "\\\\")
    text = pc.replace_substring(text, '"', '\\"')
    if not pc.any(pc.match_substring_regex(text, _CONTROL)).as_py():
        return text
    for code in range(0x20):
        text = pc.replace_substring(text, chr(code), _SHORT.get(code, f"\\u{code:04x}"))
    return text


# --- CSV ------------------------------------------------------------------------------------------------------------


def _csv_cells(column: pa.Array) -> pa.Array:
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        return _quoted(pc.replace_substring(column.cast(_STRING), '"', '""'))
    if is_binary(kind):
        return _quoted(_plain(column))
    return _float(column) if types.is_floating(kind) else _plain(column)


# --- values ---------------------------------------------------------------------------------------------------------


def _plain(column: pa.Array) -> pa.Array:
    kind = column.type
    if types.is_decimal(kind):
        return _decimal(column)
    if types.is_timestamp(kind):
        return _timestamp(column)
    return _base64(column) if is_binary(kind) else column.cast(_STRING)


def _float(column: pa.Array) -> pa.Array:
    """The shortest digits that give the same value again, with a fraction or exponent, so that 1.0 is not taken for 1.

    What is not finite is written as Spark writes and reads it: NaN, Infinity, -Infinity.
    """
    text = column.cast(_STRING)
    text = pc.if_else(
        pc.match_substring_regex(text, r"^-?[0-9]+$"),
        pc.binary_join_element_wise(text, pa.scalar(".0", _STRING), pa.scalar("", _STRING)),
        text,
    )
    if pc.all(pc.is_finite(column)).as_py() in (True, None):
        return text
    text = pc.replace_substring(text, "nan", "NaN")
    return pc.replace_substring_regex(text, "^(-?)inf$", "\\1Infinity")


def _decimal(column: pa.Array) -> pa.Array:
    """All digits and no exponent, which Arrow's own cast writes for small values."""
    text = column.cast(_STRING)
    scale = column.type.scale
    if scale <= 0 or not pc.any(pc.match_substring(text, "E")).as_py():
        return text
    # The same 16 bytes a value, read without a scale, are the digits. (abs would overflow at the very lowest value.)
    whole = pa.Array.from_buffers(pa.decimal128(38, 0), len(column), column.buffers(), offset=column.offset)
    digits = whole.cast(_STRING)
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "").cast(_STRING)
    digits = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    return pc.binary_join_element_wise(
        sign,
        pc.utf8_slice_codeunits(digits, 0, -scale),
        pa.scalar(".", _STRING),
        pc.utf8_slice_codeunits(digits, -scale),
        pa.scalar("", _STRING),
    )


def _timestamp(column: pa.Array) -> pa.Array:
    """ISO 8601 in UTC with ``Z``; without a zone if the type has none."""
    zoned = column.type.tz is not None
    text = column.cast(pa.timestamp(column.type.unit)).cast(_STRING) if zoned else column.cast(_STRING)
    text = pc.replace_substring(text, " ", "T", max_replacements=1)
    return pc.binary_join_element_wise(text, pa.scalar("Z", _STRING), pa.scalar("", _STRING)) if zoned else text


def _base64(column: pa.Array) -> pa.Array:
    """All values at once: each filled up to a multiple of three bytes encodes as it would alone, but for its end."""
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
    text = pa.Array.from_buffers(_STRING, len(column), [None, text_ends, pa.py_buffer(encoded.tobytes())])
    return _where_valid(given, text)


def _quoted(text: pa.Array) -> pa.Array:
    quote = pa.scalar('"', _STRING)
    return pc.binary_join_element_wise(quote, text, quote, pa.scalar("", _STRING))


def _where_valid(column: pa.Array, text: pa.Array) -> pa.Array:
    return text if column.null_count == 0 else pc.if_else(column.is_valid(), text, pa.scalar(None, _STRING))
