"""The encoder for each pair of Spark's and PostgreSQL's types. An unlisted pair is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.errors import PrepareError, SchemaError
from sparkonce.sinks.postgres.encode import Encode, Fixed, Part, array, fixed, integers, null_mask, ragged, row_bytes
from sparkonce.sinks.postgres.numeric import numeric

_DAYS_TO_2000 = 10_957
_US_TO_2000 = _DAYS_TO_2000 * 86_400_000_000

_VARCHAR_HEADER = 4
"""A varchar's ``atttypmod`` counts characters and the header of a value (``varchar.c``)."""

_FIRST_DAY, _END_DAY = -2_451_545, 2_145_031_949
_FIRST_US, _END_US = -211_813_488_000_000_000, 9_223_371_331_200_000_000
"""PostgreSQL's dates and timestamps begin in 4713 BC and end in the years 5874897 and 294276 (its ``timestamp.h``)."""


_ALL_FIELDS, _HOUR, _MINUTE, _SECOND = 0x7FFF, 1 << 10, 1 << 11, 1 << 12
"""The fields in an interval's ``atttypmod``, above its digits of a second (PostgreSQL's ``timestamp.h``)."""

_INTEGERS: Mapping[str, tuple[str, pa.DataType]] = {
    "int2": (">i2", pa.int16()),
    "int4": (">i4", pa.int32()),
    "int8": (">i8", pa.int64()),
}
_FLOATS: Mapping[str, tuple[str, pa.DataType]] = {
    "float4": (">f4", pa.float32()),
    "float8": (">f8", pa.float64()),
}
_SPARK_NAMES: Mapping[str, str] = {
    "bool": "boolean",
    "int8": "byte",
    "int16": "short",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
    "timestamp[us]": "timestamp_ntz",
    "duration[us]": "day-time interval",
}
_HINTS: Mapping[str, str] = {
    "struct": "Turn it into a string (to_json) and the column into jsonb, or drop it.",
    "map": "Turn it into a string (to_json) and the column into jsonb, or drop it.",
    "list": "Make the column an array of that type, or the value a string (to_json) and the column jsonb.",
    "timestamp": "Cast it in the query: timestamp goes into timestamptz, and timestamp_ntz into timestamp.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerType:
    """A column's type as the catalog has it.

    Attributes:
        shown: As ``format_type`` writes it.
        name: ``typname`` of the type, or of the one that a domain stands for; ``enum`` for all enums.
        modifier: ``atttypmod``, -1 for none.
        element: An array's elements.
        element_oid: Their type's number, that of the domain if it is one.
        base: The type in SQL, without domain, length and precision.
        send: The function that gives its values in binary, in SQL; empty if there is none.
    """

    shown: str
    name: str
    modifier: int = -1
    element: ServerType | None = None
    element_oid: int = 0
    base: str = ""
    send: str = ""


ReadText = Callable[[str, ServerType, pa.Array], list[Part]]
"""Has the server read the texts of a column, given by its name and type. Returns their lengths and bytes in binary."""


def _unread(*_: object) -> list[Part]:
    raise NotImplementedError


def encoder(column: str, given: pa.DataType, wanted: ServerType, read: ReadText = _unread) -> Encode:
    """Returns the encoder of a column.

    Args:
        column: Its name.
        given: The type of its values.
        wanted: Its type in the table.
        read: See `ReadText`. Without it the encoder takes no texts that the server has to read.

    Raises:
        SchemaError: if the type does not go into the column, or only with a loss.
    """
    if isinstance(given, pa.ListType | pa.LargeListType) and wanted.element is not None:
        element = encoder(column, given.value_type, wanted.element, read)
        return partial(array, element=element, element_oid=wanted.element_oid)
    made = partial(read, column, wanted) if is_text_read(given, wanted) else _encoder(column, given, wanted)
    if made is None:
        raise _refused(column, given, wanted)
    return made


def is_text_read(given: pa.DataType, wanted: ServerType) -> bool:
    """Returns True if the server reads the values from text, since no type of Spark's is like the column's."""
    if isinstance(given, pa.ListType | pa.LargeListType) and wanted.element is not None:
        return is_text_read(given.value_type, wanted.element)
    is_text = pa.types.is_string(given) or pa.types.is_large_string(given)
    return is_text and wanted.element is None and bool(wanted.send) and wanted.name not in _WRITTEN


def _encoder(column: str, given: pa.DataType, wanted: ServerType) -> Encode | None:
    name = wanted.name
    if pa.types.is_boolean(given):
        return _booleans if name == "bool" else None
    if pa.types.is_signed_integer(given):
        return _integer(column, given, wanted)
    if pa.types.is_floating(given):
        fits = name == "float8" or (name == "float4" and given.bit_width == 32)
        return partial(_numbers, dtype=_FLOATS[name][0], arrow=_FLOATS[name][1]) if fits else None
    if pa.types.is_decimal128(given):
        return _decimals if name == "numeric" and _keeps_scale(column, given, wanted) else None
    if pa.types.is_string(given) or pa.types.is_large_string(given):
        if name == "varchar" and wanted.modifier >= 0:
            return partial(_bounded, column=column, most=wanted.modifier - _VARCHAR_HEADER)
        return partial(_uuids, column=column) if name == "uuid" else _TEXTS.get(name)
    if pa.types.is_binary(given) or pa.types.is_large_binary(given):
        return _bytes if name == "bytea" else None
    if pa.types.is_date32(given):
        return partial(_dates, column=column) if name == "date" else None
    if pa.types.is_timestamp(given):
        fits = name == ("timestamp" if given.tz is None else "timestamptz")
        unit_us = 10 ** (6 - min(wanted.modifier, 6)) if wanted.modifier >= 0 else 1
        return partial(_timestamps, column=column, unit_us=unit_us, shown=wanted.shown) if fits else None
    if pa.types.is_duration(given) and name == "interval":
        return partial(_durations, column=column, unit_us=_interval_unit_us(column, wanted), shown=wanted.shown)
    return None


def _integer(column: str, given: pa.DataType, wanted: ServerType) -> Encode | None:
    name = wanted.name
    if name == "numeric":
        if wanted.modifier >= 0 and _scale(wanted) < 0:
            raise SchemaError(
                f"Column {column!r} is {_SPARK_NAMES[str(given)]}, and {wanted.shown} would round it.",
                next_step="Give the column a scale of 0 or more.",
            )
        return lambda values: _decimals(values.cast(pa.decimal128(19, 0)))
    if name not in _INTEGERS:
        return None
    dtype, arrow = _INTEGERS[name]
    return partial(_numbers, dtype=dtype, arrow=arrow) if given.bit_width <= arrow.bit_width else None


def _keeps_scale(column: str, given: pa.DataType, wanted: ServerType) -> bool:
    if wanted.modifier < 0:
        return True
    precision, scale = (wanted.modifier - 4) >> 16 & 0xFFFF, _scale(wanted)
    if scale < given.scale:
        raise SchemaError(
            f"Column {column!r} is decimal({given.precision},{given.scale}), and {wanted.shown} would round it.",
            next_step=f"Cast it to decimal({min(precision, 38)},{max(scale, 0)}) in the query, or widen the column.",
        )
    return True


def _scale(wanted: ServerType) -> int:
    return ((wanted.modifier - 4) & 0x7FF ^ 1024) - 1024


def _booleans(values: pa.Array) -> list[Part]:
    return fixed(integers(values, "u1", pa.int8()), null_mask(values))


def _numbers(values: pa.Array, dtype: str, arrow: pa.DataType) -> list[Part]:
    return fixed(integers(values, dtype, arrow), null_mask(values))


def _decimals(values: pa.Array) -> list[Part]:
    return fixed(numeric(values), null_mask(values))


def _bytes(values: pa.Array, lead: bytes = b"") -> list[Part]:
    return ragged(values.cast(pa.binary()), lead)


def _bounded(values: pa.Array, column: str, most: int) -> list[Part]:
    # The server refuses what is too long, but silently cuts spaces off (its manual, "Character Types").
    long = values.filter(pc.greater(pc.utf8_length(values), most))
    if len(long) and pc.any(pc.less_equal(pc.utf8_length(pc.ascii_rtrim(long, " ")), most)).as_py():
        raise PrepareError(
            f"Column {column!r} has a text with spaces at its end that varchar({most}) would cut off.",
            next_step="Use rtrim in the query, or widen the column.",
        )
    return _bytes(values)


def _uuids(values: pa.Array, column: str) -> list[Part]:
    """Makes 16 bytes of each text; one that is no UUID is refused."""
    bare = pc.replace_substring_regex(values, r"^\{?([^{}]*)\}?$", r"\1")
    plain = pc.ascii_lower(pc.replace_substring(bare, "-", ""))
    wrong = pc.filter(values, pc.invert(pc.match_substring_regex(plain, "^[0-9a-f]{32}$")))
    if len(wrong):
        raise PrepareError(
            f"Column {column!r} has a text that is no UUID.", next_step="Correct it, or make the column text."
        )
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


def _interval_unit_us(column: str, wanted: ServerType) -> int:
    """Returns the smallest part of an interval that the column keeps: ``interval hour to minute`` has no seconds."""
    if wanted.modifier < 0:
        return 1
    fields, digits = wanted.modifier >> 16 & _ALL_FIELDS, wanted.modifier & 0xFFFF
    if fields & _SECOND:
        return int(10 ** (6 - min(digits, 6)))
    for bit, unit_us in ((_MINUTE, 60_000_000), (_HOUR, 3_600_000_000)):
        if fields & bit:
            return unit_us
    raise SchemaError(
        f"Column {column!r} is day-time interval, which is written as hours and less, and {wanted.shown} keeps none of "
        "them.",
        next_step="Make the column interval, or cast the value to a whole number in the query.",
    )


def _durations(values: pa.Array, column: str, unit_us: int, shown: str) -> list[Part]:
    # Microseconds alone: a day of Spark's interval has 24 hours, a day of PostgreSQL's what the calendar says.
    out = np.zeros(len(values), np.dtype([("us", ">i8"), ("days", ">i4"), ("months", ">i4")]))
    out["us"] = integers(values.cast(pa.duration("us")), "i8", pa.int64())
    _check_unit(out["us"], unit_us, column, shown)
    return fixed(out, null_mask(values))


def _check_unit(values_us: Fixed, unit_us: int, column: str, shown: str) -> None:
    """Refuses what the server would round or cut off. A null counts as 0."""
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


_WRITTEN = frozenset({*_INTEGERS, *_FLOATS, *_TEXTS, "bool", "numeric", "uuid", "bytea", "date", "interval"}) | {
    "timestamp",
    "timestamptz",
}
"""The types to which the encoders here write."""


def _refused(column: str, given: pa.DataType, wanted: ServerType) -> SchemaError:
    shown = str(given)
    spark = _SPARK_NAMES.get(shown, "timestamp" if shown.startswith("timestamp[") else shown)
    if wanted.send and wanted.element is None and wanted.name not in _WRITTEN:
        step = f"Cast it to string in the query: the server reads {wanted.shown} from text."
    else:
        step = "Cast it in the query to a type that fits without a loss, see docs/postgres.md."
    family = next((hint for start, hint in _HINTS.items() if shown.removeprefix("large_").startswith(start)), "")
    return SchemaError(
        f"Column {column!r} is {spark}, and in the table {wanted.shown}: such values are not written there.",
        next_step=family or step,
    )
