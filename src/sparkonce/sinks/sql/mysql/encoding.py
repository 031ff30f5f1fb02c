"""Encodes rows as text, column by column in Arrow's own code, for LOAD DATA or for INSERT … VALUES."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.errors import PrepareError
from sparkonce.sinks._shared.arrow import all_finite, bytes_of, cut, halves, json_text, offsets_of, plain_text
from sparkonce.sinks.sql.mysql.catalog import MySQLColumn, kind_of

LARGEST_PIECE_BYTES = 128 * 1024 * 1024
"""Larger record batches are split in half, because an Arrow string array is limited to 2 GiB."""

_MICROSECONDS = pa.timestamp("us")
_FIRST_US, _AFTER_LAST_US = -62_135_596_800_000_000, 253_402_300_800_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_LOAD_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"))
_QUOTE_ESCAPES = (("\\", "\\\\"), ("'", "\\'"))
_WHOLE_IN_DOUBLE = 2**53
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), dtype=np.uint16)
_BARE = frozenset({"boolean", "integer"})
_FREE_TEXT = frozenset({"string", "nested"})


def load_text(rows: pa.RecordBatch, columns: Sequence[MySQLColumn]) -> Iterator[memoryview]:
    """Yields lines for LOAD DATA: tab-separated fields with backslash escapes, binaries in hexadecimal."""
    for piece in halves(rows, LARGEST_PIECE_BYTES):
        cells = _cells(piece, columns)
        fields = [_escape(texts, _LOAD_ESCAPES) if kind in _FREE_TEXT else texts for texts, kind in cells]
        # Appending the newline to each row's last field copies less data than any other way to end lines.
        fields[-1] = pc.binary_join_element_wise(fields[-1], "", "\n", **_nulls("\\N"))
        lines = pc.binary_join_element_wise(*fields, "\t", **_nulls("\\N")) if len(fields) > 1 else fields[0]
        yield bytes_of(lines)


def insert_values(rows: pa.RecordBatch, columns: Sequence[MySQLColumn], most_bytes: int) -> Iterator[memoryview]:
    """Yields tuples for ``INSERT … VALUES``, separated by commas, in pieces of at most this many bytes.

    A larger row becomes a separate piece. The server rejects it with an error that names max_allowed_packet.
    """
    for piece in halves(rows, LARGEST_PIECE_BYTES):
        fields = [_for_insert(texts, kind) for texts, kind in _cells(piece, columns)]
        fields[0] = pc.binary_join_element_wise("(", fields[0], "", **_nulls("NULL"))
        fields[-1] = pc.binary_join_element_wise(fields[-1], "),", "", **_nulls("NULL"))
        tuples = pc.binary_join_element_wise(*fields, ",", **_nulls("NULL")) if len(fields) > 1 else fields[0]
        yield from cut(tuples, most_bytes, without_last=1)


def column_list(columns: Sequence[MySQLColumn], kinds: Sequence[str], quoted: Sequence[str]) -> str:
    """Returns the end of a LOAD DATA statement: its columns, and expressions that convert some of them."""
    targets, made = [], []
    for index, (column, kind, name) in enumerate(zip(columns, kinds, quoted, strict=True)):
        if kind == "binary":
            made.append(f"{name} = UNHEX(@sparkonce_{index})")
        elif column.type == "bit":
            made.append(f"{name} = CAST(@sparkonce_{index} AS UNSIGNED)")
        else:
            targets.append(name)
            continue
        targets.append(f"@sparkonce_{index}")
    return f"({', '.join(targets)})" + (f" SET {', '.join(made)}" if made else "")


def _cells(rows: pa.RecordBatch, columns: Sequence[MySQLColumn]) -> Iterator[tuple[pa.Array, str]]:
    """Yields each column as text, without escapes and with nulls, and its kind."""
    # Format floats as doubles: parsed as a double, the shortest text of a float is a different number, and for the
    # largest floats it exceeds the server's FLOAT. Write times without a zone: Arrow stores UTC, the session's time
    # zone.
    plain = {"boolean": pa.int8(), "float": pa.float64(), "timestamp": _MICROSECONDS}
    for values, column in zip(rows.columns, columns, strict=True):
        kind = kind_of(values.type)
        check(values, column, kind)
        if kind == "binary":
            yield _hexadecimal(values), kind
        elif kind == "nested":
            yield nested_text(values, column.name), kind
        else:
            values = values.cast(plain.get(kind, values.type))
            yield plain_text(values, column.name).cast(pa.string()), kind


def _for_insert(cells: pa.Array, kind: str) -> pa.Array:
    if kind in _BARE:
        return cells
    if kind in _FREE_TEXT:
        cells = _escape(cells, _QUOTE_ESCAPES)
    # Quote numbers, too: an unquoted 1E-10 would become a DOUBLE before it becomes a DECIMAL.
    return pc.binary_join_element_wise("X'" if kind == "binary" else "'", cells, "'", "")


def _escape(texts: pa.Array, escapes: Sequence[tuple[str, str]]) -> pa.Array:
    for plain, escape in escapes:
        if plain.encode() in bytes(bytes_of(texts)):  # search all values in one call, which is much faster
            texts = pc.replace_substring(texts, pattern=plain, replacement=escape)
    return texts


def nested_text(values: pa.Array, name: str) -> pa.Array:
    """Returns arrays and structs as JSON; null stays null. Rejects what JSON does not support."""
    if not all_finite(values):
        what = f"Column {name!r} contains an array or a struct with NaN or an infinity, and JSON has no such numbers."
        raise PrepareError(what, next_step="Filter or replace them in the query.")
    return json_text(values, name).cast(pa.string())


def _hexadecimal(values: pa.Array) -> pa.Array:
    values = pc.cast(values, pa.large_binary())
    if not len(values):
        return pa.array([], pa.string())
    offsets, plain = offsets_of(values), np.frombuffer(bytes_of(values), dtype=np.uint8)
    digits = pa.LargeStringArray.from_buffers(
        len(values), pa.py_buffer((offsets - offsets[0]) * 2), pa.py_buffer(_HEX[plain])
    )
    texts = pc.cast(digits, pa.string())
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.string())) if values.null_count else texts


def _nulls(text: str) -> dict[str, str]:
    return {"null_handling": "replace", "null_replacement": text}


# --- values that the server would silently change -------------------------------------------------------------------


def check(values: pa.Array, column: MySQLColumn, kind: str) -> None:
    """Raises `PrepareError` if the server would silently change a value."""
    if values.null_count and not column.nullable:
        raise _refused(column, "they contain NULL, and the column is NOT NULL")
    if kind == "timestamp":
        _check_times(values, column)
    elif kind == "date" and not _within(pc.cast(values, pa.int32()), _FIRST_DAY, _LAST_DAY):
        raise _refused(column, "they contain a date before year 1 or after year 9999")
    elif kind in {"float", "double"} and pc.any(pc.invert(pc.is_finite(values))).as_py():
        raise _refused(column, "they contain NaN or an infinity, and the server has no such numbers")
    elif kind == "string":
        _check_texts(values, column)
    elif kind == "integer" and column.type == "double" and not _within(values, -_WHOLE_IN_DOUBLE, _WHOLE_IN_DOUBLE):
        raise _refused(column, "they contain an integer beyond 2^53, which a double would round")
    elif kind == "integer" and column.type == "bit" and not _within(values, 0, None):
        raise _refused(column, "they contain a negative number, and the column is a BIT")


def _check_times(values: pa.Array, column: MySQLColumn) -> None:
    try:
        numbers = pc.cast(pc.cast(values, _MICROSECONDS), pa.int64())
    except pa.ArrowInvalid:
        raise _refused(column, "they contain a time with nanoseconds") from None
    if not _within(numbers, _FIRST_US, _AFTER_LAST_US - 1):
        raise _refused(column, "they contain a time before year 1 or after year 9999")
    unit = 10 ** (6 - column.fraction_digits)
    if unit > 1 and pc.any(pc.not_equal(pc.multiply(pc.divide(numbers, unit), unit), numbers)).as_py():
        raise _refused(
            column,
            f"they contain a time that the column's {column.fraction_digits} digits of a second would round",
            f"use date_trunc in the DataFrame, or {column.type}(6) in the table.",
        )


def _check_texts(values: pa.Array, column: MySQLColumn) -> None:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        raise _refused(column, "they contain bytes that are not UTF-8", "write them to a binary column.") from None
    if column.type == "enum":
        choices = pa.array(column.choices, values.type)
        if not pc.all(pc.or_(pc.is_in(values, value_set=choices), pc.is_null(values))).as_py():
            raise _refused(column, f"they contain a value outside the ENUM {column.choices}")
    else:
        _check_form(values, column)


def _check_form(values: pa.Array, column: MySQLColumn) -> None:
    """Rejects a string that the server would read as a different one."""
    texts = values
    match column.type:
        case "time":
            hours, digits = r"(\d\d|[0-7]\d\d|8[0-2]\d|83[0-8])", column.fraction_digits
            form = rf"-?{hours}:[0-5]\d:[0-5]\d(\.\d{{0,{digits}}}0*)?"
            step = f"write HH:MM:SS, with {digits} digits of a second at most."
        case "year":
            form = r"0000|19(0[1-9]|[1-9]\d)|20\d\d|21([0-4]\d|5[0-5])"
            step = "write four digits: 0000, or 1901 to 2155."
        case "set":
            # The server would reorder the members of a SET, and would read a number as a bit mask.
            texts = pc.binary_join_element_wise("", values, ",")
            form = ",|" + "".join(f"(,{re.escape(one)})?" for one in column.choices)
            step = "write the members in the order of the SET, with commas between."
        case _:
            return
    wrong = values.filter(pc.invert(pc.match_substring_regex(texts, f"^({form})$")))
    if len(wrong):
        raise _refused(column, f"they contain {wrong[0].as_py()!r}", step)


def _within(values: pa.Array, least: int | None, most: int | None) -> bool:
    found = pc.min_max(values).as_py()
    if found["min"] is None:
        return True
    return (least is None or found["min"] >= least) and (most is None or found["max"] <= most)


def _refused(column: MySQLColumn, why: str, next_step: str = "correct the rows, or the table.") -> PrepareError:
    what = f"Column {column.name!r} ({column.full_type}) cannot take the rows: {why}."
    return PrepareError(what, next_step=next_step)
