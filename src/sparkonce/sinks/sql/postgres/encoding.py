"""Encodes Arrow columns in PostgreSQL's binary COPY format, without Python code for each row.

A row is a 16-bit count of columns followed, for each column, by a 32-bit length (-1 for null) and the bytes of its
value (PostgreSQL's manual, "COPY", "Binary Format"). Each column therefore becomes several parts: NumPy arrays if all
rows have the same width, otherwise Arrow arrays of byte strings. NumPy places neighboring fixed-width parts side by
side, and Arrow joins all parts. This takes 0.05 µs for a row of seven columns, compared with 1.1 µs for pyarrow's CSV
writer, whose output also takes the server twice as long to read.

Each supported pair of a Spark type and a PostgreSQL type has an encoder. Any other pair is rejected by name. Decimals
become PostgreSQL's numeric in groups of four decimal digits, for all rows together. Values of types without a matching
Spark type (inet, time, ranges) are sent as text: one statement converts all texts of a column to the type's binary
form, which goes into the same COPY as the other values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Union

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

from sparkonce.errors import PrepareError, SchemaError
from sparkonce.sink import spark_type
from sparkonce.sinks._shared.arrow import halves
from sparkonce.sinks.sql.postgres.connection import Connection
from sparkonce.sinks.sql.postgres.outcomes import code_of, prepare_error

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

Fixed = np.ndarray[Any, Any]
"""The same number of bytes for each row. A zero-dimensional array holds bytes that are identical in all rows."""
Part = Union[Fixed, "pa.Array"]
Encode = Callable[[pa.Array], list[Part]]
"""Creates the length and the bytes of each value in a column."""

LARGEST_PIECE_BYTES = 64 * 1024 * 1024
"""Larger record batches are split: Arrow's offsets are limited to 2 GiB, and joining briefly holds the bytes twice."""

_LENGTH = np.dtype(">i4")
_NULL = -1
_START = np.zeros(1, np.int64)
_ARRAY_HEADER = np.dtype(
    [("dimensions", ">i4"), ("nulls", ">i4"), ("element", ">u4"), ("length", ">i4"), ("lower", ">i4")]
)


def encode_rows(rows: pa.RecordBatch, encoders: Sequence[Encode]) -> Iterator[memoryview]:
    """Yields the rows as binary COPY data, in one or more pieces, without header and trailer."""
    if rows.num_rows == 0:
        return
    for piece in halves(rows, LARGEST_PIECE_BYTES):
        parts: list[Part] = [np.array(len(encoders), ">i2")]
        for column, encode in zip(piece.columns, encoders, strict=True):
            parts += encode(column)
        yield row_bytes(join(parts, piece.num_rows))[0]


def fixed(values: Fixed, nulls: Fixed | None) -> list[Part]:
    """Returns the parts of fixed-width values, in network byte order. `nulls` marks the null values, if any."""
    width = values.dtype.itemsize
    if nulls is None:
        return [np.array(width, _LENGTH), values]
    present = ~nulls
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(present * np.int32(width), out=ends[1:])
    return [np.where(nulls, _NULL, width).astype(_LENGTH), binaries(ends, values[present])]


def ragged(values: pa.Array, lead: bytes = b"") -> list[Part]:
    """Returns the parts of binary values, each with the prefix `lead`."""
    lengths = pc.binary_length(values)
    if values.null_count:
        lengths = pc.fill_null(pc.add(lengths, len(lead)), _NULL)
        values = pc.fill_null(pc.binary_join_element_wise(lead, values, b""), b"") if lead else values
        return [lengths.to_numpy(zero_copy_only=False).astype(_LENGTH), values]
    counted = lengths.to_numpy(zero_copy_only=False) + len(lead)
    return [counted.astype(_LENGTH), *([np.array(lead, f"V{len(lead)}")] if lead else []), values]


def array(values: pa.Array, element: Encode, element_oid: int) -> list[Part]:
    """Returns the parts of one-dimensional arrays: a header of 20 bytes, then each element's length and bytes."""
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    elements = values.flatten()
    data, starts = row_bytes(join(element(elements), len(elements))) if len(elements) else (memoryview(b""), _START)
    bounds = starts[np.concatenate((_START, np.cumsum(lengths)))].astype(np.int32)
    header = np.zeros(len(values), _ARRAY_HEADER)
    header["dimensions"] = 1
    header["nulls"] = int(elements.null_count > 0)
    header["element"] = element_oid
    header["length"] = lengths
    header["lower"] = 1
    nulls = null_mask(values)
    head = fixed(header, nulls)
    total = (_ARRAY_HEADER.itemsize + np.diff(bounds)).astype(_LENGTH)
    head[0] = total if nulls is None else np.where(nulls, _NULL, total).astype(_LENGTH)
    return [*head, binaries(bounds, data)]


def null_mask(values: pa.Array) -> Fixed | None:
    """Returns an array that is True for nulls; None if there are no nulls."""
    return values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None


def integers(values: pa.Array, dtype: str, arrow: pa.DataType) -> Fixed:
    """Returns the values of a column, with 0 for a null."""
    column = values if values.type == arrow else values.cast(arrow)
    if column.null_count:
        column = pc.fill_null(column, 0)
    numbers: Fixed = column.to_numpy(zero_copy_only=False).astype(dtype)
    return numbers


def join(parts: Sequence[Part], rows: int) -> Part:
    """Joins all parts of each row, one after the other."""
    whole: list[Part] = []
    for is_fixed, group in groupby(parts, lambda part: isinstance(part, np.ndarray)):
        neighbors = list(group)
        if is_fixed:
            block = np.empty(rows, np.dtype([(f"f{number}", part.dtype) for number, part in enumerate(neighbors)]))
            for number, part in enumerate(neighbors):
                block[f"f{number}"] = part
            neighbors = [block]
        whole += neighbors
    if len(whole) == 1:
        return whole[0]
    ends = np.arange(rows + 1, dtype=np.int32)
    texts = [
        binaries(ends * np.int32(part.dtype.itemsize), part) if isinstance(part, np.ndarray) else part for part in whole
    ]
    joined: Part = pc.binary_join_element_wise(*texts, b"", null_handling="skip")
    return joined


def binaries(ends: Fixed, data: Fixed | memoryview) -> pa.Array:
    """Returns a binary array of contiguous bytes. `ends` are the offsets, including that of the last value's end."""
    values = np.ascontiguousarray(data).view(np.uint8) if isinstance(data, np.ndarray) else data
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(values)])


def row_bytes(part: Part) -> tuple[memoryview, Fixed]:
    """Returns the bytes of all rows, the offset of each row, and the end of the last one."""
    if isinstance(part, np.ndarray):
        width = part.dtype.itemsize
        return part.view(np.uint8).data, np.arange(len(part) + 1, dtype=np.int64) * width
    _, ends, data = part.buffers()
    starts = np.frombuffer(ends, np.int32, len(part) + 1, part.offset * 4).astype(np.int64)
    whole = memoryview(data if data is not None else b"")
    return whole[starts[0] : starts[-1]], starts - starts[0]


_DAYS_TO_2000 = 10_957
_US_TO_2000 = _DAYS_TO_2000 * 86_400_000_000

_VARCHAR_HEADER = 4
"""A varchar's ``atttypmod`` is its length in characters plus the size of a value's header (``varchar.c``)."""

_FIRST_DAY, _END_DAY = -2_451_545, 2_145_031_949
_FIRST_US, _END_US = -211_813_488_000_000_000, 9_223_371_331_200_000_000
"""PostgreSQL's dates and timestamps begin in 4713 BC, and end in the years 5874897 and 294276 (``timestamp.h``)."""

_INTEGERS: Mapping[str, tuple[str, pa.DataType]] = {
    "int2": (">i2", pa.int16()),
    "int4": (">i4", pa.int32()),
    "int8": (">i8", pa.int64()),
}
_FLOATS: Mapping[str, tuple[str, pa.DataType]] = {"float4": (">f4", pa.float32()), "float8": (">f8", pa.float64())}
_STAGED: Mapping[str, str] = {
    "boolean": "bool",
    "tinyint": "int2",
    "smallint": "int2",
    "int": "int4",
    "bigint": "int8",
    "float": "float4",
    "double": "float8",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
"""The type of a staging table's column for each of Spark's types."""
_HINTS: Mapping[str, str] = {
    "struct": "Turn it into a string (to_json) and the column into jsonb, or drop it.",
    "map": "Turn it into a string (to_json) and the column into jsonb, or drop it.",
    "array": "Make the column an array of that type, or the value a string (to_json) and the column jsonb.",
    "interval": "Write it as text, such as '90 minutes', or as a whole number of seconds.",
    "timestamp": "Cast it in the query: timestamp goes into timestamptz, and timestamp_ntz into timestamp.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerType:
    """A column's type in the catalog.

    Attributes:
        shown: The type as formatted by ``format_type``.
        name: ``typname`` of the type, or of a domain's base type; ``enum`` for all enums.
        modifier: ``atttypmod``, -1 for none.
        element: The type of an array's elements.
        element_oid: The oid of the element type, or of its domain.
        base: The type in SQL, without domain, length and precision.
        send: The function, in SQL, that returns the type's values in binary; empty if there is none.
    """

    shown: str
    name: str
    modifier: int = -1
    element: ServerType | None = None
    element_oid: int = 0
    base: str = ""
    send: str = ""


def staged_type(column: str, kind: pa.DataType) -> ServerType:
    """Returns the type for a column of a staging table that the target does not have."""
    name = "numeric" if pa.types.is_decimal128(kind) else _STAGED.get(spark_type(kind))
    if name is None:
        what = f"Column {column!r}, by which rows delete, is {spark_type(kind)}, and the table does not have it."
        raise SchemaError(what, next_step="Compute a boolean column in the query, and read that.")
    return ServerType(shown=name, name=name)


ReadText = Callable[[str, ServerType, pa.Array], list[Part]]
"""Lets the server parse a column's texts, given its name and type. Returns their binary lengths and bytes."""


def _unread(*_: object) -> list[Part]:
    raise NotImplementedError


def encoder(column: str, actual: pa.DataType, wanted: ServerType, read: ReadText = _unread) -> Encode:
    """Returns the encoder of a column. Without `read`, texts that the server must parse are not supported.

    Raises `SchemaError` if the column cannot store the type, or only with a loss.
    """
    is_list = isinstance(actual, pa.ListType | pa.LargeListType)
    if is_list and wanted.element is not None and not pa.types.is_nested(actual.value_type):
        element = encoder(column, actual.value_type, wanted.element, read)
        return partial(array, element=element, element_oid=wanted.element_oid)
    made = partial(read, column, wanted) if is_text_read(actual, wanted) else _encoder(column, actual, wanted)
    if made is None:
        raise _refused(column, actual, wanted)
    return made


def is_text_read(actual: pa.DataType, wanted: ServerType) -> bool:
    """Returns True if the server parses the values from text, because no Spark type matches the column's type."""
    if isinstance(actual, pa.ListType | pa.LargeListType) and wanted.element is not None:
        return is_text_read(actual.value_type, wanted.element)
    is_text = pa.types.is_string(actual) or pa.types.is_large_string(actual)
    return is_text and wanted.element is None and bool(wanted.send) and wanted.name not in _WRITTEN


def _encoder(column: str, actual: pa.DataType, wanted: ServerType) -> Encode | None:
    name = wanted.name
    if pa.types.is_boolean(actual):
        return partial(_numbers, dtype="u1", arrow=pa.int8()) if name == "bool" else None
    if pa.types.is_signed_integer(actual):
        return _integer(column, actual, wanted)
    if pa.types.is_floating(actual):
        fits = name == "float8" or (name == "float4" and actual.bit_width == 32)
        return partial(_numbers, dtype=_FLOATS[name][0], arrow=_FLOATS[name][1]) if fits else None
    if pa.types.is_decimal128(actual):
        return _decimals if name == "numeric" and _keeps_scale(column, actual, wanted) else None
    if pa.types.is_string(actual) or pa.types.is_large_string(actual):
        if name == "varchar" and wanted.modifier >= 0:
            return partial(_bounded, column=column, most=wanted.modifier - _VARCHAR_HEADER)
        return partial(_uuids, column=column) if name == "uuid" else _TEXTS.get(name)
    if pa.types.is_binary(actual) or pa.types.is_large_binary(actual):
        return _bytes if name == "bytea" else None
    if pa.types.is_date32(actual):
        return partial(_dates, column=column) if name == "date" else None
    if pa.types.is_timestamp(actual):
        fits = name == ("timestamp" if actual.tz is None else "timestamptz")
        unit_us = 10 ** (6 - min(wanted.modifier, 6)) if wanted.modifier >= 0 else 1
        return partial(_timestamps, column=column, unit_us=unit_us, shown=wanted.shown) if fits else None
    return None


def _integer(column: str, actual: pa.DataType, wanted: ServerType) -> Encode | None:
    name = wanted.name
    if name == "numeric":
        if wanted.modifier >= 0 and _scale(wanted) < 0:
            what = f"Column {column!r} is {spark_type(actual)}, and {wanted.shown} would round it."
            raise SchemaError(what, next_step="Give the column a scale of 0 or more.")
        return lambda values: _decimals(values.cast(pa.decimal128(19, 0)))
    if name not in _INTEGERS:
        return None
    dtype, arrow = _INTEGERS[name]
    return partial(_numbers, dtype=dtype, arrow=arrow) if actual.bit_width <= arrow.bit_width else None


def _keeps_scale(column: str, actual: pa.DataType, wanted: ServerType) -> bool:
    if wanted.modifier < 0:
        return True
    precision, scale = (wanted.modifier - 4) >> 16 & 0xFFFF, _scale(wanted)
    if scale < actual.scale:
        what = f"Column {column!r} is decimal({actual.precision},{actual.scale}), and {wanted.shown} would round it."
        step = f"Cast it to decimal({min(precision, 38)},{max(scale, 0)}) in the query, or widen the column."
        raise SchemaError(what, next_step=step)
    return True


def _scale(wanted: ServerType) -> int:
    return ((wanted.modifier - 4) & 0x7FF ^ 1024) - 1024


def _numbers(values: pa.Array, dtype: str, arrow: pa.DataType) -> list[Part]:
    return fixed(integers(values, dtype, arrow), null_mask(values))


def _decimals(values: pa.Array) -> list[Part]:
    return fixed(numeric(values), null_mask(values))


def _bytes(values: pa.Array, lead: bytes = b"") -> list[Part]:
    return ragged(values.cast(pa.binary()), lead)


def _bounded(values: pa.Array, column: str, most: int) -> list[Part]:
    # The server rejects values that are too long, but silently truncates trailing spaces (manual, "Character Types").
    long = values.filter(pc.greater(pc.utf8_length(values), most))
    if len(long) and pc.any(pc.less_equal(pc.utf8_length(pc.ascii_rtrim(long, " ")), most)).as_py():
        what = f"Column {column!r} has a string with trailing spaces that varchar({most}) would cut off."
        raise PrepareError(what, next_step="Use rtrim in the query, or widen the column.")
    return _bytes(values)


def _uuids(values: pa.Array, column: str) -> list[Part]:
    """Converts each text to 16 bytes, and rejects invalid UUIDs."""
    bare = pc.replace_substring_regex(values, r"^\{?([^{}]*)\}?$", r"\1")
    plain = pc.ascii_lower(pc.replace_substring(bare, "-", ""))
    wrong = pc.filter(values, pc.invert(pc.match_substring_regex(plain, "^[0-9a-f]{32}$")))
    if len(wrong):
        what = f"Column {column!r} has a string that is not a UUID."
        raise PrepareError(what, next_step="Correct it, or make the column text.")
    digits = np.frombuffer(row_bytes(pc.fill_null(plain, "0" * 32).cast(pa.binary()))[0], np.uint8).reshape(-1, 32)
    halves = np.where(digits >= ord("a"), digits - ord("a") + 10, digits - ord("0"))
    whole = (halves[:, ::2] << 4 | halves[:, 1::2]).astype(np.uint8)
    return fixed(np.ascontiguousarray(whole).view("V16").reshape(-1), null_mask(values))


def _dates(values: pa.Array, column: str) -> list[Part]:
    days = integers(values, "i8", pa.int32()) - _DAYS_TO_2000
    nulls = null_mask(values)
    _check_range(days, nulls, _FIRST_DAY, _END_DAY, f"Column {column!r} has a date outside of 4713 BC to 5874897 AD")
    return fixed(days.astype(">i4"), nulls)


def _timestamps(values: pa.Array, column: str, unit_us: int, shown: str) -> list[Part]:
    since_1970 = integers(values.cast(pa.timestamp("us", values.type.tz)), "i8", pa.int64())
    nulls = null_mask(values)
    _check_range(
        since_1970,
        nulls,
        _FIRST_US + _US_TO_2000,
        _END_US,
        f"Column {column!r} has a timestamp outside of 4713 BC to 294276 AD",
    )
    _check_unit(since_1970, unit_us, column, shown)
    return fixed((since_1970 - _US_TO_2000).astype(">i8"), nulls)


def _check_unit(values_us: Fixed, unit_us: int, column: str, shown: str) -> None:
    """Rejects values that the server would round or truncate. A null counts as 0."""
    if unit_us > 1 and bool(np.any(wrong := values_us % unit_us != 0)):
        raise PrepareError(
            f"Column {column!r} has {int(values_us[wrong][0]) % 86_400_000_000} µs of a day, and {shown} keeps "
            f"multiples of {unit_us} µs.",
            next_step="Use date_trunc in the query, or widen the column.",
        )


def _check_range(values: Fixed, nulls: Fixed | None, first: int, end: int, words: str) -> None:
    outside = (values < first) | (values >= end)
    if bool(np.any(outside if nulls is None else outside & ~nulls)):
        raise PrepareError(f"{words}, which PostgreSQL cannot hold.", next_step="Filter or correct such rows.")


_TEXTS: Mapping[str, Callable[[pa.Array], list[Part]]] = {
    **dict.fromkeys(("text", "varchar", "bpchar", "citext", "json", "xml", "enum"), _bytes),
    "jsonb": partial(_bytes, lead=b"\x01"),
}

_WRITTEN = frozenset({*_INTEGERS, *_FLOATS, *_TEXTS, "bool", "numeric", "uuid", "bytea", "date"}) | {
    "timestamp",
    "timestamptz",
}
"""The types that the encoders here support."""


def _refused(column: str, actual: pa.DataType, wanted: ServerType) -> SchemaError:
    shown = spark_type(actual)
    if wanted.send and wanted.element is None and wanted.name not in _WRITTEN:
        step = f"Cast it to string in the query: the server reads {wanted.shown} from text."
    else:
        step = "Cast it in the query to a type that fits without a loss, see docs/postgres.md."
    family = next((hint for start, hint in _HINTS.items() if shown.startswith(start)), "")
    what = f"Column {column!r} is {shown}, and in the table {wanted.shown}: such values are not written there."
    return SchemaError(what, next_step=family or step)


_GROUP = 4
_BASE = 10_000
_NEGATIVE = 0x4000
_INT64_DIGITS = 18
_LIMBS = 5
"""The number of 32-bit limbs: 38 digits with up to three trailing zeros take 137 bits."""


def numeric(values: pa.Array) -> Fixed:
    """Returns each decimal as ``ndigits, weight, sign, dscale`` and digit groups. The result for a null is arbitrary.

    Leading zeros pad all rows of a column to the same width. The server strips them (``make_result`` in ``numeric.c``).
    """
    precision, scale = values.type.precision, values.type.scale
    behind = -(-scale // _GROUP)
    before = -(-(precision - scale) // _GROUP)
    zeros = behind * _GROUP - scale
    words = np.frombuffer(values.buffers()[1], "<u8", 2 * len(values), 16 * values.offset).reshape(-1, 2)
    negative = words[:, 1] >> np.uint64(63) != 0
    digits = _small if precision + zeros <= _INT64_DIGITS else _large
    groups = digits(words, negative, 10**zeros, before + behind)
    out = np.empty(
        len(values),
        np.dtype(
            [("count", ">i2"), ("weight", ">i2"), ("sign", ">u2"), ("scale", ">i2"), ("groups", ">i2", len(groups))]
        ),
    )
    out["count"] = len(groups)
    out["weight"] = before - 1
    out["sign"] = np.where(negative, _NEGATIVE, 0)
    out["scale"] = scale
    for index, group in enumerate(reversed(groups)):
        out["groups"][:, index] = group
    return out


def _small(words: Fixed, negative: Fixed, factor: int, groups: int) -> list[Fixed]:
    """Returns the digit groups, least significant first, of numbers that fit into 64 bits."""
    number = words[:, 0].view(np.int64)
    rest = np.where(negative, -number, number) * factor
    found = []
    for _ in range(groups):
        rest, group = np.divmod(rest, _BASE)
        found.append(group)
    return found


def _large(words: Fixed, negative: Fixed, factor: int, groups: int) -> list[Fixed]:
    limbs = _multiplied(_absolute(words, negative), factor)
    found = []
    for _ in range(groups):
        rest = np.zeros(len(words), np.uint64)
        for index in range(_LIMBS - 1, -1, -1):
            limbs[index], rest = np.divmod(rest << np.uint64(32) | limbs[index], np.uint64(_BASE))
        found.append(rest)
    return found


def _absolute(words: Fixed, negative: Fixed) -> list[Fixed]:
    """Returns the absolute values of 128-bit numbers as four 32-bit limbs, least significant first."""
    low = np.where(negative, ~words[:, 0] + np.uint64(1), words[:, 0])
    carry = (words[:, 0] == 0).astype(np.uint64)
    high = np.where(negative, ~words[:, 1] + carry, words[:, 1])
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    return [low & mask, low >> half, high & mask, high >> half]


def _multiplied(limbs: list[Fixed], factor: int) -> list[Fixed]:
    carry = np.zeros(len(limbs[0]), np.uint64)
    product = []
    for limb in limbs:
        whole = limb * np.uint64(factor) + carry
        product.append(whole & np.uint64(0xFFFFFFFF))
        carry = whole >> np.uint64(32)
    return [*product, carry]


_TEXT_OID, _TEXT_ARRAY_OID = 25, 1009
"""The oids of text and text[]."""

_LENGTH_BYTES = 4
_SHOWN = 80
_ABOUT_VALUES = ("22", "42", "XX")
"""The SQLSTATE classes of errors in a cast. Types in extensions have their own codes."""

_MORE_DIGITS = r"t ~ '\.\d{6}\d*[1-9]'"
_LOSSY = {
    "name": "CAST(v AS text) <> t",
    "char": "CAST(v AS text) <> t",
    "money": "CAST(v AS numeric) <> CAST(t AS numeric)",
    **dict.fromkeys(("time", "timetz", "tsrange", "tstzrange", "tsmultirange", "tstzmultirange"), _MORE_DIGITS),
}
"""The types that silently keep only part of a text, and the condition that detects it. All lengths are compared."""

_READ = """
SELECT coalesce(string_agg(pg_catalog.int4send(coalesce(octet_length(b), -1)), '' ORDER BY n), ''),
       coalesce(string_agg(b, '' ORDER BY n), ''),
       min(n) FILTER (WHERE is_changed)
FROM (
    SELECT n, {send}(v) AS b, CAST(CAST(v AS {shown}) AS text) <> CAST(v AS text) OR {lossy} AS is_changed
    FROM (SELECT n, t, {cast} AS v FROM unnest(%s) WITH ORDINALITY AS texts (t, n)) AS read
) AS sent
"""


class _Texts:
    """All texts of a column, as one PostgreSQL array in binary."""

    def __init__(self, values: pa.Array) -> None:
        whole = pa.ListArray.from_arrays([0, len(values)], values.cast(pa.binary()))
        self.data = bytes(row_bytes(join(array(whole, ragged, _TEXT_OID), 1))[0])[_LENGTH_BYTES:]


class _Dump(Dumper):
    format = Format.BINARY
    oid = _TEXT_ARRAY_OID

    def dump(self, obj: _Texts) -> Buffer:
        return obj.data


def read_texts(connection: Connection, column: str, wanted: ServerType, values: pa.Array) -> list[Part]:
    """Returns the binary lengths and bytes of a column's values, see `ReadText`.

    Raises `PrepareError` if the server cannot parse a text, or would not store it unchanged.
    """
    # money parses digits according to the locale.
    text = "CAST(t AS numeric)" if wanted.name == "money" else "t"
    query = sql.SQL(_READ).format(
        send=sql.SQL(wanted.send),
        shown=sql.SQL(wanted.shown),
        lossy=sql.SQL(_LOSSY.get(wanted.name, "false")),
        cast=sql.SQL(f"CAST({text} AS {wanted.base})"),
    )
    what = f"Column {column!r} ({wanted.shown})"
    cursor = connection.cursor(binary=True)
    cursor.adapters.register_dumper(_Texts, _Dump)
    try:
        lengths, data, changed = cursor.execute(query, [_Texts(values)]).fetchall()[0]
    except psycopg.Error as error:
        if not code_of(error).startswith(_ABOUT_VALUES):
            raise
        raise prepare_error(error, f"{what} has a string that the server does not accept") from None
    if changed is not None:
        problem = f"{what} has {values[changed - 1].as_py()[:_SHOWN]!r}, of which the server would keep only a part."
        raise PrepareError(problem, next_step="Correct such rows in the query, or widen the column.")
    sizes = np.frombuffer(lengths, ">i4")
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.maximum(sizes, 0), out=ends[1:])
    return [sizes, binaries(ends, memoryview(data))]
